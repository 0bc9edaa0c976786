//! Maximum size of an identity: every request of its user carries all of it in headers, and its
//! role is a single object.

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_kube_request::identity::escape_extra_key;
use pinniped_kube_request::impersonation::{
    IMPERSONATE_EXTRA_PREFIX, IMPERSONATE_GROUP, IMPERSONATE_UID, IMPERSONATE_USER,
};

/// Maximum size of the impersonation headers in one request, in bytes. API servers and the proxies
/// in front of them accept somewhat more for all headers.
pub const HEADERS_LIMIT: usize = 64 * 1024;

/// Maximum size of a role in bytes; etcd accepts 1.5 MiB.
pub const ROLE_LIMIT: usize = 1024 * 1024;

/// Reasons why an identity is too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// The impersonation headers are too large.
    #[error(
        "the impersonation headers of this user would be {bytes} bytes, more than the limit of {HEADERS_LIMIT} \
         ({groups} groups)"
    )]
    Headers {
        /// Size of the headers in bytes.
        bytes: usize,
        /// Number of groups, which usually cause the size.
        groups: usize,
    },
    /// The role is too large.
    #[error("the ClusterRole of this user would be {bytes} bytes, more than the limit of {ROLE_LIMIT}")]
    Role {
        /// Size of the role in bytes.
        bytes: usize,
    },
}

/// Returns the size in bytes of the headers that impersonate this user in HTTP/1.1: one line per
/// value.
pub fn header_bytes(user: &ImpersonatedUser) -> usize {
    let ImpersonatedUser { username, uid, groups, extra } = user;
    let line = |name: &str, value: &str| name.len() + ": ".len() + value.len() + "\r\n".len();
    let uid = if uid.is_empty() { 0 } else { line(IMPERSONATE_UID.as_str(), uid) };
    let groups = groups.iter().map(|group| line(IMPERSONATE_GROUP.as_str(), group));
    let extra = extra.iter().flat_map(|(key, values)| {
        let name = format!("{IMPERSONATE_EXTRA_PREFIX}{}", escape_extra_key(key));
        values.iter().map(move |value| line(&name, value))
    });
    line(IMPERSONATE_USER.as_str(), username) + uid + groups.chain(extra).sum::<usize>()
}

/// Refuses identities whose requests a server or proxy would refuse because of the header size.
///
/// # Errors
///
/// Returns [`TooLarge::Headers`].
pub fn check_headers(user: &ImpersonatedUser) -> Result<(), TooLarge> {
    let bytes = header_bytes(user);
    if bytes > HEADERS_LIMIT {
        return Err(TooLarge::Headers { bytes, groups: user.groups.len() });
    }
    Ok(())
}

/// Refuses identities whose role has more than [`ROLE_LIMIT`] bytes.
///
/// # Errors
///
/// Returns [`TooLarge::Role`].
pub fn check_role(bytes: usize) -> Result<(), TooLarge> {
    if bytes > ROLE_LIMIT { Err(TooLarge::Role { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::identity;
    use super::*;

    #[test]
    fn header_lines_are_counted_byte_by_byte() {
        let mut user = identity("ü", &["a", "bc"]);
        user.uid = "1".to_owned();
        user.extra.insert("acme.io/k".into(), vec!["x".into(), "yz".into()]);
        let text = "Impersonate-User: ü\r\nImpersonate-Uid: 1\r\nImpersonate-Group: a\r\nImpersonate-Group: bc\r\n\
                    Impersonate-Extra-acme.io%2Fk: x\r\nImpersonate-Extra-acme.io%2Fk: yz\r\n";
        assert_eq!(header_bytes(&user), text.len());
    }

    #[test]
    fn the_limits_themselves_are_allowed() {
        let overhead = header_bytes(&identity("", &[]));
        let user = |bytes: usize| identity(&"u".repeat(bytes - overhead), &[]);
        assert_eq!(check_headers(&user(HEADERS_LIMIT)), Ok(()));
        let over = check_headers(&user(HEADERS_LIMIT + 1));
        assert_eq!(over, Err(TooLarge::Headers { bytes: 65_537, groups: 0 }));
        assert_eq!(check_role(ROLE_LIMIT), Ok(()));
        let over = check_role(ROLE_LIMIT + 1).unwrap_err().to_string();
        assert_eq!(
            over,
            "the ClusterRole of this user would be 1048577 bytes, more than the limit of 1048576"
        );
    }
}
