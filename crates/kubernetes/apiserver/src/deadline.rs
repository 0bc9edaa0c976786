//! The deadline of a request: 60 seconds, less if the client requests it, none for long-running
//! requests.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use pinniped_kube_request::deadline;
use tokio::time::Instant;

use crate::refusal::Refusal;

/// The default time limit.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Returns the deadline of a request that has one; `None` for a long-running request, whose
/// `timeout` parameter is left to the handler.
///
/// # Errors
/// [`Refusal::BadTimeout`] when the `timeout` parameter is not a duration.
pub(crate) fn of(
    has_deadline: bool,
    query: Option<&str>,
    received: Instant,
) -> Result<Option<Instant>, Refusal> {
    if !has_deadline {
        return Ok(None);
    }
    let limit = deadline::limit(query, LONGEST).map_err(Refusal::BadTimeout)?;
    Ok(Some(received + limit))
}

/// Runs the steps of a request until the deadline. They are pinned, so that the future of the
/// request stores them once.
///
/// # Errors
/// [`Refusal::Deadline`] when the deadline passes first. The steps stop where they are.
pub(crate) async fn within<T, F>(deadline: Option<Instant>, steps: Pin<&mut F>) -> Result<T, Refusal>
where
    F: Future<Output = Result<T, Refusal>>,
{
    match deadline {
        None => steps.await,
        Some(deadline) => {
            tokio::time::timeout_at(deadline, steps).await.map_err(|_elapsed| Refusal::Deadline)?
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_short_requests_have_a_deadline_which_the_client_can_shorten() {
        let now = Instant::now();
        assert_eq!(of(true, Some("timeout=10s"), now).unwrap(), Some(now + Duration::from_secs(10)));
        assert_eq!(of(false, Some("timeout=abc"), now).unwrap(), None);
        let Err(Refusal::BadTimeout(text)) = of(true, Some("timeout=abc"), now) else { panic!("refused") };
        assert_eq!(text, r#"invalid timeout specified in the request URL - time: invalid duration "abc""#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_refused_at_its_deadline() {
        let (begin, limit) = (Instant::now(), Duration::from_secs(10));
        let silent = pin!(std::future::pending::<Result<(), Refusal>>());
        let result = within(Some(begin + limit), silent).await;
        assert!(matches!(result, Err(Refusal::Deadline)));
        assert_eq!(begin.elapsed(), limit);
    }
}
