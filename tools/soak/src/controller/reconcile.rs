//! The controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{GROUP, NAMESPACE, things};

const FINALIZER: &str = "soak.example.com/child";

/// The result of the controller's work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReconcileStats {
    /// Successful reconciliations.
    reconciled: usize,
    /// Children deleted with their objects.
    cleaned_up: usize,
    /// Reconciliations that failed and were retried, because the proxy was away.
    failed: usize,
    /// Watches that failed and were restarted.
    broken_watches: usize,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("could not finish: {0}")]
    Kube(#[from] kube::Error),
    #[error("could not reconcile: {0}")]
    Finalizer(#[from] Box<finalizer::Error<kube::Error>>),
}

struct Context {
    things: Api<DynamicObject>,
    maps: Api<ConfigMap>,
    cleaned_up: AtomicUsize,
}

/// Runs the controller until cancelled.
pub(super) async fn run(client: kube::Client, end: CancellationToken) -> ReconcileStats {
    let things_api = Api::namespaced_with(client.clone(), NAMESPACE, &things());
    let maps = Api::namespaced(client, NAMESPACE);
    let context =
        Arc::new(Context { things: things_api.clone(), maps: maps.clone(), cleaned_up: AtomicUsize::new(0) });
    let children = watcher::Config::default().labels("soak=child");
    let mut worked = ReconcileStats::default();
    let events = Controller::new_with(things_api, watcher::Config::default(), things())
        .owns(maps, children)
        .graceful_shutdown_on(async move { end.cancelled().await })
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::clone(&context));
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(_) => worked.reconciled += 1,
            Err(kube::runtime::controller::Error::ReconcilerFailed(_, _)) => worked.failed += 1,
            // The object was deleted before its turn.
            Err(kube::runtime::controller::Error::ObjectNotFound(_)) => {}
            Err(_) => worked.broken_watches += 1,
        }
    }
    worked.cleaned_up = context.cleaned_up.load(Ordering::Relaxed);
    worked
}

async fn reconcile(thing: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Error> {
    let event = async |event| match event {
        Event::Apply(thing) => apply(&thing, &context).await,
        Event::Cleanup(thing) => clean_up(&thing, &context).await,
    };
    Ok(finalizer(&context.things, FINALIZER, thing, event).await.map_err(Box::new)?)
}

async fn apply(thing: &DynamicObject, context: &Context) -> Result<Action, kube::Error> {
    let name = thing.name_any();
    let params = PatchParams::apply("soak-controller").force();
    let owner = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "name": name,
        "uid": thing.uid(), "controller": true, "blockOwnerDeletion": false});
    let child = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"soak": "child"}, "ownerReferences": [owner]},
        "data": {"value": thing.data["spec"]["value"].to_string(), "uid": thing.uid()}});
    context.maps.patch(&name, &params, &Patch::Apply(child)).await?;
    let status = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing",
        "metadata": {"name": name, "uid": thing.uid()},
        "status": {"observedGeneration": thing.metadata.generation}});
    context.things.patch_status(&name, &params, &Patch::Apply(status)).await?;
    Ok(Action::await_change())
}

async fn clean_up(thing: &DynamicObject, context: &Context) -> Result<Action, kube::Error> {
    match context.maps.delete(&thing.name_any(), &DeleteParams::default()).await {
        Ok(_) => {}
        // An earlier attempt succeeded, and its response was lost.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    context.cleaned_up.fetch_add(1, Ordering::Relaxed);
    Ok(Action::await_change())
}
