//! Decides the conditions of a `WebhookAuthenticator` in two steps, before and after the network
//! requests.

use pinniped_concierge_api::authentication::{WebhookAuthenticator, WebhookAuthenticatorSpec};
use pinniped_concierge_domain::authenticator_status::{
    AUTHENTICATOR_VALID, AuthenticatorConditions, INITIALIZED, unable_to_validate,
};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_types::condition::DesiredCondition;
use pinniped_pki::tls::Roots;
use url::Url;

use super::endpoint;
use crate::authenticators::plan::{Entry, Plan};
use crate::authenticators::tls_source::{self, CaObjects};

const CONNECTION_VALID: &str = "WebhookConnectionValid";

const DIALED: &str = "successfully dialed webhook server";
const PROXIED: &str =
    "skipped dialing connection probe because HTTPS_PROXY is configured for use with the specified host";

/// All inputs of the decision.
pub(super) struct Observed<'a, O> {
    pub(super) spec: &'a WebhookAuthenticatorSpec,
    pub(super) ca_objects: &'a O,
    pub(super) proxies: &'a ProxyEnvironment,
    /// Fingerprint of the registry's entry.
    pub(super) ready: Option<String>,
}

/// The result of the checks without network requests.
#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) conditions: Vec<DesiredCondition>,
    pub(super) next: Next,
    is_proxied: bool,
}

/// The action that the rest of the decision requires.
#[derive(Debug)]
pub(super) enum Next {
    /// None: the authenticator cannot be used.
    Invalid,
    /// None: the registry has an authenticator with the same inputs.
    Unchanged,
    /// Dial, unless a proxy is configured for the endpoint, and build a client.
    Validate { url: Url, roots: Roots, is_proxied: bool, fingerprint: String },
}

/// The result of the network requests.
pub(super) enum Validation<C> {
    /// No request was made.
    Skipped,
    /// The requests were made.
    Done {
        /// The result of the probe.
        dialed: Result<(), WebhookFailure>,
        /// The client, or the reason why it could not be built.
        client: Result<C, WebhookFailure>,
    },
}

/// Transient failures, which are retried. The texts are upstream's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebhookFailure {
    /// The endpoint could not be dialed.
    #[error("cannot dial server: {0}")]
    Dial(#[source] StatusText),
    /// The client could not be built.
    #[error("unable to instantiate webhook: {0}")]
    Client(#[source] StatusText),
}

/// Runs the checks without network requests, which are cheap enough for every pass.
pub(super) fn inspect(observed: &Observed<'_, impl CaObjects>) -> Inspection {
    let (tls_condition, trusted) = tls_source::resolve(observed.spec.tls.as_ref(), observed.ca_objects);
    let (endpoint_condition, endpoint) = endpoint::check(&observed.spec.endpoint, observed.proxies);
    let is_proxied = endpoint.as_ref().is_some_and(|endpoint| endpoint.is_proxied);
    let next = match (trusted, endpoint) {
        (Some(trusted), Some(endpoint)) => {
            let fingerprint = format!("{} {}", observed.spec.endpoint, trusted.fingerprint);
            if observed.ready.as_ref() == Some(&fingerprint) {
                Next::Unchanged
            } else {
                Next::Validate { url: endpoint.url, roots: trusted.roots, is_proxied, fingerprint }
            }
        }
        _ => Next::Invalid,
    };
    Inspection { conditions: vec![tls_condition, endpoint_condition], next, is_proxied }
}

/// Combines the results into a plan.
pub(super) fn conclude<C>(inspection: Inspection, validation: Validation<C>) -> Plan<C, WebhookFailure> {
    let Inspection { mut conditions, next, is_proxied } = inspection;
    let connected = || DesiredCondition::success(CONNECTION_VALID, if is_proxied { PROXIED } else { DIALED });
    let initialized = || DesiredCondition::success(AUTHENTICATOR_VALID, INITIALIZED);
    let mut failure = None;
    let entry = match (next, validation) {
        (Next::Unchanged, _) => {
            conditions.extend([connected(), initialized()]);
            Entry::Keep
        }
        (Next::Validate { fingerprint, .. }, Validation::Done { dialed: Ok(()), client }) => {
            conditions.push(connected());
            match client {
                Ok(client) => {
                    conditions.push(initialized());
                    Entry::Insert { authenticator: client, fingerprint }
                }
                Err(error) => {
                    let message = error.to_string();
                    conditions.push(DesiredCondition::failure(
                        AUTHENTICATOR_VALID,
                        "UnableToInstantiateWebhook",
                        message,
                    ));
                    failure = Some(error);
                    Entry::Remove
                }
            }
        }
        (Next::Validate { .. }, Validation::Done { dialed: Err(error), .. }) => {
            conditions.push(DesiredCondition::failure(
                CONNECTION_VALID,
                "UnableToDialServer",
                error.to_string(),
            ));
            conditions.push(unable_to_validate(AUTHENTICATOR_VALID));
            failure = Some(error);
            Entry::Remove
        }
        (Next::Invalid | Next::Validate { .. }, _) => {
            conditions
                .extend([unable_to_validate(CONNECTION_VALID), unable_to_validate(AUTHENTICATOR_VALID)]);
            Entry::Remove
        }
    };
    let conditions = AuthenticatorConditions::summarize(conditions, WebhookAuthenticator::KIND);
    Plan { conditions, entry, error: failure }
}
