//! A login as request headers: a service account token, and the user to impersonate with it.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use jiff::{SignedDuration, Timestamp};
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_reverse_proxy::bearer;

use crate::login::{HeaderError, Login, impersonation_headers};

/// A credential this close to its expiration may expire before the API server validates it.
const MARGIN: SignedDuration = SignedDuration::from_secs(5);
/// If the API server refuses a credential this soon after the login, another login would not help.
const TOO_FRESH: SignedDuration = SignedDuration::from_secs(10);
/// The prefix of the WebSocket subprotocol in which browsers send a token.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// A login that is not an identity for requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It has no token.
    #[error(
        "the cluster issued a client certificate instead of a service account token: use the \
         kubeconfig without this proxy"
    )]
    ClientCertificate,
    /// The user does not fit into headers.
    #[error(transparent)]
    Headers(#[from] HeaderError),
    /// The token does not fit into a header.
    #[error("the cluster issued a token that is not valid in a header")]
    Token,
}

/// The identity that a request gets.
pub(super) struct Identity {
    username: String,
    headers: PrecomputedHeaders,
    made: Timestamp,
    /// The time at which the next login should start.
    due: Option<Timestamp>,
    ends: Option<Timestamp>,
    /// Whether the API server has refused the token.
    refused: AtomicBool,
}

/// The state of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Good,
    /// Valid, but about to expire.
    Due,
    /// The API server would refuse it.
    Over,
}

impl Identity {
    /// Creates the identity of a login that was made, or found, at `now`.
    ///
    /// # Errors
    /// Returns an error if this is not a token, or if the user does not fit into headers.
    pub(super) fn new(login: &Login, now: Timestamp) -> Result<Self, IdentityError> {
        let token = &login.credential.token;
        let Some(user) = login.impersonate.as_ref().filter(|_| !token.is_empty()) else {
            return Err(IdentityError::ClientCertificate);
        };
        let headers = impersonation_headers(user)?;
        let authorization = bearer(token.expose()).ok_or(IdentityError::Token)?;
        let impersonate = headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Ok(Self {
            username: user.username.clone(),
            headers: PrecomputedHeaders::new(
                iter::once((AUTHORIZATION, authorization)).chain(impersonate).collect(),
            ),
            made: now,
            due: login.renew_in(now).and_then(|left| now.checked_add(left).ok()),
            ends: login.expires(),
            refused: AtomicBool::new(false),
        })
    }

    pub(super) fn username(&self) -> &str {
        &self.username
    }

    pub(super) fn ends(&self) -> Option<Timestamp> {
        self.ends
    }

    pub(super) fn state(&self, now: Timestamp) -> State {
        let before =
            |time: Option<Timestamp>, margin| time.is_none_or(|time| time.duration_since(now) > margin);
        if self.is_refused() || !before(self.ends, MARGIN) {
            State::Over
        } else if before(self.due, SignedDuration::ZERO) {
            State::Good
        } else {
            State::Due
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Records that the API server refused the token.
    pub(super) fn refuse(&self, now: Timestamp) {
        if now.duration_since(self.made) >= TOO_FRESH {
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the headers that give a request this identity, once the client's own headers are
    /// removed.
    pub(super) fn headers(&self) -> &PrecomputedHeaders {
        &self.headers
    }
}

/// Removes all credentials and impersonation headers of the client. Returns whether the client
/// requested impersonation.
pub(super) fn strip(headers: &mut HeaderMap) -> bool {
    headers.remove(AUTHORIZATION);
    strip_token_protocols(headers);
    let mut wanted = false;
    while let Some(name) = leftover(headers).cloned() {
        headers.remove(name);
        wanted = true;
    }
    wanted
}

fn strip_token_protocols(headers: &mut HeaderMap) {
    let is_token = |protocol: &&[u8]| {
        protocol
            .trim_ascii_start()
            .get(..TOKEN_PROTOCOL.len())
            .is_some_and(|start| start == TOKEN_PROTOCOL.as_bytes())
    };
    let split = |value: &HeaderValue| -> Vec<Vec<u8>> {
        value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::to_vec).collect()
    };
    let offered: Vec<Vec<u8>> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().flat_map(split).collect();
    if !offered.iter().any(|protocol| is_token(&protocol.as_slice())) {
        return;
    }
    let remaining: Vec<&[u8]> =
        offered.iter().map(Vec::as_slice).filter(|protocol| !is_token(protocol)).collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::from_bytes(remaining.join(&b","[..]).trim_ascii())
        && !value.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use http::header::HeaderName;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use pinniped_concierge_api::login::ImpersonatedUser;
    use pinniped_kube_types::client_auth::ExecCredentialStatus;

    use super::*;

    pub(in super::super) fn login(token: &str, username: &str, ends: Timestamp) -> Login {
        Login {
            credential: ExecCredentialStatus {
                token: token.into(),
                expiration_timestamp: Some(Time(ends)),
                ..ExecCredentialStatus::default()
            },
            impersonate: Some(ImpersonatedUser {
                username: username.into(),
                groups: vec!["a".into(), "b".into()],
                ..ImpersonatedUser::default()
            }),
        }
    }

    fn now() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_identity_is_valid_then_due_then_expired_and_a_refused_one_is_expired() {
        let identity = Identity::new(&login("t", "u", now() + Duration::from_secs(300)), now()).unwrap();
        for (seconds, state) in
            [(0, State::Good), (239, State::Good), (240, State::Due), (294, State::Due), (295, State::Over)]
        {
            assert_eq!(identity.state(now() + Duration::from_secs(seconds)), state, "{seconds}");
        }
        identity.refuse(now() + Duration::from_secs(9));
        assert_eq!(identity.state(now()), State::Good, "another login would give the same");
        identity.refuse(now() + Duration::from_secs(10));
        assert_eq!(identity.state(now()), State::Over);
    }

    #[test]
    fn a_login_without_a_token_or_a_user_is_refused() {
        let mut certificate = login("", "u", now());
        let mut bare = login("t", "u", now());
        bare.impersonate = None;
        certificate.credential.client_certificate_data = "pem".into();
        for login in [certificate, bare] {
            let error = Identity::new(&login, now()).err().unwrap().to_string();
            assert!(error.contains("without this proxy"), "{error}");
        }
        assert!(Identity::new(&login("t\n", "u", now()), now()).is_err());
        assert!(Identity::new(&login("t", "u\n", now()), now()).is_err());
    }

    #[test]
    fn credentials_and_impersonation_of_the_client_are_replaced() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("impersonate-user", "admin"),
            ("impersonate-group", "system:masters"),
            ("impersonate-uid", "1"),
            ("impersonate-extra-a", "b"),
            ("impersonate-something-new", "x"),
            ("accept", "*/*"),
            ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.dG9rZW4, v5.channel.k8s.io"),
            ("sec-websocket-protocol", "v4.channel.k8s.io"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        assert!(strip(&mut headers));
        assert!(!strip(&mut headers.clone()));
        Identity::new(&login("t", " u", now()), now()).unwrap().headers().append_to(&mut headers).unwrap();
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "accept: */*",
                "authorization: Bearer t",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-user:  u",
                "sec-websocket-protocol: v5.channel.k8s.io,v4.channel.k8s.io",
            ]
        );
    }

    #[test]
    fn a_name_with_surrounding_spaces_cannot_be_sent_over_http1() {
        for (name, exact) in [("u", true), ("u v", true), (" u", false), ("u\t", false)] {
            let identity = Identity::new(&login("t", name, now()), now()).unwrap();
            assert_eq!(identity.headers().is_exact_in_http1(), exact, "{name:?}");
        }
    }
}
