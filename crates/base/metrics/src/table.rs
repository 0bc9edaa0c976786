//! Families whose labels have fixed values: one number for each combination, in a table. The values
//! of the last label may be names of objects; then each name has a table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::cells::Cells;
use crate::definition::{Definition, Kind, Label, LabelValue, Values};
use crate::native;
use crate::samples::{Histogram, Samples, Value};

/// Larger tables omit combinations of labels that have no value. A rate does not contain the first
/// value of a combination that was absent before, so small tables have all of them.
const ALWAYS_COMPLETE: usize = 32;

/// The maximum number of names in a [`ByName`], so that its memory is bounded.
const MOST_NAMES: usize = 64;

/// The label value for further names. No object has such a name.
const OTHER_NAMES: &str = "_other";

/// A family whose values are in a table. Clones share them.
pub trait Table: Clone + Send + Sync + 'static {
    /// Adds the current values.
    fn read(&self, samples: &mut Samples);
}

/// A table that a [`ByName`] can use for the values of one name.
pub trait NamedTable: Clone + Send + Sync + 'static {
    /// Creates the table of a definition whose last label has the name as its value.
    fn named(definition: &'static Definition) -> Self;

    /// Adds the current values. If there is a name, it is the value of their last label.
    fn read_as(&self, samples: &mut Samples, name: Option<&str>);
}

impl<T: NamedTable> Table for T {
    fn read(&self, samples: &mut Samples) {
        self.read_as(samples, None);
    }
}

/// The dimensions of a table with `D` labels.
#[derive(Debug)]
struct Shape<const D: usize> {
    definition: &'static Definition,
    values: [&'static [LabelValue]; D],
    size: usize,
}

impl<const D: usize> Shape<D> {
    /// With a name, the definition has one more label. A definition whose labels do not fit has an
    /// empty table.
    fn new(definition: &'static Definition, has_name: bool) -> Self {
        let mut values: [&'static [LabelValue]; D] = [&[]; D];
        for (values, label) in values.iter_mut().zip(definition.labels) {
            if let Values::Of(fixed) = label.values {
                *values = fixed;
            }
        }
        let size = values.iter().map(|values| values.len()).product();
        let is_name = |label: &Label| matches!(label.values, Values::Bounded { .. });
        let fits = match definition.labels.get(D..) {
            Some([]) => !has_name,
            Some([label]) => has_name && is_name(label),
            _ => false,
        };
        debug_assert!(size > 0 && fits, "{} does not fit", definition.name);
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

    /// Returns the label values of the combination with this number.
    fn labels(&self, mut position: usize) -> [&'static str; D] {
        let mut labels = [""; D];
        for (label, values) in labels.iter_mut().zip(self.values).rev() {
            *label = values[position % values.len()].0;
            position /= values.len();
        }
        labels
    }
}

/// Counters of all combinations of labels. Clones share them.
#[derive(Clone, Debug)]
pub struct CounterTable<const D: usize>(Arc<(Shape<D>, Cells)>);

impl<const D: usize> CounterTable<D> {
    /// Creates the counters of a definition with `D` labels.
    pub fn new(definition: &'static Definition) -> Self {
        Self::of(Shape::new(definition, false))
    }

    fn of(shape: Shape<D>) -> Self {
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

impl<const D: usize> NamedTable for CounterTable<D> {
    fn named(definition: &'static Definition) -> Self {
        Self::of(Shape::new(definition, true))
    }

    fn read_as(&self, samples: &mut Samples, name: Option<&str>) {
        let (shape, cells) = &*self.0;
        for position in 0..shape.size {
            let value = cells.sum(position);
            if value > 0 || shape.size <= ALWAYS_COMPLETE {
                let labels = shape.labels(position).into_iter().chain(name);
                samples.add(shape.definition, labels, Value::Number(value));
            }
        }
    }
}

/// Histograms of all combinations of labels. Clones share them. A histogram with labels has no
/// value for a combination without an observation.
#[derive(Clone, Debug)]
pub struct HistogramTable<const D: usize>(Arc<Histograms<D>>);

#[derive(Debug)]
struct Histograms<const D: usize> {
    shape: Shape<D>,
    /// The upper bounds of all classic buckets except for the last one, in nanoseconds.
    bounds: Vec<u64>,
    /// For each combination that was observed: the classic buckets, the sum in nanoseconds, and the
    /// native buckets.
    combinations: Box<[OnceLock<Cells>]>,
}

impl<const D: usize> Histograms<D> {
    /// Returns the position of the sum. One classic bucket for each bound and the bucket of larger
    /// values precede it, and the native buckets follow it.
    fn sum_position(&self) -> usize {
        self.bounds.len() + 1
    }

    fn cells(&self, at: usize) -> &Cells {
        let new = || Cells::new(self.sum_position() + 1 + native::BUCKETS);
        self.combinations[at].get_or_init(new)
    }

    /// Returns the values of a combination, which are 0 without an observation.
    fn snapshot(&self, cells: Option<&Cells>) -> Histogram {
        let sum = |at| cells.map_or(0, |cells| cells.sum(at));
        let sum_position = self.sum_position();
        let seconds = |bound: &u64| Duration::from_nanos(*bound).as_secs_f64();
        let bounds = self.bounds.iter().map(seconds).chain([f64::INFINITY]);
        let first_native = sum_position + 1;
        Histogram {
            sum: Duration::from_nanos(sum(sum_position)).as_secs_f64(),
            classic: bounds.enumerate().map(|(at, bound)| (bound, sum(at))).collect(),
            native: (first_native..first_native + native::BUCKETS).map(sum).collect(),
        }
    }
}

impl<const D: usize> HistogramTable<D> {
    /// Creates the histograms of a definition with `D` labels.
    pub fn new(definition: &'static Definition) -> Self {
        Self::of(Shape::new(definition, false))
    }

    fn of(shape: Shape<D>) -> Self {
        let bounds: Vec<u64> = match shape.definition.kind {
            Kind::Histogram(bounds) => {
                bounds.iter().map(|bound| nanoseconds(Duration::from_secs_f64(*bound))).collect()
            }
            Kind::Counter | Kind::Gauge => Vec::new(),
        };
        let combinations = (0..shape.size).map(|_| OnceLock::new()).collect();
        Self(Arc::new(Histograms { shape, bounds, combinations }))
    }

    /// Records a duration at these positions in the lists of label values.
    pub fn observe(&self, at: [usize; D], duration: Duration) {
        let this = &*self.0;
        let nanoseconds = nanoseconds(duration);
        let bucket = this.bounds.partition_point(|bound| *bound < nanoseconds);
        let shard = this.cells(this.shape.position(at)).shard();
        let sum_position = this.sum_position();
        shard.add(bucket, 1);
        shard.add(sum_position, nanoseconds);
        shard.add(sum_position + 1 + native::position(nanoseconds), 1);
    }

    /// Returns the number of observations.
    pub fn count(&self, at: [usize; D]) -> u64 {
        self.0.snapshot(self.0.combinations[self.0.shape.position(at)].get()).count()
    }
}

impl<const D: usize> NamedTable for HistogramTable<D> {
    fn named(definition: &'static Definition) -> Self {
        Self::of(Shape::new(definition, true))
    }

    fn read_as(&self, samples: &mut Samples, name: Option<&str>) {
        let this = &*self.0;
        for (position, cells) in this.combinations.iter().enumerate() {
            let cells = cells.get();
            // A histogram without labels always has a value.
            if cells.is_some() || D == 0 {
                let labels = this.shape.labels(position).into_iter().chain(name);
                samples.add(this.shape.definition, labels, Value::Histogram(this.snapshot(cells)));
            }
        }
    }
}

/// Tables of a family whose last label has names of objects as values: one for each name. Clones
/// share them.
#[derive(Debug)]
pub struct ByName<T>(Arc<NamedTables<T>>);

#[derive(Debug)]
struct NamedTables<T> {
    definition: &'static Definition,
    tables: Mutex<BTreeMap<Box<str>, T>>,
}

impl<T> Clone for ByName<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: NamedTable> ByName<T> {
    /// Creates the tables of a definition.
    pub fn new(definition: &'static Definition) -> Self {
        Self(Arc::new(NamedTables { definition, tables: Mutex::default() }))
    }

    /// Returns the table of a name, which may be empty. Names after the first 64 share a table,
    /// which has the name `_other`.
    pub fn of(&self, name: &str) -> T {
        let mut tables = self.tables();
        if let Some(table) = tables.get(name) {
            return table.clone();
        }
        // The empty name and that of the others are not counted.
        let names = tables.keys().filter(|known| !matches!(&***known, "" | OTHER_NAMES)).count();
        let name = if name.is_empty() || names < MOST_NAMES { name } else { OTHER_NAMES };
        tables.entry(name.into()).or_insert_with(|| T::named(self.0.definition)).clone()
    }

    /// After a panic the map is still consistent, because it changes with a single insertion.
    fn tables(&self) -> MutexGuard<'_, BTreeMap<Box<str>, T>> {
        self.0.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: NamedTable> Table for ByName<T> {
    fn read(&self, samples: &mut Samples) {
        // Users of a table do not wait for a scrape.
        let tables: Vec<_> =
            self.tables().iter().map(|(name, table)| (name.clone(), table.clone())).collect();
        for (name, table) in tables {
            table.read_as(samples, Some(&name));
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    const COLORS: Label = Label::of("color", &[("red", ""), ("green", "")]);
    const SIZES: Label = Label::of("size", &[("s", ""), ("m", ""), ("l", "")]);

    static COUNTER: Definition = Definition::counter("things", "Help").by(&[COLORS, SIZES]);
    static BY_COLOR: Definition = Definition::histogram("age_seconds", "Help", &[1.0]).by(&[COLORS]);
    static NAMED: Definition =
        Definition::counter("named", "Help").by(&[COLORS, Label::bounded("name", "any", 1)]);
    static ONE: Definition = Definition::histogram("wait_seconds", "Help", &[0.1, 1.0]);

    #[test]
    fn each_combination_of_labels_has_its_own_value() {
        let (metrics, counters) = (Metrics::new(), CounterTable::new(&COUNTER));
        metrics.add(&counters);
        counters.add([0, 2], 1);
        counters.add([1, 0], 2);
        // Positions beyond the end are the last ones.
        counters.add([7, 7], 3);
        let text = metrics.text().unwrap();
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
    fn names_have_values_of_their_own_and_those_above_the_maximum_share_values() {
        let (metrics, counters) = (Metrics::new(), ByName::<CounterTable<1>>::new(&NAMED));
        metrics.add(&counters);
        let lines = || {
            let text = metrics.text().unwrap();
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(), [""; 0]);
        counters.of("b").add([1], 1);
        counters.of("b").add([1], 1);
        counters.of("").add([0], 1);
        assert_eq!(
            lines(),
            [
                r#"named_total{color="red",name=""} 1"#,
                r#"named_total{color="green",name=""} 0"#,
                r#"named_total{color="red",name="b"} 0"#,
                r#"named_total{color="green",name="b"} 2"#,
            ]
        );
        for number in 0..2 * MOST_NAMES {
            counters.of(&format!("n{number}")).add([0], 1);
        }
        let others = 2 * MOST_NAMES - (MOST_NAMES - 1);
        assert_eq!(counters.of("any").get([0]), others as u64);
        assert_eq!(counters.of("b").get([1]), 2);
        let lines = lines();
        assert_eq!(lines.len(), 2 * (MOST_NAMES + 2));
        assert!(lines.contains(&format!(r#"named_total{{color="red",name="_other"}} {others}"#)));
    }

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_is_not_smaller() {
        let (metrics, histogram) = (Metrics::new(), HistogramTable::new(&ONE));
        metrics.add(&histogram);
        for milliseconds in [0, 100, 101, 1000, 1001] {
            histogram.observe([], Duration::from_millis(milliseconds));
        }
        let text = metrics.text().unwrap();
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

    #[test]
    fn a_histogram_has_values_for_observed_combinations_and_always_without_labels() {
        let (metrics, histogram) = (Metrics::new(), HistogramTable::new(&BY_COLOR));
        metrics.add(&histogram);
        metrics.add(&HistogramTable::<0>::new(&ONE));
        let text = metrics.text().unwrap();
        assert!(!text.contains("age_seconds") && text.contains("\nwait_seconds_count 0\n"), "{text}");
        histogram.observe([1], Duration::ZERO);
        let text = metrics.text().unwrap();
        assert!(text.contains("\nage_seconds_count{color=\"green\"} 1\n"), "{text}");
        assert!(!text.contains("red"), "{text}");
        assert_eq!((histogram.count([0]), histogram.count([1])), (0, 1));
    }
}
