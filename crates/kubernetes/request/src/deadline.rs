//! The time limit of requests that are not long-running: the limit of the server, or a shorter one
//! that the client requests.

use std::time::Duration;

use pinniped_go_compat::duration::GoDuration;
use pinniped_go_compat::url::first_query_bytes;

/// Returns the smaller of `longest` and the query parameter `timeout`. Values of zero and less are
/// ignored.
///
/// # Errors
/// The text of the 400 response of API servers to an invalid duration.
pub fn limit(query: Option<&str>, longest: Duration) -> Result<Duration, String> {
    let requested =
        query.and_then(|query| first_query_bytes(query, "timeout")).filter(|text| !text.is_empty());
    let Some(requested) = requested else { return Ok(longest) };
    let requested = GoDuration::parse_bytes(&requested)
        .map_err(|error| format!("invalid timeout specified in the request URL - {error}"))?;
    let requested = requested.to_std();
    Ok(if requested.is_zero() { longest } else { longest.min(requested) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_can_only_shorten_the_deadline() {
        let millis = |query: Option<&str>| limit(query, Duration::from_secs(60)).unwrap().as_millis();
        assert_eq!(millis(None), 60_000);
        assert_eq!(millis(Some("timeout=")), 60_000);
        assert_eq!(millis(Some("a=b&timeout=10s")), 10_000);
        assert_eq!(millis(Some("timeout=0s")), 60_000);
        assert_eq!(millis(Some("timeout=-1s")), 60_000);
        assert_eq!(millis(Some("timeout=2m")), 60_000);
        assert_eq!(millis(Some("timeout=150ms")), 150);
    }
}
