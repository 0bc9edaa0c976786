//! The metrics of the control plane.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pinniped_controller::lease::Leadership;
use pinniped_gateway_routing::status::IngressRouteValidation;
use pinniped_metrics::definitions::gateway;
use pinniped_metrics::definitions::program::LEADER;
use pinniped_metrics::{HistogramTable, Metrics};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::rebuild::ValidationResults;

/// The metrics of the gateway's control plane. Create them once and [`register`](Self::register)
/// them. Clones share the same metrics.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    rebuilds: Family<RebuildLabels, Counter>,
    seconds: HistogramTable<0>,
    objects: Family<ObjectLabels, Gauge>,
    status_writes: Family<WriteLabels, Counter>,
    /// Set when the election starts.
    leadership: Arc<OnceLock<Leadership>>,
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
        // Both exist from the start: a counter that begins with 1 has no increase.
        let rebuilds = Family::<RebuildLabels, _>::default();
        for result in [Rebuild::Published, Rebuild::Failed] {
            drop(rebuilds.get_or_create(&RebuildLabels { result }));
        }
        Self {
            rebuilds,
            seconds: HistogramTable::new(&gateway::TABLE_REBUILD_DURATION),
            objects: Family::default(),
            status_writes: Family::default(),
            leadership: Arc::default(),
        }
    }
}

impl GatewayMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.seconds);
        let leadership = Arc::clone(&self.leadership);
        metrics.collect(&LEADER, move |samples| {
            samples.push([], u64::from(leadership.get().is_some_and(Leadership::is_leader)));
        });
        metrics.register(|registry| {
            gateway::TABLE_REBUILDS.register(registry, self.rebuilds.clone());
            gateway::OBJECTS.register(registry, self.objects.clone());
            gateway::STATUS_WRITES.register(registry, self.status_writes.clone());
        });
    }

    pub(super) fn rebuilt(&self, took: Duration, results: &ValidationResults) {
        self.rebuilds.get_or_create(&RebuildLabels { result: Rebuild::Published }).inc();
        self.seconds.observe([], took);
        for (kind, state, count) in states(results) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.objects.get_or_create(&ObjectLabels { kind, state }).set(count);
        }
    }

    pub(super) fn elected_by(&self, leadership: &Leadership) {
        self.leadership.get_or_init(|| leadership.clone());
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
    use pinniped_metrics::Format;

    use super::*;

    #[test]
    fn objects_are_counted_by_state_and_empty_states_are_zero() {
        let metrics = GatewayMetrics::default();
        let registry = Metrics::new();
        metrics.register(&registry);
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
        let text = registry.encode(Format::Text).unwrap();
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
