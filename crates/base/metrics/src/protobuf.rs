//! The format of messages: `metrics.proto` of `github.com/prometheus/client_model`, each message
//! with its length.

use prost::Message;

use crate::definition::{Definition, Kind};
use crate::native;
use crate::samples::{self, Family, Samples, Value};

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    r#type: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The messages `Gauge` and `Counter`.
#[derive(Clone, Copy, PartialEq, Message)]
struct Number {
    #[prost(double, tag = "1")]
    value: f64,
}

/// Numbers are written even if they are 0, as the definition of the format has them.
#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

/// Writes the samples.
pub(crate) fn encode(samples: &Samples) -> Vec<u8> {
    samples.families().iter().flat_map(|family| message(family).encode_length_delimited_to_vec()).collect()
}

fn message(family: &Family) -> MetricFamily {
    let Definition { help, kind, labels, .. } = family.definition;
    let metric_type = match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram(_) => MetricType::Histogram,
    };
    let metric = |sample: &samples::Sample| {
        let pair = |(name, value): (&str, &String)| LabelPair { name: name.to_owned(), value: value.clone() };
        let label = labels.iter().map(|label| label.name).zip(&sample.labels).map(pair).collect();
        let mut metric = Metric { label, ..Metric::default() };
        match &sample.value {
            Value::Number(value) => {
                let number = Some(Number { value: *value as f64 });
                match kind {
                    Kind::Counter => metric.counter = number,
                    Kind::Gauge | Kind::Histogram(_) => metric.gauge = number,
                }
            }
            Value::Histogram(value) => metric.histogram = Some(histogram(value)),
        }
        metric
    };
    MetricFamily {
        name: family.definition.full_name(),
        help: (*help).to_owned(),
        r#type: metric_type.into(),
        metric: family.samples.iter().map(metric).collect(),
    }
}

fn histogram(value: &samples::Histogram) -> Histogram {
    let spans = native::spans(&value.native);
    let cumulative = |before: &mut u64, (upper_bound, count): &(f64, u64)| {
        *before += count;
        Some(Bucket { cumulative_count: *before, upper_bound: *upper_bound })
    };
    let difference = |before: &mut i64, count: &u64| {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        Some(count - std::mem::replace(before, count))
    };
    let span = |span: &native::Span| BucketSpan {
        offset: span.offset,
        length: u32::try_from(span.counts.len()).unwrap_or(u32::MAX),
    };
    Histogram {
        sample_count: Some(value.native.iter().sum()),
        sample_sum: Some(value.sum),
        bucket: value.classic.iter().scan(0, cumulative).collect(),
        schema: Some(native::SCHEMA),
        zero_threshold: Some(native::ZERO_THRESHOLD),
        zero_count: value.native.first().copied(),
        positive_span: spans.iter().map(span).collect(),
        positive_delta: spans.iter().flat_map(|span| &span.counts).scan(0, difference).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::definition::Label;
    use crate::table::HistogramTable;
    use crate::{Format, Metrics};

    static OPEN: Definition = Definition::gauge("open", "Help").by(&[Label::bounded("name", "any", 2)]);
    static DONE: Definition = Definition::counter("done", "Help");
    static WAIT: Definition = Definition::histogram("wait_seconds", "Help", &[0.1, 1.0]);

    fn decode(mut bytes: &[u8]) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        families
    }

    #[tokio::test]
    async fn a_scrape_has_every_family_with_classic_and_native_buckets() {
        let (metrics, waits) = (Metrics::new(), HistogramTable::new(&WAIT));
        metrics.collect(|samples| {
            samples.push(&OPEN, ["a"], 0);
            samples.push(&DONE, [], 3);
        });
        metrics.add(&waits);
        for milliseconds in [0, 1000, 1000, 1050, 2100] {
            waits.observe([], Duration::from_millis(milliseconds));
        }
        let families = decode(&metrics.scrape(Format::Protobuf).await.unwrap());
        let names: Vec<_> = families.iter().map(|family| (family.name.as_str(), family.r#type)).collect();
        assert_eq!(names, [("open", 1), ("done_total", 0), ("wait_seconds", 4)]);
        let label = LabelPair { name: "name".to_owned(), value: "a".to_owned() };
        assert_eq!(families[0].metric[0].label, [label]);
        assert_eq!(families[0].metric[0].gauge, Some(Number { value: 0.0 }));
        assert_eq!(families[1].metric[0].counter, Some(Number { value: 3.0 }));
        let expected = Histogram {
            sample_count: Some(5),
            sample_sum: Some(5.15),
            bucket: [(1, 0.1), (3, 1.0), (5, f64::INFINITY)]
                .map(|(cumulative_count, upper_bound)| Bucket { cumulative_count, upper_bound })
                .to_vec(),
            schema: Some(3),
            zero_threshold: Some(2f64.powi(-14)),
            zero_count: Some(1),
            // Up to 1, up to 2^(1/8), and up to 2^(9/8).
            positive_span: [(0, 2), (7, 1)].map(|(offset, length)| BucketSpan { offset, length }).to_vec(),
            positive_delta: vec![2, -1, 0],
        };
        assert_eq!(families[2].metric[0].histogram, Some(expected));
    }
}
