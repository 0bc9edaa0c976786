//! The registry in which components register their metrics, and its text format for scrapers.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::capacity::Capacity;
use crate::server::Stats;

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics registry of a process. Cheap to clone; clones share one registry.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `register` with the registry. Create metrics once; they live as long as the process.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        // After a panic the registry is still consistent, because registration is a single push.
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers the connection counters of a server under `<prefix>_connections_...`.
    pub fn register_server(&self, prefix: &'static str, stats: impl Fn() -> Stats + Send + Sync + 'static) {
        let collector = Box::new(ServerCollector { prefix, stats: Box::new(stats) });
        self.register(|registry| registry.register_collector(collector));
    }

    /// Registers the figures of a program's capacity under `<prefix>_capacity_...`.
    pub fn register_capacity(&self, prefix: &'static str, capacity: &Capacity) {
        let collector = Box::new(CapacityCollector { prefix, capacity: capacity.clone() });
        self.register(|registry| registry.register_collector(collector));
    }

    /// Returns all metrics in the OpenMetrics text format.
    ///
    /// # Errors
    /// Returns an error when a metric cannot be written, which does not happen with the metrics of
    /// this crate.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

struct ServerCollector {
    prefix: &'static str,
    stats: Box<dyn Fn() -> Stats + Send + Sync>,
}

impl fmt::Debug for ServerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCollector").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = (self.stats)();
        let open = ConstGauge::new(i64::try_from(stats.open).unwrap_or(i64::MAX));
        let name = format!("{}_connections_open", self.prefix);
        open.encode(encoder.encode_descriptor(&name, "Open connections", None, open.metric_type())?)?;
        let counts = [
            ("accepted", "Connections accepted", stats.accepted),
            ("refused", "Connections closed because too many were open", stats.refused),
            ("handshakes_failed", "Connections that failed in the TLS handshake", stats.handshakes_failed),
            (
                "too_many_resets",
                "Connections closed because their client cancelled too many requests",
                stats.too_many_resets,
            ),
            ("accept_failures", "Accept calls that failed for lack of resources", stats.accept_failures),
        ];
        for (suffix, help, value) in counts {
            let counter = ConstCounter::new(value);
            let name = format!("{}_connections_{suffix}", self.prefix);
            counter.encode(encoder.encode_descriptor(&name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct CapacityCollector {
    prefix: &'static str,
    capacity: Capacity,
}

impl Collector for CapacityCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.capacity.stats();
        let gauges = [
            ("connections_limit", "Connections that may be open", stats.connections_limit),
            ("connections_open", "Connections that are open", stats.connections_open),
            (
                "connections_provisional",
                "Open connections without an authenticated request",
                stats.connections_provisional,
            ),
            ("buffer_limit_bytes", "Memory for data of clients that no service has read", stats.budget_limit),
            ("buffer_used_bytes", "Part of buffer_limit_bytes that is in use", stats.budget_used),
        ];
        for (suffix, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let name = format!("{}_capacity_{suffix}", self.prefix);
            gauge.encode(encoder.encode_descriptor(&name, help, None, gauge.metric_type())?)?;
        }
        let displaced = ConstCounter::new(stats.connections_displaced);
        let name = format!("{}_capacity_connections_displaced", self.prefix);
        let help = "Connections without an authenticated request that were closed for new ones";
        displaced.encode(encoder.encode_descriptor(&name, help, None, displaced.metric_type())?)?;
        let name = format!("{}_capacity_refused", self.prefix);
        let help = "Connections and requests refused";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
        for (reason, value) in [
            ("connections", stats.refused_connections),
            ("address", stats.refused_address),
            ("buffer", stats.refused_budget),
        ] {
            ConstCounter::new(value).encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_exports_its_limits_their_use_and_refusals() {
        let metrics = Metrics::new();
        let capacity = Capacity::default();
        metrics.register_capacity("program", &capacity);
        let _open = capacity.connect([192, 0, 2, 1].into()).expect("a permit");
        let text = metrics.encode().expect("encode");
        for line in [
            "program_capacity_connections_open 1",
            "program_capacity_connections_provisional 1",
            "program_capacity_buffer_limit_bytes 268435456",
            "program_capacity_buffer_used_bytes 0",
            "program_capacity_refused_total{reason=\"address\"} 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_server_exports_its_connections() {
        let metrics = Metrics::new();
        metrics.register_server("proxy", || Stats { open: 2, accepted: 5, ..Stats::default() });
        let text = metrics.encode().expect("encode");
        assert!(text.contains("proxy_connections_open 2\n"), "{text}");
        assert!(text.contains("proxy_connections_accepted_total 5\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
