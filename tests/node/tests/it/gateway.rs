//! The complete release post on a node: cert-manager issues the certificate, kubectl connects
//! through the ingress. First with our gateway, then with a real Contour and Envoy in its place;
//! the outputs must be equal.

use std::time::Instant;

use pinniped_e2e::cert_manager::{CERT_MANAGER_ENV, CertManager};
use pinniped_e2e::contour;
use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{CONCIERGE, DECISION, GATEWAY, Ingress, LOCAL_USER_AUTHENTICATOR, Walk};
use pinniped_node::fixture;
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::tools;
use serde_json::{Value, json};

use crate::walkthrough::{INSTALL, import_product, nothing_restarted};

const ENDPOINT: &str = "https://impersonation-proxy-mtls.local";

/// One test, because the second half is compared with the first.
#[tokio::test]
async fn the_release_post_has_the_same_output_with_our_gateway_and_with_contour() {
    let test = "the release post through our gateway and through Contour";
    let Some(cert_manager) = CertManager::programs() else {
        tools::skip(test, &format!("cert-manager is built by `cargo xtask test` ({CERT_MANAGER_ENV})"));
        return;
    };
    let Some(contour) = contour::Programs::find() else {
        let names = [contour::CONTOUR_ENV, contour::ENVOY_ENV].join(", ");
        tools::skip(test, &format!("`cargo xtask test` installs Contour and Envoy ({names})"));
        return;
    };
    let Some(node) = fixture::shared(test).unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    import_product(node, folder.path()).await.unwrap();

    let story = async {
        let gateway = walk.install_ingress(&Ingress::Gateway).await?;
        walk.install().await?;
        walk.create_user().await?;
        walk.await_cluster_key().await?;
        let _cert_manager = walk.start_cert_manager(&cert_manager).await?;
        let serving = walk.issue_certificates().await?;
        walk.turn_proxy_on(&serving).await?;
        walk.create_authenticator().await?;
        walk.create_workload().await?;
        let ours = walk.through_ingress(&gateway, &serving).await?;
        as_the_post_has_it(&ours);
        gateway_pods_are_restricted_and_did_not_restart(&environment).await?;
        // A restart of our pods may have been caused by the gateway, and kubectl would have hidden
        // it.
        nothing_restarted(&environment).await?;

        walk.withdraw().await?;
        walk.remove_gateway().await?;
        let contour = walk.install_ingress(&Ingress::Contour(contour)).await?;
        let theirs = walk.through_ingress(&contour, &serving).await?;
        let (ours, theirs) = (comparable(&ours), comparable(&theirs));
        assert_eq!(ours, theirs, "ours and Contour's differ");
        walk.remove().await
    };
    if let Err(error) = story.await {
        panic!("{}\n{error:#}", pod_logs(&environment).await);
    }
}

/// Checks the texts of the post and its walk-through.
fn as_the_post_has_it(output: &[CommandOutput]) {
    let [ingress, written, refused, listed, whoami, ended, anonymous, login, again, back] = output else {
        panic!("{output:#?}")
    };
    for (shown, secret) in
        [(ingress, None), (ended, Some("impersonation-proxy-tls-serving-cert")), (again, None)]
    {
        let words: Vec<&str> = shown.stdout.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        let name = ["impersonation-proxy", "impersonation-proxy-mtls.local"];
        let wanted: Vec<&str> =
            name.into_iter().chain(secret).chain(["valid", "Valid", "HTTPProxy"]).collect();
        assert_eq!(words, wanted, "{}", shown.stdout);
    }
    assert!(written.stdout.contains(&format!("server: {ENDPOINT}\n")), "{}", written.stdout);
    let lines = [
        "discovered CredentialIssuer",
        "discovered Concierge endpoint",
        "discovered Concierge certificate authority bundle",
        "validated connection to the cluster",
    ];
    let found: Vec<_> = lines.iter().map(|line| written.stderr.find(line)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{}", written.stderr);
    for (output, user) in [(refused, "pinny"), (anonymous, "system:anonymous")] {
        let wanted = format!(
            "Error from server (Forbidden): pods is forbidden: User \"{user}\" cannot list resource \"pods\" in API \
             group \"\" at the cluster scope: {DECISION}\n"
        );
        assert_eq!((output.code, &output.stderr), (1, &wanted));
    }
    for output in [listed, back] {
        for name in [CONCIERGE, LOCAL_USER_AUTHENTICATOR, "some-app"] {
            assert!(output.stdout.lines().any(|line| line.starts_with(name)), "{}", output.stdout);
        }
    }
    assert_eq!(
        whoami.stdout,
        format!(
            "Current cluster info:\n\nName: kubernetes-pinniped\nURL: {ENDPOINT}\n\nCurrent user info:\n\n\
             Username: pinny\nGroups: group-for-mtls, system:authenticated\n"
        )
    );
    let fields = "clientCertificateData, clientKeyData, expirationTimestamp";
    assert_eq!(login.stdout, format!("ExecCredential: {fields}\n"));
}

/// Returns the output of commands without the parts that differ between runs: times, ages, widths
/// of columns, the gateway's own pods.
fn comparable(output: &[CommandOutput]) -> Vec<String> {
    let line = |output: &CommandOutput, line: &str| -> Option<String> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if output.command.contains(" get pods ") {
            if words.first() == Some(&GATEWAY) {
                return None;
            }
            words.pop();
        }
        Some(words.join(" "))
    };
    // A log line starts with a time, followed by two spaces.
    let logged = |line: &str| line.split_once("  ").map_or(line, |(_, rest)| rest).to_owned();
    output
        .iter()
        .map(|output| {
            let CommandOutput { command, code, stdout, stderr, .. } = output;
            let stdout: Vec<String> = stdout.lines().filter_map(|text| line(output, text)).collect();
            let stderr: Vec<String> = stderr.lines().map(logged).collect();
            format!("$ {command}\nexit code {code}\n{}\n{}", stdout.join("\n"), stderr.join("\n"))
        })
        .collect()
}

async fn kubectl(environment: &OnNode<'_>, args: &[&str]) -> anyhow::Result<String> {
    Ok(Step::inside(environment, environment.kubectl().command(args)).run(None).await?.success()?.stdout)
}

pub(crate) async fn gateway_pods_are_restricted_and_did_not_restart(
    environment: &OnNode<'_>,
) -> anyhow::Result<()> {
    let pods = kubectl(environment, &["get", "pods", "--namespace", GATEWAY, "--output=json"]).await?;
    let pods: Value = serde_json::from_str(&pods)?;
    let pods = pods["items"].as_array().unwrap();
    assert!(!pods.is_empty());
    for pod in pods {
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], json!(0), "{}", pod["status"]);
        let context = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{context}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{context}");
    }
    Ok(())
}

/// Returns the pods' logs for a failure message.
pub(crate) async fn pod_logs(environment: &OnNode<'_>) -> String {
    let mut output = String::new();
    let gateway = format!("app={GATEWAY}");
    for args in [
        &["get", "pods", "-A", "-o", "wide"][..],
        &["logs", "-n", GATEWAY, "-l", &gateway, "--prefix", "--tail=40"],
        &["logs", "-n", CONCIERGE, "-l", "app=pinniped-concierge", "--prefix", "--tail=40"],
        &["get", "httpproxies", "-A", "-o", "yaml"],
    ] {
        output += &kubectl(environment, args).await.unwrap_or_else(|error| format!("{error:#}"));
    }
    output
}
