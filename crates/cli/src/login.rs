//! Logging in: from the options of a login command to a cluster credential, with caches.
//!
//! ```text
//! session        the options of a login, from the command line or from a kubeconfig user
//! oidc           the login at an OIDC issuer
//! workload       the token of a CI job or a pod
//! exec_cache     cluster credentials cached between runs
//! keyring        refresh tokens in the keyring of the operating system
//! session_cache  OIDC sessions cached between runs
//! cache_file     the file of a cache, and its transactions
//! delivery       decides whether kubectl may get a credential
//! exec_info      the cluster information that kubectl passes to a plugin
//! ```

pub mod cache_file;
pub mod delivery;
pub mod exec_cache;
pub mod exec_info;
pub mod keyring;
pub mod oidc;
pub(crate) mod private_files;
pub mod session;
pub mod session_cache;
pub mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use jiff::Timestamp;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::service_account_tokens::limits::{TooLarge, check_headers};
use pinniped_kube_request::identity::{User, escape_extra_key};
use pinniped_kube_request::impersonation::Impersonation;
use pinniped_kube_types::client_auth::ExecCredentialStatus;

/// The time before the expiration at which a credential is renewed, if its lifetime is long enough.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// The result of a login: a credential, and the user to impersonate with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The credential.
    pub credential: ExecCredentialStatus,
    /// The user who logged in. Every request with a service account token must impersonate this
    /// user; without the headers, it would have the identity of the service account.
    pub impersonate: Option<ImpersonatedUser>,
}

/// The reason why an identity cannot be sent as headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A name or value is not a valid header.
    #[error(
        "the user name, UID, a group or an extra value contains characters that are not valid in an HTTP header"
    )]
    Unfit,
    /// Usually caused by too many groups.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Returns the `Impersonate-*` headers for requests of this user.
///
/// # Errors
///
/// Returns an error if the user does not fit into headers.
pub fn impersonation_headers(user: &ImpersonatedUser) -> Result<HeaderMap, HeaderError> {
    check_headers(user)?;
    let user = User {
        name: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
    };
    let mut headers = HeaderMap::new();
    Impersonation::of(&user).write(&mut headers).map_err(|_| HeaderError::Unfit)?;
    Ok(headers)
}

/// Returns the same headers for the response of an exec plugin, with conventional header names.
pub fn request_headers(user: Option<&ImpersonatedUser>) -> BTreeMap<String, Vec<String>> {
    let Some(user) = user else { return BTreeMap::new() };
    let one = |text: &String| if text.is_empty() { Vec::new() } else { vec![text.clone()] };
    let plain = [
        ("Impersonate-User".to_owned(), one(&user.username)),
        ("Impersonate-Uid".to_owned(), one(&user.uid)),
        ("Impersonate-Group".to_owned(), user.groups.clone()),
    ];
    let extra = user
        .extra
        .iter()
        .map(|(key, values)| (format!("Impersonate-Extra-{}", escape_extra_key(key)), values.clone()));
    plain.into_iter().chain(extra).filter(|(_, values)| !values.is_empty()).collect()
}

impl Login {
    /// Returns the expiration time of the credential.
    pub fn expires(&self) -> Option<Timestamp> {
        self.credential.expiration_timestamp.as_ref().map(|time| time.0)
    }

    /// Returns the delay after `now`, the time of the login, at which its successor should be
    /// fetched: one minute before the expiration, or after two thirds of a short lifetime.
    pub fn renew_in(&self, now: Timestamp) -> Option<Duration> {
        let left = Duration::try_from(self.expires()?.duration_since(now)).unwrap_or_default();
        Some(left - RENEW_BEFORE.min(left / 3))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn a_login_is_renewed_before_it_expires() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        for (lifetime, expected) in [(300, 240), (180, 120), (60, 40), (0, 0), (-5, 0)] {
            let credential = ExecCredentialStatus {
                expiration_timestamp: Some(Time(now + jiff::SignedDuration::from_secs(lifetime))),
                ..ExecCredentialStatus::default()
            };
            let login = Login { credential, impersonate: None };
            assert_eq!(login.renew_in(now), Some(Duration::from_secs(expected)), "{lifetime}");
        }
        assert_eq!(Login::default().renew_in(now), None);
    }

    #[test]
    fn headers_are_limited_and_valid_for_http() {
        let mut user = ImpersonatedUser {
            username: "Zoë /x".into(),
            uid: "u".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [("example.com/k%".to_owned(), vec!["v".to_owned()])].into(),
        };
        let headers = impersonation_headers(&user).unwrap();
        let lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        assert_eq!(
            lines,
            [
                "impersonate-user: Zoë /x",
                "impersonate-uid: u",
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-extra-example.com%2fk%25: v",
            ]
        );
        assert_eq!(
            serde_json::to_string(&request_headers(Some(&user))).unwrap(),
            r#"{"Impersonate-Extra-example.com%2Fk%25":["v"],"Impersonate-Group":["a","b"],"Impersonate-Uid":["u"],"Impersonate-User":["Zoë /x"]}"#
        );
        user.groups = (0..2000).map(|n| format!("a-group-with-a-rather-long-name-{n}")).collect();
        let error = impersonation_headers(&user).unwrap_err();
        assert!(matches!(error, HeaderError::TooLarge(_)), "{error}");
        assert!(error.to_string().contains("more than the limit of 65536"), "{error}");
        user.groups = vec!["a\nb".into()];
        assert_eq!(impersonation_headers(&user), Err(HeaderError::Unfit));
        assert_eq!(impersonation_headers(&ImpersonatedUser::default()), Err(HeaderError::Unfit));
    }
}
