//! Decides for which users no certificate is requested.
//!
//! The API server refuses requests for `system:masters` itself (its admission plugin
//! CertificateSubjectRestriction), unless an administrator disabled the plugin. The Concierge
//! approves its own requests, so it must not depend on that.

use pinniped_go_compat::json::quote;
use pinniped_kube_request::identity::MASTERS;

/// The username of probe requests. No role is bound to it.
pub const PROBE_USERNAME: &str = "pinniped-certificate-signing-request-probe";

/// Reasons why no certificate is requested for a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ineligible {
    /// The username is empty.
    #[error("empty username is not allowed")]
    NoName,
    /// The username is that of the group with all permissions.
    #[error("username {} is not allowed", quote(MASTERS))]
    Name,
    /// The user is in the group with all permissions, which no role limits.
    #[error("group {} is not allowed", quote(MASTERS))]
    Group,
}

/// Checks whether a certificate may be requested for this user.
///
/// # Errors
///
/// Returns [`Ineligible`] for the audit log; clients never see it.
pub fn check(username: &str, groups: &[String]) -> Result<(), Ineligible> {
    match username {
        "" => Err(Ineligible::NoName),
        MASTERS => Err(Ineligible::Name),
        _ if groups.iter().any(|group| group == MASTERS) => Err(Ineligible::Group),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_certificate_is_requested_for_masters_or_an_empty_name() {
        let check = |name: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
            super::check(name, &groups).map_err(|error| error.to_string())
        };
        for (name, groups, wanted) in [
            ("pinny", &[][..], Ok(())),
            ("pinny", &["a", "system:authenticated"], Ok(())),
            (PROBE_USERNAME, &[], Ok(())),
            ("", &["a"], Err("empty username is not allowed")),
            ("system:masters", &[], Err("username \"system:masters\" is not allowed")),
            ("pinny", &["a", "system:masters"], Err("group \"system:masters\" is not allowed")),
        ] {
            assert_eq!(check(name, groups), wanted.map_err(str::to_owned), "{name} {groups:?}");
        }
    }
}
