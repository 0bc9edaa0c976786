//! The audit webhook of an installed Concierge, with the files of a Secret as the chart mounts
//! them, and its audit log on standard output. Events of requests over a limit (429) are in
//! `crates/concierge/server/tests/it/audit.rs`, where a test can lower the limit.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, ensure};
use http::StatusCode;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::issuer::{Reply, ScriptedIssuer};
use pinniped_test_support::pods::NODE_IP;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::installed::TIME_LIMIT;
use crate::separate_concierge::{SeparateConcierge, with_proxy};
use crate::service_account_tokens::webhook::Webhook;

const APP: &str = "audited";
const USER: &str = "audited-pinny";
/// The path of the receiver, with the query of the API server.
const PATH: &str = "/events?timeout=30s";
const TOKEN: &str = "token-of-the-receiver";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installed_concierge_sends_the_events_of_all_results_to_its_webhook() {
    let Some(own) = SeparateConcierge::install(APP, &[], |text| edit(&text)).await else { return };
    let result = events(&own).await;
    own.check(result);
}

/// Enables audit in the manifest.
fn edit(text: &str) -> String {
    let settings = "      logUsernamesAndGroups: disabled\n";
    let mount = "            - name: podinfo\n              mountPath: /etc/podinfo\n";
    let volume = "      volumes:\n        - name: tmp\n";
    let replaced = [
        (
            settings,
            format!(
                "{settings}      proxiedRequests: {{policyFile: /etc/audit/policy.yaml, \
                 log: {{path: '-'}}, \
                 webhook: {{kubeconfigFile: /etc/audit/kubeconfig, batchMaxWaitSeconds: 1}}}}\n"
            ),
        ),
        (mount, format!("            - name: audit\n              mountPath: /etc/audit\n{mount}")),
        (
            volume,
            format!(
                "      volumes:\n        - name: audit\n          secret:\n            secretName: audit\n{}",
                volume.trim_start_matches("      volumes:\n")
            ),
        ),
    ];
    replaced.into_iter().fold(with_proxy(text), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replace(from, &to)
    })
}

async fn events(own: &SeparateConcierge) -> anyhow::Result<()> {
    let receiver = ScriptedIssuer::start(IpAddr::V4(NODE_IP)).await?;
    receiver.reply(PATH, Reply::Full(StatusCode::OK, "text/plain", String::new()));
    let kubeconfig = json!({
        "current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {
            "server": format!("{}/events", receiver.url()), "certificate-authority": "ca.crt"}}],
        "users": [{"name": "a", "user": {"token": TOKEN}}],
    });
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [\
                  {level: RequestResponse, verbs: [create], omitManagedFields: true}, {level: Metadata}]}";
    // The pod waits for the Secret.
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "audit", "namespace": APP},
        "stringData": {
            "kubeconfig": kubeconfig.to_string(), "ca.crt": receiver.ca_pem, "policy.yaml": policy,
        },
    });
    own.world.kubectl().apply(&secret.to_string()).await?;
    own.await_api().await;
    own.create_authenticator(&Webhook::start()?).await;
    let binding = ["create", "rolebinding", "audited", "--clusterrole=edit", &format!("--user={USER}")];
    own.kubectl(&binding).await?;
    let pair = wait::until_ok(TIME_LIMIT, "a login", async || {
        let credential = own.log_in(&json!({"username": USER})).await?["credential"].clone();
        let text = |key: &str| credential[key].as_str().map(str::to_owned);
        let certificate_pem = text("clientCertificateData").with_context(|| credential.to_string())?;
        let private_key_pem = text("clientKeyData").context("no key")?;
        Ok(Pair { certificate_pem, private_key_pem })
    })
    .await?;
    let ip = own.pods.list(APP).into_iter().find_map(|(_, pod)| pod.ip).context("no pod")?;
    let proxy = SocketAddr::new(IpAddr::V4(ip), 8444);

    let maps = format!("/api/v1/namespaces/{APP}/configmaps");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}});
    let create = format!("POST {maps}");
    for (id, pair, line, body, code) in [
        ("created", Some(&pair), create.as_str(), map.to_string(), 201),
        ("forbidden", Some(&pair), "GET /api/v1/nodes", String::new(), 403),
        ("unknown", None, "GET /api/v1/nodes", String::new(), 401),
    ] {
        wait::until_ok(TIME_LIMIT, format!("{line} to get {code}"), async || {
            let tcp = TcpStream::connect(proxy).await?;
            let tls = wire::connect_unverified(tcp, "proxy.example.com", &[b"http/1.1"], pair).await?;
            let length = body.len();
            let request = format!(
                "{line} HTTP/1.1\r\nhost: proxy.example.com\r\naudit-id: {id}\r\n\
                 authorization: Bearer SECRET\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n{body}"
            );
            let status = wire::raw_request(tls, request.as_bytes()).await?.status;
            ensure!(status == code, "{status}");
            Ok(())
        })
        .await?;
        let event = wait::until(TIME_LIMIT, format!("the event of {id}"), async || {
            let lists = receiver.seen(PATH).into_iter();
            let lists = lists.filter_map(|seen| serde_json::from_slice::<Value>(&seen.body).ok());
            lists
                .flat_map(|list| list["items"].as_array().cloned().unwrap_or_default())
                .find(|event| event["auditID"] == id && event["responseStatus"]["code"] == code)
        })
        .await?;
        ensure!(event["user"]["username"].as_str() == pair.map(|_| USER), "{event}");
        if id == "created" {
            ensure!(event["requestObject"] == map, "{event}");
            ensure!(event["responseObject"]["metadata"]["uid"].is_string(), "{event}");
            ensure!(event["responseObject"]["metadata"].get("managedFields").is_none(), "{event}");
        }
    }
    let seen = receiver.seen(PATH);
    ensure!(seen.iter().all(|seen| seen.headers["authorization"] == format!("Bearer {TOKEN}")));
    let agent = seen[0].headers["user-agent"].to_str()?;
    ensure!(agent.starts_with("pinniped-concierge/"), "{agent}");
    let secret = b"SECRET";
    ensure!(!seen.iter().any(|seen| seen.body.windows(secret.len()).any(|part| part == secret)));
    // The log is on standard output, which a container's log contains.
    wait::until_ok(TIME_LIMIT, "the events in the pod's log", async || {
        let logs = own.pods.logs(APP);
        let events = logs.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ids: Vec<_> = events
            .filter(|event| event["kind"] == "Event")
            .map(|mut event| event["auditID"].take())
            .collect();
        ensure!(
            ["created", "forbidden", "unknown"].iter().all(|id| ids.iter().any(|found| found == id)),
            "{ids:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(!own.pods.logs(APP).contains("audit events are lost"));
    Ok(())
}
