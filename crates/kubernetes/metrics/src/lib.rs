//! The definitions of the metrics of a server program, its handler chain, its reviews and its
//! controllers, and the export of permits.
//!
//! A constant for the position of a label value is beside the list of the values, unless an enum of
//! the component that records the metric has the same order. The definitions of the products are in
//! crates of their own, which list these ones, too.

#![forbid(unsafe_code)]

pub mod audit;
pub mod capacity;
pub mod connections;
pub mod controllers;
pub mod permits;
pub mod program;
pub mod requests;
pub mod reviews;
pub mod traces;

/// Bounds of buckets for requests and for what they wait for: from one millisecond to the timeout
/// of a webhook and to the deadline of a request. Requests that end at the deadline take a little
/// longer, so the last bucket separates them from those without a deadline.
pub const REQUEST_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 61.0];
