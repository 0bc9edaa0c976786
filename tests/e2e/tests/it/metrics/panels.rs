//! A real Prometheus with the service account and the permission of the documentation reads every
//! pod, the rules and the dashboard's queries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::AsyncBufReadExt as _;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use pinniped_concierge_api::authentication::JwtAuthenticator;
use pinniped_e2e::prometheus::{Panel, Programs, Prometheus};
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_test_support::browser::{self, Browser};
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::issuer::ScriptedIssuer;
use pinniped_test_support::pods::NODE_IP;
use pinniped_test_support::{tools, wait};
use serde_json::json;

use crate::gateway::InstalledGateway;
use crate::installed::{self, Credentials, Installed};
use crate::{apis, gateway};

const USER: &str = "metrics-reader-of-pods";
const AUTHENTICATOR: &str = "metrics";
/// Queries about events that the test makes happen, each with the smallest sum of its values.
const EVENTS: [(&str, f64); 12] = [
    ("rate(pinniped_impersonation_proxy_bytes_total{direction=\"to_clients\"}[5m])", f64::MIN_POSITIVE),
    // Native histograms, which have names without suffixes.
    ("histogram_count(sum(pinniped_login_duration_seconds))", 2.0),
    (
        "histogram_quantile(0.9, sum(rate(pinniped_request_duration_seconds{verb=\"list\"}[5m])))",
        f64::MIN_POSITIVE,
    ),
    ("rate(pinniped_logins_total{strategy=\"ImpersonationProxy\",result=\"issued\"}[5m])", f64::MIN_POSITIVE),
    (
        "rate(pinniped_logins_total{authenticator_kind=\"webhook\",result=\"rejected\"}[5m])",
        f64::MIN_POSITIVE,
    ),
    (
        "rate(pinniped_requests_total{server=\"impersonation_proxy\",verb=\"list\",group=\"core\"}[5m])",
        f64::MIN_POSITIVE,
    ),
    ("rate(pinniped_access_reviews_total{result=\"allowed\"}[5m])", f64::MIN_POSITIVE),
    // The scrapes have tokens.
    ("pinniped_token_reviews_total{result=\"authenticated\"}", 1.0),
    ("pinniped_requests_in_flight{server=\"impersonation_proxy\",limit=\"long_running\"}", 1.0),
    ("pinniped_jwt_authenticator_keys_age_seconds", 0.0),
    ("rate(pinniped_gateway_requests_total{method=\"GET\",code_class=\"3xx\"}[5m])", f64::MIN_POSITIVE),
    ("histogram_count(sum(pinniped_gateway_request_duration_seconds))", 2.0),
];
/// A query without values here, because the processes of the test have no memory limit.
const NO_LIMIT: &str = "pinniped_capacity_memory_used_bytes / pinniped_capacity_memory_limit_bytes";
/// A busy machine reads, evaluates and reconciles slowly.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Creates a JWTAuthenticator whose issuer this test runs.
async fn jwt_authenticator(installed: &Installed) -> (ScriptedIssuer, Api<JwtAuthenticator>) {
    let issuer = ScriptedIssuer::start(IpAddr::V4(NODE_IP)).await.unwrap();
    issuer.publish(&key_set([&Signer::generate(Algorithm::Es256, "first")]));
    let object = json!({"apiVersion": "authentication.concierge.pinniped.dev/v1alpha1",
        "kind": "JWTAuthenticator", "metadata": {"name": AUTHENTICATOR},
        "spec": {"issuer": issuer.url(), "audience": "cluster",
            "tls": {"certificateAuthorityData": STANDARD.encode(&issuer.ca_pem)}}});
    let api = Api::all_with(installed.admin().await, &GroupSuffix::default());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    (issuer, api)
}

/// Sends a login with the user's password, one with another password, and a request through the
/// proxy. Changes a route of the gateway, and sends requests to it.
async fn traffic(
    installed: &Installed,
    proxy: &kube::Client,
    gateway: &InstalledGateway,
) -> anyhow::Result<()> {
    static CHANGES: AtomicUsize = AtomicUsize::new(0);
    let change = CHANGES.fetch_add(1, Ordering::Relaxed);
    let route = json!({"apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy",
        "metadata": {"name": "changing", "namespace": gateway.namespace},
        "spec": {"virtualhost": {"fqdn": format!("route-{change}.metrics.example.com")},
            "routes": [{"services": [{"name": "none", "port": 80}]}]}});
    installed.world().kubectl().apply(&route.to_string()).await?;
    gateway.send_requests().await?;
    let admin = installed.admin().await;
    for password in ["password123", "wrong"] {
        let token = format!("{}:{password}", installed.walked.names.user);
        apis::log_in(&admin, &token, "local-user-authenticator").await?;
    }
    proxy.request_text(http::Request::get("/api/v1/pods").body(Vec::new())?).await?;
    Ok(())
}

#[tokio::test]
async fn every_panel_of_the_dashboard_has_values_in_a_real_prometheus() {
    let Some(programs) = Programs::for_test("panels") else { return };
    // First, because both hold the same lock.
    let Some(gateway) = gateway::installed("panels").await else { return };
    let Some(installed) = installed::shared("panels").await else { return };
    let world = installed.world();
    let (_issuer, authenticators) = jwt_authenticator(&installed).await;
    let all = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]);
    installed.allow(USER, all).await;
    let proxy = installed.client(&Credentials::from(installed.certificate(USER, None))).await;
    let watch = http::Request::get("/api/v1/pods?watch=true").body(Vec::new()).unwrap();
    let mut watched = Box::pin(proxy.request_stream(watch).await.unwrap());
    let mut line = Vec::new();
    watched.read_until(b'\n', &mut line).await.unwrap();
    assert!(!line.is_empty(), "the watch has begun");

    let prometheus = Prometheus::start(world, &programs, free_port().unwrap()).await.unwrap();
    let happened = wait::until_ok(TIME_LIMIT, "the numbers of the load", async || {
        traffic(&installed, &proxy, &gateway).await?;
        for (query, least) in EVENTS {
            let samples = prometheus.query(world, query).await?;
            let sum: f64 = samples.iter().map(|sample| sample.value).sum();
            anyhow::ensure!(!samples.is_empty() && sum >= least, "{query} has {samples:?}");
        }
        Ok(())
    });
    happened.await.unwrap();
    for panel in Panel::all().unwrap() {
        for (query, _) in &panel.queries {
            if query == NO_LIMIT {
                // It has a value in a container with a memory limit.
                let samples = prometheus.query(world, query).await.unwrap();
                assert!(samples.iter().all(|sample| sample.value.is_finite()), "{samples:?}");
                continue;
            }
            let filled = wait::until_ok(TIME_LIMIT, format!("{}: {query}", panel.title), async || {
                traffic(&installed, &proxy, &gateway).await?;
                let samples = prometheus.query(world, query).await?;
                anyhow::ensure!(samples.iter().any(|sample| sample.value.is_finite()), "{samples:?}");
                Ok(())
            });
            filled.await.unwrap();
        }
    }
    // Every pod is read, by the service account and without other permissions.
    let all_are_read = wait::until_ok(TIME_LIMIT, "every pod to be read", async || {
        let up = prometheus.query(world, "count by (job) (up == 1)").await?;
        let up: BTreeMap<_, _> =
            up.iter().map(|sample| (sample.labels["job"].as_str(), sample.value)).collect();
        anyhow::ensure!(up == [("pinniped-concierge", 2.0), ("pinniped-gateway", 2.0)].into(), "{up:?}");
        Ok(())
    });
    all_are_read.await.unwrap();
    graphs(&programs, &prometheus).await;
    authenticators.delete(AUTHENTICATOR, &DeleteParams::default()).await.unwrap();
}

/// Opens the pages of Prometheus with graphs of the load, and the page of alerts.
async fn graphs(programs: &Programs, prometheus: &Prometheus) {
    if !programs.have_pages() {
        tools::permitted_skip("pages of Prometheus", "they are not built");
        return;
    }
    let Some(browser) = browser::Programs::for_test("pages of Prometheus") else { return };
    let browser = Browser::start(&browser).await.unwrap();
    browser.resize(1400, 1000).await.unwrap();
    let url = prometheus.url();
    let graphs = [
        ("logins", "sum by (result) (rate(pinniped_logins_total[1m]))"),
        ("requests", "sum by (server, code_class) (rate(pinniped_requests_total[1m]))"),
        ("reviews", "sum by (result) (rate(pinniped_access_reviews_total[1m]))"),
    ];
    for (name, query) in graphs {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        browser.open(&format!("{url}/query?g0.expr={query}&g0.tab=0&g0.range_input=2m")).await.unwrap();
        let drawn = wait::until_ok(TIME_LIMIT, format!("the graph of {name}"), async || {
            let lines = browser.evaluate("document.querySelectorAll('.u-legend .u-series').length").await?;
            anyhow::ensure!(lines.as_u64().is_some_and(|lines| lines > 1), "{}", browser.describe().await);
            Ok(())
        });
        drawn.await.unwrap();
        browser.screenshot(&format!("prometheus-{name}")).await.unwrap();
    }
    browser.open(&format!("{url}/alerts")).await.unwrap();
    let shown = wait::until_ok(TIME_LIMIT, "the page of alerts", async || {
        let text = browser.text().await?;
        anyhow::ensure!(text.contains("PinnipedNoLeader"), "{text}");
        Ok(())
    });
    shown.await.unwrap();
    browser.screenshot("prometheus-alerts").await.unwrap();
}
