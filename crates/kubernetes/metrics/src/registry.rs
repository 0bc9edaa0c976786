//! The registry of a process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::definition::{Definition, Kind};
use crate::format::{Format, to_text};

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

    /// Adds a table.
    pub fn add(&self, table: &(impl Collector + Clone)) {
        self.register(|registry| registry.register_collector(Box::new(table.clone())));
    }

    /// Adds a counter or gauge family whose values `read` returns when they are scraped. Without
    /// values, the family is absent.
    pub fn collect(
        &self,
        definition: &'static Definition,
        read: impl Fn(&mut Samples) + Send + Sync + 'static,
    ) {
        let collector = Box::new(ReadFamily { definition, read: Box::new(read) });
        self.register(|registry| registry.register_collector(collector));
    }

    /// Returns all metrics as text.
    ///
    /// # Errors
    /// Returns an error when a metric cannot be written, which does not happen with the metrics of
    /// this crate.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Text => to_text(&text),
        })
    }
}

/// The values of a family: for each sample its label values, in the order of the definition.
#[derive(Debug, Default)]
pub struct Samples(Vec<(Vec<String>, u64)>);

impl Samples {
    /// Adds a sample.
    pub fn push<const D: usize>(&mut self, labels: [&str; D], value: u64) {
        self.0.push((labels.map(str::to_owned).to_vec(), value));
    }
}

struct ReadFamily {
    definition: &'static Definition,
    read: Box<dyn Fn(&mut Samples) + Send + Sync>,
}

impl fmt::Debug for ReadFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFamily").field("definition", &self.definition.name).finish_non_exhaustive()
    }
}

impl Collector for ReadFamily {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Samples::default();
        (self.read)(&mut samples);
        // An empty family would be a description without a value.
        if samples.0.is_empty() {
            return Ok(());
        }
        let definition = self.definition;
        let mut family = definition.describe(&mut encoder)?;
        for (values, value) in samples.0 {
            if definition.labels.is_empty() {
                return encode(definition.kind, value, family);
            }
            let names = definition.labels.iter().map(|label| label.name);
            let labels: Vec<(&str, &str)> = names.zip(values.iter().map(String::as_str)).collect();
            encode(definition.kind, value, family.encode_family(&labels.as_slice())?)?;
        }
        Ok(())
    }
}

fn encode(kind: Kind, value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
        // Histograms are tables.
        Kind::Histogram(_) => Err(fmt::Error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definitions::{program, requests};

    #[test]
    fn values_are_read_when_they_are_scraped_and_a_family_without_values_is_absent() {
        let metrics = Metrics::new();
        metrics.collect(&program::LEADER, |samples| samples.push([], 1));
        metrics.collect(&requests::OVER_LIMIT, |samples| samples.push(["s", "l"], 2));
        metrics.collect(&requests::IN_FLIGHT, |_| {});
        let text = metrics.encode(Format::Text).unwrap();
        assert!(text.contains("\npinniped_leader 1\n"), "{text}");
        assert!(
            text.contains("\npinniped_requests_over_limit_total{server=\"s\",limit=\"l\"} 2\n"),
            "{text}"
        );
        assert!(!text.contains("pinniped_requests_in_flight"), "{text}");
    }
}
