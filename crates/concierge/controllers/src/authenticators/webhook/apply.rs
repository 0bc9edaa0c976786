//! Applies a plan to the registry and the object's status.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Api;
use pinniped_concierge_api::authentication::WebhookAuthenticator;
use pinniped_concierge_authentication::registry::AuthenticatorKey;
use pinniped_concierge_authentication::webhook::WebhookClient;
use pinniped_concierge_domain::authenticator_status::AuthenticatorConditions;

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
    let Plan { conditions, entry, error } = plan;
    if matches!(entry, Entry::Remove) && params.registry.remove(&key) {
        tracing::info!(name = %key.name, "removed a WebhookAuthenticator that is not valid any more");
    }
    let mut errors: Vec<_> =
        error.into_iter().map(|error| ReconcileError::Failed(error.to_string())).collect();
    match write_status(object, &conditions, params).await {
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
    conditions: &AuthenticatorConditions,
    params: &WebhookAuthenticatorParams,
) -> Result<(), ReconcileError> {
    let next = conditions.next_status(object.status.as_ref(), object.metadata.generation, Timestamp::now());
    let Some(status) = next else { return Ok(()) };
    let mut object = object.clone();
    object.metadata.managed_fields = None;
    object.status = Some(status);
    let name = object.metadata.name.clone().unwrap_or_default();
    let api: Api<WebhookAuthenticator> = Api::all_with(params.context.client.clone(), &params.context.suffix);
    params.context.writer().replace_status(&api, &name, &object).await?;
    Ok(())
}
