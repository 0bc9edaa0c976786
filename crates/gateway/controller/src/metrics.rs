//! The metrics of the control plane.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pinniped_controller::lease::Leadership;
use pinniped_gateway_metrics as definitions;
use pinniped_gateway_routing::status::IngressRouteValidation;
use pinniped_kube_metrics::program::LEADER;
use pinniped_metrics::{CounterTable, HistogramTable, Metrics};

use super::rebuild::ValidationResults;

/// A kind, a state, and the number of its objects in that state.
type ObjectCount = (&'static str, &'static str, usize);

/// The metrics of the gateway's control plane. Create them once and [`register`](Self::register)
/// them. Clones share the same metrics.
#[derive(Clone, Debug)]
pub struct GatewayMetrics {
    rebuilds: CounterTable<1>,
    seconds: HistogramTable<0>,
    status_writes: CounterTable<1>,
    /// The objects of the routing table by kind and state; empty before the first table.
    objects: Arc<Mutex<Vec<ObjectCount>>>,
    /// Set when the election starts.
    leadership: Arc<OnceLock<Leadership>>,
}

/// The result of a rebuild. The order is that of
/// [`REBUILD_RESULTS`](definitions::REBUILD_RESULTS).
#[derive(Clone, Copy, Debug)]
enum Rebuild {
    Published,
    Failed,
}

/// The result of a status write. The order is that of
/// [`WRITE_RESULTS`](definitions::WRITE_RESULTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Default for GatewayMetrics {
    fn default() -> Self {
        Self {
            rebuilds: CounterTable::new(&definitions::TABLE_REBUILDS),
            seconds: HistogramTable::new(&definitions::TABLE_REBUILD_DURATION),
            status_writes: CounterTable::new(&definitions::STATUS_WRITES),
            objects: Arc::default(),
            leadership: Arc::default(),
        }
    }
}

impl GatewayMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.rebuilds);
        metrics.add(&self.seconds);
        metrics.add(&self.status_writes);
        let leadership = Arc::clone(&self.leadership);
        metrics.collect(move |samples| {
            samples.push(&LEADER, [], u64::from(leadership.get().is_some_and(Leadership::is_leader)));
        });
        let objects = Arc::clone(&self.objects);
        metrics.collect(move |samples| {
            for (kind, state, count) in &*objects.lock().unwrap_or_else(PoisonError::into_inner) {
                samples.push(&definitions::OBJECTS, [kind, state], *count as u64);
            }
        });
    }

    pub(super) fn rebuilt(&self, took: Duration, results: &ValidationResults) {
        self.rebuilds.add([Rebuild::Published as usize], 1);
        self.seconds.observe([], took);
        *self.objects.lock().unwrap_or_else(PoisonError::into_inner) = states(results).to_vec();
    }

    pub(super) fn elected_by(&self, leadership: &Leadership) {
        self.leadership.get_or_init(|| leadership.clone());
    }

    pub(super) fn failed(&self) {
        self.rebuilds.add([Rebuild::Failed as usize], 1);
    }

    pub(super) fn wrote(&self, result: Written) {
        self.status_writes.add([result as usize], 1);
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
        metrics.failed();
        let text = registry.text().unwrap();
        for line in [
            r#"pinniped_gateway_objects{kind="HTTPProxy",state="valid"} 1"#,
            r#"pinniped_gateway_objects{kind="HTTPProxy",state="invalid"} 0"#,
            r#"pinniped_gateway_objects{kind="IngressRoute",state="orphaned"} 0"#,
            r#"pinniped_gateway_objects{kind="Ingress",state=""} 1"#,
            r#"pinniped_gateway_table_rebuilds_total{result="published"} 2"#,
            r#"pinniped_gateway_table_rebuilds_total{result="failed"} 1"#,
            r#"pinniped_gateway_table_rebuild_seconds_bucket{le="0.025"} 2"#,
            r#"pinniped_gateway_status_writes_total{result="conflict"} 1"#,
            r#"pinniped_gateway_status_writes_total{result="failed"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
