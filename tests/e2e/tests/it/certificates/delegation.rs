//! The proxy serves a certificate of another namespace: the delegation grants its use, the owner's
//! Role grants read access. The test applies the manifests of
//! `docs/howto/delegated-certificates.md`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::walkthrough::{self, CONCIERGE};
use pinniped_test_support::certs::Pair;
use pinniped_test_support::{tools, wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::installed::{self, Installed, TIME_LIMIT};

const OWNER: &str = "kube-system";
const SECRET: &str = "example-com-wildcard";
const HOST: &str = "proxy.example.com";
const DEFINITION: &str = "tlscertificatedelegations.projectcontour.io";
const ISSUER: &str = "credentialissuers.config.concierge.pinniped.dev/pinniped-concierge-config";
const PREFIX: &str = "could not load the externally provided TLS secret for the impersonation proxy: ";
/// A part of the message that a pod logs when a watch reports the end of the permission. At that
/// time it already refuses handshakes.
const WITHDRAWN: &str = "the delegated certificate may not be used any more";

/// Returns the code blocks of the how-to in this language.
fn shown(language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(tools::repository().join("docs/howto/delegated-certificates.md"));
    let text = text.unwrap();
    let fence = format!("```{language}\n");
    let blocks: Vec<String> = text
        .split(&fence)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default().to_owned())
        .collect();
    assert!(!blocks.is_empty(), "the how-to shows no {language}");
    blocks
}

/// Returns the documents of the how-to's grant that have these kinds.
fn grant(kinds: &[&str]) -> String {
    let blocks = shown("yaml").concat();
    let documents = blocks.split("---\n");
    let wanted = documents.filter(|yaml| kinds.iter().any(|kind| yaml.contains(&format!("kind: {kind}\n"))));
    wanted.collect::<Vec<_>>().join("---\n")
}

fn issue() -> (Pair, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "owner");
    let ca = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(["*.example.com".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    (Pair { certificate_pem: leaf.pem(), private_key_pem: key.serialize_pem() }, ca.pem())
}

/// Returns the leaf certificate of one handshake, or the reason of its failure.
async fn handshake(installed: &Installed) -> Result<Vec<u8>, String> {
    let tcp = TcpStream::connect((installed.address, 443)).await.map_err(|err| err.to_string())?;
    let tls = wire::connect_unverified(tcp, HOST, &[b"h2"], None).await.map_err(|err| err.to_string())?;
    Ok(tls.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

/// Waits until several consecutive handshakes, and thus those with every pod, have the wanted
/// result.
async fn await_handshakes(
    installed: &Installed,
    what: &str,
    is_so: impl Fn(&Result<Vec<u8>, String>) -> bool,
) {
    wait::until_ok(TIME_LIMIT, what, async || {
        for _ in 0..6 {
            let shown = handshake(installed).await;
            anyhow::ensure!(is_so(&shown), "{:?}", shown.map(|leaf| leaf.len()));
        }
        Ok(())
    })
    .await
    .unwrap();
}

async fn await_leaf(installed: &Installed, pair: &Pair) {
    let body: String = pair.certificate_pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = STANDARD.decode(body).unwrap();
    await_handshakes(installed, "the delegated leaf", |shown| shown.as_ref() == Ok(&der)).await;
}

async fn await_refusal(installed: &Installed) {
    await_handshakes(installed, "handshakes to be refused", Result::is_err).await;
}

/// Returns how often each running pod has withdrawn a delegated certificate.
fn withdrawals(installed: &Installed) -> Vec<usize> {
    let running = installed.running().into_iter();
    running.map(|(_, pod)| std::fs::read_to_string(pod.log).unwrap().matches(WITHDRAWN).count()).collect()
}

async fn put(installed: &Installed, (pair, ca): &(Pair, String)) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": SECRET, "namespace": OWNER},
        "stringData": {"tls.crt": pair.certificate_pem, "tls.key": pair.private_key_pem, "ca.crt": ca}});
    installed.world().kubectl().apply(&secret.to_string()).await.unwrap();
}

/// Waits for a strategy with a matching message, and returns it.
async fn strategy(installed: &Installed, wanted: impl Fn(&str) -> bool) -> Value {
    wait::until_ok(TIME_LIMIT, "the strategy", async || {
        let issuer = installed.world().kubectl().output(&["get", ISSUER, "-o", "json"]).await?;
        let issuer: Value = serde_json::from_str(&issuer)?;
        let strategy = walkthrough::strategy(&issuer, "ImpersonationProxy");
        anyhow::ensure!(strategy["message"].as_str().is_some_and(&wanted), "{strategy}");
        Ok(strategy.clone())
    })
    .await
    .unwrap()
}

async fn kubectl(installed: &Installed, args: &[&str]) -> String {
    installed.world().kubectl().output(args).await.unwrap()
}

async fn can_i(installed: &Installed, args: &[&str]) -> String {
    let command = installed.world().kubectl().command(&[&["auth", "can-i"][..], args].concat());
    let output = pinniped_test_support::kubectl::run(command, None).await.unwrap();
    output.stdout.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delegated_wildcard_certificate_needs_grant_and_role_and_is_withdrawn_with_the_grant() {
    let Some(installed) = installed::alone("delegated certificates").await else { return };
    let denied = format!("{PREFIX}certificate delegation not permitted for Secret \"{OWNER}/{SECRET}\"");
    let is_denied = |message: &str| message == denied;
    let first = issue();
    put(&installed, &first).await;

    // The kind is not installed, and the Secret is not readable.
    let patch = json!({"spec": {"impersonationProxy": {"tls": {"secretName": format!("{OWNER}/{SECRET}")}}}});
    kubectl(&installed, &["patch", ISSUER, "--type=merge", "-p", &patch.to_string()]).await;
    assert_eq!(strategy(&installed, is_denied).await["reason"], "ErrorDuringSetup");
    await_refusal(&installed).await;
    let generated = "pinniped-concierge-impersonation-proxy-tls-serving-certificate";
    kubectl(&installed, &["get", "secret", generated, "-n", CONCIERGE]).await;

    // The kind is installed and the grant exists, but the Concierge has no permission to read the
    // Secret.
    let file = "deploy/install-tls-certificate-delegation.yaml";
    let definition = std::fs::read_to_string(tools::repository().join(file)).unwrap();
    assert!(shown("sh").concat().contains(file));
    installed.world().kubectl().apply(&definition).await.unwrap();
    installed.world().kubectl().await_established(&[&format!("crd/{DEFINITION}")]).await.unwrap();
    let delegation = grant(&["TLSCertificateDelegation"]);
    wait::until_ok(TIME_LIMIT, "the kind to be served", async || {
        installed.world().kubectl().apply(&delegation).await.map(drop)
    })
    .await
    .unwrap();
    let unreadable =
        format!("{PREFIX}could not read Secret \"{OWNER}/{SECRET}\": secrets \"{SECRET}\" is forbidden: ");
    strategy(&installed, |message| message.starts_with(&unreadable)).await;
    await_refusal(&installed).await;

    // With the owner's Role the proxy serves the certificate, with the CA from the Secret.
    installed.world().kubectl().apply(&grant(&["Role", "RoleBinding"])).await.unwrap();
    let ready = strategy(&installed, |message| message.contains("ready to accept")).await;
    let advertised = &ready["frontend"]["impersonationProxyInfo"]["certificateAuthorityData"];
    assert_eq!(advertised, &json!(STANDARD.encode(&first.1)));
    await_leaf(&installed, &first.0).await;

    // The Role covers this Secret only.
    let account = "--as=system:serviceaccount:pinniped-concierge:pinniped-concierge";
    for (resource, wanted) in
        [(format!("secret/{SECRET}"), "yes"), ("secret/another".into(), "no"), ("secrets".into(), "no")]
    {
        assert_eq!(can_i(&installed, &["get", &resource, "-n", OWNER, account]).await, wanted, "{resource}");
    }

    // A renewal and a revocation take effect independent of other work.
    let second = issue();
    put(&installed, &second).await;
    await_leaf(&installed, &second.0).await;
    let before = withdrawals(&installed);
    assert_eq!(before.len(), 2);
    kubectl(&installed, &["delete", DEFINITION, SECRET, "-n", OWNER]).await;
    wait::until_ok(TIME_LIMIT, "every pod to withdraw the certificate", async || {
        let now = withdrawals(&installed);
        anyhow::ensure!(now.iter().zip(&before).all(|(now, before)| now > before), "{now:?} and {before:?}");
        Ok(())
    })
    .await
    .unwrap();
    // From that moment on, no handshake succeeds.
    for _ in 0..6 {
        handshake(&installed).await.map(|leaf| leaf.len()).unwrap_err();
    }
    strategy(&installed, is_denied).await;

    // Granted again: the Role still exists.
    installed.world().kubectl().apply(&delegation).await.unwrap();
    await_leaf(&installed, &second.0).await;

    // An editor of the namespace has no permission to delegate.
    let editor = "--as=somebody";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "delegation-test-editor", "namespace": OWNER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}]});
    installed.world().kubectl().apply(&role.to_string()).await.unwrap();
    wait::until(TIME_LIMIT, "the editor to have rights", async || {
        (can_i(&installed, &["create", "secrets", "-n", OWNER, editor]).await == "yes").then_some(())
    })
    .await
    .unwrap();
    assert_eq!(can_i(&installed, &["create", DEFINITION, "-n", OWNER, editor]).await, "no");

    // Restores the original state.
    let patch = r#"{"spec": {"impersonationProxy": {"tls": null}}}"#;
    kubectl(&installed, &["patch", ISSUER, "--type=merge", "-p", patch]).await;
    let back = |message: &str| message.contains("ready to accept");
    strategy(&installed, back).await;
    await_handshakes(&installed, "the generated leaf", Result::is_ok).await;
    let names = ["pinniped-concierge-example-com-wildcard", "delegation-test-editor"];
    kubectl(&installed, &["delete", "rolebindings", names[0], names[1], "-n", OWNER]).await;
    kubectl(&installed, &["delete", "roles", names[0], "-n", OWNER]).await;
    kubectl(&installed, &["delete", "secret", SECRET, "-n", OWNER]).await;
    kubectl(&installed, &["delete", "crd", DEFINITION]).await;
}
