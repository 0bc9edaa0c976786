//! The changes that one pass makes for one authenticator of any kind, and their application to the
//! registry and to the object's status.

use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::core::ClusterResourceScope;
use kube::runtime::reflector::Store;
use kube::{Api, Resource};
use pinniped_concierge_api::authentication::{AuthenticatorStatus, JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_authentication::registry::{AuthenticatorKey, Registry, TokenAuthenticator};
use pinniped_concierge_domain::authenticator_status::{
    AuthenticatorConditions, differ_only_in_messages, events,
};
use pinniped_controller::runtime::{Action, ReconcileError};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_logging::value::ALWAYS;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::named;
use crate::context::Context;

/// The changes for one object: `A` is the authenticator, `E` a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<A, E> {
    /// The conditions, including the summary.
    pub(super) conditions: AuthenticatorConditions,
    /// The change of the registry's entry.
    pub(super) entry: Entry<A>,
    /// The failure to retry, if there is one.
    pub(super) error: Option<E>,
}

/// The change of the registry's entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry<A> {
    Remove,
    Keep,
    /// Replaces the entry at once; without an entry, inserted after the status was written.
    Insert {
        authenticator: A,
        fingerprint: String,
    },
}

/// A kind of authenticators.
pub(super) trait AuthenticatorKind:
    Resource<DynamicType = GroupSuffix, Scope = ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
    /// The name of the kind.
    const NAME: &'static str;
    /// The name of its controller.
    const CONTROLLER: &'static str;

    /// Returns the status of an object.
    fn status(&mut self) -> &mut Option<AuthenticatorStatus>;
}

impl AuthenticatorKind for WebhookAuthenticator {
    const NAME: &'static str = Self::KIND;
    const CONTROLLER: &'static str = "webhookcachefiller-controller";

    fn status(&mut self) -> &mut Option<AuthenticatorStatus> {
        &mut self.status
    }
}

impl AuthenticatorKind for JwtAuthenticator {
    const NAME: &'static str = Self::KIND;
    const CONTROLLER: &'static str = "jwtcachefiller-controller";

    fn status(&mut self) -> &mut Option<AuthenticatorStatus> {
        &mut self.status
    }
}

impl<A: TokenAuthenticator + 'static, E: Display> Plan<A, E> {
    /// Applies the plan, and requests another pass if the object has changed meanwhile.
    ///
    /// An invalid authenticator is removed, and a changed one is replaced, before the status is
    /// written. This also happens if the status cannot be written, because the rules of an earlier
    /// spec must not stay in use. A new authenticator is inserted after its status is written.
    pub(super) async fn apply<K: AuthenticatorKind + 'static>(
        self,
        object: &K,
        key: &AuthenticatorKey,
        objects: &Store<K>,
        context: &Context,
        registry: &Registry,
    ) -> Result<Action, ReconcileError> {
        let Self { conditions, entry, error } = self;
        let name = &key.name;
        let (controller, object_name) = (K::CONTROLLER, format!("{}/{name}", K::NAME));
        if !named(objects, name).is_some_and(|current| is_same_generation(&*current, object)) {
            tracing::debug!(
                controller,
                object = object_name,
                "discarded a validation result because the object changed or was deleted"
            );
            return Ok(Action::recheck(Duration::ZERO));
        }
        let mut new = None;
        match entry {
            Entry::Remove if registry.remove(key) => {
                tracing::info!(
                    target: ALWAYS,
                    controller,
                    object = object_name,
                    "removed an authenticator that is not valid any more"
                );
            }
            Entry::Remove | Entry::Keep => {}
            Entry::Insert { authenticator, fingerprint } => {
                let authenticator = Arc::new(authenticator);
                if registry.replace(key, &fingerprint, authenticator.clone()) {
                    tracing::info!(
                        target: ALWAYS,
                        controller,
                        object = object_name,
                        "replaced an authenticator that has changed"
                    );
                } else {
                    new = Some((authenticator, fingerprint));
                }
            }
        }
        let mut errors: Vec<_> =
            error.into_iter().map(|error| ReconcileError::Failed(error.to_string())).collect();
        match write_status(object.clone(), &conditions, context).await {
            Err(error) => errors.push(error),
            Ok(()) => {
                if let Some((authenticator, fingerprint)) = new {
                    tracing::info!(
                        target: ALWAYS,
                        controller,
                        object = object_name,
                        "added an authenticator"
                    );
                    registry.insert(key.clone(), fingerprint, authenticator);
                }
            }
        }
        // `cleanup.rs` may have processed the deletion of the object before the insertion.
        if named(objects, name).is_none() {
            registry.remove(key);
        }
        ReconcileError::aggregate(errors).map_or(Ok(Action::done()), Err)
    }
}

/// Returns whether two objects have the same UID and generation.
fn is_same_generation<K: Resource>(one: &K, other: &K) -> bool {
    let identity = |object: &K| (object.meta().uid.clone(), object.meta().generation);
    identity(one) == identity(other)
}

async fn write_status<K: AuthenticatorKind>(
    mut object: K,
    conditions: &AuthenticatorConditions,
    context: &Context,
) -> Result<(), ReconcileError> {
    let generation = object.meta().generation;
    let existing = object.status().take();
    let next = conditions.next_status(existing.as_ref(), generation, Timestamp::now());
    let Some(status) = next else { return Ok(()) };
    let events = events(existing.as_ref(), &status);
    let writer = context.writer();
    if let (Err(_), Some(existing)) = (writer.guard(), &existing)
        && differ_only_in_messages(&status, existing)
    {
        // The leader decides the messages. They may differ between pods, and that must not keep an
        // authenticator out of this pod's registry.
        return Ok(());
    }
    object.meta_mut().managed_fields = None;
    *object.status() = Some(status);
    let name = object.meta().name.clone().unwrap_or_default();
    let api: Api<K> = Api::all_with(context.client.clone(), &context.suffix);
    writer.replace_status(&api, &name, &object).await?;
    let regarding = object.object_ref(&context.suffix);
    for event in events {
        tracing::info!(
            target: ALWAYS,
            controller = K::CONTROLLER,
            object = format!("{}/{name}", K::NAME),
            reason = event.reason,
            text = event.note,
            "status of an authenticator changed"
        );
        context.events.record(regarding.clone(), event);
    }
    Ok(())
}
