//! Code that the benchmark shares with the program that starts the runs of the plugin.

use std::process::Output;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

/// CPU time and memory of several runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// User and system time of all runs.
    pub(crate) cpu_seconds: f64,
    /// The largest resident memory of a run.
    pub(crate) memory_kib: i64,
}

/// Requires that a run succeeded and printed a text, and no message.
pub(crate) fn check_output(output: &Output, expected: &str) -> anyhow::Result<()> {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let is_expected = output.status.success() && stdout.contains(expected);
    ensure!(is_expected && stderr.is_empty(), "the program failed: {} {stderr}", output.status);
    Ok(())
}
