//! Metrics of a process: definitions, a registry, and families that record values without locks.
//!
//! A metric exists only with a [`Definition`], which has its name, its help text, its kind, and the
//! values of each label with their meanings. This crate defines no metric itself. Conventions,
//! which a test in `tools/xtask` checks for every definition:
//!
//! - the name starts with `pinniped_`, and ends with the unit if there is one; units are base units
//!   (seconds, bytes),
//! - a label has a fixed list of values, or a bounded number of values that the program itself
//!   chooses, or one for each object of a kind that only administrators create. No label contains a
//!   user, a URL or a host.
//!
//! [`CounterTable`] and [`HistogramTable`] are for the path of a request: the positions of its
//! labels address a value, so that an update needs neither a hash nor a lock. Other metrics are
//! read when they are scraped ([`Metrics::collect`]), several families together if they have one
//! source.
//!
//! A scrape reads all values as [`Samples`] and writes them in a [`Format`]. Only the format of
//! messages has native histograms, whose buckets cover all durations with a precision of 9 %; text
//! has the classic buckets of the definition.
//!
//! ```
//! use pinniped_metrics::{CounterTable, Definition, Label, Metrics};
//!
//! static REFUSED: Definition = Definition::counter("refused", "Connections refused")
//!     .by(&[Label::of("reason", &[("full", "All are in use"), ("address", "Too many of one client")])]);
//!
//! let metrics = Metrics::new();
//! let refused = CounterTable::new(&REFUSED);
//! metrics.add(&refused);
//! refused.add([1], 3);
//! let text = metrics.text().unwrap();
//! assert!(text.contains("refused_total{reason=\"address\"} 3\n"));
//! ```

#![forbid(unsafe_code)]

mod cells;
mod definition;
mod format;
mod native;
mod protobuf;
mod registry;
mod samples;
mod table;
mod text;

pub use definition::{Definition, Kind, Label, LabelValue, Values};
pub use format::Format;
pub use registry::{Metrics, SCRAPE_TIMEOUT, ScrapeError};
pub use samples::Samples;
pub use table::{ByName, CounterTable, HistogramTable, NamedTable, Table};
