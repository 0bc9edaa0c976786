//! A login as headers: a service account's token, and whom to impersonate with it.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use jiff::{SignedDuration, Timestamp};
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_reverse_proxy::bearer;

use crate::login::{Login, impersonation_headers};

/// So near its end a credential may be over before the API server has looked at it.
const MARGIN: SignedDuration = SignedDuration::from_secs(5);
/// A credential that was refused this soon after the login would not be better after another one.
const TOO_FRESH: SignedDuration = SignedDuration::from_secs(10);
/// How a browser sends a token with a WebSocket, as one of the subprotocols that it offers.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Whose a request becomes.
pub(super) struct Identity {
    username: String,
    headers: PrecomputedHeaders,
    made: Timestamp,
    /// When another login should be made.
    due: Option<Timestamp>,
    ends: Option<Timestamp>,
    /// The API server wants it no more.
    refused: AtomicBool,
}

/// What can be done with an identity now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Good,
    /// Good, and about to end.
    Due,
    /// The API server would refuse it.
    Over,
}

impl Identity {
    /// Of a login that was made, or found, at `now`.
    ///
    /// # Errors
    /// A text for people when this is no token, or a user who fits into no header.
    pub(super) fn new(login: &Login, now: Timestamp) -> Result<Self, String> {
        let token = &login.credential.token;
        let Some(user) = login.impersonate.as_ref().filter(|_| !token.is_empty()) else {
            return Err(
                "the cluster gave a client certificate in place of a service account token: use the \
                        kubeconfig without this proxy"
                    .to_owned(),
            );
        };
        let headers = impersonation_headers(user).map_err(|err| err.to_string())?;
        let authorization =
            bearer(token.expose()).ok_or("the cluster gave a token that no header can carry")?;
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

    /// Notes that the API server did not know the token.
    pub(super) fn refuse(&self, now: Timestamp) {
        if now.duration_since(self.made) >= TOO_FRESH {
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    /// The headers that make a request this identity's, where the client's own are gone.
    pub(super) fn headers(&self) -> &PrecomputedHeaders {
        &self.headers
    }
}

/// Removes every credential and every impersonation of the client's own. Tells whether it wanted to be somebody else.
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
    let kept: Vec<&[u8]> = offered.iter().map(Vec::as_slice).filter(|protocol| !is_token(protocol)).collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::from_bytes(kept.join(&b","[..]).trim_ascii())
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
    fn an_identity_is_good_then_due_then_over_and_a_refused_one_is_over() {
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
    fn a_login_without_token_or_user_is_none_for_a_proxy() {
        let mut certificate = login("", "u", now());
        let mut bare = login("t", "u", now());
        bare.impersonate = None;
        certificate.credential.client_certificate_data = "pem".into();
        for login in [certificate, bare] {
            let error = Identity::new(&login, now()).err().unwrap();
            assert!(error.contains("without this proxy"), "{error}");
        }
        assert!(Identity::new(&login("t\n", "u", now()), now()).is_err());
        assert!(Identity::new(&login("t", "u\n", now()), now()).is_err());
    }

    #[test]
    fn what_the_client_says_of_itself_is_replaced() {
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
    fn a_name_with_spaces_around_it_is_not_for_http1() {
        for (name, exact) in [("u", true), ("u v", true), (" u", false), ("u\t", false)] {
            let identity = Identity::new(&login("t", name, now()), now()).unwrap();
            assert_eq!(identity.headers().is_exact_in_http1(), exact, "{name:?}");
        }
    }
}
