//! May a request without credentials pass?
//!
//! An API server may have anonymous authentication off, or on for the health endpoints only. The proxy asks as
//! nobody and then holds anonymous requests to the same rule, with one exception: a `TokenCredentialRequest` is how
//! one gets credentials, so it always may.

use crate::request_info::RequestInfo;

/// What the API server lets anonymous clients do, as far as it was probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnonymousPolicy {
    /// Anonymous requests to the health endpoints are accepted as such (allowed, or forbidden after authentication).
    pub health: bool,
    /// Anonymous requests to anything else are.
    pub other: bool,
}

/// How one probe without credentials was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// The API server knew an anonymous user.
    Allowed,
    /// The API server refused to authenticate the request.
    Refused,
    /// The answer says nothing about anonymous access.
    Unclear,
}

impl ProbeVerdict {
    /// Reads a probe's status code: success and 403 mean that there is an anonymous user, 401 that there is none.
    pub fn of_status(code: u16) -> Self {
        match code {
            200..=299 | 403 => Self::Allowed,
            401 => Self::Refused,
            _ => Self::Unclear,
        }
    }
}

impl AnonymousPolicy {
    /// May this request go on as the anonymous user? If not, it is treated as unauthenticated.
    pub fn admits(self, info: &RequestInfo) -> bool {
        let allowed = if is_health(info) { self.health } else { self.other };
        allowed || is_token_credential_request(info)
    }
}

/// Is this exactly one of the three health endpoints?
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
    fn anonymous_requests_follow_the_probes_but_for_token_credential_requests() {
        let tcr = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
        let other_suffix = "/apis/login.concierge.walrus.tld/v1alpha1/tokencredentialrequests/x";
        let foreign = "/apis/not-concierge.walrus.tld/v1/tokencredentialrequests";
        // path, then admitted for (health, other) of: both, health only, other only, none.
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
    fn probe_answers_are_read_by_status() {
        for (code, wanted) in [
            (200, ProbeVerdict::Allowed),
            (403, ProbeVerdict::Allowed),
            (401, ProbeVerdict::Refused),
            (500, ProbeVerdict::Unclear),
            (302, ProbeVerdict::Unclear),
            (404, ProbeVerdict::Unclear),
        ] {
            assert_eq!(ProbeVerdict::of_status(code), wanted, "{code}");
        }
    }
}
