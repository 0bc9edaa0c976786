//! The result of a load.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One completed request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Time from sending the request to the end of the response.
    pub(super) latency: Duration,
    /// Time of completion, since the start of the load.
    pub(super) at: Duration,
}

/// The statistics of a load. Latencies are in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LoadResult {
    /// Number of requests with the expected response; for a tunnel the number of megabytes.
    pub(crate) requests: u64,
    /// Wall time in seconds.
    pub(crate) seconds: f64,
    /// Median latency.
    pub(crate) p50: u64,
    /// 90th percentile.
    pub(crate) p90: u64,
    /// 99th percentile.
    pub(crate) p99: u64,
    /// Maximum latency.
    pub(crate) max: u64,
    /// Requests per second in each quarter of the requests, which show a slowdown.
    pub(crate) quarters: [f64; 4],
    /// Number of requests without the expected response, where that does not abort the load.
    pub(crate) failed: u64,
    /// The last body, if the load keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
}

impl LoadResult {
    pub(super) fn new(mut done: Vec<Done>) -> Self {
        done.sort_unstable_by_key(|done| done.at);
        let mut quarters = [0.0; 4];
        let mut began = Duration::ZERO;
        for (index, rate) in quarters.iter_mut().enumerate() {
            let range = done.len() * index / 4..done.len() * (index + 1) / 4;
            let count = range.len() as f64;
            let Some(last) = done.get(range).and_then(<[Done]>::last) else { continue };
            *rate = count / last.at.saturating_sub(began).as_secs_f64().max(1e-6);
            began = last.at;
        }
        let seconds = began.as_secs_f64();
        done.sort_unstable_by_key(|done| done.latency);
        let at = |percent: usize| {
            let index = (done.len() * percent / 100).min(done.len().saturating_sub(1));
            let latency = done.get(index).map(|done| done.latency).unwrap_or_default();
            u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
        };
        Self {
            requests: done.len() as u64,
            seconds,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
            quarters,
            failed: 0,
            body: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quarters_show_a_load_that_slows_down() {
        // Forty requests; the last ten take ten times as long.
        let mut at = Duration::ZERO;
        let done = (0..40).map(|index| {
            let latency = Duration::from_millis(if index < 30 { 1 } else { 10 });
            at += latency;
            Done { latency, at }
        });
        let result = LoadResult::new(done.collect());
        assert_eq!(result.requests, 40);
        assert_eq!((result.p50, result.p90, result.max), (1000, 10_000, 10_000));
        assert!((result.quarters[0] - 1000.0).abs() < 1.0, "{:?}", result.quarters);
        assert!((result.quarters[3] - 100.0).abs() < 1.0, "{:?}", result.quarters);
        assert!((result.seconds - 0.13).abs() < 1e-9);
    }

    #[test]
    fn a_load_without_requests_has_no_figures() {
        assert_eq!(LoadResult::new(Vec::new()).requests, 0);
    }
}
