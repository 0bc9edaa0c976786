//! Invalid configuration, invalid Secrets, missing permissions: each is reported by name, and
//! affects nothing else.
//!
//! Tests that need a running Concierge install one of their own, in another namespace and with
//! another API group suffix.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_e2e::walkthrough::LOCAL_USER_AUTHENTICATOR;
use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::{tools, wait, wire};
use serde_json::{Value, json};

use crate::installed::{self, TIME_LIMIT};
use crate::separate_concierge::{SeparateConcierge, with_proxy};

const NAMES: [&str; 11] = [
    "servingCertificateSecret",
    "credentialIssuer",
    "apiService",
    "impersonationLoadBalancerService",
    "impersonationClusterIPService",
    "impersonationTLSCertificateSecret",
    "impersonationCACertificateSecret",
    "impersonationSignerSecret",
    "agentServiceAccount",
    "impersonationProxyServiceAccount",
    "impersonationProxyLegacySecret",
];

/// Runs the Concierge as a plain process that fails early.
async fn concierge(config: &Path, podinfo: &Path) -> CommandOutput {
    let mut command = Command::new(tools::binary(tools::SERVER).unwrap());
    command.arg0("pinniped-concierge");
    command.arg(format!("--config={}", config.display()));
    command.arg(format!("--downward-api-path={}", podinfo.display()));
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBERNETES_SERVICE_PORT");
    run(command, None).await.unwrap()
}

#[tokio::test]
async fn a_failed_start_logs_one_line_that_names_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let podinfo = dir.path().join("podinfo");
    std::fs::create_dir(&podinfo).unwrap();
    for (name, text) in [("namespace", "ns"), ("name", "pod"), ("labels", "a=\"b\"\n")] {
        std::fs::write(podinfo.join(name), text).unwrap();
    }
    let names = |all: &[&str]| all.iter().map(|name| format!("  {name}: x\n")).collect::<String>();
    let good = format!("names:\n{}", names(&NAMES));
    let missing = dir.path().join("missing.yaml");
    let no_podinfo = dir.path().join("nothing");
    let cases = [
        (
            missing.clone(),
            podinfo.clone(),
            format!("read file: open {}: no such file or directory", missing.display()),
        ),
        (
            file("unparsable.yaml", "names: [\n"),
            podinfo.clone(),
            "could not load config: decode yaml: ".to_owned(),
        ),
        (file("list.yaml", "- a\n"), podinfo.clone(), "could not load config: decode yaml: ".to_owned()),
        (
            file("no-names.yaml", "apiGroupSuffix: pinniped.dev\n"),
            podinfo.clone(),
            format!("validate names: missing required names: {}", NAMES.join(", ")),
        ),
        (
            file("two-names-missing.yaml", &format!("names:\n{}", names(&NAMES[2..]))),
            podinfo.clone(),
            "validate names: missing required names: servingCertificateSecret, credentialIssuer".to_owned(),
        ),
        (
            file("port.yaml", &format!("aggregatedAPIServerPort: 80\n{good}")),
            podinfo.clone(),
            "validate aggregatedAPIServerPort: must be within range 1024 to 65535".to_owned(),
        ),
        (
            file("suffix.yaml", &format!("apiGroupSuffix: nodot\n{good}")),
            podinfo.clone(),
            "validate apiGroupSuffix: ".to_owned(),
        ),
        (
            file("good.yaml", &good),
            no_podinfo.clone(),
            format!("open {}/namespace: no such file or directory", no_podinfo.display()),
        ),
        (
            file("good.yaml", &good),
            podinfo,
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined".to_owned(),
        ),
    ];
    for (config, podinfo, wanted) in cases {
        let output = concierge(&config, &podinfo).await;
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        let line: Value = serde_json::from_str(&output.stderr).unwrap();
        assert_eq!(line["level"], "error");
        let text =
            format!("{}: {}", line["message"].as_str().unwrap(), line["error"].as_str().unwrap_or_default());
        assert_eq!(text.matches(wanted.as_str()).count(), 1, "{text}\nlacks {wanted}, or has it twice");
    }
}

#[tokio::test]
async fn an_invalid_secret_is_reported_until_it_is_deleted() {
    const APP: &str = "garbage";
    let garbage = STANDARD.encode("this is no certificate");
    let secret = |name: &str, keys: &[&str]| {
        let data: serde_json::Map<_, _> =
            keys.iter().map(|key| ((*key).to_owned(), json!(garbage))).collect();
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": APP}, "data": data})
    };
    let serving = format!("{APP}-api-tls-serving-certificate");
    let signer = format!("{APP}-impersonation-proxy-signer-ca-certificate");
    let ca = ["caCertificate", "caCertificatePrivateKey"];
    let before = [
        secret(&serving, &[&ca[..], &["tlsCertificateChain", "tlsPrivateKey"]].concat()),
        secret(&signer, &ca),
    ];
    let Some(own) = SeparateConcierge::install(APP, &before, |text| with_proxy(&text)).await else { return };
    let uid = own.get("secret", &serving).await.unwrap()["metadata"]["uid"].clone();

    let message = "could not set the impersonator's credential signing secret: impersonation-proxy-signing-cert: \
                   attempt to set invalid key pair: tls: failed to find any PEM data in certificate input";
    own.await_strategy(["Error", "ErrorDuringSetup"], message).await;
    let bounds =
        format!(r#"failed to get cert bounds for secret \"{serving}\" with key \"tlsCertificateChain\""#);
    own.await_log(&bounds).await;
    // The Concierge does not delete a Secret that it did not create: it may be the only copy.
    assert_eq!(own.get("secret", &serving).await.unwrap()["metadata"]["uid"], uid);

    own.kubectl(&["delete", "secret", &signer]).await.unwrap();
    own.await_strategy(["Success", "Listening"], "impersonation proxy is ready to accept client connections")
        .await;
    own.kubectl(&["delete", "secret", &serving]).await.unwrap();
    own.await_api().await;
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_the_pod_keeps_running_but_is_not_ready() {
    let edit = |text: String| {
        with_proxy(&text)
            .replace("    apiGroupSuffix: ", "    aggregatedAPIServerPort: 8444\n    apiGroupSuffix: ")
            .replace("targetPort: 10250", "targetPort: 8444")
            .replace("port: 10250", "port: 8444")
    };
    let Some(own) = SeparateConcierge::install("taken-port", &[], edit).await else { return };
    own.await_strategy(["Error", "ErrorDuringSetup"], "could not listen on 0.0.0.0:8444: ").await;
    // If the proxy should serve but cannot, the pod leaves the Services; its process continues.
    let pod = own.pods.list(own.app).into_iter().find_map(|(_, pod)| pod.pid.and(Some(pod))).unwrap();
    let address = (pod.ip.unwrap(), 8444);
    // The strategy may be reported before the last part of the program has started.
    for (path, status) in [("/healthz", 200), ("/readyz", 500)] {
        let waited = wait::until_ok(TIME_LIMIT, format!("{path} to be {status}"), async || {
            let tcp = tokio::net::TcpStream::connect(address).await?;
            let name = "taken-port-api.taken-port.svc";
            let tls = wire::connect_unverified(tcp, name, &[b"http/1.1"], None).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            let response = wire::raw_request(tls, request.as_bytes()).await?;
            anyhow::ensure!(response.status == status, "{}", response.head);
            Ok(())
        });
        own.check(waited.await);
    }
    assert_eq!(pod.restarts, 0);
}

#[tokio::test]
async fn a_missing_permission_is_reported_once_and_affects_only_what_needs_it() {
    let edit = |text: String| {
        let with = "resources: [jwtauthenticators, webhookauthenticators]";
        assert!(text.contains(with));
        text.replace(with, "resources: [webhookauthenticators]")
    };
    // Uses the webhook of the shared installation for logins.
    let Some(installed) = installed::shared("a missing right").await else { return };
    let Some(own) = SeparateConcierge::install("missing-right", &[], edit).await else { return };
    own.await_api().await;
    own.await_log("a permission is missing").await;

    let secret = "local-user-authenticator-tls-serving-certificate";
    let args =
        ["get", "secret", secret, "-n", LOCAL_USER_AUTHENTICATOR, "-o", "jsonpath={.data.caCertificate}"];
    let ca = installed.world().kubectl().output(&args).await.unwrap();
    let webhook = json!({"apiVersion": format!("authentication.concierge.{}/v1alpha1", own.suffix),
        "kind": "WebhookAuthenticator", "metadata": {"name": "webhook"},
        "spec": {"endpoint": "https://local-user-authenticator.local-user-authenticator.svc/authenticate",
            "tls": {"certificateAuthorityData": ca}}});
    own.world.kubectl().apply(&webhook.to_string()).await.unwrap();
    let resource = format!("webhookauthenticators.v1alpha1.authentication.concierge.{}", own.suffix);
    let waited = wait::until_ok(TIME_LIMIT, "the webhook to be ready", async || {
        let object = own.get(&resource, "webhook").await?;
        anyhow::ensure!(object["status"]["phase"] == "Ready", "{}", object["status"]);
        Ok(())
    });
    own.check(waited.await);

    // The controller retries repeatedly and logs the failure once.
    let group = format!("authentication.concierge.{}", own.suffix);
    let waited = wait::until(TIME_LIMIT, "a second try", async || {
        let events = own.world.control_plane().audit_events(&group).ok()?;
        let refused = |event: &&Value| {
            event["objectRef"]["apiGroup"] == group.as_str()
                && event["objectRef"]["resource"] == "jwtauthenticators"
                && event["responseStatus"]["code"] == 403
        };
        (events.iter().filter(refused).count() > 1).then_some(())
    });
    own.check(waited.await);
    let log = own.pods.logs(own.app);
    let named = |line: &&str| line.contains("a permission is missing") && line.contains("jwtauthenticators");
    assert_eq!(log.lines().filter(named).count(), 1, "{log}");
}
