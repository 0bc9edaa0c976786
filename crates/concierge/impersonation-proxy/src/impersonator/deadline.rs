//! The deadline of a request: 60 seconds, less if the client requests it, none for long-running
//! requests.

use std::time::Duration;

use pinniped_kube_request::deadline;
use tokio::time::Instant;

use super::refusal::Refusal;

/// The default time limit.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// Returns the deadline; `None` for long-running requests, whose `timeout` parameter is left to the
/// API server.
pub(super) fn of(
    long_running: bool,
    query: Option<&str>,
    received: Instant,
) -> Result<Option<Instant>, Refusal> {
    if long_running {
        return Ok(None);
    }
    let limit = deadline::limit(query, LONGEST).map_err(Refusal::BadTimeout)?;
    Ok(Some(received + limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_short_requests_have_a_deadline_which_the_client_can_shorten() {
        let now = Instant::now();
        assert_eq!(of(false, Some("timeout=10s"), now).unwrap(), Some(now + Duration::from_secs(10)));
        assert_eq!(of(true, Some("timeout=abc"), now).unwrap(), None);
        let Err(Refusal::BadTimeout(text)) = of(false, Some("timeout=abc"), now) else { panic!("refused") };
        assert_eq!(text, r#"invalid timeout specified in the request URL - time: invalid duration "abc""#);
    }
}
