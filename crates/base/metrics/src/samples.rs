//! The values of a scrape.

use crate::definition::{Definition, Label};

/// The values of all metrics at one time, in families.
#[derive(Debug, Default)]
pub struct Samples(Vec<Family>);

/// The values of a metric.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) definition: &'static Definition,
    pub(crate) samples: Vec<Sample>,
}

/// A value of one combination of labels.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The label values, in the order of the definition.
    pub(crate) labels: Vec<String>,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    Histogram(Histogram),
}

/// A histogram in both forms.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// In seconds.
    pub(crate) sum: f64,
    /// The upper bounds in seconds, of which the last is infinite, with the counts between bounds.
    pub(crate) classic: Vec<(f64, u64)>,
    /// The counts of the buckets of `native`.
    pub(crate) native: Vec<u64>,
}

impl Histogram {
    pub(crate) fn count(&self) -> u64 {
        self.classic.iter().map(|(_, count)| count).sum()
    }
}

impl Samples {
    /// Adds a value of a counter or a gauge.
    pub fn push<const D: usize>(&mut self, family: &'static Definition, labels: [&str; D], value: u64) {
        self.add(family, labels, Value::Number(value));
    }

    pub(crate) fn add<'a>(
        &mut self,
        family: &'static Definition,
        labels: impl IntoIterator<Item = &'a str>,
        value: Value,
    ) {
        let labels: Vec<String> = labels.into_iter().map(str::to_owned).collect();
        debug_assert!(family.labels.len() == labels.len(), "{} has other labels", family.name);
        let sample = Sample { labels, value };
        // Usually the value belongs to the same family as the one before.
        match self.0.iter_mut().rev().find(|known| std::ptr::eq(known.definition, family)) {
            Some(known) => known.samples.push(sample),
            None => self.0.push(Family { definition: family, samples: vec![sample] }),
        }
    }

    /// Returns the values that are numbers, each with its name and labels as in the text formats.
    pub(crate) fn numbers(&self) -> Vec<(String, u64)> {
        let of_family = |family: &Family| -> Vec<(String, u64)> {
            let number = |sample: &Sample| match sample.value {
                Value::Number(value) => Some((series(family.definition, &sample.labels), value)),
                Value::Histogram(_) => None,
            };
            family.samples.iter().filter_map(number).collect()
        };
        self.0.iter().flat_map(of_family).collect()
    }

    pub(crate) fn families(&self) -> &[Family] {
        &self.0
    }
}

fn series(definition: &Definition, labels: &[String]) -> String {
    let pair = |(label, value): (&Label, &String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{value}\"", label.name)
    };
    let labels: Vec<String> = definition.labels.iter().zip(labels).map(pair).collect();
    match labels.as_slice() {
        [] => definition.full_name(),
        labels => format!("{}{{{}}}", definition.full_name(), labels.join(",")),
    }
}
