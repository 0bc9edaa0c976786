//! A real cert-manager issues the proxy's certificate, as in the release post, and renews it under
//! load.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use pinniped_e2e::cert_manager::{CERT_MANAGER_ENV, CertManager};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::steady_load::{self, Load, Params};
use pinniped_e2e::walkthrough::{
    CONCIERGE, EXTERNAL_NAME, SERVING_CERTIFICATE, SERVING_SECRET, Serving, Walk, YQ_ENV, strategy,
};
use pinniped_test_support::{kubectl, tools, wait};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, RwLockWriteGuard};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::installed::{self, InstallationGuard, Installed, TIME_LIMIT};

/// Requests per second during the renewals.
const RATE: u32 = 200;
/// Duration of the load, in seconds' worth of requests, before, between and after renewals.
const LOAD_SECONDS: usize = 2;
/// The full resource name, because another group may have a kind with this name.
const CERTIFICATE: &str = "certificates.cert-manager.io";

static CERT_MANAGER: OnceCell<CertManager> = OnceCell::const_new();

/// Returns exclusive access to the installation, with a cert-manager in its cluster. Returns `None`
/// and records a skip where this machine cannot run it.
pub(crate) async fn with_cert_manager(
    test: &str,
) -> Option<InstallationGuard<RwLockWriteGuard<'static, ()>>> {
    let Some(programs) = CertManager::programs() else {
        tools::skip(test, &format!("cert-manager is built by `cargo xtask test` ({CERT_MANAGER_ENV})"));
        return None;
    };
    if std::env::var_os(YQ_ENV).is_none() {
        tools::skip(test, &format!("yq is built by `cargo xtask test` ({YQ_ENV})"));
        return None;
    }
    let installed = installed::alone(test).await?;
    let world = installed.world();
    CERT_MANAGER.get_or_try_init(|| CertManager::start(world, &programs)).await.unwrap();
    Some(installed)
}

#[tokio::test]
async fn certificates_of_the_release_post_are_issued_and_served() {
    let test = "certificates of the release post from a real cert-manager";
    let Some(installed) = with_cert_manager(test).await else { return };
    let walk = Walk::new(installed.world(), Narrator::Silent, Instant::now()).unwrap();
    let output = release_post(&installed, &walk).await;
    back_to_generated(&installed).await.unwrap();
    output.unwrap();
}

async fn release_post(installed: &Installed, walk: &Walk<'_>) -> anyhow::Result<()> {
    let serving = walk.issue_certificates().await?;
    let secret = serving_secret(installed).await?;
    ensure!(secret["type"] == "kubernetes.io/tls", "the Secret is of type {}", secret["type"]);
    let key = field(&secret, "tls.key")?;
    ensure!(key.starts_with(b"-----BEGIN RSA PRIVATE KEY-----"), "the key is not in PKCS#1");
    is_the_posts_leaf(installed, &leaf_of(&secret)?).await?;
    let Serving::Secret { authority, .. } = &serving else { anyhow::bail!("{serving:?}") };
    ensure!(secret["data"]["ca.crt"] == **authority, "the Secret names another authority");
    let pem = STANDARD.decode(authority)?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem)?;
    let key = X509Certificate::from_der(&pem.contents)?.1.public_key().parsed()?.key_size();
    ensure!(key == 256, "the authority's key is not of P-256: {key}");

    let issuer = walk.enable_proxy(&serving).await?;
    let proxy = strategy(&issuer, "ImpersonationProxy");
    let wanted = json!({"type": "ImpersonationProxy", "impersonationProxyInfo": {
        "endpoint": format!("https://{EXTERNAL_NAME}"), "certificateAuthorityData": authority}});
    ensure!(proxy["frontend"] == wanted, "{proxy}");
    all_pods_show(installed, &leaf_of(&secret)?).await?;

    // The user of the post, and the post's last three commands.
    walk.kubeconfig().await?;
    let user = installed.world().kubectl().with_kubeconfig(&walk.user_kubeconfig());
    let mut whoami = std::process::Command::new(tools::binary("pinniped")?);
    whoami.arg("whoami").arg("--kubeconfig").arg(user.kubeconfig()).env("HOME", walk.home());
    let printed = kubectl::run(whoami, None).await?.success()?.stdout;
    ensure!(printed.contains("Username: pinny\n"), "{printed}");
    ensure!(walk.check_bundles().await? == *authority, "the bundles are not the authority's");
    Ok(())
}

/// Checks organization, key, usage, name and validity of the post's certificate, as documented in
/// cert-manager's manual of that release.
async fn is_the_posts_leaf(installed: &Installed, der: &[u8]) -> anyhow::Result<()> {
    let (_, leaf) = X509Certificate::from_der(der)?;
    let organization = leaf.subject().iter_organization().next().and_then(|name| name.as_str().ok());
    ensure!(organization == Some("Pinniped"), "{}", leaf.subject());
    ensure!(leaf.public_key().parsed()?.key_size() == 2048, "the key is not of 2048 bits");
    let usage = leaf.extended_key_usage()?.context("no extended key usage")?.value;
    ensure!(usage.server_auth && !usage.client_auth && !usage.any, "{usage:?}");
    let names = leaf.subject_alternative_name()?.context("no names")?.value.general_names.clone();
    ensure!(format!("{names:?}") == format!("[DNSName({EXTERNAL_NAME:?})]"), "{names:?}");
    let validity = leaf.validity();
    let days = (validity.not_after.timestamp() - validity.not_before.timestamp()) / 86_400;
    ensure!(days == 90, "it is valid for {days} days");
    let certificate = certificate(installed).await?;
    let renewal: Timestamp = certificate["status"]["renewalTime"].as_str().unwrap_or_default().parse()?;
    let end = Timestamp::from_second(validity.not_after.timestamp())?;
    ensure!(end.duration_since(renewal) == SignedDuration::from_hours(15 * 24), "renewed at {renewal}");
    Ok(())
}

// One thread for the load and one for the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_renewed_by_cert_manager_cost_no_request() {
    let Some(installed) = with_cert_manager("certificates renewed under load").await else { return };
    let walk = Walk::new(installed.world(), Narrator::Silent, Instant::now()).unwrap();
    let output = renewals(&installed, &walk).await;
    back_to_generated(&installed).await.unwrap();
    output.unwrap();
}

async fn renewals(installed: &Installed, walk: &Walk<'_>) -> anyhow::Result<()> {
    let user = "certificate-renewal";
    installed.namespace(user).await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    installed.allow(user, rules).await;
    let serving = walk.issue_certificates().await?;
    let Serving::Secret { authority, .. } = &serving else { anyhow::bail!("{serving:?}") };
    walk.enable_proxy(&serving).await?;
    let first = leaf_of(&serving_secret(installed).await?)?;
    all_pods_show(installed, &first).await?;

    let load = Load::start(Params {
        address: SocketAddr::new(installed.address, 443),
        name: EXTERNAL_NAME,
        roots: String::from_utf8(STANDARD.decode(authority)?)?,
        client: installed.certificate(user, None),
        path: format!("/api/v1/namespaces/{user}/configmaps"),
        per_second: RATE,
    })?;
    some_more(&load).await?;
    request_renewal(installed).await?;
    let second = renewed(installed, &first).await?;
    all_pods_show(installed, &second).await?;
    some_more(&load).await?;

    let args = ["delete", "secret", SERVING_SECRET, "--namespace", CONCIERGE];
    installed.world().kubectl().output(&args).await?;
    let third = renewed(installed, &second).await?;
    all_pods_show(installed, &third).await?;
    some_more(&load).await?;
    let done = load.end().await;
    eprintln!("{done}");
    // A number of requests and not a rate, because a busy machine takes longer.
    done.check(3 * LOAD_SECONDS * RATE as usize)?;
    // The certificates of the connections before, between and after the renewals.
    ensure!(done.certificates() == 3, "{done}");
    Ok(())
}

/// Waits for as many requests as are due in [`LOAD_SECONDS`] seconds.
async fn some_more(load: &Load) -> anyhow::Result<()> {
    let before = load.so_far().requests;
    wait::until(TIME_LIMIT, "some more requests", async || {
        (load.so_far().requests >= before + LOAD_SECONDS * RATE as usize).then_some(())
    })
    .await
}

/// Sets the condition `Issuing` in the status, as `cmctl renew` does.
async fn request_renewal(installed: &Installed) -> anyhow::Result<()> {
    wait::until_ok(TIME_LIMIT, "the condition to be written", async || {
        let mut object = certificate(installed).await?;
        let condition = json!({"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
            "message": "Certificate re-issuance manually triggered",
            "lastTransitionTime": Timestamp::now().strftime("%FT%TZ").to_string(),
            "observedGeneration": object["metadata"]["generation"]});
        object["status"]["conditions"].as_array_mut().context("no conditions")?.push(condition);
        let command = installed.world().kubectl().command(&["replace", "--subresource=status", "-f", "-"]);
        // A conflict is retried.
        kubectl::run(command, Some(&object.to_string())).await?.success()
    })
    .await?;
    Ok(())
}

/// Waits for another certificate in the Secret and returns it.
async fn renewed(installed: &Installed, before: &[u8]) -> anyhow::Result<Vec<u8>> {
    wait::until_ok(TIME_LIMIT, "cert-manager to renew the certificate", async || {
        let now = leaf_of(&serving_secret(installed).await?)?;
        ensure!(now != before, "it is the one before");
        Ok(now)
    })
    .await
}

async fn certificate(installed: &Installed) -> anyhow::Result<Value> {
    let args = ["get", CERTIFICATE, SERVING_CERTIFICATE, "--namespace", CONCIERGE, "--output=json"];
    Ok(serde_json::from_str(&installed.world().kubectl().output(&args).await?)?)
}

async fn serving_secret(installed: &Installed) -> anyhow::Result<Value> {
    let args = ["get", "secret", SERVING_SECRET, "--namespace", CONCIERGE, "--output=json"];
    Ok(serde_json::from_str(&installed.world().kubectl().output(&args).await?)?)
}

fn field(secret: &Value, name: &str) -> anyhow::Result<Vec<u8>> {
    let text = secret["data"][name].as_str().with_context(|| format!("the Secret has no {name}"))?;
    Ok(STANDARD.decode(text)?)
}

/// Returns the first certificate of the Secret, DER.
fn leaf_of(secret: &Value) -> anyhow::Result<Vec<u8>> {
    let pem = field(secret, "tls.crt")?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem)?;
    Ok(pem.contents)
}

/// Waits until every pod presents this certificate.
pub(crate) async fn all_pods_show(installed: &Installed, leaf: &[u8]) -> anyhow::Result<()> {
    wait::until_ok(TIME_LIMIT, "every pod to show the certificate", async || {
        let running = installed.running();
        ensure!(!running.is_empty(), "no pod runs");
        for (name, pod) in running {
            let address = SocketAddr::from((pod.ip.context("a pod has no address")?, 8444));
            ensure!(steady_load::shown(address, EXTERNAL_NAME).await? == leaf, "{name} shows another one");
        }
        Ok(())
    })
    .await
}

/// Restores the original state: the proxy serves the generated certificate, and the Concierge's
/// namespace contains no objects of cert-manager.
pub(crate) async fn back_to_generated(installed: &Installed) -> anyhow::Result<()> {
    generated_serves(installed).await?;
    let kubectl = installed.world().kubectl();
    let gone = ["--namespace", CONCIERGE, "--ignore-not-found"];
    kubectl.output(&[&["delete", CERTIFICATE, SERVING_CERTIFICATE][..], &gone].concat()).await?;
    kubectl.output(&[&["delete", "secret", SERVING_SECRET][..], &gone].concat()).await?;
    Ok(())
}

/// Removes the external certificate from the CredentialIssuer, and waits until every pod presents
/// the generated one.
pub(crate) async fn generated_serves(installed: &Installed) -> anyhow::Result<()> {
    let kubectl = installed.world().kubectl();
    let issuer = "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config";
    let patch = r#"{"spec":{"impersonationProxy":{"tls":null}}}"#;
    kubectl.output(&["patch", issuer, "--type=merge", "--patch", patch]).await?;
    let bundle = STANDARD.encode(&installed.ca_pem);
    wait::until_ok(TIME_LIMIT, "the generated authority to be advertised again", async || {
        let path =
            "jsonpath={.status.strategies[?(@.type==\"ImpersonationProxy\")].frontend.impersonationProxyInfo.certificateAuthorityData}";
        let advertised = kubectl.output(&["get", issuer, "--output", path]).await?;
        ensure!(advertised == bundle, "{advertised}");
        Ok(())
    })
    .await?;
    let generated = "pinniped-concierge-impersonation-proxy-tls-serving-certificate";
    let secret = wait::until_ok(TIME_LIMIT, "the generated certificate", async || {
        let args = ["get", "secret", generated, "--namespace", CONCIERGE, "--output=json"];
        leaf_of(&serde_json::from_str(&kubectl.output(&args).await?)?)
    })
    .await?;
    all_pods_show(installed, &secret).await
}
