//! Checks the rules and the dashboard in `deploy/monitoring` with the real `promtool`.

use std::path::PathBuf;
use std::process::Command;

use pinniped_test_support::tools;
use serde_json::{Value, json};

use crate::documents;

const RULES: &str = "deploy/monitoring/prometheus-rules.yaml";
const SCENARIOS: &str = "testdata/prometheus/rules-test.yaml";
const DASHBOARD: &str = "deploy/monitoring/grafana-dashboard.json";

/// Runs the program, and returns its output as an error if it fails.
fn run(promtool: &PathBuf, args: &[&str]) -> Result<(), String> {
    let output = Command::new(promtool).args(args).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
    }
}

#[test]
fn the_rules_are_valid_and_fire_in_their_scenarios_only() {
    let Some(promtool) = tools::promtool("rules of Prometheus") else { return };
    let (rules, scenarios) = (documents::path(RULES), documents::path(SCENARIOS));
    let strict = ["check", "rules", "--lint=all", "--lint-fatal"];
    run(&promtool, &[&strict[..], &[rules.to_str().unwrap()]].concat()).unwrap();
    run(&promtool, &["test", "rules", scenarios.to_str().unwrap()]).unwrap();
}

#[test]
fn a_scenario_fails_when_its_rule_does_not_fire() {
    let Some(promtool) = tools::promtool("rules of Prometheus") else { return };
    let read = |file: &str| std::fs::read_to_string(documents::path(file)).unwrap();
    let (rules, scenarios) = (read(RULES), read(SCENARIOS));
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("scenarios.yaml"), scenarios.replace(&format!("../../{RULES}"), "rules.yaml"))
        .unwrap();
    for (alert, number) in [
        ("PinnipedCertificateExpiresSoon", " < 3 * 24"),
        ("PinnipedCertificateExpires", " < 24 "),
        ("PinnipedAuthenticatorFails", " > 0.1"),
        ("PinnipedAuthenticatorFails", " > 2"),
        ("PinnipedLoginsNotIssued", " > 2"),
        ("PinnipedGatewayBackendsFail", " > 10"),
        ("PinnipedGatewayCertificateExpiresSoon", " > 0"),
        ("PinnipedAccessReviewsSlow", " > 1"),
        ("PinnipedRequestsOverLimit", " > 0.1"),
        ("PinnipedConnectionsNearLimit", " > 0.9"),
        ("PinnipedNoLeader", " == "),
        ("PinnipedIssuerKeysStale", " > 900"),
    ] {
        let start = rules.find(&format!("alert: {alert}\n")).unwrap();
        let at = start + rules[start..].find(number).unwrap();
        let (before, after) = rules.split_at(at);
        let never = number.replace('<', "< -1e9 *").replace('>', "> 1e9 +").replace("==", "== 9 +");
        std::fs::write(file("rules.yaml"), format!("{before}{never}{}", &after[number.len()..])).unwrap();
        let failed =
            run(&promtool, &["test", "rules", file("scenarios.yaml").to_str().unwrap()]).unwrap_err();
        assert!(failed.contains(&format!("alertname: {alert}")), "{alert}: {failed}");
    }
}

#[test]
fn every_query_of_the_dashboard_is_valid() {
    let Some(promtool) = tools::promtool("dashboard") else { return };
    let text = std::fs::read_to_string(documents::path(DASHBOARD)).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    // As rules, which JSON describes, too: a panel's query is a valid expression of a rule.
    let record = |(number, target): (usize, &Value)| json!({"record": format!("query:{number}"), "expr": target["expr"]});
    let queries: Vec<Value> = targets.enumerate().map(record).collect();
    assert!(queries.len() > 20, "{}", queries.len());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("queries.yaml");
    std::fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": queries}]}).to_string()).unwrap();
    run(&promtool, &["check", "rules", file.to_str().unwrap()]).unwrap();
    std::fs::write(&file, r#"{"groups": [{"name": "x", "rules": [{"record": "x:y", "expr": "sum("}]}]}"#)
        .unwrap();
    run(&promtool, &["check", "rules", file.to_str().unwrap()]).unwrap_err();
}
