//! Where components register their metrics, and the text that a scraper reads.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::server::Stats;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry of a process. Cheap to clone; clones are the same registry.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a component register what it has. Metrics are made once and live as long as the process.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        // A panic in between leaves a registry that is still whole: registering is one push.
        register(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds the connection counts of a server under `<prefix>_connections_...`.
    pub fn register_server(&self, prefix: &'static str, stats: impl Fn() -> Stats + Send + Sync + 'static) {
        let collector = Box::new(ServerCollector { prefix, stats: Box::new(stats) });
        self.register(|registry| registry.register_collector(collector));
    }

    /// Everything registered, in the OpenMetrics text format.
    ///
    /// # Errors
    /// When a metric cannot be written, which none of ours does.
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
            ("handshakes_failed", "Connections that ended in the TLS handshake", stats.handshakes_failed),
            (
                "too_many_resets",
                "Connections ended because their client took back too many requests",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_shows_its_connections() {
        let metrics = Metrics::new();
        metrics.register_server("proxy", || Stats { open: 2, accepted: 5, ..Stats::default() });
        let text = metrics.encode().expect("encode");
        assert!(text.contains("proxy_connections_open 2\n"), "{text}");
        assert!(text.contains("proxy_connections_accepted_total 5\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
