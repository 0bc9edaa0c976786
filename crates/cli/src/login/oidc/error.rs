//! The reasons why there is no ID token. Each part of the login has errors of its own; here are
//! those of the login itself. The texts are those of upstream.

use pinniped_go_compat::json::quote;

use super::audience::AudienceError;
use super::browser_flow::BrowserFlowError;
use super::device_flow::DeviceFlowError;
use super::password_flow::PasswordFlowError;
use super::provider::ProviderError;
use super::tokens::TokensError;
use super::{BROWSER_AUTHCODE, CLI_PASSWORD};

/// There is no ID token.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// There are no random numbers.
    #[error("the system's random number generator failed")]
    Random,
    /// The requested flow of an identity provider is unknown.
    #[error(
        "WithLoginFlow error: loginFlow '{flow}' from '{source_name}' must be '{CLI_PASSWORD}' or '{BROWSER_AUTHCODE}'"
    )]
    UpstreamFlow {
        /// The flow.
        flow: String,
        /// The flag or environment variable.
        source_name: &'static str,
    },
    /// The issuer cannot be used.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// An identity provider was requested, and the issuer is not a Supervisor.
    #[error(
        "upstream identity provider name {} was specified, but OIDC issuer {} does not offer Pinniped-style IDP \
         discovery, so it does not appear to be a Pinniped Supervisor; specifying an upstream identity provider name \
         is only meant to be used with Pinniped Supervisors",
        quote(.name), quote(.issuer)
    )]
    NoSupervisor {
        /// The name of the identity provider.
        name: String,
        /// The issuer.
        issuer: String,
    },
    /// The Supervisor does not know the type of the identity provider.
    #[error(
        "unable to find upstream identity provider with type {}, this Pinniped Supervisor supports IDP types [{supported}]",
        quote(.type_)
    )]
    UpstreamType {
        /// The type.
        type_: String,
        /// The known types.
        supported: String,
    },
    /// The Supervisor does not have the identity provider.
    #[error(
        "unable to find upstream identity provider with name {} and type {}{}. Found these providers: {found}",
        quote(.name), quote(.type_), and_flow(.flow)
    )]
    UpstreamProvider {
        /// The name.
        name: String,
        /// The type.
        type_: String,
        /// The requested flow; may be empty.
        flow: String,
        /// The identity providers as JSON.
        found: String,
    },
    /// The identity provider has no flow.
    #[error(
        "unable to infer flow for upstream identity provider with name {} and type {} because there were no flows \
         discovered for that provider",
        quote(.name), quote(.type_)
    )]
    NoUpstreamFlow {
        /// The name.
        name: String,
        /// The type.
        type_: String,
    },
    /// A refreshed token is not valid.
    #[error(transparent)]
    Refreshed(#[from] TokensError),
    /// The browser brought no tokens.
    #[error(transparent)]
    Browser(#[from] BrowserFlowError),
    /// The password brought no tokens.
    #[error(transparent)]
    Password(#[from] PasswordFlowError),
    /// No device brought tokens.
    #[error(transparent)]
    Device(#[from] DeviceFlowError),
    /// There is no token for the audience.
    #[error("failed to exchange token")]
    Audience(#[from] AudienceError),
    /// The user did not log in in time.
    #[error("timed out waiting for token callback: context deadline exceeded")]
    Timeout,
    /// The login of another process, for which this one waited, failed with this text.
    #[error("{0} (this is the result of another process, which logged in for this one, too)")]
    Shared(String),
    /// The login for an earlier call of the same command failed with this text.
    #[error("{0} (this command has already begun a login: run it again to start over)")]
    Repeated(String),
    /// Only the user could continue.
    #[error("the session has ended: log in again")]
    NeedsUser,
}

fn and_flow(flow: &str) -> String {
    if flow.is_empty() { String::new() } else { format!(" and flow {}", quote(flow)) }
}
