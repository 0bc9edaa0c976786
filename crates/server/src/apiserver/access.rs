//! Who asks, as whom, and whether they may: authentication, impersonation, authorization, in that order.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use pinniped_api::status::Status;
use pinniped_authn::cluster::{Authorizer, Decision, ReviewError};
use pinniped_authn::request::{Outcome, Peer, RequestAuthenticator};
use pinniped_core::attributes::Attributes;
use pinniped_core::forbidden;
use pinniped_core::identity::{KnownUser, MASTERS, User};
use pinniped_core::nested::{self, Mode, ModePlan, Step};
use pinniped_serve::Connection;

/// Why a request goes no further.
#[derive(Debug)]
pub(super) enum Denial {
    /// A `Status`.
    Status(Box<Status>),
    /// Plain text, as a Go server answers when it cannot decide.
    Text(StatusCode, String),
}

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// The gate before all handlers.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) authenticator: RequestAuthenticator,
    pub(super) authorizer: Authorizer,
}

impl Access {
    /// The user as whom the request goes on. Credentials are gone from the headers afterwards.
    pub(super) async fn admit(
        &self,
        headers: &mut HeaderMap,
        connection: Option<&Connection>,
        attributes: &Attributes,
        uri: &str,
        now: Timestamp,
    ) -> Result<KnownUser, Denial> {
        let certificates = connection.map_or(&[][..], |connection| &connection.peer_certificates);
        let user = match self.authenticator.authenticate(headers, Peer::new(certificates), now).await {
            Outcome::User { user, .. } => user,
            Outcome::Anonymous => User::anonymous().into(),
            Outcome::Rejected { reason } => {
                tracing::debug!(reason, "request was not authenticated");
                return Err(Status::unauthorized().into());
            }
        };
        let user = match nested::intake(headers) {
            Err(error) => return Err(Status::bad_request(error.to_string()).into()),
            Ok(None) => user,
            Ok(Some(wanted)) => self.impersonate(&user, &wanted, attributes).await?.into(),
        };
        match self.decide(&user, attributes).await {
            Ok(Decision::Allow) => Ok(user),
            Ok(Decision::Deny { reason } | Decision::NoOpinion { reason }) => {
                Err(forbidden::status(&user.name, attributes, &reason).into())
            }
            Err(error) => {
                let text = forbidden::internal_error_text(uri, &error.to_string());
                Err(Denial::Text(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }

    async fn decide(&self, user: &KnownUser, attributes: &Attributes) -> Result<Decision, ReviewError> {
        // Before the rule about requests without a verb: these users learn the proper 405.
        if user.is_in(MASTERS) {
            return Ok(Decision::Allow);
        }
        self.authorizer.authorize(user, attributes).await
    }

    /// Tries the modes in order; the first refusal of all is the one that is told.
    async fn impersonate(
        &self,
        requestor: &User,
        wanted: &User,
        attributes: &Attributes,
    ) -> Result<User, Denial> {
        let mut first_refusal = None;
        for mode in Mode::ALL {
            let Some(plan) = nested::plan_mode(mode, requestor, wanted, attributes) else { continue };
            let ModePlan { reviewed_as, steps, becomes } = plan;
            match self.allowed(&reviewed_as.into(), &steps).await {
                Ok(()) => return Ok(becomes),
                Err(status) => first_refusal = first_refusal.or(Some(status)),
            }
        }
        Err(first_refusal.map_or_else(|| Status::unauthorized().into(), Denial::Status))
    }

    async fn allowed(&self, reviewed_as: &KnownUser, steps: &[Step]) -> Result<(), Box<Status>> {
        for step in steps {
            match step {
                Step::Ask(attributes) => self.ask(reviewed_as, attributes).await?,
                Step::AskAnyOrEach { any, each } => {
                    if self.ask(reviewed_as, any).await.is_err() {
                        for attributes in each {
                            self.ask(reviewed_as, attributes).await?;
                        }
                    }
                }
                Step::Deny { attributes, reason } => {
                    return Err(Box::new(forbidden::status(&reviewed_as.name, attributes, reason)));
                }
            }
        }
        Ok(())
    }

    async fn ask(&self, user: &KnownUser, attributes: &Attributes) -> Result<(), Box<Status>> {
        let reason = match self.decide(user, attributes).await {
            Ok(Decision::Allow) => return Ok(()),
            Ok(Decision::Deny { reason } | Decision::NoOpinion { reason }) => reason,
            Err(error) => error.to_string(),
        };
        Err(Box::new(forbidden::status(&user.name, attributes, &reason)))
    }
}
