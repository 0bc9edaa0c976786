//! Repeats an operation while another one takes place, and requires that every repetition succeeds.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;

/// Runs rounds one after the other until `over` is set and at least `least` rounds are complete, so
/// that a test on a slow machine proves no less. `round` receives the number of completed rounds.
///
/// # Errors
/// Returns an error with all failures when a round fails.
pub async fn until(
    over: &AtomicBool,
    least: usize,
    mut round: impl AsyncFnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    let mut count = 0;
    while count < least || !over.load(Ordering::Relaxed) {
        if let Err(error) = round(count).await {
            failures.push(format!("{error:#}"));
        }
        count += 1;
    }
    ensure!(failures.is_empty(), "{} of {count} rounds failed: {failures:#?}", failures.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets `over` in the tenth round; the fourth round fails if `fails` is set.
    async fn ten(least: usize, fails: bool) -> (usize, String) {
        let over = AtomicBool::new(false);
        let mut rounds = 0;
        let output = until(&over, least, async |before| {
            rounds += 1;
            over.fetch_or(before == 9, Ordering::Relaxed);
            ensure!(before != 3 || !fails, "the fourth");
            Ok(())
        });
        let printed = output.await.map_or_else(|error| error.to_string(), |()| String::new());
        (rounds, printed)
    }

    #[tokio::test]
    async fn every_round_must_succeed_and_a_minimum_number_is_required() {
        assert_eq!(ten(9, false).await, (10, String::new()));
        assert_eq!(ten(12, false).await, (12, String::new()));
        assert_eq!(ten(9, true).await, (10, "1 of 10 rounds failed: [\n    \"the fourth\",\n]".to_owned()));
    }
}
