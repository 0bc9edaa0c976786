//! Metrics of the impersonation proxy's configuration.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Value for "not checked": the gauge is absent, because neither 0 nor 1 would be true.
const ABSENT: u8 = 2;

/// Metrics of the impersonation proxy's configuration. Create it once and
/// [`register`](Self::register) it. All clones share their values.
#[derive(Clone, Debug)]
pub struct ConfigMetrics {
    certificate_valid: Arc<AtomicU8>,
}

impl Default for ConfigMetrics {
    fn default() -> Self {
        Self { certificate_valid: Arc::new(AtomicU8::new(ABSENT)) }
    }
}

impl ConfigMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    /// Returns whether the external serving certificate works for clients; `None` while that is not
    /// checked.
    pub fn certificate_valid(&self) -> Option<bool> {
        match self.certificate_valid.load(Ordering::Relaxed) {
            ABSENT => None,
            value => Some(value == 1),
        }
    }

    pub(super) fn set_certificate_valid(&self, valid: Option<bool>) {
        self.certificate_valid.store(valid.map_or(ABSENT, u8::from), Ordering::Relaxed);
    }
}

impl Collector for ConfigMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(valid) = self.certificate_valid() else { return Ok(()) };
        let gauge = ConstGauge::new(i64::from(valid));
        gauge.encode(encoder.encode_descriptor(
            "pinniped_impersonator_serving_certificate_valid",
            "Whether the serving certificate from outside can work for clients; absent while that is not checked",
            None,
            gauge.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_exists_only_while_a_certificate_is_checked() {
        let metrics = ConfigMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let line = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let name = "pinniped_impersonator_serving_certificate_valid";
            text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        assert_eq!(line(), None);
        metrics.set_certificate_valid(Some(true));
        assert_eq!(line().as_deref(), Some("1"));
        metrics.set_certificate_valid(Some(false));
        assert_eq!(line().as_deref(), Some("0"));
        metrics.set_certificate_valid(None);
        assert_eq!(line(), None);
    }
}
