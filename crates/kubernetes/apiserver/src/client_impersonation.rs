//! Impersonation of other users by clients, after the reviews that
//! [`pinniped_kube_request::client_impersonation`] requires.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderMap;
use pinniped_cache::Cache;
use pinniped_delegated_auth::client_key::ClientKey;
use pinniped_delegated_auth::reviews::ReviewError;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::client_impersonation::intake::intake;
use pinniped_kube_request::client_impersonation::{Mode, ModePlan, Step, plan_mode, refused_without_review};
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::{KnownUser, User};

use crate::authorize::{Authorization, Denial};
use crate::refusal::Refusal;

/// Maximum number of requestors whose last successful mode is cached.
const REMEMBERED: u64 = 10_000;
/// How long the last successful mode of a requestor is cached.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// Decides on the impersonation of users by clients.
pub(crate) struct ClientImpersonation {
    authorization: Authorization,
    /// Keyed by a hash of the requestor's name: a collision only changes the order in which modes
    /// are tried.
    last_mode: Cache<u64, Mode>,
    hasher: RandomState,
}

impl ClientImpersonation {
    /// Creates an interpreter whose reviews are those of `authorization`.
    pub(crate) fn new(authorization: Authorization) -> Self {
        Self { authorization, last_mode: Cache::new(REMEMBERED, REMEMBERED_FOR), hasher: RandomState::new() }
    }

    /// Removes the `Impersonate-*` headers of a request. Returns `None` when the client does not
    /// impersonate, or else a future with the user as which the request continues.
    ///
    /// # Errors
    /// [`Refusal::BadImpersonation`] when the headers are invalid. The future returns a refusal
    /// when the client is not allowed to impersonate the user.
    pub(crate) fn become_user<'a>(
        &'a self,
        headers: &mut HeaderMap,
        requestor: &'a User,
        attributes: &'a Attributes,
    ) -> Result<Option<BoxFuture<'a, Result<KnownUser, Refusal>>>, Refusal> {
        let Some(wanted) = intake(headers)? else { return Ok(None) };
        // Boxed because it is large and rare; otherwise every request future would reserve space
        // for it.
        Ok(Some(Box::pin(async move {
            self.try_modes(requestor, &wanted, attributes).await.map(KnownUser::from)
        })))
    }

    /// Returns the user with which the request continues. Modes are tried in order, after the last
    /// successful one. When none succeeds, the first refusal is returned.
    async fn try_modes(
        &self,
        requestor: &User,
        wanted: &User,
        attributes: &Attributes,
    ) -> Result<User, Refusal> {
        if let Some(refused) = refused_without_review(requestor, wanted, attributes) {
            return Err(refuse(requestor, &refused, &self.authorization.decided(String::new())));
        }
        let key = self.hasher.hash_one(&requestor.name);
        let last = self.last_mode.get(&key);
        let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
        let mut first_refusal = None;
        for mode in last.into_iter().chain(others) {
            let Some(plan) = plan_mode(mode, requestor, wanted, attributes) else { continue };
            let ModePlan { reviewed_as, steps, becomes } = plan;
            match self.meets_all(&reviewed_as.into(), &steps).await {
                Ok(()) => {
                    // Also for a mode that is already cached, which extends its lifetime.
                    self.last_mode.insert(key, mode);
                    tracing::debug!(mode = mode.as_str(), "request is impersonating another user");
                    return Ok(becomes);
                }
                Err(Refusal::Overloaded) => return Err(Refusal::Overloaded),
                Err(refusal) => {
                    first_refusal.get_or_insert(refusal);
                }
            }
        }
        // The legacy mode applies to every user, so there is always a refusal here.
        Err(first_refusal.unwrap_or(Refusal::Internal("all impersonation modes failed")))
    }

    async fn meets_all(&self, user: &KnownUser, steps: &[Step]) -> Result<(), Refusal> {
        for step in steps {
            match step {
                Step::Review(attributes) => self.require(user, attributes).await?,
                Step::ReviewAnyOrEach { any, each } => match self.review(user, any).await {
                    Ok(()) => {}
                    Err(Denial::Failed(ReviewError::Overloaded)) => return Err(Refusal::Overloaded),
                    Err(Denial::Denied(_) | Denial::Failed(ReviewError::Call(_))) => {
                        for attributes in each {
                            self.require(user, attributes).await?;
                        }
                    }
                },
                Step::Deny { attributes, reason } => return Err(refuse(user, attributes, reason)),
            }
        }
        Ok(())
    }

    async fn require(&self, user: &KnownUser, attributes: &Attributes) -> Result<(), Refusal> {
        match self.review(user, attributes).await {
            Ok(()) => Ok(()),
            Err(denial) => Err(refuse(user, attributes, &self.authorization.reason(denial)?)),
        }
    }

    async fn review(&self, user: &KnownUser, attributes: &Attributes) -> Result<(), Denial> {
        // Reviews are charged to the requestor, whose name is the same in all modes.
        self.authorization.review(ClientKey::user(&user.name), user, attributes).await
    }
}

fn refuse(user: &User, attributes: &Attributes, reason: &str) -> Refusal {
    Refusal::Forbidden(Box::new(forbidden::status(&user.name, attributes, reason)))
}
