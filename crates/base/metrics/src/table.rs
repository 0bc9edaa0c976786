//! Families whose labels have fixed values: one number for each combination, in a table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;

use crate::cells::Cells;
use crate::definition::{Definition, Kind, LabelValue, Values};

/// Larger tables omit combinations of labels that have no value.
const ALWAYS_COMPLETE: usize = 32;

/// The dimensions of a table with `D` labels.
#[derive(Debug)]
struct Shape<const D: usize> {
    definition: &'static Definition,
    values: [&'static [LabelValue]; D],
    size: usize,
}

impl<const D: usize> Shape<D> {
    /// A definition whose labels do not fit has an empty table.
    fn new(definition: &'static Definition) -> Self {
        let mut values: [&'static [LabelValue]; D] = [&[]; D];
        for (values, label) in values.iter_mut().zip(definition.labels) {
            if let Values::Of(fixed) = label.values {
                *values = fixed;
            }
        }
        let size = values.iter().map(|values| values.len()).product();
        debug_assert!(size > 0 && definition.labels.len() == D, "{} does not fit", definition.name);
        Self { definition, values, size }
    }

    /// Returns the number of the combination.
    fn position(&self, at: [usize; D]) -> usize {
        let mut position = 0;
        for (at, values) in at.into_iter().zip(self.values) {
            position = position * values.len() + at.min(values.len().saturating_sub(1));
        }
        position
    }

    /// Returns the labels of the combination with this number.
    fn labels(&self, mut position: usize) -> [(&'static str, &'static str); D] {
        let mut labels = [("", ""); D];
        let dimensions = labels.iter_mut().zip(self.values).zip(self.definition.labels);
        for ((label, values), described) in dimensions.rev() {
            *label = (described.name, values[position % values.len()].0);
            position /= values.len();
        }
        labels
    }

    /// Encodes the combinations for which `encode` is to be called.
    fn encode(
        &self,
        mut encoder: DescriptorEncoder<'_>,
        is_empty: impl Fn(usize) -> bool,
        encode: impl Fn(usize, MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let is_shown = |at: &usize| self.size <= ALWAYS_COMPLETE || !is_empty(*at);
        let shown: Vec<usize> = (0..self.size).filter(is_shown).collect();
        // An empty family would be a description without a value.
        if shown.is_empty() {
            return Ok(());
        }
        let mut family = self.definition.describe(&mut encoder)?;
        for at in shown {
            if D == 0 {
                encode(at, family)?;
                break;
            }
            encode(at, family.encode_family(&self.labels(at))?)?;
        }
        Ok(())
    }
}

/// Counters of all combinations of labels. Clones share them.
#[derive(Clone, Debug)]
pub struct CounterTable<const D: usize>(Arc<(Shape<D>, Cells)>);

impl<const D: usize> CounterTable<D> {
    /// Creates the counters of a definition with `D` labels.
    pub fn new(definition: &'static Definition) -> Self {
        let shape = Shape::new(definition);
        let cells = Cells::new(shape.size);
        Self(Arc::new((shape, cells)))
    }

    /// Adds to the counter at these positions in the lists of label values.
    pub fn add(&self, at: [usize; D], count: u64) {
        self.0.1.add(self.0.0.position(at), count);
    }

    /// Returns the value.
    pub fn get(&self, at: [usize; D]) -> u64 {
        self.0.1.sum(self.0.0.position(at))
    }
}

impl<const D: usize> Collector for CounterTable<D> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (shape, cells) = &*self.0;
        let counter = |at, encoder: MetricEncoder<'_>| ConstCounter::new(cells.sum(at)).encode(encoder);
        shape.encode(encoder, |at| cells.sum(at) == 0, counter)
    }
}

/// Histograms of all combinations of labels. Clones share them.
#[derive(Clone, Debug)]
pub struct HistogramTable<const D: usize>(Arc<Histograms<D>>);

#[derive(Debug)]
struct Histograms<const D: usize> {
    shape: Shape<D>,
    /// The upper bounds of all buckets except for the last one.
    bounds: Vec<Duration>,
    /// For each combination: the buckets, and the sum in nanoseconds.
    cells: Cells,
}

impl<const D: usize> Histograms<D> {
    /// Returns the number of cells of one combination: one bucket for each bound, the bucket of
    /// larger values, and the sum.
    fn width(&self) -> usize {
        self.bounds.len() + 2
    }

    fn buckets(&self, at: usize) -> impl Iterator<Item = u64> + '_ {
        let start = at * self.width();
        (start..=start + self.bounds.len()).map(|at| self.cells.sum(at))
    }

    fn sum(&self, at: usize) -> Duration {
        Duration::from_nanos(self.cells.sum((at + 1) * self.width() - 1))
    }
}

impl<const D: usize> HistogramTable<D> {
    /// Creates the histograms of a definition with `D` labels.
    pub fn new(definition: &'static Definition) -> Self {
        let shape = Shape::new(definition);
        let bounds: Vec<Duration> = match definition.kind {
            Kind::Histogram(bounds) => bounds.iter().copied().map(Duration::from_secs_f64).collect(),
            Kind::Counter | Kind::Gauge => Vec::new(),
        };
        let cells = Cells::new(shape.size * (bounds.len() + 2));
        Self(Arc::new(Histograms { shape, bounds, cells }))
    }

    /// Records a duration at these positions in the lists of label values.
    pub fn observe(&self, at: [usize; D], duration: Duration) {
        let Histograms { shape, bounds, cells } = &*self.0;
        let start = shape.position(at) * self.0.width();
        let bucket = bounds.iter().position(|bound| duration <= *bound).unwrap_or(bounds.len());
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let shard = cells.shard();
        shard.add(start + bucket, 1);
        shard.add(start + bounds.len() + 1, nanoseconds);
    }

    /// Returns the number of observations.
    pub fn count(&self, at: [usize; D]) -> u64 {
        self.0.buckets(self.0.shape.position(at)).sum()
    }
}

impl<const D: usize> Collector for HistogramTable<D> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let this = &*self.0;
        let histogram = |at, mut encoder: MetricEncoder<'_>| {
            let bounds = this.bounds.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(this.buckets(at)).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(this.sum(at).as_secs_f64(), count, &buckets, None)
        };
        this.shape.encode(encoder, |at| this.buckets(at).sum::<u64>() == 0, histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Label;
    use crate::{Format, Metrics};

    const COLORS: Label = Label::of("color", &[("red", ""), ("green", "")]);
    const SIZES: Label = Label::of("size", &[("s", ""), ("m", ""), ("l", "")]);

    static COUNTER: Definition = Definition::counter("things", "Help").by(&[COLORS, SIZES]);
    static ONE: Definition = Definition::histogram("wait_seconds", "Help", &[0.1, 1.0]);

    #[test]
    fn each_combination_of_labels_has_its_own_value() {
        let (metrics, counters) = (Metrics::new(), CounterTable::new(&COUNTER));
        metrics.add(&counters);
        counters.add([0, 2], 1);
        counters.add([1, 0], 2);
        // Positions beyond the end are the last ones.
        counters.add([7, 7], 3);
        let text = metrics.encode(Format::Text).unwrap();
        for line in [
            "# HELP things_total Help",
            "# TYPE things_total counter",
            r#"things_total{color="red",size="s"} 0"#,
            r#"things_total{color="red",size="l"} 1"#,
            r#"things_total{color="green",size="s"} 2"#,
            r#"things_total{color="green",size="l"} 3"#,
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
        }
        assert_eq!(counters.get([1, 0]), 2);
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_not_smaller() {
        let (metrics, histogram) = (Metrics::new(), HistogramTable::new(&ONE));
        metrics.add(&histogram);
        for milliseconds in [0, 100, 101, 1000, 1001] {
            histogram.observe([], Duration::from_millis(milliseconds));
        }
        let text = metrics.encode(Format::Text).unwrap();
        for line in [
            r#"wait_seconds_bucket{le="0.1"} 2"#,
            r#"wait_seconds_bucket{le="1.0"} 4"#,
            r#"wait_seconds_bucket{le="+Inf"} 5"#,
            "wait_seconds_count 5",
            "wait_seconds_sum 2.202",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
        }
        assert_eq!(histogram.count([]), 5);
    }
}
