//! The same thing done again and again while something else happens, without a single failure.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;

/// Makes one round after the other until it is `over`. `round` gets the number of those before it.
///
/// # Errors
/// When a round failed, with all failures; when there were not more than `least` rounds, which shows nothing.
pub async fn until(
    over: &AtomicBool,
    least: usize,
    mut round: impl AsyncFnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        if let Err(error) = round(count).await {
            failures.push(format!("{error:#}"));
        }
        count += 1;
    }
    ensure!(failures.is_empty(), "{} of {count} rounds failed: {failures:#?}", failures.len());
    ensure!(count > least, "only {count} rounds in all that time");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten rounds; the fourth may fail.
    async fn ten(least: usize, fails: bool) -> String {
        let over = AtomicBool::new(false);
        let outcome = until(&over, least, async |before| {
            over.store(before == 9, Ordering::Relaxed);
            ensure!(before != 3 || !fails, "the fourth");
            Ok(())
        });
        outcome.await.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[tokio::test]
    async fn every_round_must_be_good_and_there_must_be_enough_of_them() {
        assert_eq!(ten(9, false).await, "");
        assert_eq!(ten(10, false).await, "only 10 rounds in all that time");
        assert_eq!(ten(9, true).await, "1 of 10 rounds failed: [\n    \"the fourth\",\n]");
    }
}
