//! The `CertificateSigningRequest` of one login: its content, its approval and its progress.
//!
//! The object contains the username and the groups, in the subject of the PKCS#10 request, and the
//! public key. The private key stays in the memory of the login.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_concierge_api::names::LABEL_CERTIFICATE_SIGNING_REQUEST;

use crate::status_text::StatusText;

/// The signer of client certificates that the API server accepts.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Prefix of the names of all requests.
pub const NAME_PREFIX: &str = "pinniped-login-";

/// Maximum time between the creation of a request and its certificate.
pub const SIGNED_WITHIN: Duration = Duration::from_secs(15);

/// Minimum of `spec.expirationSeconds` in the API.
const MIN_LIFETIME: Duration = Duration::from_secs(600);

/// Maximum time by which a certificate may live longer than requested, for clocks that differ. A
/// signer may ignore the requested lifetime; its certificates would be valid for a year and could
/// not be revoked.
const MAX_EXCESS: Duration = Duration::from_secs(300);

/// Usages of the certificate. The signer allows `key encipherment` as well, which has no meaning
/// for an EC key (RFC 8813, section 3).
const USAGES: [&str; 2] = ["digital signature", "client auth"];

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";

/// Creates the requests of an installation.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The namespace of the Concierge.
    pub namespace: String,
    /// Labels of every created object.
    pub labels: BTreeMap<String, String>,
}

impl Maker {
    /// Returns a request. `pem` is the PKCS#10 request; `lifetime` is a result of [`lifetime`].
    pub fn request(&self, name: &str, pem: &str, lifetime: Duration) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(self.all_labels()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                expiration_seconds: Some(i32::try_from(lifetime.as_secs()).unwrap_or(i32::MAX)),
                request: ByteString(pem.as_bytes().to_vec()),
                signer_name: SIGNER.to_owned(),
                usages: Some(USAGES.map(str::to_owned).to_vec()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }

    /// Returns a label selector for all requests of this installation.
    pub fn selector(&self) -> String {
        let labels = self.all_labels().into_iter();
        labels.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }

    /// Requests are cluster-scoped, so the namespace distinguishes installations.
    fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(LABEL_CERTIFICATE_SIGNING_REQUEST.to_owned(), self.namespace.clone());
        labels
    }
}

/// Returns the name of a request. It contains nothing about the user.
pub fn object_name(random: u128) -> String {
    format!("{NAME_PREFIX}{random:032x}")
}

/// Returns the lifetime to request: the configured one, unless the API does not allow it.
pub fn lifetime(configured: Duration) -> Duration {
    configured.max(MIN_LIFETIME)
}

/// Returns the request with the approval of the Concierge.
#[must_use]
pub fn approved(mut request: CertificateSigningRequest) -> CertificateSigningRequest {
    let conditions = request.status.get_or_insert_default().conditions.get_or_insert_default();
    if !conditions.iter().any(|condition| condition.type_ == APPROVED) {
        conditions.push(CertificateSigningRequestCondition {
            type_: APPROVED.to_owned(),
            status: "True".to_owned(),
            reason: Some("PinnipedLogin".to_owned()),
            message: Some("the Concierge authenticated this user".to_owned()),
            ..CertificateSigningRequestCondition::default()
        });
    }
    request
}

/// The progress of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has neither a certificate nor a refusal.
    Waiting,
    /// It has this certificate, in PEM.
    Signed(Vec<u8>),
    /// It will not get a certificate.
    Refused(Refusal),
}

/// Reasons why a request does not get a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An approver denied it.
    #[error("the CertificateSigningRequest was denied: {0}")]
    Denied(StatusText),
    /// The signer failed.
    #[error("the signer {SIGNER} failed: {0}")]
    Failed(StatusText),
}

/// Returns the progress of a request.
pub fn progress(request: &CertificateSigningRequest) -> Progress {
    let Some(status) = &request.status else { return Progress::Waiting };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let text = |type_| {
        let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
        let texts = [&condition.message, &condition.reason];
        let text = texts.into_iter().flatten().find(|text| !text.is_empty());
        Some(StatusText::from(text.map_or("no reason is given", String::as_str)))
    };
    if let Some(text) = text(DENIED) {
        return Progress::Refused(Refusal::Denied(text));
    }
    if let Some(text) = text(FAILED) {
        return Progress::Refused(Refusal::Failed(text));
    }
    match &status.certificate {
        Some(certificate) if !certificate.0.is_empty() => Progress::Signed(certificate.0.clone()),
        _ => Progress::Waiting,
    }
}

/// The certificate lives longer than requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the signer {SIGNER} ignores the requested lifetime: the certificate is valid for more than {} seconds",
    (*.requested + MAX_EXCESS).as_secs()
)]
pub struct LivesTooLong {
    requested: Duration,
}

/// Checks the lifetime of a certificate: it cannot be revoked, so it must end about when it was
/// requested to end.
///
/// # Errors
///
/// Returns [`LivesTooLong`].
pub fn check_lifetime(not_after: Timestamp, requested: Duration, now: Timestamp) -> Result<(), LivesTooLong> {
    let longest = SignedDuration::try_from(requested + MAX_EXCESS).unwrap_or(SignedDuration::MAX);
    if not_after.duration_since(now) > longest { Err(LivesTooLong { requested }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn maker() -> Maker {
        let labels = [("app".to_owned(), "pinniped-concierge".to_owned())].into();
        Maker { namespace: "concierge-ns".to_owned(), labels }
    }

    #[test]
    fn a_request_names_the_signer_and_the_usages_but_not_the_user() {
        let name = object_name(0xab);
        let request = maker().request(&name, "pem", Duration::from_secs(600));
        assert_eq!(
            serde_json::to_value(request).unwrap(),
            json!({
                "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                "metadata": {
                    "name": "pinniped-login-000000000000000000000000000000ab",
                    "labels": {
                        "app": "pinniped-concierge",
                        "concierge.pinniped.dev/certificate-signing-request": "concierge-ns",
                    },
                },
                "spec": {
                    "expirationSeconds": 600, "request": "cGVt",
                    "signerName": "kubernetes.io/kube-apiserver-client",
                    "usages": ["digital signature", "client auth"],
                },
            })
        );
        assert_eq!(
            maker().selector(),
            "app=pinniped-concierge,concierge.pinniped.dev/certificate-signing-request=concierge-ns"
        );
    }

    #[test]
    fn the_requested_lifetime_is_the_configured_one_and_at_least_ten_minutes() {
        for (configured, wanted) in [(60, 600), (300, 600), (600, 600), (3600, 3600)] {
            assert_eq!(lifetime(Duration::from_secs(configured)), Duration::from_secs(wanted));
        }
    }

    fn with_status(status: Value) -> CertificateSigningRequest {
        let mut request = maker().request("x", "pem", MIN_LIFETIME);
        request.status = serde_json::from_value(status).unwrap();
        request
    }

    #[test]
    fn the_approval_is_added_once() {
        let once = approved(maker().request("x", "pem", MIN_LIFETIME));
        let conditions = once.status.clone().unwrap().conditions.unwrap();
        let found: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        assert_eq!(found, [("Approved", "True")]);
        assert_eq!(approved(once.clone()), once);
    }

    #[test]
    fn the_progress_is_that_of_the_status() {
        let condition = |type_: &str, reason: &str, message: &str| json!({"conditions": [{"type": type_, "status": "True", "reason": reason, "message": message}]});
        let refused = |text: &str| Err(text.to_owned());
        for (status, wanted) in [
            (Value::Null, Ok(None)),
            (json!({}), Ok(None)),
            (condition("Approved", "r", "m"), Ok(None)),
            (json!({"certificate": ""}), Ok(None)),
            (json!({"certificate": "Y2VydA=="}), Ok(Some(b"cert".to_vec()))),
            (condition("Denied", "r", "m"), refused("the CertificateSigningRequest was denied: m")),
            (condition("Denied", "r", ""), refused("the CertificateSigningRequest was denied: r")),
            (
                condition("Failed", "", ""),
                refused("the signer kubernetes.io/kube-apiserver-client failed: no reason is given"),
            ),
        ] {
            let found = match progress(&with_status(status.clone())) {
                Progress::Waiting => Ok(None),
                Progress::Signed(certificate) => Ok(Some(certificate)),
                Progress::Refused(refusal) => Err(refusal.to_string()),
            };
            assert_eq!(found, wanted, "{status}");
        }
    }

    #[test]
    fn a_certificate_that_lives_longer_than_requested_is_refused() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let check = |lives: i64| {
            let not_after = Timestamp::from_second(now.as_second() + lives).unwrap();
            check_lifetime(not_after, MIN_LIFETIME, now).map_err(|error| error.to_string())
        };
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(600), Ok(()));
        assert_eq!(check(900), Ok(()));
        assert_eq!(
            check(901),
            Err("the signer kubernetes.io/kube-apiserver-client ignores the requested lifetime: the certificate is \
                 valid for more than 900 seconds"
                .to_owned())
        );
        assert!(check(31_536_000).is_err());
    }
}
