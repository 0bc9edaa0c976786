//! Checks the rules and the dashboard in `deploy/monitoring` with the real `promtool`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use pinniped_test_support::tools;
use serde_json::{Value, json};

use crate::documents;

const RULES: &str = "deploy/monitoring/prometheus-rules.yaml";
const SCENARIOS: &str = "testdata/prometheus/rules-test.yaml";
const DASHBOARD: &str = "deploy/monitoring/grafana-dashboard.json";

/// A part of each rule's expression. A scenario fails if the part is changed so that the rule never
/// fires.
const CONDITIONS: [(&str, &str); 24] = [
    ("PinnipedCertificateExpiresSoon", " < 3 * 24"),
    ("PinnipedCertificateExpires", " < 24 "),
    ("PinnipedAuthenticatorFails", " > 0.1"),
    ("PinnipedAuthenticatorFails", " > 2"),
    ("PinnipedLoginsNotIssued", " > 0.1"),
    ("PinnipedLoginsNotIssued", " > 2"),
    ("PinnipedTokenReviewsSlow", " > 1"),
    ("PinnipedAccessReviewsSlow", " > 1"),
    ("PinnipedReviewsFail", " > 0.1"),
    ("PinnipedRequestsOverLimit", " > 0.1"),
    ("PinnipedLoginsOverLimit", " > 0.1"),
    ("PinnipedReviewsOverLimit", " > 0.1"),
    ("PinnipedConnectionsNearLimit", " > 0.9"),
    ("PinnipedNoLeader", " == "),
    ("PinnipedMetricsAbsent", " unless "),
    ("PinnipedReconcilesFail", " > 0"),
    ("PinnipedIssuerKeysStale", " > 900"),
    ("PinnipedImpersonationProxyCertificateInvalid", " == "),
    ("PinnipedAuditEventsLost", " > 0"),
    ("PinnipedSessionRecordingsFail", " > 0"),
    ("PinnipedTraceSpansLost", " > 0"),
    ("PinnipedGatewayTableNotBuilt", " > 0"),
    ("PinnipedGatewayBackendsFail", " > 10"),
    ("PinnipedGatewayCertificateExpiresSoon", " > 0"),
];

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

/// Returns the names of all alerts.
fn alerts() -> BTreeSet<String> {
    let rules = documents::one(RULES);
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_alert_has_a_time_at_which_it_fires_and_one_at_which_it_does_not_fire() {
    let scenarios = documents::one(SCENARIOS);
    let scenarios = scenarios["tests"].as_array().unwrap();
    let checks: Vec<&Value> =
        scenarios.iter().flat_map(|scenario| scenario["alert_rule_test"].as_array().unwrap()).collect();
    for is_firing in [true, false] {
        let fires = |check: &Value| check["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty());
        let checks = checks.iter().filter(|check| fires(check) == is_firing);
        let checked: BTreeSet<_> =
            checks.map(|check| check["alertname"].as_str().unwrap().to_owned()).collect();
        assert_eq!(checked, alerts(), "fires: {is_firing}");
    }
}

#[test]
fn every_alert_has_a_condition_in_the_list() {
    let listed: BTreeSet<_> = CONDITIONS.iter().map(|(alert, _)| (*alert).to_owned()).collect();
    assert_eq!(listed, alerts());
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
    for (alert, condition) in CONDITIONS {
        let start = rules.find(&format!("alert: {alert}\n")).unwrap();
        let at = start + rules[start..].find(condition).unwrap();
        let (before, after) = rules.split_at(at);
        let never = match condition {
            " unless " => " and vector(0) == 9 unless ".to_owned(),
            _ => condition.replace('<', "< -1e9 *").replace('>', "> 1e9 +").replace("==", "== 9 +"),
        };
        std::fs::write(file("rules.yaml"), format!("{before}{never}{}", &after[condition.len()..])).unwrap();
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
