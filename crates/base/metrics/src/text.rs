//! The text formats of a scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::definition::{Definition, Kind};
use crate::samples::{Family, Samples, Value};

/// Writes the samples in the format OpenMetrics.
pub(crate) fn open_metrics(samples: Samples) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(samples));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Writes the samples in the text format of Prometheus.
pub(crate) fn prometheus(samples: Samples) -> Result<String, fmt::Error> {
    open_metrics(samples).map(|text| to_prometheus(&text))
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families().iter().try_for_each(|family| encode_family(family, &mut encoder))
    }
}

fn encode_family(family: &Family, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Definition { name, help, kind, labels, .. } = family.definition;
    let metric_type = match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram(_) => MetricType::Histogram,
    };
    let mut described = encoder.encode_descriptor(name, help, None, metric_type)?;
    for sample in &family.samples {
        if labels.is_empty() {
            return encode(*kind, &sample.value, described);
        }
        let names = labels.iter().map(|label| label.name);
        let labels: Vec<(&str, &str)> = names.zip(sample.labels.iter().map(String::as_str)).collect();
        encode(*kind, &sample.value, described.encode_family(&labels.as_slice())?)?;
    }
    Ok(())
}

fn encode(kind: Kind, value: &Value, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Number(value)) => ConstCounter::new(*value).encode(encoder),
        (Kind::Gauge, Value::Number(value)) => {
            ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX)).encode(encoder)
        }
        (Kind::Histogram(_), Value::Histogram(histogram)) => {
            encoder.encode_histogram::<NoLabelSet>(histogram.sum, histogram.count(), &histogram.classic, None)
        }
        (Kind::Histogram(_), Value::Number(_)) | (_, Value::Histogram(_)) => Err(fmt::Error),
    }
}

/// Converts OpenMetrics, the only text format that `prometheus_client` writes, to the text format
/// of Prometheus: there the name of a counter has its suffix in the descriptions, too, and comments
/// for units and the end do not exist.
fn to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 4096);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|described| described.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_suffix_and_open_metrics_comments_are_removed() {
        let open_metrics = "# HELP a Some a.\n# TYPE a counter\n# UNIT a bytes\na_total{x=\"# y\"} 1\n\
                            # HELP b Some b.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Some a.\n# TYPE a_total counter\na_total{x=\"# y\"} 1\n\
                        # HELP b Some b.\n# TYPE b gauge\nb 2\n";
        assert_eq!(to_prometheus(open_metrics), expected);
    }
}
