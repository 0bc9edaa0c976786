//! Decides whether a request without credentials is allowed.
//!
//! Anonymous authentication of an API server may be disabled, or enabled for the health endpoints
//! only. The proxy probes the API server anonymously and applies the same rule to anonymous
//! requests, with one exception: a `TokenCredentialRequest` is always allowed, because clients use
//! it to obtain credentials.

use crate::request_info::RequestInfo;

/// The anonymous access that the API server allows, according to the last probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnonymousPolicy {
    /// Whether anonymous requests to the health endpoints are authenticated (and then allowed or
    /// forbidden).
    pub health: bool,
    /// Whether anonymous requests to all other paths are authenticated.
    pub other: bool,
}

/// The result of one probe without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The API server authenticated the probe as the anonymous user.
    Allowed,
    /// The API server rejected the probe as unauthenticated.
    Refused,
    /// The response does not show whether anonymous access is enabled.
    Unclear,
}

impl ProbeResult {
    /// Interprets the status code of a probe: success and 403 mean that anonymous authentication is
    /// enabled, 401 that it is disabled.
    pub fn of_status(code: u16) -> Self {
        match code {
            200..=299 | 403 => Self::Allowed,
            401 => Self::Refused,
            _ => Self::Unclear,
        }
    }
}

impl AnonymousPolicy {
    /// Returns whether the request may continue as the anonymous user. Otherwise it is treated as
    /// unauthenticated.
    pub fn admits(self, info: &RequestInfo) -> bool {
        let allowed = if is_health(info) { self.health } else { self.other };
        allowed || is_token_credential_request(info)
    }
}

/// Returns whether the request is for exactly one of the three health endpoints.
pub fn is_health(info: &RequestInfo) -> bool {
    matches!(info.path.as_str(), "/healthz" | "/readyz" | "/livez")
}

fn is_token_credential_request(info: &RequestInfo) -> bool {
    info.is_resource
        && info.resource == "tokencredentialrequests"
        && info.api_group.starts_with("login.concierge.")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn only_token_credential_requests_ignore_the_anonymous_policy() {
        let tcr = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
        let other_suffix = "/apis/login.concierge.walrus.tld/v1alpha1/tokencredentialrequests/x";
        let foreign = "/apis/not-concierge.walrus.tld/v1/tokencredentialrequests";
        // path, then admitted for (health, other) = both, health only, other only, none.
        for (path, wanted) in [
            ("/healthz", [true, true, false, false]),
            ("/readyz", [true, true, false, false]),
            ("/livez", [true, true, false, false]),
            ("/healthz/", [true, false, true, false]),
            ("/readyz/etcd", [true, false, true, false]),
            ("/probe", [true, false, true, false]),
            ("/api/v1/pods", [true, false, true, false]),
            (foreign, [true, false, true, false]),
            ("/apis/login.concierge.pinniped.dev/v1alpha1/others", [true, false, true, false]),
            ("/tokencredentialrequests", [true, false, true, false]),
            (tcr, [true; 4]),
            (other_suffix, [true; 4]),
        ] {
            let info = RequestInfo::parse(&Method::POST, &path.parse().unwrap()).unwrap();
            let got = [(true, true), (true, false), (false, true), (false, false)]
                .map(|(health, other)| AnonymousPolicy { health, other }.admits(&info));
            assert_eq!(got, wanted, "{path}");
        }
    }

    #[test]
    fn a_probe_is_classified_by_its_status_code() {
        for (code, wanted) in [
            (200, ProbeResult::Allowed),
            (403, ProbeResult::Allowed),
            (401, ProbeResult::Refused),
            (500, ProbeResult::Unclear),
            (302, ProbeResult::Unclear),
            (404, ProbeResult::Unclear),
        ] {
            assert_eq!(ProbeResult::of_status(code), wanted, "{code}");
        }
    }
}
