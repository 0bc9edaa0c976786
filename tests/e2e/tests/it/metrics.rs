//! `/metrics` of the Concierge: the permission that it needs, and a real scrape, which the tool of
//! Prometheus checks and the definitions describe. `gateway/metrics.rs` checks a scrape of the
//! gateway in the same way.

mod panels;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pinniped_concierge_metrics::of_the_program;
use pinniped_metrics::Definition;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::{tools, wait};
use serde_json::json;

use crate::installed::{self, Credentials, Installed};
use crate::shutdown;

/// The port of the aggregated API.
const PORT: u16 = 10250;
const SCRAPER: &str = "metrics-scraper";
/// The label with the name of an authenticator.
const AUTHENTICATOR: &str = "authenticator";
const STRANGER: &str = "metrics-stranger";
/// Longer than a lease and the retry of a candidate.
const LEADER_LIMIT: Duration = Duration::from_secs(90);

/// Returns the address of every pod of the Concierge.
fn addresses(installed: &Installed) -> Vec<Ipv4Addr> {
    installed.running().into_iter().filter_map(|(_, pod)| pod.ip).collect()
}

async fn scrape(address: Ipv4Addr, headers: &str, pair: &Pair) -> (u16, String) {
    let response = shutdown::send_request(address, PORT, "/metrics", headers, Some(pair)).await.unwrap();
    (response.status, response.body().await.unwrap())
}

/// Returns the name and the kind of each family, with its help text.
fn families(text: &str) -> BTreeMap<String, (String, String)> {
    let described = |line: &str, word: &str| {
        let (name, rest) = line.strip_prefix(word)?.split_once(' ')?;
        Some((name.to_owned(), rest.to_owned()))
    };
    let help: BTreeMap<_, _> = text.lines().filter_map(|line| described(line, "# HELP ")).collect();
    let kinds = text.lines().filter_map(|line| described(line, "# TYPE "));
    kinds.map(|(name, kind)| (name.clone(), (kind, help.get(&name).cloned().unwrap_or_default()))).collect()
}

/// Checks that every family is one of these, and that every metric of them which always has values
/// has some.
pub(crate) fn agrees_with_definitions(text: &str, definitions: impl Iterator<Item = &'static Definition>) {
    let families = families(text);
    let defined: BTreeMap<String, &Definition> =
        definitions.map(|definition| (definition.full_name(), definition)).collect();
    for (name, (kind, help)) in &families {
        let definition = defined.get(name).unwrap_or_else(|| panic!("{name} is not defined"));
        let found = (kind.as_str(), help.trim_end_matches('.'));
        assert_eq!(found, (definition.kind.name(), definition.help), "{name}");
    }
    let present: BTreeSet<&String> = families.keys().collect();
    let always = defined.iter().filter(|(_, definition)| definition.present.is_none());
    let missing: Vec<_> = always.map(|(name, _)| name).filter(|name| !present.contains(name)).collect();
    assert!(missing.is_empty(), "no sample of {missing:?} in\n{text}");
}

/// Checks that no metric of one pod has more series than its definition permits.
pub(crate) fn is_bounded(text: &str, definitions: impl Iterator<Item = &'static Definition>) {
    let names =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    let mut series = BTreeMap::<&str, usize>::new();
    for name in names {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        *series.entry(family.unwrap_or(name)).or_default() += 1;
    }
    let value =
        |line: &str| Some(line.split_once(&format!("{AUTHENTICATOR}=\""))?.1.split('"').next()?.to_owned());
    let authenticators: BTreeSet<String> = text.lines().filter_map(value).collect();
    for definition in definitions {
        let count = series.get(definition.full_name().as_str()).copied().unwrap_or_default();
        // The maximum is that of one object.
        let of_objects = definition.labels.iter().any(|label| label.name == AUTHENTICATOR);
        let most = definition.max_series() * if of_objects { authenticators.len() } else { 1 };
        assert!(count <= most, "{}: {count}", definition.name);
    }
}

/// Runs `promtool check metrics`, which reads a scrape from its standard input. Returns its output
/// if it finds something.
pub(crate) fn lint(promtool: &Path, text: &str) -> Result<(), String> {
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let found = [output.stdout, output.stderr].concat();
    if output.status.success() && found.is_empty() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&found).into_owned())
}

#[tokio::test]
async fn metrics_need_a_permission_and_a_real_scrape_passes_the_checks_of_prometheus() {
    let Some(promtool) = tools::promtool("metrics") else { return };
    let Some(installed) = installed::shared("metrics").await else { return };
    // The rules of the ClusterRole in the chart.
    installed.allow(SCRAPER, json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])).await;
    let (scraper, stranger) = (installed.certificate(SCRAPER, None), installed.certificate(STRANGER, None));

    // A request through the proxy, a denied one, and a login with a token that no user has.
    let client = installed.client(&Credentials::from(installed.certificate(SCRAPER, None))).await;
    client.apiserver_version().await.unwrap();
    let refused = client.list_core_api_resources("v1").await;
    assert!(refused.is_ok(), "discovery is allowed to all authenticated users: {refused:?}");
    let login = crate::apis::token_credential_request("nobody:nothing", "local-user-authenticator");
    let path = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&login).unwrap()).unwrap();
    installed.admin().await.request::<serde_json::Value>(request).await.unwrap();

    let mut all = String::new();
    for address in addresses(&installed) {
        let (status, body) = scrape(address, "", &stranger).await;
        assert_eq!(status, 403, "{body}");
        let (status, text) = scrape(address, "", &scraper).await;
        assert_eq!(status, 200, "{text}");
        lint(&promtool, &text).unwrap();
        is_bounded(&text, of_the_program());
        let (status, open_metrics) =
            scrape(address, "Accept: application/openmetrics-text; version=1.0.0\r\n", &scraper).await;
        assert!(status == 200 && open_metrics.ends_with("# EOF\n"), "{open_metrics}");
        all.push_str(&text);
    }
    // Each pod has seen only some of the requests.
    let mut merged: Vec<&str> = all.lines().collect();
    merged.dedup();
    agrees_with_definitions(&merged.join("\n"), of_the_program());
    for sample in [
        "pinniped_requests_total{server=\"impersonation_proxy\",verb=\"get\",group=\"none\",code_class=\"2xx\"}",
        "pinniped_requests_total{server=\"aggregated_api\",verb=\"get\",group=\"none\",code_class=\"4xx\"}",
        "pinniped_logins_total{authenticator_kind=\"webhook\",strategy=\"none\",result=\"rejected\",authenticator=\"",
        "pinniped_connections_open{listener=\"impersonation_proxy\",worker=\"0\"}",
        "pinniped_certificate_expiry_timestamp_seconds{certificate=\"concierge-serving-cert\",use=\"serving\"}",
    ] {
        assert!(all.lines().any(|line| line.starts_with(sample)), "{sample} is missing in\n{all}");
    }
    for name in [SCRAPER, STRANGER] {
        assert!(!all.contains(name), "a metric contains a user");
    }
    // No pod leads while the lease changes hands.
    let leading = wait::until(LEADER_LIMIT, "a pod that leads", async || {
        for address in addresses(&installed) {
            let (_, text) = scrape(address, "", &scraper).await;
            if text.lines().any(|line| line == "pinniped_leader 1") {
                return Some(());
            }
        }
        None
    });
    leading.await.unwrap();
}

#[test]
fn the_tool_of_prometheus_finds_a_counter_without_its_suffix() {
    let Some(promtool) = tools::promtool("metrics") else { return };
    let found = lint(&promtool, "# HELP x Help.\n# TYPE x counter\nx 1\n").unwrap_err();
    assert!(found.contains("x"), "{found}");
}
