//! Runs a kube-rs controller through the proxy while the proxy is restarted.
//!
//! The controller reconciles objects of a custom kind: each object gets a child ConfigMap by
//! server-side apply and a status by another one, and has a finalizer that deletes the child. An
//! administrator constantly creates, changes, deletes and recreates the objects directly at the API
//! server.

mod changes;
mod reconcile;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::core::ApiResource;
use pinniped_test_support::wait;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::install::{self, Installed, PROXY_ACCOUNT, TIME_LIMIT};
use crate::restarts;

const USER: &str = "soak-controller";
const NAMESPACE: &str = "soak";
const GROUP: &str = "soak.example.com";
const PLURAL: &str = "things";

/// Flags of `controller`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Seconds between two restarts of the proxy.
    #[arg(long, default_value_t = 45)]
    every: u64,
    /// Objects.
    #[arg(long, default_value_t = 200)]
    objects: usize,
}

/// Runs the controller and prints counts.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    install::run(runtime, async |installed| soak(installed, options).await)
}

/// The kind of the objects.
fn things() -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{GROUP}/v1"),
        kind: "Thing".to_owned(),
        plural: PLURAL.to_owned(),
    }
}

async fn soak(installed: &Installed, options: &Options) -> anyhow::Result<()> {
    define(installed).await?;
    installed.namespace(NAMESPACE).await?;
    let all = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let rules = json!([
        {"apiGroups": [GROUP], "resources": [PLURAL, "things/status"], "verbs": all},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": all},
    ]);
    installed.allow(&[USER.to_owned()], &rules).await?;
    let pair = installed.certificate(USER)?;
    let client = installed.client(&pair).await?;
    let admin = Api::namespaced_with(installed.world.client().await?, NAMESPACE, &things());

    let (restarting, working) = (CancellationToken::new(), CancellationToken::new());
    let controller = tokio::spawn(reconcile::run(client, working.clone()));
    // The controller stops with this function, also after a failure below.
    let _ends = working.clone().drop_guard();
    eprintln!("{} minutes, a restart every {} s", options.minutes, options.every);
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let change = async {
        let made = changes::run(&admin, options.objects, end).await;
        restarting.cancel();
        made
    };
    let restart = restarts::run(installed, Duration::from_secs(options.every), &restarting);
    let (changed, restarted) = tokio::try_join!(change, restart)?;

    let settled = Instant::now();
    let result = wait::until_ok(2 * TIME_LIMIT, "the last generation of every object", async || {
        is_reconciled(installed, &admin).await
    })
    .await;
    working.cancel();
    let worked = controller.await.context("the controller panicked")?;
    println!("restarts of the proxy: {restarted:?}");
    println!("changes: {changed:?}");
    println!("the controller: {worked:?}");
    let objects = result?;
    println!(
        "{objects} objects reconciled to their last generation, {:.1} s after the last change",
        settled.elapsed().as_secs_f64()
    );
    ensure!(restarted.rollouts + restarted.crashes > 0, "the proxy was never restarted");
    println!("{} requests of the controller, all as itself", as_itself(installed)?);
    Ok(())
}

async fn define(installed: &Installed) -> anyhow::Result<()> {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": PLURAL, "singular": "thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}}}]}});
    let kubectl = installed.world.kubectl();
    kubectl.apply(&crd.to_string()).await?;
    kubectl.await_established(&[&format!("crd/{PLURAL}.{GROUP}")]).await
}

/// Checks that every object is reconciled to its last generation, that its child has the same
/// value, and that no child of a deleted object remains. Returns the number of objects.
async fn is_reconciled(installed: &Installed, admin: &Api<DynamicObject>) -> anyhow::Result<usize> {
    let objects = admin.list(&ListParams::default()).await?.items;
    let client = installed.world.client().await?;
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client, NAMESPACE);
    let children = maps.list(&ListParams::default().labels("soak=child")).await?.items;
    ensure!(children.len() == objects.len(), "{} children of {} objects", children.len(), objects.len());
    for object in &objects {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        ensure!(object.metadata.deletion_timestamp.is_none(), "{name} is not gone");
        let status = &object.data["status"];
        let generation = object.metadata.generation.context("no generation")?;
        ensure!(status["observedGeneration"] == generation, "{name} is at {generation}, {status}");
        let child = children.iter().find(|child| child.metadata.name.as_deref() == Some(name));
        let data = child.and_then(|child| child.data.clone()).unwrap_or_default();
        let says = |key: &str| data.get(key).cloned().unwrap_or_default();
        let value = object.data["spec"]["value"].to_string();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        ensure!(says("value") == value && says("uid") == uid, "the child of {name} has {data:?}");
    }
    Ok(objects.len())
}

/// Checks in the API server's audit log that all requests through the proxy to the namespace came
/// from the controller's user. Returns the number of requests.
fn as_itself(installed: &Installed) -> anyhow::Result<usize> {
    let events = installed.world.control_plane().audit_events("")?;
    let mut count = 0;
    for event in &events {
        if event["user"]["username"] != PROXY_ACCOUNT || event["objectRef"]["namespace"] != NAMESPACE {
            continue;
        }
        let user = &event["impersonatedUser"];
        let is_ours = user["username"] == USER && user["groups"] == json!(["system:authenticated"]);
        ensure!(is_ours, "a request was sent as another user: {event}");
        count += 1;
    }
    let own = |event: &&Value| event["user"]["username"] == USER;
    ensure!(!events.iter().any(|event| own(&event)), "a request bypassed the proxy");
    ensure!(count > 0, "the controller sent no request");
    Ok(count)
}
