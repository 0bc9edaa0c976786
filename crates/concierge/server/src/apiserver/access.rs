//! Authentication, client impersonation and authorization, in this order.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::cluster::{Authorizer, Decision, ReviewError};
use pinniped_delegated_auth::request::{Method, Outcome, Peer, RequestAuthenticator};
use pinniped_http_server::Connection;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::client_impersonation::{self, Mode, ModePlan, Step};
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::{KnownUser, MASTERS, User};
use pinniped_kube_types::status::Status;

/// The reasons why a request is refused.
#[derive(Debug)]
pub(super) enum Denial {
    /// Refused with a `Status`.
    Status(Box<Status>),
    /// Refused with plain text, like a Go server that cannot decide.
    Text(StatusCode, String),
    /// Too many reviews are in flight for this client: 429.
    Overloaded,
}

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// The authenticated user of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) user: KnownUser,
    /// The authentication method; `None` without a credential.
    pub(super) method: Option<Method>,
}

/// The access checks that every handler requires.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) authenticator: RequestAuthenticator,
    pub(super) authorizer: Authorizer,
}

impl Access {
    /// Authenticates the request. Credentials are removed from the headers.
    pub(super) async fn authenticate(
        &self,
        headers: &mut HeaderMap,
        connection: Option<&Connection>,
        now: Timestamp,
    ) -> Result<Caller, Denial> {
        let peer = Peer {
            chain: connection.map_or(&[][..], |connection| &connection.peer_certificates),
            kept: None,
            address: connection.map(|connection| connection.peer_addr.ip()),
        };
        match self.authenticator.authenticate(headers, peer, now).await {
            Outcome::User { user, method } => {
                if let Some(connection) = connection.filter(|_| !user.is_anonymous()) {
                    connection.permit.confirm();
                }
                Ok(Caller { user, method: Some(method) })
            }
            Outcome::Anonymous => Ok(Caller { user: User::anonymous().into(), method: None }),
            Outcome::Overloaded => Err(Denial::Overloaded),
            Outcome::Rejected { reason } => {
                tracing::debug!(reason, "request was not authenticated");
                Err(Status::unauthorized().into())
            }
        }
    }

    /// Returns the user with which the request continues, after impersonation and authorization.
    /// Reviews are charged to `client`.
    pub(super) async fn admit(
        &self,
        client: ClientKey<'_>,
        caller: KnownUser,
        headers: &mut HeaderMap,
        attributes: &Attributes,
        uri: &str,
    ) -> Result<KnownUser, Denial> {
        let user = match client_impersonation::intake(headers) {
            Err(error) => return Err(Status::bad_request(error.to_string()).into()),
            Ok(None) => caller,
            Ok(Some(wanted)) => self.impersonate(&caller, &wanted, attributes).await?.into(),
        };
        match self.decide(client, &user, attributes).await {
            Ok(Decision::Allow) => Ok(user),
            Ok(Decision::Deny { reason } | Decision::NoOpinion { reason }) => {
                Err(forbidden::status(&user.name, attributes, &reason).into())
            }
            Err(ReviewError::Overloaded) => Err(Denial::Overloaded),
            Err(error @ ReviewError::Call(_)) => {
                let text = forbidden::internal_error_text(uri, &error.to_string());
                Err(Denial::Text(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }

    async fn decide(
        &self,
        client: ClientKey<'_>,
        user: &KnownUser,
        attributes: &Attributes,
    ) -> Result<Decision, ReviewError> {
        // Checked before the rule for requests without a verb, so that these users get 405.
        if user.is_in(MASTERS) {
            return Ok(Decision::Allow);
        }
        self.authorizer.authorize(client, user, attributes).await
    }

    /// Tries the modes in order. When none succeeds, the first refusal is returned.
    async fn impersonate(
        &self,
        requestor: &User,
        wanted: &User,
        attributes: &Attributes,
    ) -> Result<User, Denial> {
        if let Some(refused) = client_impersonation::refused_unasked(requestor, wanted, attributes) {
            return Err(forbidden::status(&requestor.name, &refused, "").into());
        }
        let mut first_refusal = None;
        for mode in Mode::ALL {
            let Some(plan) = client_impersonation::plan_mode(mode, requestor, wanted, attributes) else {
                continue;
            };
            let ModePlan { reviewed_as, steps, becomes } = plan;
            match self.meets_all(&reviewed_as.into(), &steps).await {
                Ok(()) => return Ok(becomes),
                Err(Denial::Overloaded) => return Err(Denial::Overloaded),
                Err(denial) => first_refusal = first_refusal.or(Some(denial)),
            }
        }
        Err(first_refusal.unwrap_or_else(|| Status::unauthorized().into()))
    }

    async fn meets_all(&self, reviewed_as: &KnownUser, steps: &[Step]) -> Result<(), Denial> {
        for step in steps {
            match step {
                Step::Ask(attributes) => self.require(reviewed_as, attributes).await?,
                Step::AskAnyOrEach { any, each } => match self.require(reviewed_as, any).await {
                    Ok(()) => {}
                    Err(Denial::Overloaded) => return Err(Denial::Overloaded),
                    Err(Denial::Status(_) | Denial::Text(..)) => {
                        for attributes in each {
                            self.require(reviewed_as, attributes).await?;
                        }
                    }
                },
                Step::Deny { attributes, reason } => {
                    return Err(forbidden::status(&reviewed_as.name, attributes, reason).into());
                }
            }
        }
        Ok(())
    }

    async fn require(&self, user: &KnownUser, attributes: &Attributes) -> Result<(), Denial> {
        let reason = match self.decide(ClientKey::user(&user.name), user, attributes).await {
            Ok(Decision::Allow) => return Ok(()),
            Ok(Decision::Deny { reason } | Decision::NoOpinion { reason }) => reason,
            Err(ReviewError::Overloaded) => return Err(Denial::Overloaded),
            Err(error @ ReviewError::Call(_)) => error.to_string(),
        };
        Err(forbidden::status(&user.name, attributes, &reason).into())
    }
}
