//! The dashboard of Grafana.

use std::collections::BTreeSet;

use pinniped_metrics::Definition;
use serde_json::{Value, json};

/// A row of panels.
pub(super) struct Row {
    title: &'static str,
    pub(super) panels: &'static [Panel],
}

/// A graph.
pub(super) struct Panel {
    title: &'static str,
    /// The unit, as Grafana names it.
    unit: &'static str,
    /// Expressions, each with the format of its legend.
    pub(super) queries: &'static [(&'static str, &'static str)],
}

pub(super) const ROWS: &[Row] = &[
    Row {
        title: "Logins",
        panels: &[
            Panel {
                title: "Logins by result",
                unit: "reqps",
                queries: &[(
                    "sum by (authenticator_kind, authenticator, result) (rate(pinniped_logins_total[5m]))",
                    "{{authenticator_kind}} {{authenticator}} {{result}}",
                )],
            },
            Panel {
                title: "Credentials by strategy",
                unit: "reqps",
                queries: &[(
                    "sum by (strategy) (rate(pinniped_logins_total{result=\"issued\"}[5m]))",
                    "{{strategy}}",
                )],
            },
            Panel {
                title: "Duration of logins",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le, authenticator_kind, authenticator) \
                         (rate(pinniped_login_duration_seconds_bucket[5m])))",
                        "{{authenticator_kind}} {{authenticator}} 50 %",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, authenticator_kind, authenticator) \
                         (rate(pinniped_login_duration_seconds_bucket[5m])))",
                        "{{authenticator_kind}} {{authenticator}} 99 %",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Requests",
        panels: &[
            Panel {
                title: "Requests by class of status",
                unit: "reqps",
                queries: &[(
                    "sum by (server, code_class) (rate(pinniped_requests_total[5m]))",
                    "{{server}} {{code_class}}",
                )],
            },
            Panel {
                title: "Requests by verb and API group",
                unit: "reqps",
                queries: &[(
                    "topk(10, sum by (verb, group) \
                     (rate(pinniped_requests_total{server=\"impersonation_proxy\"}[5m])))",
                    "{{verb}} {{group}}",
                )],
            },
            Panel {
                title: "Time to the response, 99 %",
                unit: "s",
                queries: &[(
                    "histogram_quantile(0.99, sum by (le, server, verb) \
                     (rate(pinniped_request_duration_seconds_bucket[5m])))",
                    "{{server}} {{verb}}",
                )],
            },
            Panel {
                title: "Requests in flight and waiting",
                unit: "short",
                queries: &[("sum by (server, limit) (pinniped_requests_in_flight)", "{{server}} {{limit}}")],
            },
            Panel {
                title: "Requests refused with 429",
                unit: "reqps",
                queries: &[(
                    "sum by (server, limit) (rate(pinniped_requests_over_limit_total[5m]))",
                    "{{server}} {{limit}}",
                )],
            },
            Panel {
                title: "Bytes of the impersonation proxy",
                unit: "binBps",
                queries: &[(
                    "sum by (direction) (rate(pinniped_impersonation_proxy_bytes_total[5m]))",
                    "{{direction}}",
                )],
            },
            Panel {
                title: "Results of the impersonation proxy",
                unit: "reqps",
                queries: &[(
                    "sum by (result) (rate(pinniped_impersonation_proxy_requests_total[5m]))",
                    "{{result}}",
                )],
            },
        ],
    },
    Row {
        title: "Reviews",
        panels: &[
            Panel {
                title: "Reviews by result",
                unit: "reqps",
                queries: &[
                    ("sum by (result) (rate(pinniped_token_reviews_total[5m]))", "token {{result}}"),
                    ("sum by (result) (rate(pinniped_access_reviews_total[5m]))", "access {{result}}"),
                ],
            },
            Panel {
                title: "Duration of reviews, 99 %",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.99, sum by (le) \
                         (rate(pinniped_token_review_duration_seconds_bucket[5m])))",
                        "token",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) \
                         (rate(pinniped_access_review_duration_seconds_bucket[5m])))",
                        "access",
                    ),
                ],
            },
            Panel {
                title: "Cache hit ratio of reviews",
                unit: "percentunit",
                queries: &[
                    (
                        "sum(rate(pinniped_token_review_cache_requests_total{result=\"hit\"}[5m])) \
                         / sum(rate(pinniped_token_review_cache_requests_total[5m]))",
                        "token",
                    ),
                    (
                        "sum(rate(pinniped_access_review_cache_requests_total{result=\"hit\"}[5m])) \
                         / sum(rate(pinniped_access_review_cache_requests_total[5m]))",
                        "access",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Caches of reviews",
        panels: &[
            Panel {
                title: "Use of the caches by pod",
                unit: "percentunit",
                queries: &[
                    (
                        "pinniped_token_review_cache_entries / pinniped_token_review_cache_entries_limit",
                        "{{instance}} token",
                    ),
                    (
                        "pinniped_access_review_cache_entries / pinniped_access_review_cache_entries_limit",
                        "{{instance}} access",
                    ),
                ],
            },
            Panel {
                title: "Evictions",
                unit: "reqps",
                queries: &[
                    ("sum(rate(pinniped_token_review_cache_evictions_total[5m]))", "token"),
                    ("sum(rate(pinniped_access_review_cache_evictions_total[5m]))", "access"),
                ],
            },
        ],
    },
    Row {
        title: "Connections and capacity",
        panels: &[
            Panel {
                title: "Open connections",
                unit: "short",
                queries: &[
                    ("sum by (job, listener) (pinniped_connections_open)", "{{job}} {{listener}}"),
                    ("sum(pinniped_impersonation_proxy_upgraded_connections_open)", "upgraded"),
                ],
            },
            Panel {
                title: "Open connections by worker",
                unit: "short",
                queries: &[(
                    "max by (listener, worker) (pinniped_connections_open{worker!=\"none\"})",
                    "{{listener}} {{worker}}",
                )],
            },
            Panel {
                title: "Use of the limits by pod",
                unit: "percentunit",
                queries: &[
                    (
                        "pinniped_capacity_connections_open / pinniped_capacity_connections_limit",
                        "{{instance}} connections",
                    ),
                    (
                        "pinniped_capacity_memory_used_bytes / pinniped_capacity_memory_limit_bytes",
                        "{{instance}} memory",
                    ),
                    (
                        "pinniped_capacity_buffer_used_bytes / pinniped_capacity_buffer_limit_bytes",
                        "{{instance}} buffer",
                    ),
                ],
            },
            Panel {
                title: "Use of permits by pod",
                unit: "percentunit",
                queries: &[
                    ("pinniped_permits_in_use / pinniped_permits_limit", "{{instance}} {{permits}}"),
                    (
                        "pinniped_permits_waiting / pinniped_permits_waiting_limit",
                        "{{instance}} {{permits}} waiting",
                    ),
                ],
            },
            Panel {
                title: "Refused connections",
                unit: "short",
                queries: &[
                    ("sum by (reason) (rate(pinniped_capacity_refused_total[5m]))", "{{reason}}"),
                    (
                        "sum by (listener) (rate(pinniped_connections_handshakes_failed_total[5m]))",
                        "{{listener}} handshake",
                    ),
                ],
            },
            Panel {
                title: "Bodies in transit by pod",
                unit: "bytes",
                queries: &[
                    ("pinniped_capacity_in_transit_bytes", "{{instance}}"),
                    ("pinniped_capacity_in_transit_limit_bytes", "{{instance}} limit"),
                ],
            },
            Panel {
                title: "Connections displaced or evicted",
                unit: "short",
                queries: &[
                    (
                        "sum by (job) (rate(pinniped_capacity_connections_displaced_total[5m]))",
                        "{{job}} displaced",
                    ),
                    (
                        "sum by (job) (rate(pinniped_capacity_connections_evicted_total[5m]))",
                        "{{job}} evicted",
                    ),
                ],
            },
        ],
    },
    Row {
        title: "Certificates, keys, controllers",
        panels: &[
            Panel {
                title: "Time until certificates expire",
                unit: "s",
                queries: &[(
                    "min by (certificate, use) (pinniped_certificate_expiry_timestamp_seconds) - time()",
                    "{{certificate}}",
                )],
            },
            Panel {
                title: "Age of the keys of issuers",
                unit: "s",
                queries: &[(
                    "max by (authenticator) (pinniped_jwt_authenticator_keys_age_seconds)",
                    "{{authenticator}}",
                )],
            },
            Panel {
                title: "Controllers that do not succeed",
                unit: "short",
                queries: &[(
                    "sum by (controller, result) \
                     (rate(pinniped_controller_reconciles_total{result=~\"failed|forbidden\"}[15m]))",
                    "{{controller}} {{result}}",
                )],
            },
            Panel {
                title: "Leaders",
                unit: "short",
                queries: &[("sum by (job, namespace) (pinniped_leader)", "{{namespace}} {{job}}")],
            },
            Panel {
                title: "Versions",
                unit: "short",
                queries: &[("count by (job, version) (pinniped_build_info)", "{{job}} {{version}}")],
            },
        ],
    },
    Row {
        title: "Audit, recordings, traces",
        panels: &[
            Panel {
                title: "Lost audit events in 5 minutes",
                unit: "short",
                queries: &[(
                    "sum by (backend, reason) (increase(pinniped_audit_events_lost_total[5m])) \
                     or on() vector(0)",
                    "lost {{backend}} {{reason}}",
                )],
            },
            Panel {
                title: "Recordings of sessions in 5 minutes, by result",
                unit: "short",
                queries: &[(
                    "sum by (result) (increase(pinniped_session_recordings_total[5m])) or on() vector(0)",
                    "recordings {{result}}",
                )],
            },
            Panel {
                title: "Spans of traces in 5 minutes, by result",
                unit: "short",
                queries: &[(
                    "sum by (job, result) (increase(pinniped_trace_spans_total[5m])) or on() vector(0)",
                    "{{job}} spans {{result}}",
                )],
            },
        ],
    },
    Row {
        title: "Gateway",
        panels: &[
            Panel {
                title: "Requests of the gateway by class of status",
                unit: "reqps",
                queries: &[(
                    "sum by (code_class) (rate(pinniped_gateway_requests_total[5m]))",
                    "{{code_class}}",
                )],
            },
            Panel {
                title: "Time to the response of the gateway",
                unit: "s",
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le) \
                         (rate(pinniped_gateway_request_duration_seconds_bucket[5m])))",
                        "50 %",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, method) \
                         (rate(pinniped_gateway_request_duration_seconds_bucket[5m])))",
                        "{{method}} 99 %",
                    ),
                ],
            },
            Panel {
                title: "Error responses of the gateway itself",
                unit: "reqps",
                queries: &[(
                    "sum by (reason) (rate(pinniped_gateway_requests_unanswered_total[5m]))",
                    "{{reason}}",
                )],
            },
            Panel {
                title: "Requests in flight",
                unit: "short",
                queries: &[
                    ("sum(pinniped_gateway_requests_in_flight)", "all"),
                    ("sum(pinniped_gateway_upgraded_connections_open)", "upgraded"),
                ],
            },
            Panel {
                title: "Time until the first certificate of the gateway expires",
                unit: "s",
                queries: &[("min(pinniped_gateway_certificate_expiry_timestamp_seconds) - time()", "first")],
            },
            Panel {
                title: "Certificates of the gateway that expire soon",
                unit: "short",
                queries: &[(
                    "max by (remaining) (pinniped_gateway_certificates{remaining!=\"longer\"})",
                    "{{remaining}}",
                )],
            },
            Panel {
                title: "Bytes",
                unit: "binBps",
                queries: &[
                    (
                        "sum by (direction) (rate(pinniped_gateway_relayed_bytes_total[5m]))",
                        "relayed {{direction}}",
                    ),
                    (
                        "sum by (direction) (rate(pinniped_gateway_request_bytes_total[5m]))",
                        "requests {{direction}}",
                    ),
                ],
            },
            Panel {
                title: "Objects",
                unit: "short",
                queries: &[("max by (kind, state) (pinniped_gateway_objects)", "{{kind}} {{state}}")],
            },
            Panel {
                title: "Time to a new routing table, 99 %",
                unit: "s",
                queries: &[(
                    "histogram_quantile(0.99, sum by (le) \
                     (rate(pinniped_gateway_table_rebuild_seconds_bucket[5m])))",
                    "99 %",
                )],
            },
        ],
    },
];

/// The width of the dashboard in Grafana's units, and that of a panel.
const WIDTH: usize = 24;
const PANEL_WIDTH: usize = 8;
const PANEL_HEIGHT: usize = 8;

/// The end of an expression that is 0 while its metric is absent.
const ELSE_ZERO: &str = " or on() vector(0)";

pub(super) fn text() -> anyhow::Result<String> {
    let mut panels = Vec::new();
    let mut y = 0;
    for row in ROWS {
        panels.push(json!({"id": panels.len() + 1, "type": "row", "title": row.title, "collapsed": false,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}, "panels": []}));
        y += 1;
        let in_line = WIDTH / PANEL_WIDTH;
        for (number, panel) in row.panels.iter().enumerate() {
            let position = json!({"x": number % in_line * PANEL_WIDTH, "y": y + number / in_line * PANEL_HEIGHT,
                "w": PANEL_WIDTH, "h": PANEL_HEIGHT});
            panels.push(graph(panel, panels.len() + 1, &position));
        }
        y += row.panels.len().div_ceil(in_line) * PANEL_HEIGHT;
    }
    let dashboard = json!({
        "uid": "pinniped",
        "title": "Pinniped",
        "description": "Rendered by `cargo xtask manifests` from tools/xtask/src/monitoring/dashboard.rs.",
        "tags": ["pinniped"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "label": "Data source", "type": "datasource",
            "query": "prometheus"}]},
        "panels": panels,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&dashboard)?))
}

fn graph(panel: &Panel, id: usize, position: &Value) -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let target = |(number, (expression, legend)): (usize, &(&str, &str))| {
        json!({"refId": format!("Q{number}"), "datasource": source, "expr": expression,
            "legendFormat": legend})
    };
    let targets: Vec<Value> = panel.queries.iter().enumerate().map(target).collect();
    json!({"id": id, "type": "timeseries", "title": panel.title, "description": description(panel),
        "datasource": source, "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets})
}

/// Describes when a panel has values of its metrics, if it does not always have some.
fn description(panel: &Panel) -> Option<String> {
    let is_used = |definition: &&Definition| {
        let mut names = panel.queries.iter().flat_map(|(expression, _)| super::used(expression));
        let samples = super::sample_names(definition);
        names.any(|(name, _)| samples.iter().any(|sample| sample == name))
    };
    let conditions: BTreeSet<&str> =
        super::all().filter(is_used).filter_map(|definition| definition.present).collect();
    let conditions: Vec<&str> = conditions.into_iter().collect();
    let is_else_zero = panel.queries.iter().all(|(expression, _)| expression.ends_with(ELSE_ZERO));
    let (verb, word) = if is_else_zero { ("Is 0", "unless") } else { ("Has values", "while") };
    let conditions = conditions.join(&format!(", and {word} "));
    (!conditions.is_empty()).then(|| format!("{verb} {word} {conditions}."))
}
