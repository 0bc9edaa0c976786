//! A short name for one identity: the same user with the same groups, UID and extras.
//!
//! A change of groups is a change of identity. An object that is created for an identity (a service
//! account that may impersonate it, a kubeconfig that names it) therefore always has the
//! permissions that it had when it was created.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use data_encoding::HEXLOWER;
use pinniped_concierge_api::login::ImpersonatedUser;
use serde::Serialize;

/// Number of hexadecimal digits in [`IdentityDigest::short`]. They fit into names with a prefix and
/// a suffix, and have as many bits as a UUID.
pub const SHORT_DIGEST_LENGTH: usize = 32;

/// SHA-256 over the canonical form of an identity: JSON with the members `username`, `uid`,
/// `groups` and `extra` in this order; groups and the values of extras sorted, without duplicates;
/// keys of extras sorted; empty members included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityDigest([u8; SHA256_OUTPUT_LEN]);

#[derive(Serialize)]
struct Canonical<'a> {
    username: &'a str,
    uid: &'a str,
    groups: Vec<&'a str>,
    extra: BTreeMap<&'a str, Vec<&'a str>>,
}

impl IdentityDigest {
    /// Returns the digest of an identity. The order of the groups, and duplicates, are not
    /// significant.
    pub fn of(user: &ImpersonatedUser) -> Self {
        let ImpersonatedUser { username, uid, groups, extra } = user;
        let canonical = Canonical {
            username,
            uid,
            groups: sorted(groups),
            extra: extra.iter().map(|(key, values)| (key.as_str(), sorted(values))).collect(),
        };
        let text =
            serde_json::to_vec(&canonical).expect("strings, lists and maps of strings are always JSON");
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, &text).as_ref());
        Self(bytes)
    }

    /// Returns the first [`SHORT_DIGEST_LENGTH`] of the 64 hexadecimal digits.
    pub fn short(&self) -> String {
        let mut text = self.to_string();
        text.truncate(SHORT_DIGEST_LENGTH);
        text
    }
}

fn sorted(values: &[String]) -> Vec<&str> {
    let mut sorted: Vec<&str> = values.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

impl fmt::Display for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&HEXLOWER.encode_display(&self.0), f)
    }
}

impl fmt::Debug for IdentityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdentityDigest({self})")
    }
}

/// The error for a text that is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an identity is written as 64 hexadecimal digits in lower case")]
pub struct NotADigest;

impl FromStr for IdentityDigest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NotADigest),
        };
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if text.len() != 2 * bytes.len() {
            return Err(NotADigest);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(username: &str, groups: &[&str]) -> ImpersonatedUser {
        ImpersonatedUser {
            username: username.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..ImpersonatedUser::default()
        }
    }

    #[test]
    fn the_digest_is_that_of_the_canonical_json() {
        let mut pinny = user("pinny", &["b", "a"]);
        pinny.extra.insert("k".into(), vec!["y".into(), "x".into()]);
        let text = r#"{"username":"pinny","uid":"","groups":["a","b"],"extra":{"k":["x","y"]}}"#;
        let expected = HEXLOWER.encode(digest(&SHA256, text.as_bytes()).as_ref());
        let found = IdentityDigest::of(&pinny);
        assert_eq!(found.to_string(), expected);
        assert_eq!(found.short(), expected[..32]);
        assert_eq!(expected.parse(), Ok(found));
    }

    #[test]
    fn order_and_duplicates_do_not_change_the_digest() {
        let one = IdentityDigest::of(&user("pinny", &["a", "b", "a"]));
        assert_eq!(one, IdentityDigest::of(&user("pinny", &["b", "a"])));
    }

    #[test]
    fn any_other_difference_changes_the_digest() {
        let mut all = vec![
            user("pinny", &[]),
            user("Pinny", &[]),
            user("pinny", &["a"]),
            user("pinny", &["a", "b"]),
            user("pinny", &["a,b"]),
            user("pinny\",\"uid\":\"", &[]),
            ImpersonatedUser { uid: "u".into(), ..user("pinny", &[]) },
        ];
        for (key, values) in [("k", vec![]), ("k", vec!["v"]), ("l", vec!["v"])] {
            let values = values.into_iter().map(str::to_owned).collect();
            all.push(ImpersonatedUser { extra: [(key.to_owned(), values)].into(), ..user("pinny", &[]) });
        }
        let digests: std::collections::BTreeSet<_> = all.iter().map(IdentityDigest::of).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn parsing_refuses_text_that_is_not_a_digest() {
        let good = IdentityDigest::of(&user("pinny", &[])).to_string();
        for bad in ["", "ab", &good[1..], &good.to_uppercase(), &good.replace(&good[..2], "é")] {
            assert_eq!(bad.parse::<IdentityDigest>(), Err(NotADigest), "{bad}");
        }
    }
}
