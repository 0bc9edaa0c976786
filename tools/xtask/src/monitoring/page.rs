//! The reference page of all metrics.

use pinniped_kube_metrics::{
    audit, capacity, connections, controllers, permits, program, requests, reviews, traces,
};
use pinniped_metrics::{Definition, Kind, Label, Values};

use super::rules;

const HEAD: &str = "\
# Metrics

<!-- Rendered from the definitions in crates/*/metrics by `cargo xtask manifests`. Change them. -->

The Concierge has metrics at `/metrics` of its aggregated API (port 10250 of each pod), and the
gateway at `/metrics` of its port 8000. No metric contains a user, a host or a URL.

The format is the text format of Prometheus, or OpenMetrics or Protocol Buffers
(`io.prometheus.client.MetricFamily`, delimited) for clients that prefer them in `Accept`. In the
last one, every histogram is also a native histogram: schema 3, a bucket of zero up to 2^-14 s, and
buckets up to 512 s, of which the last contains larger values.

A client of `/metrics` of the Concierge authenticates as to the API server, with a certificate or a
token. It needs the permission `get` for the non-resource URL `/metrics`, which the ClusterRole
`pinniped-concierge-metrics-reader` of the Helm chart grants. The chart binds the role to
`concierge.metrics.reader.subjects`. Without the chart, create the role, and bind it to the account
of Prometheus with `kubectl create clusterrolebinding`:

```console
$ kubectl create clusterrole pinniped-concierge-metrics-reader --verb=get --non-resource-url=/metrics
```

With `concierge.metrics.serviceMonitor.enabled` and `gateway.podMonitor.enabled`, the chart creates
a ServiceMonitor and a PodMonitor for the Prometheus Operator.

The rules for alerts are in `deploy/monitoring/prometheus-rules.yaml`, and a dashboard for Grafana
is in `deploy/monitoring/grafana-dashboard.json`. [Monitor the Concierge and the
gateway](../howto/monitoring.md) describes how to use them.

A program writes one scrape after another. A scrape that waits for 5 seconds gets 503 with
`Retry-After`.

The listeners are `aggregated_api` and `impersonation_proxy` in the Concierge, and `tls`, `plain`
and `admin` in the gateway. A counter with more than 32 combinations of labels, and a histogram with
labels, have no sample for a combination that has not occurred.
";

/// The maximum number of columns of a page.
const PAGE_WIDTH: usize = 100;

/// The sections with their definitions.
pub(super) static SECTIONS: [(&str, &[&Definition]); 11] = [
    ("Program", program::ALL),
    ("Logins, certificates, impersonation proxy", pinniped_concierge_metrics::ALL),
    ("Controllers", controllers::ALL),
    ("Reviews", reviews::ALL),
    ("Requests", requests::ALL),
    ("Permits", permits::ALL),
    ("Audit", audit::ALL),
    ("Connections", connections::ALL),
    ("Capacity", capacity::ALL),
    ("Traces", traces::ALL),
    ("Gateway", pinniped_gateway_metrics::ALL),
];

pub(super) fn text() -> String {
    let mut text = HEAD.to_owned();
    for (title, definitions) in SECTIONS {
        text.push_str(&format!("\n## {title}\n\n| Metric | Kind | Program | Labels | Description |\n"));
        text.push_str("|---|---|---|---|---|\n");
        for definition in definitions {
            text.push_str(&row(definition));
        }
        text.push_str(&labels(definitions));
    }
    text.push_str("\n## Alerts\n\nIn the column Meaning, a name such as `authenticator` stands for the value of the label with this\nname.\n\n| Alert | Severity | Meaning |\n|---|---|---|\n");
    for rule in rules::RULES {
        // A label that the text contains.
        let description = rule.description.replace("{{ $labels.", "`").replace(" }}", "`");
        text.push_str(&format!(
            "| `{}` | {} | {} {description} |\n",
            rule.alert, rule.severity, rule.summary
        ));
    }
    text
}

fn row(definition: &Definition) -> String {
    let programs = [
        ("Concierge", pinniped_concierge_metrics::of_the_program().any(|one| one == definition)),
        ("gateway", pinniped_gateway_metrics::of_the_program().any(|one| one == definition)),
    ];
    let programs: Vec<&str> = programs.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
    let labels: Vec<String> = definition
        .labels
        .iter()
        .map(|label| match label.values {
            Values::Of(_) => format!("`{}`", label.name),
            Values::Bounded { description, .. } => format!("`{}`: {description}", label.name),
        })
        .collect();
    let present = definition.present.map(|condition| format!("; present while {condition}"));
    let buckets = match definition.kind {
        Kind::Histogram(bounds) => {
            let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
            format!("; buckets {}", bounds.join(", "))
        }
        Kind::Counter | Kind::Gauge => String::new(),
    };
    format!(
        "| `{}` | {} | {} | {} | {}{}{buckets} |\n",
        definition.full_name(),
        definition.kind.name(),
        programs.join(", "),
        labels.join("; "),
        definition.help,
        present.unwrap_or_default(),
    )
}

/// Returns a table for each label of these metrics whose values are fixed.
fn labels(definitions: &[&Definition]) -> String {
    let mut tables: Vec<(&Label, Vec<String>)> = Vec::new();
    for definition in definitions {
        let metric = format!("`{}`", definition.full_name());
        for label in definition.labels {
            match tables.iter_mut().find(|(known, _)| *known == label) {
                Some((_, metrics)) => metrics.push(metric.clone()),
                None => tables.push((label, vec![metric.clone()])),
            }
        }
    }
    let mut text = String::new();
    for (label, metrics) in tables {
        let Values::Of(values) = label.values else { continue };
        let head = format!("Values of `{}` of {}:", label.name, metrics.join(", "));
        text.push_str(&format!("\n{}\n\n| Value | Meaning |\n|---|---|\n", wrap(&head)));
        for (value, meaning) in values {
            let value = if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") };
            text.push_str(&format!("| {value} | {meaning} |\n"));
        }
    }
    text
}

/// Wraps words at the width of pages.
fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= PAGE_WIDTH => line.push_str(&format!(" {word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_has_a_row() {
        let text = text();
        for definition in SECTIONS.iter().flat_map(|(_, definitions)| *definitions) {
            let row = format!("| `{}` | {} |", definition.full_name(), definition.kind.name());
            assert_eq!(text.matches(&row).count(), 1, "{row}");
            for label in definition.labels {
                let Values::Of(values) = label.values else { continue };
                for (value, meaning) in values {
                    assert!(text.contains(&format!(" | {meaning} |\n")), "{value}");
                }
            }
        }
    }
}
