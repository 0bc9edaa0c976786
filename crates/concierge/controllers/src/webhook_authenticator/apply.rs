//! Applies a plan to the registry and the object's status.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Api;
use pinniped_concierge_api::authentication::{AuthenticatorPhase, AuthenticatorStatus, WebhookAuthenticator};
use pinniped_concierge_authentication::registry::AuthenticatorKey;
use pinniped_concierge_authentication::webhook::WebhookClient;
use pinniped_kube_types::condition::{self, Wanted};

use super::WebhookAuthenticatorParams;
use super::decide::{Entry, Plan};
use pinniped_controller::runtime::ReconcileError;

/// Applies a plan. The order matters: an invalid authenticator is removed before its status is
/// visible.
pub(super) async fn apply(
    plan: Plan<WebhookClient>,
    object: &WebhookAuthenticator,
    key: AuthenticatorKey,
    params: &WebhookAuthenticatorParams,
) -> Result<(), ReconcileError> {
    let Plan { conditions, is_ready, entry, errors } = plan;
    if matches!(entry, Entry::Remove) && params.registry.remove(&key) {
        tracing::info!(name = %key.name, "removed a WebhookAuthenticator that is not valid any more");
    }
    let mut errors: Vec<_> = errors.into_iter().map(ReconcileError::Failed).collect();
    match write_status(object, conditions, is_ready, params).await {
        Err(error) => errors.push(error),
        Ok(()) => {
            if let Entry::Insert { client, fingerprint } = entry {
                tracing::info!(name = %key.name, "added a WebhookAuthenticator");
                params.registry.insert(key, fingerprint, Arc::new(client));
            }
        }
    }
    ReconcileError::aggregate(errors).map_or(Ok(()), Err)
}

async fn write_status(
    object: &WebhookAuthenticator,
    conditions: Vec<Wanted>,
    is_ready: bool,
    params: &WebhookAuthenticatorParams,
) -> Result<(), ReconcileError> {
    let Some(status) = next_status(object, conditions, is_ready, Timestamp::now()) else { return Ok(()) };
    let mut object = object.clone();
    object.metadata.managed_fields = None;
    object.status = Some(status);
    let name = object.metadata.name.clone().unwrap_or_default();
    let api: Api<WebhookAuthenticator> = Api::all_with(params.context.client.clone(), &params.context.suffix);
    params.context.writer().replace_status(&api, &name, &object).await?;
    Ok(())
}

/// Returns the status to write, or `None` if the object already has it.
pub(super) fn next_status(
    object: &WebhookAuthenticator,
    conditions: Vec<Wanted>,
    is_ready: bool,
    now: Timestamp,
) -> Option<AuthenticatorStatus> {
    let mut status = object.status.clone().unwrap_or_default();
    let phase = if is_ready { AuthenticatorPhase::Ready } else { AuthenticatorPhase::Error };
    let is_changed = condition::merge(&mut status.conditions, conditions, object.metadata.generation, now);
    if !is_changed && status.phase.as_ref() == Some(&phase) {
        return None;
    }
    status.phase = Some(phase);
    Some(status)
}
