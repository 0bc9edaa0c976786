//! Random headers, composed of relevant parts.

use data_encoding::BASE64URL_NOPAD;
use pinniped_test_support::rng::Rng;

use super::{Header, TOKENS};

/// A generator of headers. Equal seeds give equal headers.
pub(super) struct RandomHeaders(Rng);

impl RandomHeaders {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Returns the headers of one request.
    pub(super) fn next(&mut self, http1: bool) -> Vec<Header> {
        let mut headers = Vec::new();
        for _ in 0..2 {
            if self.0.in_hundred(40) {
                headers.push(("authorization".to_owned(), self.0.one_of(AUTHORIZATION).to_vec()));
            }
        }
        // Most requests impersonate a user, and then mostly with known values.
        if self.0.in_hundred(50) {
            self.add(&mut headers, 100, &["impersonate-user"], USERS);
            self.add(&mut headers, 8, &["impersonate-user"], USERS);
        }
        self.add(&mut headers, 10, &["impersonate-uid"], UIDS);
        for percent in [20, 10, 10, 10, 10] {
            self.add(&mut headers, percent, &["impersonate-group"], GROUPS);
        }
        self.add(&mut headers, 15, EXTRAS, EXTRA_VALUES);
        self.add(&mut headers, 10, EXTRAS, EXTRA_VALUES);
        self.add(&mut headers, 5, UNKNOWN, &[b"root", b""]);

        self.add(&mut headers, 60, &["x-remote-user"], USERS);
        self.add(&mut headers, 15, &["x-remote-uid"], UIDS);
        self.add(&mut headers, 30, &["x-remote-group"], GROUPS);
        self.add(&mut headers, 20, &["x-remote-extra-example.com%2fk", "x-remote-extra-k"], EXTRA_VALUES);
        if http1 {
            self.upgrade(&mut headers);
            self.add(&mut headers, 20, &["connection"], CONNECTIONS);
        }
        headers
    }

    fn add(&mut self, headers: &mut Vec<Header>, percent: u64, names: &[&str], values: &[&[u8]]) {
        if self.0.in_hundred(percent) {
            headers.push((self.0.one_of(names).to_owned(), self.0.one_of(values).to_vec()));
        }
    }

    fn upgrade(&mut self, headers: &mut Vec<Header>) {
        if self.0.in_hundred(40) {
            headers.push(("connection".to_owned(), b"Upgrade".to_vec()));
            headers.push(("upgrade".to_owned(), self.0.one_of(&[&b"websocket"[..], b"SPDY/3.1"]).to_vec()));
        }
        for _ in 0..2 {
            if self.0.in_hundred(30) {
                let token = if self.0.in_hundred(80) { self.0.one_of(&TOKENS) } else { "token-of-nobody" };
                let others = self.0.one_of(&["", "v5.channel.k8s.io, "]);
                let protocols = format!("{others}base64url.bearer.authorization.k8s.io.{}", in_base64(token));
                headers.push(("sec-websocket-protocol".to_owned(), protocols.into_bytes()));
            }
        }
    }
}

/// Returns the text in unpadded base64url.
pub(super) fn in_base64(text: &str) -> String {
    BASE64URL_NOPAD.encode(text.as_bytes())
}

const AUTHORIZATION: &[&[u8]] = &[
    b"Bearer token-of-tina",
    b"Bearer token-of-tina",
    b"Bearer token-with-uid",
    b"bearer token-with-uid and more",
    b"BEARER token-with-extra",
    b"Bearer token-with-bad-key",
    b"Bearer token-of-nobody",
    b"Bearer  token-with-uid",
    b"Bearer\ttoken-with-uid",
    b"Bearer token-\xff\xfe",
    b"Basic dG9rZW4td2l0aC11aWQ6",
    b"Negotiate token-with-uid",
    b"token-with-uid",
    b"Bearer",
    b"",
];
const USERS: &[&[u8]] = &[
    b"target",
    b"target",
    b"root",
    b"",
    b"system:anonymous",
    b"system:serviceaccount:ns:sa",
    "jürgen".as_bytes(),
    b"a, b",
    b"admin\xff",
];
const UIDS: &[&[u8]] = &[b"9", b"", b"\xc3"];
const GROUPS: &[&[u8]] = &[
    b"g",
    b"h",
    b"system:masters",
    b"system:authenticated",
    b"system:unauthenticated",
    b"",
    b"g,h",
    b"\xc3(",
];
const EXTRAS: &[&str] = &[
    "impersonate-extra-example.com%2fcolour",
    "impersonate-extra-example.com%2Fcolour",
    "impersonate-extra-colour",
    "impersonate-extra-COLOUR",
    "impersonate-extra-",
    "impersonate-extra-a%zz",
    "impersonate-extra-%ff",
    "impersonate-extra-party~~time",
    "impersonate-extra-x.impersonation-proxy.concierge.pinniped.dev",
];
const EXTRA_VALUES: &[&[u8]] = &[b"blue", b"red", b"", b"\xff"];
const UNKNOWN: &[&str] = &[
    "impersonate",
    "impersonate-",
    "impersonate-extra",
    "impersonate-users",
    "impersonate_user",
    "impersonated",
    "Impersonate-Something",
];
const CONNECTIONS: &[&[u8]] = &[
    b"keep-alive, impersonate-user, authorization",
    b"impersonate-group, x-remote-user, impersonate-extra-colour",
    b"x-upgrade-y",
];
