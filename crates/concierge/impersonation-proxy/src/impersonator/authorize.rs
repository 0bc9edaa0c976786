//! May this user do that? Asked of the API server, in its words, with our name in every reason.

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::cluster::{Authorizer, Decision, ReviewError};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::KnownUser;

use super::refusal::Refusal;

/// Ends the reason of every decision which is passed on by this proxy, so that people know where to look.
const DECIDED_BY: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

/// A question that was not answered with yes.
#[derive(Debug)]
pub(super) enum Denial {
    /// No, and why.
    No(String),
    /// The question could not be asked.
    Failed(String),
    /// Too many reviews are in flight for this client.
    Overloaded,
}

/// Asks one question for this client.
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

/// Lets a request pass or says why not.
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

/// The reason of a decision, with our name.
pub(super) fn decided(reason: &str) -> String {
    if reason.is_empty() { DECIDED_BY.to_owned() } else { format!("{reason}, {DECIDED_BY}") }
}

impl Denial {
    /// The reason in a refused impersonation, where a failed review is a refusal too; `None` where nothing was refused,
    /// but the client shall come again.
    pub(super) fn into_reason(self) -> Option<String> {
        match self {
            Self::No(reason) => Some(reason),
            Self::Failed(error) => Some(format!("{error}: {DECIDED_BY}")),
            Self::Overloaded => None,
        }
    }
}
