//! The resource usage of a process, and whether it grows.

use std::fmt::Write as _;

use anyhow::Context as _;
use pinniped_test_support::process_status;

/// The usage of a process as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Resident memory, KiB.
    pub(crate) memory: u64,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
    /// Threads.
    pub(crate) threads: u64,
}

/// Reads the usage of a process.
pub(crate) fn usage(pid: u32) -> anyhow::Result<Usage> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).context("could not list descriptors")?;
    Ok(Usage {
        memory: process_status::resident_memory(pid)? >> 10,
        descriptors: descriptors.count() as u64,
        threads: process_status::field(pid, "Threads")?.parse().context("not a number")?,
    })
}

/// One figure over time.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<u64>,
    /// Tolerated growth as a share of the first window.
    pub(crate) share: f64,
    /// Tolerated growth in addition to the share.
    pub(crate) absolute: u64,
}

/// Number of windows into which the time after the warm-up is divided.
const WINDOWS: usize = 6;

impl Series {
    /// Returns the series of memory, descriptors and threads of a process.
    pub(crate) fn of_process(samples: &[Usage]) -> [Self; 3] {
        let of = |figure: fn(&Usage) -> u64| samples.iter().map(figure).collect();
        [
            Self { name: "resident memory in KiB", values: of(|u| u.memory), share: 0.05, absolute: 2048 },
            Self { name: "file descriptors", values: of(|u| u.descriptors), share: 0.15, absolute: 20 },
            Self { name: "threads", values: of(|u| u.threads), share: 0.0, absolute: 2 },
        ]
    }

    /// Returns the medians of the windows after the first third, which is the warm-up: caches fill,
    /// pools reach their size.
    pub(crate) fn medians(&self) -> Vec<u64> {
        let warm = &self.values[self.values.len() / 3..];
        let size = (warm.len() / WINDOWS).max(1);
        warm.chunks(size).take(WINDOWS).map(median).collect()
    }

    /// Whether the last windows are higher than the first ones. Two windows are compared at each
    /// end, so that one slow minute does not count as growth.
    pub(crate) fn grows(&self) -> bool {
        let medians = self.medians();
        let [first, second, .., before_last, last] = medians[..] else { return false };
        let (begin, end) = (first.max(second), before_last.min(last));
        let allowed = begin + self.absolute + (begin as f64 * self.share) as u64;
        end > allowed
    }

    /// Formats the series for people: `name: medians`, and samples at regular intervals.
    pub(crate) fn print(&self) -> String {
        let step = self.values.len().div_ceil(30).max(1);
        let mut text = format!("{}: ", self.name);
        for value in self.values.iter().step_by(step) {
            let _infallible = write!(text, "{value} ");
        }
        let result = if self.grows() { "GROWS" } else { "steady" };
        let _infallible = write!(text, "\n    medians after the warm-up {:?}: {result}", self.medians());
        text
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: Vec<u64>) -> Series {
        Series { name: "x", values, share: 0.05, absolute: 10 }
    }

    #[test]
    fn growth_is_distinguished_from_noise_and_from_the_warm_up() {
        let noise = |base: u64, index: u64| base + (index * 7919) % 40;
        let table: Vec<(&str, Vec<u64>, bool)> = vec![
            ("flat", vec![1000; 120], false),
            ("noise", (0..120).map(|i| noise(1000, i)).collect(), false),
            ("warm-up", (0..120).map(|i| 1000 + 30 * i.min(40)).collect(), false),
            (
                "one bad minute",
                (0..120).map(|i| if (100..110).contains(&i) { 3000 } else { 1000 }).collect(),
                false,
            ),
            ("slow growth", (0..120).map(|i| noise(1000 + 2 * i, i)).collect(), true),
            ("steps", (0..120).map(|i| 1000 + 100 * (i / 20)).collect(), true),
            ("too short to tell", vec![1, 2000], false),
        ];
        for (name, values, grows) in table {
            assert_eq!(series(values).grows(), grows, "{name}");
        }
    }

    #[test]
    fn this_process_has_a_usage() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.memory > 100 && usage.descriptors > 2 && usage.threads > 0, "{usage:?}");
    }
}
