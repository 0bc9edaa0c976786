//! Authorization by the API server, in the wording of the API server.

use std::time::Instant;

use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::reviews::{Authorizer, Decision, ReviewError};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::{KnownUser, MASTERS};
use pinniped_logging::repetitions::{Line, Repetitions};

use crate::refusal::Refusal;

/// Decides whether a user may make a request. Clones share the cache of reviews.
#[derive(Clone)]
pub struct Authorization {
    /// Requests the decisions.
    pub authorizer: Authorizer,
    /// The text at the end of every reason, which names the component that decided. `None` adds
    /// nothing.
    pub decided_by: Option<&'static str>,
    /// Whether members of `system:masters` may make requests without a Kubernetes verb, such as
    /// OPTIONS. Such a request of other users is always denied.
    pub masters_need_no_verb: bool,
}

/// A review that did not allow the request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denial {
    /// Denied, with the reason.
    #[error("{0}")]
    Denied(String),
    /// The review failed.
    #[error(transparent)]
    Failed(#[from] ReviewError),
}

/// Logs a review that failed. Each request has one while the API server does not respond, so the
/// limit belongs to the process, as the log does.
fn not_reviewed(error: &ReviewError) {
    static FAILURES: Repetitions = Repetitions::each_minute();
    let error = error.to_string();
    if let Some(Line { repetitions }) = FAILURES.record(&error, Instant::now()) {
        tracing::warn!(repetitions, error, "access could not be reviewed");
    }
}

impl Authorization {
    /// Returns the refusal after a review that did not allow the request.
    pub(crate) fn refusal(&self, denial: Denial, user: &KnownUser, attributes: &Attributes) -> Refusal {
        match denial {
            Denial::Denied(reason) => {
                tracing::debug!(reason, "Forbidden");
                Refusal::Forbidden(Box::new(forbidden::status(&user.name, attributes, &reason)))
            }
            Denial::Failed(error) => {
                if error != ReviewError::Overloaded {
                    not_reviewed(&error);
                }
                error.into()
            }
        }
    }

    /// Performs one review, which is charged to this client.
    ///
    /// # Errors
    /// The reason why the request is not allowed, see [`Self::refusal`].
    pub(crate) async fn review(
        &self,
        client: ClientKey<'_>,
        user: &KnownUser,
        attributes: &Attributes,
    ) -> Result<(), Denial> {
        if self.masters_need_no_verb && user.is_in(MASTERS) {
            return Ok(());
        }
        match self.authorizer.authorize(client, user, attributes).await? {
            Decision::Allow => Ok(()),
            Decision::Deny { reason } | Decision::NoOpinion { reason } => {
                Err(Denial::Denied(self.decided(reason)))
            }
        }
    }

    /// Appends the name of the component to the reason of a decision.
    pub(crate) fn decided(&self, reason: String) -> String {
        match self.decided_by {
            None => reason,
            Some(decided_by) if reason.is_empty() => decided_by.to_owned(),
            Some(decided_by) => format!("{reason}, {decided_by}"),
        }
    }

    /// Returns the reason for a refused impersonation, where a failed review is a refusal, too.
    ///
    /// # Errors
    /// [`Refusal::Overloaded`] when the client should retry instead.
    pub(crate) fn reason(&self, denial: Denial) -> Result<String, Refusal> {
        match denial {
            Denial::Denied(reason) => Ok(reason),
            Denial::Failed(ReviewError::Overloaded) => Err(Refusal::Overloaded),
            Denial::Failed(ReviewError::Call(error)) => Ok(match self.decided_by {
                None => error,
                Some(decided_by) => format!("{error}: {decided_by}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use pinniped_test_support::log_events::LogEvents;
    use tracing::Level;

    use super::*;

    #[test]
    fn reviews_of_many_requests_that_fail_alike_are_logged_once() {
        let lines = LogEvents::record(&["pinniped_apiserver"], Level::WARN);
        for _ in 0..1000 {
            not_reviewed(&ReviewError::Call("no API server in this test".to_owned()));
        }
        let logged = lines.all();
        let [line] = logged.as_slice() else { panic!("{logged:?}") };
        assert_eq!((line.level, line.field("message")), (Level::WARN, "access could not be reviewed"));
        assert_eq!(line.field("error"), "no API server in this test");
        // Only a line after suppressed ones has the number.
        assert_eq!(line.fields.len(), 2);
    }
}
