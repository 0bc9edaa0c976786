//! The timeout formats of routing objects.

use std::time::Duration;

use pinniped_gateway_api::http_proxy::TimeoutPolicy;
use pinniped_go_compat::{
    duration::{DurationError, GoDuration},
    json::quote,
};

use super::services::IDLE_CONNECTION;
use crate::table::Timeouts;

/// A text that is not a timeout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TimeoutError {
    #[error("unable to parse timeout string {}: {source}", quote(.written))]
    Syntax { written: String, source: DurationError },
    #[error("unable to parse timeout string {}: it is negative", quote(.0))]
    Negative(String),
}

/// A timeout policy with an invalid timeout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing {which} timeout: {source}")]
pub(super) struct TimeoutPolicyError {
    which: &'static str,
    source: TimeoutError,
}

/// Parses a timeout: an empty text and `0s` select the default, `infinity` and `infinite` select no
/// timeout.
pub(super) fn parse(written: &str, default: Option<Duration>) -> Result<Option<Duration>, TimeoutError> {
    if written.is_empty() {
        return Ok(default);
    }
    if written == "infinity" || written == "infinite" {
        return Ok(None);
    }
    let duration = GoDuration::parse(written)
        .map_err(|source| TimeoutError::Syntax { written: written.to_owned(), source })?;
    if duration.is_zero() {
        return Ok(default);
    }
    if duration < GoDuration::default() {
        return Err(TimeoutError::Negative(written.to_owned()));
    }
    Ok(Some(duration.to_std()))
}

/// Parses a timeout policy: the timeouts of requests, and the idle timeout of keep-alive
/// connections.
pub(super) fn policy(
    policy: Option<&TimeoutPolicy>,
) -> Result<(Timeouts, Option<Duration>), TimeoutPolicyError> {
    let default = Timeouts::default();
    let Some(policy) = policy else { return Ok((default, Some(IDLE_CONNECTION))) };
    let invalid = |which| move |source| TimeoutPolicyError { which, source };
    let response = parse(&policy.response, default.response).map_err(invalid("response"))?;
    let idle = parse(&policy.idle, default.idle).map_err(invalid("idle"))?;
    let connection =
        parse(&policy.idle_connection, Some(IDLE_CONNECTION)).map_err(invalid("idle connection"))?;
    Ok((Timeouts { response, idle }, connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_go_duration_or_infinity() {
        let default = Some(Duration::from_secs(15));
        for (written, wanted) in [
            ("", Ok(default)),
            ("0s", Ok(default)),
            ("0", Ok(default)),
            ("infinity", Ok(None)),
            ("infinite", Ok(None)),
            ("1m30s", Ok(Some(Duration::from_secs(90)))),
            ("5", Err("unable to parse timeout string \"5\": time: missing unit in duration \"5\"")),
            ("x", Err("unable to parse timeout string \"x\": time: invalid duration \"x\"")),
            ("-1s", Err("unable to parse timeout string \"-1s\": it is negative")),
        ] {
            let parsed = parse(written, default).map_err(|error| error.to_string());
            assert_eq!(parsed, wanted.map_err(str::to_owned), "{written}");
        }
    }

    #[test]
    fn a_policy_without_a_value_uses_the_default() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let defaults = (Timeouts { response: seconds(15), idle: seconds(300) }, seconds(3600));
        assert_eq!(policy(None), Ok(defaults));
        assert_eq!(policy(Some(&TimeoutPolicy::default())), Ok(defaults));
        let written = TimeoutPolicy {
            response: "infinity".into(),
            idle: "1s".into(),
            idle_connection: "2s".into(),
            ..TimeoutPolicy::default()
        };
        assert_eq!(policy(Some(&written)), Ok((Timeouts { response: None, idle: seconds(1) }, seconds(2))));
        let bad = TimeoutPolicy { idle_connection: "y".into(), ..TimeoutPolicy::default() };
        let why = policy(Some(&bad)).unwrap_err().to_string();
        assert!(why.starts_with("error parsing idle connection timeout: unable to parse timeout"), "{why}");
    }
}
