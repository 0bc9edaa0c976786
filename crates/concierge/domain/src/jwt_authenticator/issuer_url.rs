//! Checks `spec.issuer`, with upstream's messages and in upstream's order.

use pinniped_go_compat::url::{ParseError, parse, query_pairs};
use pinniped_kube_types::condition::DesiredCondition;

const CONDITION: &str = "IssuerURLValid";
const WELL_KNOWN_PATH: &str = "/.well-known/openid-configuration";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum IssuerUrlError {
    #[error("spec.issuer URL is invalid: {0}")]
    Syntax(#[source] ParseError),
    #[error("spec.issuer {0} has invalid scheme, require 'https'")]
    Scheme(String),
    #[error("spec.issuer {0} cannot include path '{WELL_KNOWN_PATH}'")]
    WellKnownPath(String),
    #[error("spec.issuer {0} cannot include query params")]
    Query(String),
    #[error("spec.issuer {0} cannot include fragment")]
    Fragment(String),
}

impl IssuerUrlError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "InvalidIssuerURL",
            Self::Scheme(_) => "InvalidIssuerURLScheme",
            Self::WellKnownPath(_) => "InvalidIssuerURLContainsWellKnownEndpoint",
            Self::Query(_) => "InvalidIssuerURLContainsQueryParams",
            Self::Fragment(_) => "InvalidIssuerURLContainsFragment",
        }
    }
}

/// Returns the condition `IssuerURLValid`.
pub fn condition(issuer: &str) -> DesiredCondition {
    match check(issuer) {
        Ok(()) => DesiredCondition::success(CONDITION, "issuer is a valid URL"),
        Err(error) => DesiredCondition::failure(CONDITION, error.reason(), error.to_string()),
    }
}

fn check(issuer: &str) -> Result<(), IssuerUrlError> {
    let text = || issuer.to_owned();
    let url = parse(issuer).map_err(IssuerUrlError::Syntax)?;
    if url.scheme != "https" {
        return Err(IssuerUrlError::Scheme(text()));
    }
    if url.path.ends_with(WELL_KNOWN_PATH) {
        return Err(IssuerUrlError::WellKnownPath(text()));
    }
    // A query without a valid pair passes here and is refused by the validation of the spec.
    if query_pairs(&url.query).next().is_some() {
        return Err(IssuerUrlError::Query(text()));
    }
    if !url.fragment.is_empty() {
        return Err(IssuerUrlError::Fragment(text()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_a_reason_and_the_message_of_upstream() {
        for (issuer, reason, message) in [
            ("https://example.com", "Success", "issuer is a valid URL"),
            ("https://example.com/realms/one/", "Success", "issuer is a valid URL"),
            ("https://example.com?", "Success", "issuer is a valid URL"),
            ("https://example.com#", "Success", "issuer is a valid URL"),
            ("https://user@example.com", "Success", "issuer is a valid URL"),
            (
                "https://.café   .com/café/café/café/coffee",
                "InvalidIssuerURL",
                "spec.issuer URL is invalid: parse \"https://.café   .com/café/café/café/coffee\": invalid character \
                 \" \" in host name",
            ),
            (
                "http://.café.com/café/café/café/coffee",
                "InvalidIssuerURLScheme",
                "spec.issuer http://.café.com/café/café/café/coffee has invalid scheme, require 'https'",
            ),
            (
                "https://www.example.com/foo/bar/.well-known/openid-configuration",
                "InvalidIssuerURLContainsWellKnownEndpoint",
                "spec.issuer https://www.example.com/foo/bar/.well-known/openid-configuration cannot include path \
                 '/.well-known/openid-configuration'",
            ),
            (
                "https://www.example.com/foo/bar/?query=params#fragment",
                "InvalidIssuerURLContainsQueryParams",
                "spec.issuer https://www.example.com/foo/bar/?query=params#fragment cannot include query params",
            ),
            (
                "https://www.example.com/foo/bar/#do-not-include-fragment",
                "InvalidIssuerURLContainsFragment",
                "spec.issuer https://www.example.com/foo/bar/#do-not-include-fragment cannot include fragment",
            ),
        ] {
            let found = condition(issuer);
            assert_eq!((found.reason.as_str(), found.message.as_str()), (reason, message), "{issuer}");
            assert_eq!(found.type_, "IssuerURLValid");
            assert_eq!(found.status, if reason == "Success" { "True" } else { "False" });
        }
    }
}
