//! The description of a metric.

/// A metric family.
#[derive(Debug, PartialEq)]
pub struct Definition {
    /// The name. That of a counter lacks the suffix `_total`, which its samples have.
    pub name: &'static str,
    /// The help text, without a period at its end.
    pub help: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The labels.
    pub labels: &'static [Label],
    /// The condition under which the metric has values; `None` if it always has some.
    pub present: Option<&'static str>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A number that only increases while the program runs.
    Counter,
    /// A number that increases and decreases.
    Gauge,
    /// A distribution with these upper bounds of classic buckets, in seconds. Formats that have
    /// native histograms have those, too.
    Histogram(&'static [f64]),
}

/// A label of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Label {
    /// The name.
    pub name: &'static str,
    /// The values.
    pub values: Values,
}

/// A value of a label, and its meaning.
pub type LabelValue = (&'static str, &'static str);

/// The values of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// One of these.
    Of(&'static [LabelValue]),
    /// Values that are not known in advance.
    Bounded {
        /// The values.
        description: &'static str,
        /// Their maximum number, or 1 for the objects of a kind.
        most: usize,
    },
}

impl Kind {
    /// Returns the name of the kind in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

impl Label {
    /// Returns a label with these values.
    pub const fn of(name: &'static str, values: &'static [LabelValue]) -> Self {
        Self { name, values: Values::Of(values) }
    }

    /// Returns a label with at most this many values, which are not known in advance.
    pub const fn bounded(name: &'static str, description: &'static str, most: usize) -> Self {
        Self { name, values: Values::Bounded { description, most } }
    }
}

impl Definition {
    const fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Self { name, help, kind, labels: &[], present: None }
    }

    /// Returns a counter without labels.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// Returns a gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    /// Returns a histogram of seconds without labels.
    pub const fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        Self::new(name, help, Kind::Histogram(bounds))
    }

    /// Sets the labels.
    #[must_use]
    pub const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    /// Sets the condition under which the metric has values.
    #[must_use]
    pub const fn present(self, condition: &'static str) -> Self {
        Self { present: Some(condition), ..self }
    }

    /// Returns the name of the samples of a counter or a gauge, and of the family of a histogram.
    pub fn full_name(&self) -> String {
        match self.kind {
            Kind::Counter => format!("{}_total", self.name),
            Kind::Gauge | Kind::Histogram(_) => self.name.to_owned(),
        }
    }

    /// Returns the maximum number of series of a program, for one object of each kind.
    pub fn max_series(&self) -> usize {
        let of_one_combination = match self.kind {
            Kind::Counter | Kind::Gauge => 1,
            // One for each bucket and for the bucket of larger values, the sum and the count.
            Kind::Histogram(bounds) => bounds.len() + 3,
        };
        let values = self.labels.iter().map(|label| match label.values {
            Values::Of(values) => values.len(),
            Values::Bounded { most, .. } => most,
        });
        values.product::<usize>() * of_one_combination
    }
}
