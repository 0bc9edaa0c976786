//! Authorization by the API server, in the wording of the API server. Every reason ends with the
//! name of this proxy.

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::cluster::{Authorizer, Decision, ReviewError};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::KnownUser;

use super::refusal::Refusal;

/// The suffix of every reason that this proxy returns, so that users can find the component that
/// decided.
const DECIDED_BY: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

/// A review that did not allow the request.
#[derive(Debug)]
pub(super) enum Denial {
    /// Denied, with the reason.
    No(String),
    /// The review failed.
    Failed(String),
    /// Too many reviews are in flight for this client.
    Overloaded,
}

/// Performs one review for this client.
pub(super) async fn ask(
    authorizer: &Authorizer,
    client: ClientKey<'_>,
    user: &KnownUser,
    attributes: &Attributes,
) -> Result<(), Denial> {
    match authorizer.authorize(client, user, attributes).await {
        Ok(Decision::Allow) => Ok(()),
        Ok(Decision::Deny { reason } | Decision::NoOpinion { reason }) => Err(Denial::No(decided(&reason))),
        Err(ReviewError::Overloaded) => Err(Denial::Overloaded),
        Err(error @ ReviewError::Call(_)) => Err(Denial::Failed(error.to_string())),
    }
}

/// Authorizes a request, or returns the refusal.
pub(super) async fn authorize(
    authorizer: &Authorizer,
    client: ClientKey<'_>,
    user: &KnownUser,
    attributes: &Attributes,
) -> Result<(), Refusal> {
    ask(authorizer, client, user, attributes).await.map_err(|denial| match denial {
        Denial::No(reason) => {
            tracing::debug!(reason, "Forbidden");
            Refusal::Forbidden(Box::new(forbidden::status(&user.name, attributes, &reason)))
        }
        Denial::Failed(error) => {
            tracing::warn!(error, "access could not be reviewed");
            Refusal::Review(error)
        }
        Denial::Overloaded => Refusal::Overloaded,
    })
}

/// Appends the name of this proxy to the reason of a decision.
pub(super) fn decided(reason: &str) -> String {
    if reason.is_empty() { DECIDED_BY.to_owned() } else { format!("{reason}, {DECIDED_BY}") }
}

impl Denial {
    /// Returns the reason for a refused impersonation, where a failed review is a refusal, too.
    /// `None` when the client should retry instead.
    pub(super) fn into_reason(self) -> Option<String> {
        match self {
            Self::No(reason) => Some(reason),
            Self::Failed(error) => Some(format!("{error}: {DECIDED_BY}")),
            Self::Overloaded => None,
        }
    }
}
