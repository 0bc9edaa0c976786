//! Installs with a bad start, and uninstalls: the cases that `walkthrough` does not cover.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::ensure;
use pinniped_e2e::environment::{Environment as _, OnNode};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{
    CONCIERGE, CREDENTIAL_ISSUER, INSTALL_FILES, LOCAL_USER_AUTHENTICATOR, Serving, Walk,
};
use pinniped_image::Image;
use pinniped_node::{Node, fixture};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::walkthrough::{INSTALL, nothing_restarted};

/// Time limit of any step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);
const TIMEOUT_FLAG: &str = "--timeout=120s";

/// A name of the product's image that no other test imports.
const REFERENCE: &str = "ghcr.io/pinniped-rs/pinniped-server:imported-too-late";

/// The objects that the Concierge creates in its namespace when the proxy is enabled with its own
/// certificate and a Service.
const MADE: [&str; 7] = [
    "deployment.apps/pinniped-concierge-kube-cert-agent",
    "lease.coordination.k8s.io/pinniped-concierge",
    "secret/pinniped-concierge-api-tls-serving-certificate",
    "secret/pinniped-concierge-impersonation-proxy-ca-certificate",
    "secret/pinniped-concierge-impersonation-proxy-signer-ca-certificate",
    "secret/pinniped-concierge-impersonation-proxy-tls-serving-certificate",
    "service/pinniped-concierge-impersonation-proxy-cluster-ip",
];

const API_SERVICES: [&str; 2] =
    ["v1alpha1.login.concierge.pinniped.dev", "v1alpha1.identity.concierge.pinniped.dev"];

/// One test, because each part starts from the state that the previous one left.
#[tokio::test]
async fn an_install_recovers_from_a_missing_image_and_its_removal_deletes_all_created_objects() {
    let Some(node) = fixture::shared("an install recovers from a missing image").unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    let admin = Admin(&environment);
    let done = scenario(node, admin, &walk).await;
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(node: &Node, admin: Admin<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    let kinds = admin.lasting_kinds(&["--namespaced"]).await?;
    ensure!(kinds.split(',').any(|kind| kind == "leases.coordination.k8s.io"), "{kinds}");
    install(admin).await?;
    the_missing_image_is_named(admin).await?;
    // None of our programs has started yet.
    let installed = objects(admin, &kinds).await?;

    let archive = admin.0.dir().join("too-late.tar");
    let image =
        Image { reference: REFERENCE.to_owned(), ..pinniped_image::product_image(&tools::image_bin_dir()?) };
    pinniped_image::build(&image, &archive)?;
    node.import_image(&archive).await?;
    everything_runs(admin, walk).await?;
    nothing_restarted(admin.0).await?;
    let made: BTreeSet<String> = &objects(admin, &kinds).await? - &installed;
    what_it_made_is_owned_and_labelled(admin, &made).await?;

    // Deletes the Deployment and the APIServices: all created objects are deleted, all installed
    // ones stay.
    admin.kubectl(&["delete", "deployment", CONCIERGE, "-n", CONCIERGE, TIMEOUT_FLAG]).await?;
    admin.kubectl(&[&["delete", "apiservices", TIMEOUT_FLAG], &API_SERVICES[..]].concat()).await?;
    wait::until_ok(TIME_LIMIT, "what was made to go", async || {
        let left = objects(admin, &kinds).await?;
        let more: Vec<_> = left.difference(&installed).collect();
        let less: Vec<_> = installed.difference(&left).collect();
        ensure!(more.is_empty() && less == ["deployment.apps/pinniped-concierge"], "{more:?}, {less:?}");
        nothing_runs(admin).await
    })
    .await?;

    // Installs over the remaining objects, and then deletes only the namespace.
    install(admin).await?;
    everything_runs(admin, walk).await?;
    the_namespace_alone_empties(admin, &kinds).await
}

/// Applies the install files with another name of the image.
async fn install(admin: Admin<'_>) -> anyhow::Result<()> {
    for file in INSTALL_FILES {
        let text = std::fs::read_to_string(tools::repository().join(file))?;
        let text = text.replace(pinniped_image::REFERENCE, REFERENCE);
        admin.input(&["apply", "-f", "-"], Some(&text)).await?;
    }
    Ok(())
}

async fn the_missing_image_is_named(admin: Admin<'_>) -> anyhow::Result<()> {
    for (namespace, replicas) in [(CONCIERGE, 2), (LOCAL_USER_AUTHENTICATOR, 1)] {
        wait::until_ok(TIME_LIMIT, "pods that wait for their image", async || {
            let pods = admin.json(&["pods", "-n", namespace]).await?;
            let pods = pods["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            ensure!(pods.len() == replicas, "there are {}", pods.len());
            for pod in pods {
                let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
                let reason = waiting["reason"].as_str().unwrap_or_default();
                let message = waiting["message"].as_str().unwrap_or_default();
                ensure!(
                    ["ErrImagePull", "ImagePullBackOff"].contains(&reason) && message.contains(REFERENCE),
                    "{waiting}"
                );
            }
            Ok(())
        })
        .await?;
    }
    // Meanwhile, requests to the API get this response.
    for name in API_SERVICES {
        let service = admin.json(&["apiservice", name]).await?;
        let available = &service["status"]["conditions"][0];
        ensure!(available["type"] == "Available" && available["status"] == "False", "{available}");
    }
    Ok(())
}

/// Waits for all components: both Deployments, the agent, the proxy with its Service.
async fn everything_runs(admin: Admin<'_>, walk: &Walk<'_>) -> anyhow::Result<()> {
    for name in [LOCAL_USER_AUTHENTICATOR, CONCIERGE] {
        let deployment = format!("deployment/{name}");
        admin.kubectl(&["rollout", "status", &deployment, "-n", name, TIMEOUT_FLAG]).await?;
    }
    // The status may still be from a previous install.
    wait::until_ok(TIME_LIMIT, "what the Concierge makes", async || {
        let wanted = MADE.iter().filter(|name| !name.contains("/pinniped-concierge-impersonation-proxy-"));
        admin.kubectl(&[&["get", "-n", CONCIERGE], &wanted.copied().collect::<Vec<_>>()[..]].concat()).await
    })
    .await?;
    walk.await_cluster_key().await?;
    walk.show_credential_issuer().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    wait::until_ok(TIME_LIMIT, "the agent's pod", async || {
        let agent = "deployment/pinniped-concierge-kube-cert-agent";
        admin.kubectl(&["rollout", "status", agent, "-n", CONCIERGE, TIMEOUT_FLAG]).await
    })
    .await?;
    Ok(())
}

async fn what_it_made_is_owned_and_labelled(admin: Admin<'_>, made: &BTreeSet<String>) -> anyhow::Result<()> {
    let names: Vec<&str> = made.iter().map(String::as_str).collect();
    assert_eq!(names, MADE);
    let uid = &admin.json(&["deployment", CONCIERGE, "-n", CONCIERGE]).await?["metadata"]["uid"];
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": CONCIERGE, "uid": uid}]);
    for name in names {
        let object = admin.json(&[name, "-n", CONCIERGE]).await?;
        let metadata: &Value = &object["metadata"];
        assert_eq!(metadata["ownerReferences"], owner, "{name}");
        // The Lease of upstream is created by a library, which sets no labels.
        if !name.starts_with("lease.") {
            assert_eq!(metadata["labels"]["app"], CONCIERGE, "{name}");
        }
    }
    Ok(())
}

/// Waits until the namespace is empty. The namespace itself is usually deleted with its objects;
/// but if Kubernetes has noticed that the APIServices have no backend, it is deleted only after
/// them, because it might contain objects of kinds that cannot be listed.
async fn the_namespace_alone_empties(admin: Admin<'_>, kinds: &str) -> anyhow::Result<()> {
    admin.kubectl(&["delete", "namespace", CONCIERGE, "--wait=false"]).await?;
    wait::until_ok(TIME_LIMIT, "the namespace to be empty", async || {
        let left = objects(admin, kinds).await?;
        ensure!(left.is_empty(), "{left:?}");
        nothing_runs(admin).await
    })
    .await?;
    admin.kubectl(&[&["delete", "apiservices", TIMEOUT_FLAG], &API_SERVICES[..]].concat()).await?;
    admin.kubectl(&["wait", "--for=delete", &format!("namespace/{CONCIERGE}"), TIMEOUT_FLAG]).await?;
    // Only the CredentialIssuer, which belongs to the administrator, remains.
    let kind = "credentialissuers.config.concierge.pinniped.dev";
    admin.kubectl(&["get", kind, CREDENTIAL_ISSUER]).await.map(drop)
}

async fn nothing_runs(admin: Admin<'_>) -> anyhow::Result<()> {
    let running = admin.kubectl(&["get", "replicasets,pods", "-n", CONCIERGE, "-o", "name"]).await?;
    ensure!(running.is_empty(), "{running}");
    Ok(())
}

/// Returns the objects in the Concierge's namespace.
async fn objects(admin: Admin<'_>, kinds: &str) -> anyhow::Result<BTreeSet<String>> {
    let names = admin.kubectl(&["get", kinds, "-n", CONCIERGE, "--ignore-not-found", "-o", "name"]).await?;
    Ok(names.lines().map(str::to_owned).collect())
}
