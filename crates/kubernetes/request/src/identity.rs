//! The user of a request, and its representation in headers.
//!
//! A [`User`] is what Kubernetes calls `user.Info`. It is read from certificates, tokens or
//! front-proxy headers, and is written as `Impersonate-*` headers.

use std::collections::BTreeMap;

use pinniped_go_compat::json::quote;

mod known;

pub use known::KnownUser;

/// The name of the anonymous user.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of the anonymous user.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group whose members are allowed everything.
pub const MASTERS: &str = "system:masters";
/// The group of monitoring agents.
pub const MONITORING: &str = "system:monitoring";
/// The extra key in which the API server records the credential of the request.
pub const CREDENTIAL_ID_EXTRA: &str = "authentication.kubernetes.io/credential-id";

/// A user of Kubernetes (`user.Info`). Empty members mean "not set".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// User name.
    pub name: String,
    /// Unique ID, often empty.
    pub uid: String,
    /// Groups, in the order of their source.
    pub groups: Vec<String>,
    /// Additional attributes of the user, by lower-case key.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user of a request without credentials.
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.to_owned(), groups: vec![UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// Returns whether the name is that of the anonymous user.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// Appends [`AUTHENTICATED`], unless the user already has it or [`UNAUTHENTICATED`], or is
    /// anonymous.
    pub fn with_authenticated_group(mut self) -> Self {
        let has = self.groups.iter().any(|g| g == AUTHENTICATED || g == UNAUTHENTICATED);
        if !has && !self.is_anonymous() {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// Returns whether the user is a member of this group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

/// The prefix of the username of every service account.
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The prefix of the username of every node.
const NODE_PREFIX: &str = "system:node:";

/// Splits `system:serviceaccount:<namespace>:<name>`; `None` when the name has another form.
pub fn service_account(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (is_dns_label(namespace) && is_dns_subdomain(name)).then_some((namespace, name))
}

/// Returns the node of `system:node:<node>`; `None` when the name has another form.
pub fn node(username: &str) -> Option<&str> {
    username.strip_prefix(NODE_PREFIX).filter(|name| is_dns_subdomain(name))
}

/// Escapes an extra key for use in a header name, as client-go does: every byte that is not allowed
/// in a header name, and `%`, becomes `%XX`.
pub fn escape_extra_key(key: &str) -> String {
    let mut out = String::with_capacity(key.len() + 8);
    for byte in key.bytes() {
        if byte != b'%' && is_token_byte(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Reverses [`escape_extra_key`] on the rest of a header name: converts it to lower case and
/// percent-decodes it. Text that cannot be decoded is kept as it is; returns `None` when the result
/// is not UTF-8.
pub fn unescape_extra_key(escaped: &str) -> Option<String> {
    let lower = escaped.to_lowercase();
    match pinniped_go_compat::url::unescape(&lower) {
        Some(bytes) => String::from_utf8(bytes).ok(),
        None => Some(lower),
    }
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether this is a label of RFC 1123 (at most 63 of `a-z`, `0-9` and `-`; first and last
/// character alphanumeric).
pub fn is_dns_label(value: &str) -> bool {
    value.len() <= 63 && is_label_text(value)
}

/// Returns whether this is a subdomain of RFC 1123 by the rules of Kubernetes (labels joined by
/// dots, at most 253 bytes).
pub fn is_dns_subdomain(value: &str) -> bool {
    value.len() <= 253 && value.split('.').all(is_label_text)
}

fn is_label_text(value: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = value.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            alphanumeric(first) && alphanumeric(last) && bytes.iter().all(|&b| alphanumeric(b) || b == b'-')
        }
        _ => false,
    }
}

const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
    is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const PATH_TEXT: &str = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";

/// Returns the errors of Kubernetes' `IsDomainPrefixedPath`, each as it is appended to the name of
/// the field.
pub fn domain_prefixed_path_errors(key: &str) -> Vec<String> {
    let invalid = |value: &str, text: &str| format!("Invalid value: {}: {text}", quote(value));
    if key.is_empty() {
        return vec!["Required value".to_owned()];
    }
    let Some((domain, path)) = key.split_once('/').filter(|(d, p)| !d.is_empty() && !p.is_empty()) else {
        return vec![invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")")];
    };
    let mut errors = Vec::new();
    if domain.len() > 253 {
        errors.push(invalid(domain, "must be no more than 253 bytes"));
    }
    if !domain.split('.').all(is_label_text) {
        errors.push(invalid(domain, SUBDOMAIN_TEXT));
    }
    if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
        errors.push(invalid(path, PATH_TEXT));
    }
    errors
}

/// Joins messages like Kubernetes' aggregate errors: without duplicates, several in brackets.
pub fn aggregate(messages: Vec<String>) -> Option<String> {
    let mut distinct: Vec<String> = Vec::with_capacity(messages.len());
    for message in messages {
        if !distinct.contains(&message) {
            distinct.push(message);
        }
    }
    match distinct.len() {
        0 => None,
        1 => distinct.pop(),
        _ => Some(format!("[{}]", distinct.join(", "))),
    }
}

/// Returns whether an extra key has a domain that only Kubernetes itself may use; the text is
/// [`RESERVED_KEY`].
pub fn is_reserved_extra_key(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["k8s.io", "kubernetes.io"].iter().any(|reserved| {
        domain == *reserved || domain.strip_suffix(reserved).is_some_and(|front| front.ends_with('.'))
    })
}

/// The text about an extra key with a domain of Kubernetes.
pub const RESERVED_KEY: &str = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
/// The text about an extra key that contains `=`, which separates key and value in certificates.
pub const EQUALS_SIGN_IN_KEY: &str = "Pinniped does not allow extra key names to contain equals sign";

/// Validates the extra keys of an authenticator before they are written into a certificate.
///
/// # Errors
/// The message with which a `TokenCredentialRequest` is refused; it lists every invalid key.
pub fn check_extra_keys(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    let mut errors = Vec::new();
    for key in extra.keys().filter(|key| *key != CREDENTIAL_ID_EXTRA) {
        let mut texts = domain_prefixed_path_errors(key);
        if is_reserved_extra_key(key) {
            texts.push(format!("Invalid value: {}: {RESERVED_KEY}", quote(key)));
        }
        if key.contains('=') {
            texts.push(format!("Invalid value: {}: {EQUALS_SIGN_IN_KEY}", quote(key)));
        }
        errors.extend(texts.into_iter().map(|text| format!("userInfo extra key {}: {text}", quote(key))));
    }
    match aggregate(errors) {
        None => Ok(()),
        Some(all) => Err(format!("authenticator returned illegal userInfo extra key(s): {all}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(keys: &[&str]) -> BTreeMap<String, Vec<String>> {
        keys.iter().map(|k| ((*k).to_owned(), vec!["v".to_owned()])).collect()
    }

    #[test]
    fn the_authenticated_group_is_added_as_kubernetes_does() {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            ..User::default()
        };
        for (given, wanted) in [
            (user("u", &[]), user("u", &[AUTHENTICATED])),
            (user("u", &["a"]), user("u", &["a", AUTHENTICATED])),
            (user("u", &[AUTHENTICATED, "a"]), user("u", &[AUTHENTICATED, "a"])),
            (user("u", &[UNAUTHENTICATED]), user("u", &[UNAUTHENTICATED])),
            (user(ANONYMOUS, &[]), user(ANONYMOUS, &[])),
        ] {
            assert_eq!(given.with_authenticated_group(), wanted);
        }
    }

    #[test]
    fn service_account_and_node_names_are_recognised_only_when_valid() {
        for (name, wanted) in [
            ("system:serviceaccount:ns:sa", Some(("ns", "sa"))),
            ("system:serviceaccount:ns:s.a-1", Some(("ns", "s.a-1"))),
            ("system:serviceaccount:n.s:sa", None),
            ("system:serviceaccount:ns:sa:x", None),
            ("system:serviceaccount:ns:", None),
            ("system:serviceaccount::sa", None),
            ("system:serviceaccount:ns", None),
            ("serviceaccount:ns:sa", None),
            ("system:serviceaccount:NS:sa", None),
        ] {
            assert_eq!(service_account(name), wanted, "{name}");
        }
        for (name, wanted) in [
            ("system:node:a.b", Some("a.b")),
            ("system:node:", None),
            ("system:node:A", None),
            ("system:node:-a", None),
            ("system:nodes:a", None),
        ] {
            assert_eq!(node(name), wanted, "{name}");
        }
    }

    #[test]
    fn unescaping_restores_an_escaped_extra_key() {
        for (key, escaped) in [
            ("foo", "foo"),
            ("iam.gke.io/user-assertion", "iam.gke.io%2Fuser-assertion"),
            ("a%b", "a%25b"),
            ("ü", "%C3%BC"),
            ("a b", "a%20b"),
            ("party~~time", "party~~time"),
        ] {
            assert_eq!(escape_extra_key(key), escaped);
            assert_eq!(unescape_extra_key(escaped).as_deref(), Some(key));
        }
        for (escaped, key) in [
            ("ROAR", Some("roar")),
            ("a%zz", Some("a%zz")),
            ("a%2", Some("a%2")),
            ("%", Some("%")),
            ("%41", Some("A")),
            ("", Some("")),
            ("%ff", None),
            ("%c3", None),
        ] {
            assert_eq!(unescape_extra_key(escaped).as_deref(), key, "{escaped}");
        }
    }

    #[test]
    fn every_invalid_extra_key_is_reported() {
        for (keys, wanted) in [
            (vec![], None),
            (vec!["authentication.kubernetes.io/credential-id", "acme.io/foo", "acme.io/a/b~%!$&'()*+,;:"], None),
            (vec![""], Some(r#"userInfo extra key "": Required value"#.to_owned())),
            (
                vec!["foo"],
                Some(
                    r#"userInfo extra key "foo": Invalid value: "foo": must be a domain-prefixed path (such as "acme.io/foo")"#
                        .to_owned(),
                ),
            ),
            (
                vec!["Acme.io/foo"],
                Some(format!(r#"userInfo extra key "Acme.io/foo": Invalid value: "Acme.io": {SUBDOMAIN_TEXT}"#)),
            ),
            (
                vec!["acme.io/f oo"],
                Some(format!(r#"userInfo extra key "acme.io/f oo": Invalid value: "f oo": {PATH_TEXT}"#)),
            ),
            (
                vec!["a.k8s.io/x", "kubernetes.io/x", "notk8s.io/x"],
                Some(
                    concat!(
                        r#"[userInfo extra key "a.k8s.io/x": Invalid value: "a.k8s.io/x": "#,
                        "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use, ",
                        r#"userInfo extra key "kubernetes.io/x": Invalid value: "kubernetes.io/x": "#,
                        "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use]"
                    )
                    .to_owned(),
                ),
            ),
            (
                vec!["acme.io/a=b"],
                Some(
                    concat!(
                        r#"userInfo extra key "acme.io/a=b": Invalid value: "acme.io/a=b": "#,
                        "Pinniped does not allow extra key names to contain equals sign"
                    )
                    .to_owned(),
                ),
            ),
        ] {
            let wanted =
                wanted.map(|text| format!("authenticator returned illegal userInfo extra key(s): {text}"));
            assert_eq!(check_extra_keys(&extra(&keys)).err(), wanted, "{keys:?}");
        }
    }
}
