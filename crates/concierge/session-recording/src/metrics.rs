//! Metrics of recordings.

use pinniped_concierge_metrics as definitions;
use pinniped_fair_semaphore::FairSemaphore;
use pinniped_metrics::{CounterTable, Metrics};

/// The result of a recording. The order is that of
/// [`RECORDING_RESULTS`](definitions::RECORDING_RESULTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordingResult {
    Complete,
    Lost,
    Limit,
    Unreadable,
    Failed,
    NotStarted,
    Unsupported,
    OverLimit,
}

impl RecordingResult {
    /// Returns the value of the label.
    pub(crate) fn name(self) -> &'static str {
        definitions::RECORDING_RESULTS[self as usize].0
    }
}

/// The metrics of all recordings.
#[derive(Clone, Debug)]
pub(crate) struct RecordingMetrics {
    recordings: CounterTable<1>,
    bytes: CounterTable<0>,
    lost: CounterTable<0>,
}

impl RecordingMetrics {
    pub(crate) fn new() -> Self {
        Self {
            recordings: CounterTable::new(&definitions::RECORDINGS),
            bytes: CounterTable::new(&definitions::RECORDING_BYTES),
            lost: CounterTable::new(&definitions::RECORDING_BYTES_LOST),
        }
    }

    /// Registers the metrics. Each recording has a permit.
    pub(crate) fn register(&self, metrics: &Metrics, permits: FairSemaphore) {
        metrics.add(&self.recordings);
        metrics.add(&self.bytes);
        metrics.add(&self.lost);
        metrics.collect(move |samples| {
            let active = permits.usage().in_use;
            samples.push(&definitions::RECORDINGS_ACTIVE, [], active as u64);
        });
    }

    pub(crate) fn ended(&self, result: RecordingResult) {
        self.recordings.add([result as usize], 1);
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.bytes.add([], bytes as u64);
    }

    pub(crate) fn lost(&self, bytes: u64) {
        if bytes > 0 {
            self.lost.add([], bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_have_the_order_of_their_labels() {
        let results = [
            (RecordingResult::Complete, "complete"),
            (RecordingResult::Lost, "lost"),
            (RecordingResult::Limit, "limit"),
            (RecordingResult::Unreadable, "unreadable"),
            (RecordingResult::Failed, "failed"),
            (RecordingResult::NotStarted, "not_started"),
            (RecordingResult::Unsupported, "unsupported"),
            (RecordingResult::OverLimit, "over_limit"),
        ];
        for (result, name) in results {
            assert_eq!(result.name(), name);
        }
        assert_eq!(results.len(), definitions::RECORDING_RESULTS.len());
    }
}
