//! What the control plane shows to a scraper.

use prometheus_client::registry::Registry;

/// Metrics of the gateway's control plane. Make it once and [`register`](Self::register) it. Clones are the same
/// metrics.
#[derive(Clone, Debug, Default)]
pub struct GatewayMetrics {}

impl GatewayMetrics {
    /// Adds them to a registry.
    pub fn register(&self, _registry: &mut Registry) {}
}
