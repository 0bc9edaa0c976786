//! How long a request may take that is not meant to last: what the server allows, less if the client says so.

use std::time::Duration;

use pinniped_go_compat::duration::GoDuration;
use pinniped_go_compat::url::first_query_bytes;

/// `longest`, or what the query parameter `timeout` names if that is shorter. Zero, and less, name nothing.
///
/// # Errors
/// The text of the 400 that API servers answer to what is no duration.
pub fn limit(query: Option<&str>, longest: Duration) -> Result<Duration, String> {
    let asked = query.and_then(|query| first_query_bytes(query, "timeout")).filter(|text| !text.is_empty());
    let Some(asked) = asked else { return Ok(longest) };
    let asked = GoDuration::parse_bytes(&asked)
        .map_err(|error| format!("invalid timeout specified in the request URL - {error}"))?;
    let asked = asked.to_std();
    Ok(if asked.is_zero() { longest } else { longest.min(asked) })
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
