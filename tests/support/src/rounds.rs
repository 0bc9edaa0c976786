//! The same thing done again and again while something else happens, without a single failure.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;

/// Makes one round after the other until it is `over`, and on until there were `least`, so that a slow machine does not
/// make it prove less. `round` gets the number of those before it.
///
/// # Errors
/// When a round failed, with all failures.
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

    /// Over with the tenth round; the fourth may fail.
    async fn ten(least: usize, fails: bool) -> (usize, String) {
        let over = AtomicBool::new(false);
        let mut rounds = 0;
        let outcome = until(&over, least, async |before| {
            rounds += 1;
            over.fetch_or(before == 9, Ordering::Relaxed);
            ensure!(before != 3 || !fails, "the fourth");
            Ok(())
        });
        let said = outcome.await.map_or_else(|error| error.to_string(), |()| String::new());
        (rounds, said)
    }

    #[tokio::test]
    async fn every_round_must_be_good_and_there_must_be_enough_of_them() {
        assert_eq!(ten(9, false).await, (10, String::new()));
        assert_eq!(ten(12, false).await, (12, String::new()));
        assert_eq!(ten(9, true).await, (10, "1 of 10 rounds failed: [\n    \"the fourth\",\n]".to_owned()));
    }
}
