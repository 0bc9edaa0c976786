//! Metrics of the impersonation proxy's configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pinniped_concierge_metrics::SERVING_CERTIFICATE_VALID;
use pinniped_metrics::Metrics;

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
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        let this = self.clone();
        metrics.collect(move |samples| {
            if let Some(valid) = this.certificate_valid() {
                samples.push(&SERVING_CERTIFICATE_VALID, [], u64::from(valid));
            }
        });
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

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_gauge_exists_only_while_a_certificate_is_checked() {
        let (metrics, registry) = (ConfigMetrics::default(), Metrics::new());
        metrics.register(&registry);
        let line = || {
            let text = registry.text().unwrap();
            let name = "pinniped_impersonation_proxy_serving_certificate_valid";
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
