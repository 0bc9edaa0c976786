//! The credential exchange: converts a token to a cluster credential, or returns "authentication
//! failed". The module `issue` selects and issues the credential.
//!
//! The reason of a failed login is written to the audit log, but never returned, because the client
//! is not authenticated.

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pinniped_apiserver::refusal::TOO_MANY_REQUESTS;
use pinniped_concierge_api::login::{
    TokenCredentialRequestSpec, TokenCredentialRequestStatus, TypedLocalObjectReference,
};
use pinniped_concierge_api::names::GROUP_AUTHENTICATION;
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry, TokenAuthenticator};
use pinniped_delegated_auth::client_key::{ClientKey, Level};
use pinniped_fair_semaphore::{FairSemaphore, Permit};
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_logging::truncate::truncated;
use pinniped_secret::token::Token;
use serde::Serialize;
use tokio::sync::watch;

use crate::audit::{Auditor, Event};
use crate::client_cert_issuer::ClientCertIssuer;
use crate::token_issuer::TokenIssuer;

mod issue;
mod metrics;

pub use metrics::LoginMetrics;
use metrics::{LoginResult, Strategy};

/// The message for the client, for all failures.
const FAILED: &str = "authentication failed";

/// The dependencies of an exchange.
#[derive(Clone)]
pub struct Exchange {
    /// The authenticators that are ready.
    pub registry: Registry,
    /// The issuers, in the order in which they are tried.
    pub issuers: Vec<Arc<dyn ClientCertIssuer>>,
    /// The issuer of service account tokens, for clients that request one.
    pub tokens: Arc<dyn TokenIssuer>,
    /// Suffix of this installation's API groups.
    pub suffix: GroupSuffix,
    /// The lifetime of issued certificates, which may change.
    pub credential_lifetime: watch::Receiver<Duration>,
    /// The destination of audit events.
    pub audit: Auditor,
    /// The start time of this process, which is part of the group name that replaces a foreign one.
    pub started: Timestamp,
    /// Permits of logins, shared between authenticators, and for each of them between clients:
    /// [`Exchange::logins`].
    pub logins: FairSemaphore,
    /// The metrics of logins.
    pub metrics: LoginMetrics,
}

/// Maximum number of concurrent logins. All logins through the API server are anonymous, and
/// anonymous clients get 150 of the 200 permits for writes. One authenticator gets 96 of these, so
/// a slow webhook leaves permits of both kinds for logins of other authenticators. One client gets
/// 72 of these 96, so it leaves permits for other clients of a slow webhook.
const LOGINS_IN_FLIGHT: usize = 128;

/// A level of the key to which the permit of a login is charged.
#[derive(Clone, Copy, Debug, Hash)]
enum LoginLevel<'a> {
    Authenticator(&'a AuthenticatorKey),
    Client(Level<'a>),
}

/// The authenticator of a request, as audit events contain it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditedAuthenticator<'a> {
    api_group: Cow<'a, str>,
    kind: Cow<'a, str>,
    name: Cow<'a, str>,
}

impl Exchange {
    /// Returns the permits of all logins of a server.
    pub fn logins() -> FairSemaphore {
        FairSemaphore::new(LOGINS_IN_FLIGHT, 0)
    }

    /// Exchanges the token of a request of `client` that passed validation.
    ///
    /// # Errors
    ///
    /// 429 when the permits that the client may hold for this authenticator are in use, or when the
    /// issuer of the credential is busy.
    pub async fn run(
        &self,
        request: TokenCredentialRequestSpec,
        client: &ClientKey<'_>,
        audit_id: &str,
        now: Timestamp,
    ) -> Result<TokenCredentialRequestStatus, Box<Status>> {
        let key = self.key(&request.authenticator);
        let found = key.and_then(|key| self.registry.get(&key).map(|authenticator| (key, authenticator)));
        let mut login = self.metrics.begin(found.as_ref().map(|(key, _)| key));
        let exchanged = self.run_with(found.as_ref(), request, client, audit_id, now).await;
        login.result = match &exchanged {
            Ok((_, result, strategy)) => (*result, *strategy),
            Err(_) => (LoginResult::Overloaded, Strategy::None),
        };
        exchanged.map(|(status, ..)| status)
    }

    async fn run_with(
        &self,
        found: Option<&(AuthenticatorKey, Arc<dyn TokenAuthenticator>)>,
        request: TokenCredentialRequestSpec,
        client: &ClientKey<'_>,
        audit_id: &str,
        now: Timestamp,
    ) -> Result<(TokenCredentialRequestStatus, LoginResult, Strategy), Box<Status>> {
        let _permit = match found {
            Some((key, _)) => Some(self.permit(key, client).ok_or_else(too_many_requests)?),
            // An unknown authenticator fails without waiting, so it needs no permit.
            None => None,
        };
        let token = request.token.map(Token::from).unwrap_or_default();
        self.audit
            .event("TokenCredentialRequest Token Received", audit_id, now)
            .field("tokenID", &token.sha256_hex())
            .emit();

        let group = self.audited_group(&request.authenticator);
        let authenticator = AuditedAuthenticator {
            api_group: truncated(&group),
            kind: truncated(&request.authenticator.kind),
            name: truncated(&request.authenticator.name),
        };
        let authenticated = match found {
            Some((_, authenticator)) => authenticator
                .authenticate(&token)
                .await
                .map_err(|error| (error.to_string(), LoginResult::of_error(&error))),
            None => Err(("no such authenticator".to_owned(), LoginResult::NoAuthenticator)),
        };
        Ok(match authenticated {
            Err((error, result)) => {
                let event = self.audit.event("TokenCredentialRequest Unexpected Error", audit_id, now);
                let status = failed(event, "authenticator returned an error", Some(&error), &authenticator);
                (status, result, Strategy::None)
            }
            Ok(None) => {
                let event = self.audit.event("TokenCredentialRequest Authentication Failed", audit_id, now);
                let status = failed(event, "auth rejected by authenticator", None, &authenticator);
                (status, LoginResult::Rejected, Strategy::None)
            }
            Ok(Some(user)) => {
                let accepted = &request.accept_credential_types;
                let (status, strategy) = self.issue(user, accepted, &authenticator, audit_id, now).await?;
                let result = match status.credential {
                    Some(_) => LoginResult::Issued,
                    None => LoginResult::IssuerFailed,
                };
                (status, result, strategy)
            }
        })
    }

    /// Returns a permit for a login of this client, if it may hold one more for the authenticator.
    fn permit(&self, authenticator: &AuthenticatorKey, client: &ClientKey<'_>) -> Option<Permit> {
        let authenticator = LoginLevel::Authenticator(authenticator);
        // Nearly all logins are anonymous, so the level of all anonymous clients separates nothing.
        let client = client.levels().iter().filter(|level| **level != Level::Anonymous).copied();
        let levels: Vec<_> = iter::once(authenticator).chain(client.map(LoginLevel::Client)).collect();
        self.logins.try_acquire(&levels)
    }

    /// Returns the registry key of the authenticator. `None` when the reference cannot be one of
    /// this installation.
    fn key(&self, reference: &TypedLocalObjectReference) -> Option<AuthenticatorKey> {
        let group = reference.api_group.as_deref()?;
        // With a custom suffix, the default group is as foreign as any other.
        (self.suffix.is_default() || self.suffix.unreplace(group).is_some()).then(|| AuthenticatorKey {
            api_group: group.to_owned(),
            kind: reference.kind.clone(),
            name: reference.name.clone(),
        })
    }

    /// Returns the group for audit events: the one with the default suffix, or a marker for a group
    /// of another installation.
    fn audited_group(&self, reference: &TypedLocalObjectReference) -> String {
        let given = reference.api_group.as_deref();
        match given.and_then(|group| self.suffix.unreplace(group)) {
            Some(plain) => plain,
            None if self.suffix.is_default() => given.unwrap_or_default().to_owned(),
            None => format!("_INVALID_API_GROUP_{}", self.started),
        }
    }
}

fn too_many_requests() -> Box<Status> {
    Box::new(Status::too_many_requests(TOO_MANY_REQUESTS, 1))
}

/// Returns the group of authenticators in an installation, for callers that build references.
pub fn authenticator_group(suffix: &GroupSuffix) -> String {
    suffix.replace(GROUP_AUTHENTICATION)
}

fn failed(
    event: Event<'_>,
    reason: &str,
    error: Option<&str>,
    authenticator: &AuditedAuthenticator<'_>,
) -> TokenCredentialRequestStatus {
    let mut event = event.field("reason", reason);
    if let Some(error) = error {
        event = event.text("err", error);
    }
    event.field("authenticator", authenticator).emit();
    TokenCredentialRequestStatus {
        message: Some(FAILED.to_owned()),
        ..TokenCredentialRequestStatus::default()
    }
}

#[cfg(test)]
mod tests;
