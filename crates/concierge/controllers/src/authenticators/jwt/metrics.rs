//! Metrics of the keys of ready JWTAuthenticators, read from the registry when they are scraped.
//!
//! The label is the name of the object, so the number of time series is the number of objects.

use std::fmt;

use pinniped_concierge_authentication::registry::Registry;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The metrics. Register one collector for each process.
#[derive(Debug)]
pub struct KeyMetrics {
    /// The registry of ready authenticators.
    pub registry: Registry,
}

impl KeyMetrics {
    /// Adds the metrics to a registry of metrics.
    pub fn register(self, metrics: &mut prometheus_client::registry::Registry) {
        metrics.register_collector(Box::new(self));
    }
}

impl Collector for KeyMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let keys: Vec<_> = self
            .registry
            .entries()
            .into_iter()
            .filter_map(|(key, authenticator)| Some((key.name, authenticator.signing_keys()?.status())))
            .collect();
        // An empty family would be printed as a description without a value.
        if keys.is_empty() {
            return Ok(());
        }
        let mut age = encoder.encode_descriptor(
            "pinniped_jwt_authenticator_keys_age_seconds",
            "Time since the keys of the issuer were last fetched",
            None,
            MetricType::Gauge,
        )?;
        for (name, status) in &keys {
            let seconds = status.age.unwrap_or_default().as_secs();
            let gauge = ConstGauge::new(i64::try_from(seconds).unwrap_or(i64::MAX));
            gauge.encode(age.encode_family(&[("authenticator", name.as_str())])?)?;
        }
        let mut failed = encoder.encode_descriptor(
            "pinniped_jwt_authenticator_keys_fetch_failed",
            "Whether the latest attempt to fetch the keys of the issuer failed",
            None,
            MetricType::Gauge,
        )?;
        for (name, status) in &keys {
            let gauge = ConstGauge::new(i64::from(status.failure.is_some()));
            gauge.encode(failed.encode_family(&[("authenticator", name.as_str())])?)?;
        }
        Ok(())
    }
}
