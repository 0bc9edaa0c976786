//! Random headers, composed of relevant parts.

use super::{Header, TOKENS};

/// A simple random number generator (SplitMix64).
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns true in `count` of 100 cases.
    fn in_hundred(&mut self, count: u64) -> bool {
        self.number() % 100 < count
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        let count = u64::try_from(all.len()).unwrap();
        all[usize::try_from(self.number() % count).unwrap()]
    }

    /// Returns the headers of one request.
    pub(super) fn headers(&mut self, http1: bool) -> Vec<Header> {
        let mut headers = Vec::new();
        for _ in 0..2 {
            if self.in_hundred(40) {
                headers.push(("authorization".to_owned(), self.one_of(AUTHORIZATION).to_vec()));
            }
        }
        // Most requests impersonate a user, and then mostly with known values.
        if self.in_hundred(50) {
            self.add(&mut headers, 100, &["impersonate-user"], USERS);
            self.add(&mut headers, 8, &["impersonate-user"], USERS);
        }
        self.add(&mut headers, 10, &["impersonate-uid"], UIDS);
        for chance in [20, 10, 10, 10, 10] {
            self.add(&mut headers, chance, &["impersonate-group"], GROUPS);
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

    fn add(&mut self, headers: &mut Vec<Header>, chance: u64, names: &[&str], values: &[&[u8]]) {
        if self.in_hundred(chance) {
            headers.push((self.one_of(names).to_owned(), self.one_of(values).to_vec()));
        }
    }

    fn upgrade(&mut self, headers: &mut Vec<Header>) {
        if self.in_hundred(40) {
            headers.push(("connection".to_owned(), b"Upgrade".to_vec()));
            headers.push(("upgrade".to_owned(), self.one_of(&[&b"websocket"[..], b"SPDY/3.1"]).to_vec()));
        }
        for _ in 0..2 {
            if self.in_hundred(30) {
                let token = if self.in_hundred(80) { self.one_of(&TOKENS) } else { "token-of-nobody" };
                let others = self.one_of(&["", "v5.channel.k8s.io, "]);
                let protocols = format!("{others}base64url.bearer.authorization.k8s.io.{}", in_base64(token));
                headers.push(("sec-websocket-protocol".to_owned(), protocols.into_bytes()));
            }
        }
    }
}

/// Returns the text in unpadded base64url.
pub(super) fn in_base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut encoded = String::new();
    for group in text.as_bytes().chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for digit in 0..=group.len() {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap();
            encoded.push(char::from(DIGITS[index]));
        }
    }
    encoded
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
