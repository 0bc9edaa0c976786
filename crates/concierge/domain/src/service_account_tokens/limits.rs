//! How large an identity may be: every request of its user says all of it in headers, and its role in one object.

use pinniped_concierge_api::login::ImpersonatedUser;

use pinniped_kube_request::identity::escape_extra_key;

/// Bytes of impersonation headers in one request. API servers and what stands before them take somewhat more in all.
pub const HEADERS_LIMIT: usize = 64 * 1024;

/// Bytes of a role; etcd takes 1.5 MiB.
pub const ROLE_LIMIT: usize = 1024 * 1024;

/// An identity is too large.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Its headers.
    #[error(
        "the impersonation headers of this user would be {bytes} bytes, more than the limit of {HEADERS_LIMIT} \
         ({groups} groups)"
    )]
    Headers {
        /// How large they are.
        bytes: usize,
        /// How many groups are among it, which is where the size usually comes from.
        groups: usize,
    },
    /// Its role.
    #[error("the ClusterRole of this user would be {bytes} bytes, more than the limit of {ROLE_LIMIT}")]
    Role {
        /// How large it is.
        bytes: usize,
    },
}

/// Bytes of the headers that impersonate this user, as HTTP/1.1 writes them: one line for each value.
pub fn header_bytes(user: &ImpersonatedUser) -> usize {
    let line = |name: usize, value: &str| name + ": ".len() + value.len() + "\r\n".len();
    let uid = if user.uid.is_empty() { 0 } else { line("Impersonate-Uid".len(), &user.uid) };
    let groups = user.groups.iter().map(|group| line("Impersonate-Group".len(), group));
    let extra = user.extra.iter().flat_map(|(key, values)| {
        let name = "Impersonate-Extra-".len() + escape_extra_key(key).len();
        values.iter().map(move |value| line(name, value))
    });
    line("Impersonate-User".len(), &user.username) + uid + groups.chain(extra).sum::<usize>()
}

/// Fails closed where requests would be refused anyway, somewhere on their way.
///
/// # Errors
/// [`TooLarge::Headers`].
pub fn check_headers(user: &ImpersonatedUser) -> Result<(), TooLarge> {
    let bytes = header_bytes(user);
    if bytes > HEADERS_LIMIT {
        return Err(TooLarge::Headers { bytes, groups: user.groups.len() });
    }
    Ok(())
}

/// The same for the role, of which this many bytes were counted.
///
/// # Errors
/// [`TooLarge::Role`].
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
