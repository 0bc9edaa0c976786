//! Impersonation of other users by clients, after the reviews that
//! [`pinniped_kube_request::client_impersonation`] requires.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use pinniped_cache::Cache;
use pinniped_delegated_auth::cluster::Authorizer;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::client_impersonation::{Mode, ModePlan, Step, plan_mode, refused_unasked};
use pinniped_kube_request::forbidden;
use pinniped_kube_request::identity::{KnownUser, User};

use super::authorize::{Denial, ask, decided};
use super::refusal::Refusal;

/// Maximum number of requestors whose last successful mode is cached.
const REMEMBERED: u64 = 10_000;
/// How long the last successful mode of a requestor is cached.
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// Decides on the impersonation of users by clients.
pub(super) struct Impersonations {
    authorizer: Authorizer,
    /// Keyed by a hash of the requestor's name: a collision only changes the order in which modes
    /// are tried.
    last_mode: Cache<u64, Mode>,
    hasher: RandomState,
}

impl Impersonations {
    pub(super) fn new(authorizer: Authorizer) -> Self {
        Self { authorizer, last_mode: Cache::new(REMEMBERED, REMEMBERED_FOR), hasher: RandomState::new() }
    }

    /// Returns the user with which the request continues. Modes are tried in order, after the last
    /// successful one. When none succeeds, the first refusal is returned.
    pub(super) async fn become_user(
        &self,
        requestor: &User,
        wanted: &User,
        attributes: &Attributes,
    ) -> Result<User, Refusal> {
        if let Some(refused) = refused_unasked(requestor, wanted, attributes) {
            return Err(refuse(requestor, &refused, &decided("")));
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
                Step::Ask(attributes) => self.require(user, attributes).await?,
                Step::AskAnyOrEach { any, each } => {
                    match ask(&self.authorizer, user.name.as_str().into(), user, any).await {
                        Ok(()) => {}
                        Err(Denial::Overloaded) => return Err(Refusal::Overloaded),
                        Err(Denial::No(_) | Denial::Failed(_)) => {
                            for attributes in each {
                                self.require(user, attributes).await?;
                            }
                        }
                    }
                }
                Step::Deny { attributes, reason } => return Err(refuse(user, attributes, reason)),
            }
        }
        Ok(())
    }

    async fn require(&self, user: &KnownUser, attributes: &Attributes) -> Result<(), Refusal> {
        // Reviews are charged to the requestor, whose name is the same in all modes.
        let review = ask(&self.authorizer, user.name.as_str().into(), user, attributes).await;
        review.map_err(|denial| match denial.into_reason() {
            Some(reason) => refuse(user, attributes, &reason),
            None => Refusal::Overloaded,
        })
    }
}

fn refuse(user: &User, attributes: &Attributes, reason: &str) -> Refusal {
    Refusal::Forbidden(Box::new(forbidden::status(&user.name, attributes, reason)))
}
