//! Compares our files with upstream's, our types with our files, and our files with the chart.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should stop")]

mod chart;
mod chart_values;
mod crds;
mod difference;
mod documents;
mod gateway;
mod manifests;
mod monitoring;
mod openapi;
mod samples;
