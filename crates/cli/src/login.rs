//! Logging in: from what a login command says to a credential for the cluster, by way of the cache.
//!
//! ```text
//! session      a login command's flags, from our own command line or from a kubeconfig's user
//! exec_cache   cluster credentials kept between runs
//! delivery     whether a credential may be given to kubectl
//! exec_info    what kubectl tells a plugin about the cluster
//! ```

pub mod delivery;
pub mod exec_cache;
pub mod exec_info;
mod private_files;
pub mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use http::HeaderMap;
use jiff::Timestamp;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::service_account_tokens::limits::{TooLarge, check_headers};
use pinniped_kube_request::identity::{User, escape_extra_key};
use pinniped_kube_request::impersonation::Impersonation;
use pinniped_kube_types::client_auth::ExecCredentialStatus;

/// How long before its end a credential should be replaced, if it lives long enough for that.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// What a login gave: a credential, and whom to impersonate with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Login {
    /// The credential.
    pub credential: ExecCredentialStatus,
    /// The user who logged in, whom every request with a service account's token has to impersonate. Without the
    /// headers such a token is somebody else's.
    pub impersonate: Option<ImpersonatedUser>,
}

/// Why an identity does not go into headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A name or value is not fit for a header.
    #[error("the user name, UID, a group or an extra value holds characters that no HTTP header can carry")]
    Unfit,
    /// Too many groups, most likely.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// The `Impersonate-*` headers that make a request this user's.
///
/// # Errors
///
/// A user who does not fit into headers.
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

/// The same for an exec plugin's answer, with names as people know them.
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
    /// When the credential ends.
    pub fn expires(&self) -> Option<Timestamp> {
        self.credential.expiration_timestamp.as_ref().map(|time| time.0)
    }

    /// How long after `now`, when the login was made, its successor should be fetched: a minute before its end, or
    /// after two thirds of a short life.
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
    fn a_login_is_renewed_before_it_ends() {
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
    fn headers_are_bounded_and_fit_for_http() {
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
