//! Waits for a condition with a deadline, instead of sleeping.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a check that began before the deadline may continue after it. A check that waits
/// forever fails its test instead of keeping the whole run.
const LONGEST_AFTER_DEADLINE: Duration = Duration::from_secs(120);

/// Calls `look` repeatedly until it returns `Some`, and returns the value.
///
/// # Errors
/// Returns an error after `deadline`: "waited 10.0 s for WHAT".
pub async fn until<T, F>(deadline: Duration, what: impl Display, mut look: F) -> anyhow::Result<T>
where
    F: AsyncFnMut() -> Option<T>,
{
    until_ok(deadline, what, async || look().await.ok_or_else(|| anyhow::anyhow!("not yet"))).await
}

/// Calls `look` repeatedly until it returns `Ok`, and returns the value.
///
/// # Errors
/// Returns an error after `deadline`, with the last error as the cause.
pub async fn until_ok<T, F>(deadline: Duration, what: impl Display, mut look: F) -> anyhow::Result<T>
where
    F: AsyncFnMut() -> anyhow::Result<T>,
{
    let start = Instant::now();
    loop {
        let limit = deadline.saturating_sub(start.elapsed()) + LONGEST_AFTER_DEADLINE;
        let checked = tokio::time::timeout(limit, look()).await;
        match checked.unwrap_or_else(|_| Err(anyhow::anyhow!("a check did not end in {limit:?}"))) {
            Ok(found) => return Ok(found),
            Err(err) if start.elapsed() >= deadline => {
                return Err(err.context(format!("waited {:.1} s for {what}", start.elapsed().as_secs_f64())));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
