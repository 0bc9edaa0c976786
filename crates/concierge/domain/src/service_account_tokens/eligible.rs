//! Decides whether a user can receive a token, and which identity the token impersonates.
//!
//! Unlike certificates, these tokens carry a UID. An identity contains only what request headers
//! can carry, because clients impersonate by headers.

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_go_compat::json::quote;

use super::limits::{self, TooLarge};
use pinniped_kube_request::identity::{self, ANONYMOUS, MASTERS, User};

/// Prefixes of usernames that Kubernetes reserves. A client that impersonates a service account or
/// a node has other permissions than a user of that name.
const RESERVED_PREFIXES: [&str; 2] = ["system:serviceaccount:", "system:node:"];

/// The resource name that an API server uses in the access review of a request with many groups, to
/// check whether all groups may be impersonated.
const ANY: &str = "*";

/// Reasons why a user cannot receive a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ineligible {
    /// The username is empty.
    #[error("empty username is not allowed")]
    NoName,
    /// The username is reserved for Kubernetes.
    #[error("username {} is reserved for Kubernetes and cannot be impersonated with a service account token", quote(.0))]
    ReservedName(String),
    /// The group has all permissions, or is empty.
    #[error("group {} is not allowed", quote(.0))]
    Group(String),
    /// A group whose name stands for every group in a role for constrained impersonation.
    #[error("group \"*\" is not allowed: in a role for constrained impersonation it stands for every group")]
    AnyGroup,
    /// The certificate strategies refuse these extra keys too; the text names each key.
    #[error("{0}")]
    ExtraKeys(String),
    /// The extra key has upper-case letters, and header names are case-insensitive.
    #[error("userInfo extra key {} has upper-case letters, which no impersonation header carries", quote(.0))]
    ExtraKeyCase(String),
    /// A header would not transport the text unchanged.
    #[error("{what} {} cannot be a header's value: it has control characters, or white space at an end", quote(.value))]
    NoHeader {
        /// The member of the identity.
        what: &'static str,
        /// The text of the member.
        value: String,
    },
    /// The identity is larger than requests can carry.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Returns the identity that a client with the token impersonates. Groups and values are sorted and
/// without duplicates; extra keys without values are omitted because no header can express them.
///
/// # Errors
///
/// Returns [`Ineligible`] for the audit log; clients never see it.
pub fn impersonated(user: User) -> Result<ImpersonatedUser, Ineligible> {
    if user.name.is_empty() {
        return Err(Ineligible::NoName);
    }
    if user.name == ANONYMOUS || RESERVED_PREFIXES.iter().any(|prefix| user.name.starts_with(prefix)) {
        return Err(Ineligible::ReservedName(user.name));
    }
    if let Some(group) = user.groups.iter().find(|group| group.is_empty() || *group == MASTERS) {
        return Err(Ineligible::Group(group.clone()));
    }
    // Refused in both forms of the role, because the form changes with the API server and the
    // configuration.
    if user.is_in(ANY) {
        return Err(Ineligible::AnyGroup);
    }
    identity::check_extra_keys(&user.extra).map_err(Ineligible::ExtraKeys)?;
    if let Some(key) = user.extra.keys().find(|key| key.bytes().any(|byte| byte.is_ascii_uppercase())) {
        return Err(Ineligible::ExtraKeyCase(key.clone()));
    }
    let groups = user.groups.iter().map(|group| ("group", group));
    let values = user.extra.values().flatten().map(|value| ("userInfo extra value", value));
    let named = [("username", &user.name), ("UID", &user.uid)].into_iter().chain(groups).chain(values);
    for (what, value) in named {
        if !is_header_text(value) {
            return Err(Ineligible::NoHeader { what, value: value.clone() });
        }
    }
    let impersonated = ImpersonatedUser {
        username: user.name,
        uid: user.uid,
        groups: sorted(user.groups),
        extra: user
            .extra
            .into_iter()
            .filter(|(_, values)| !values.is_empty())
            .map(|(key, values)| (key, sorted(values)))
            .collect(),
    };
    limits::check_headers(&impersonated)?;
    Ok(impersonated)
}

fn sorted(mut values: Vec<String>) -> Vec<String> {
    values.sort_unstable();
    values.dedup();
    values
}

/// Returns whether a header transports the text unchanged. White space at both ends of a header
/// value is removed in transit (RFC 9110 §5.5); UTF-8 is not changed.
fn is_header_text(value: &str) -> bool {
    let blank = |c: char| matches!(c, ' ' | '\t');
    !value.starts_with(blank)
        && !value.ends_with(blank)
        && value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::user;
    use super::*;

    #[test]
    fn groups_and_values_are_sorted_without_duplicates() {
        let mut pinny = user("pinny", &["b", "a", "b"]);
        pinny.uid = "u-1".to_owned();
        pinny.extra.insert("acme.io/k".into(), vec!["y".into(), "x".into(), "y".into()]);
        pinny.extra.insert("acme.io/none".into(), Vec::new());
        let found = impersonated(pinny).unwrap();
        let wanted = ImpersonatedUser {
            username: "pinny".into(),
            uid: "u-1".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [("acme.io/k".to_owned(), vec!["x".to_owned(), "y".to_owned()])].into(),
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn unusual_names_are_not_changed() {
        for name in [
            "a/b",
            "first last",
            "jörg@example.com",
            "ピニー",
            "system:admin",
            "system:serviceaccounts",
            "Pinny",
            &"n".repeat(300),
        ] {
            assert_eq!(impersonated(user(name, &["g/1", "g 2"])).unwrap().username, name);
        }
    }

    #[test]
    fn each_ineligible_user_has_an_error_for_the_audit_log() {
        let reserved = |name: &str| {
            format!(
                "username \"{name}\" is reserved for Kubernetes and cannot be impersonated with a service account token"
            )
        };
        let header = |what: &str, value: &str| {
            format!(
                "{what} {value} cannot be a header's value: it has control characters, or white space at an end"
            )
        };
        let with_extra = |key: &str, value: &str| {
            let mut user = user("u", &[]);
            user.extra.insert(key.to_owned(), vec![value.to_owned()]);
            user
        };
        let cases = [
            (user("", &[]), "empty username is not allowed".to_owned()),
            (user("system:anonymous", &[]), reserved("system:anonymous")),
            (user("system:node:n", &[]), reserved("system:node:n")),
            (user("system:node:", &[]), reserved("system:node:")),
            (user("system:serviceaccount:a:b", &[]), reserved("system:serviceaccount:a:b")),
            (user("system:serviceaccount:x", &[]), reserved("system:serviceaccount:x")),
            (user("u", &["a", "system:masters"]), "group \"system:masters\" is not allowed".to_owned()),
            (user("u", &[""]), "group \"\" is not allowed".to_owned()),
            (
                user("u", &["a", "*"]),
                "group \"*\" is not allowed: in a role for constrained impersonation it stands for every group"
                    .to_owned(),
            ),
            (
                with_extra("acme.io/Key", "v"),
                "userInfo extra key \"acme.io/Key\" has upper-case letters, which no impersonation header carries"
                    .to_owned(),
            ),
            (user("a\nb", &[]), header("username", "\"a\\nb\"")),
            (user(" u", &[]), header("username", "\" u\"")),
            (user("u", &["g\t"]), header("group", "\"g\\t\"")),
            (User { uid: "\u{7f}".into(), ..user("u", &[]) }, header("UID", "\"\\x7f\"")),
            (with_extra("acme.io/k", "v\r"), header("userInfo extra value", "\"v\\r\"")),
        ];
        for (user, wanted) in cases {
            assert_eq!(impersonated(user.clone()).unwrap_err().to_string(), wanted, "{user:?}");
        }
        let refused = impersonated(with_extra("plain", "v")).unwrap_err().to_string();
        assert!(refused.contains("must be a domain-prefixed path"), "{refused}");
    }

    #[test]
    fn more_than_64_kib_of_headers_are_refused_with_the_limit() {
        let many = (0..2_000).map(|n| format!("department-{n:04}-readers")).collect();
        let refused = impersonated(User { groups: many, ..user("u", &[]) }).unwrap_err().to_string();
        assert!(refused.contains("65536"), "{refused}");
    }
}
