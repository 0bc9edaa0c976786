//! The metrics of the control plane.

use std::time::Duration;

use pinniped_gateway_routing::status::IngressRouteValidation;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::rebuild::ValidationResults;

/// The metrics of the gateway's control plane. Create them once and [`register`](Self::register)
/// them. Clones share the same metrics.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    rebuilds: Family<RebuildLabels, Counter>,
    seconds: Histogram,
    objects: Family<ObjectLabels, Gauge>,
    status_writes: Family<WriteLabels, Counter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Rebuild {
    Published,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RebuildLabels {
    result: Rebuild,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    kind: &'static str,
    state: &'static str,
}

/// The result of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum Written {
    /// The status was written.
    Done,
    /// Another client wrote first; the write is retried.
    Conflict,
    /// The permission is missing.
    Forbidden,
    /// Any other failure.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    result: Written,
}

impl Default for GatewayMetrics {
    fn default() -> Self {
        let buckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
        Self {
            rebuilds: Family::default(),
            seconds: Histogram::new(buckets),
            objects: Family::default(),
            status_writes: Family::default(),
        }
    }
}

impl GatewayMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("pinniped_gateway");
        registry.register("table_rebuilds", "Builds of routing tables, by result", self.rebuilds.clone());
        registry.register(
            "table_rebuild_seconds",
            "Time from reading the objects to a published routing table",
            self.seconds.clone(),
        );
        registry.register(
            "objects",
            "Objects of this gateway's classes by kind and state; an Ingress has no state",
            self.objects.clone(),
        );
        registry.register(
            "status_writes",
            "Statuses written or not, by result; only the leader writes",
            self.status_writes.clone(),
        );
    }

    pub(super) fn rebuilt(&self, took: Duration, results: &ValidationResults) {
        self.rebuilds.get_or_create(&RebuildLabels { result: Rebuild::Published }).inc();
        self.seconds.observe(took.as_secs_f64());
        for (kind, state, count) in states(results) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.objects.get_or_create(&ObjectLabels { kind, state }).set(count);
        }
    }

    pub(super) fn failed(&self) {
        self.rebuilds.get_or_create(&RebuildLabels { result: Rebuild::Failed }).inc();
    }

    pub(super) fn wrote(&self, result: Written) {
        self.status_writes.get_or_create(&WriteLabels { result }).inc();
    }
}

/// Counts the objects of each kind in each state. Includes all states, so that no state keeps an
/// old count.
fn states(results: &ValidationResults) -> [(&'static str, &'static str, usize); 7] {
    let proxies = |state: &str| {
        results.http_proxies.values().filter(|validation| validation.current_status() == state).count()
    };
    let routes =
        |is: fn(&IngressRouteValidation) -> bool| results.ingress_routes.values().filter(|it| is(it)).count();
    [
        ("HTTPProxy", "valid", proxies("valid")),
        ("HTTPProxy", "invalid", proxies("invalid")),
        ("HTTPProxy", "orphaned", proxies("orphaned")),
        ("IngressRoute", "valid", routes(|it| matches!(it, IngressRouteValidation::Valid))),
        ("IngressRoute", "invalid", routes(|it| matches!(it, IngressRouteValidation::Invalid(_)))),
        ("IngressRoute", "orphaned", routes(|it| matches!(it, IngressRouteValidation::Orphaned))),
        ("Ingress", "", results.ingresses.len()),
    ]
}

#[cfg(test)]
mod tests {
    use pinniped_gateway_routing::Name;
    use pinniped_gateway_routing::status::HttpProxyValidation;

    use super::*;

    #[test]
    fn objects_are_counted_by_state_and_empty_states_are_zero() {
        let metrics = GatewayMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let name = Name { namespace: "ns".to_owned(), name: "n".to_owned() };
        let mut results = ValidationResults { ingresses: vec![name.clone()], ..ValidationResults::default() };
        results.http_proxies.insert(name.clone(), HttpProxyValidation::default());
        results.ingress_routes.insert(name, IngressRouteValidation::Orphaned);
        metrics.rebuilt(Duration::from_millis(20), &results);
        metrics.rebuilt(
            Duration::from_millis(20),
            &ValidationResults { ingress_routes: Default::default(), ..results },
        );
        metrics.wrote(Written::Conflict);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"pinniped_gateway_objects{kind="HTTPProxy",state="valid"} 1"#,
            r#"pinniped_gateway_objects{kind="HTTPProxy",state="invalid"} 0"#,
            r#"pinniped_gateway_objects{kind="IngressRoute",state="orphaned"} 0"#,
            r#"pinniped_gateway_objects{kind="Ingress",state=""} 1"#,
            r#"pinniped_gateway_table_rebuilds_total{result="Published"} 2"#,
            r#"pinniped_gateway_table_rebuild_seconds_bucket{le="0.025"} 2"#,
            r#"pinniped_gateway_status_writes_total{result="Conflict"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
