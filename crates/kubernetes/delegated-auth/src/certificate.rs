//! Verification of client certificate chains against the current CAs.
//!
//! Verification of a chain costs signature checks, so results are cached under the hash of all
//! certificates that the client sent. A result is valid only for the set of CAs that it was
//! computed with, and only until the next time at which one of the certificates becomes valid or
//! expires. A certificate that expires during a connection is therefore refused with the next
//! request, at the cost of two comparisons.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{Context, SHA256};
use jiff::Timestamp;
use pinniped_kube_request::identity::{CREDENTIAL_ID_EXTRA, KnownUser, User};
use pinniped_pki::chain::{self, ChainError};
use pinniped_pki::{CaBundle, Certificate, CertificateError, DistinguishedName};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::cluster_auth_config::RequestHeaderConfig;
use crate::digest::Digest;

/// The CAs that are trusted at one time.
pub(crate) struct Trust {
    /// Generations of the sources of this value: cluster, extra.
    pub(crate) made_from: (u64, u64),
    /// CAs for ordinary client certificates, from all sources.
    client: Option<CaSet>,
    /// CAs and configuration of the front proxy, if one is configured.
    front_proxy: Option<(CaSet, RequestHeaderConfig)>,
    /// Subjects of all CAs.
    pub(crate) hints: Vec<DistinguishedName>,
}

/// A chain that no CA verifies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum VerifyError {
    #[error("no certificate")]
    NoCertificate,
    #[error("no certificate authority")]
    NoAuthority,
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// A certificate that does not identify a user, with the texts of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum SubjectError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("expected 1 UID, but found multiple")]
    SeveralUids,
    #[error("UID cannot be an empty string")]
    EmptyUid,
}

/// Bundles that are used as one, and the times at which the validity of one of their certificates
/// changes.
struct CaSet {
    bundles: Vec<CaBundle>,
    moments: Vec<i64>,
}

impl CaSet {
    fn new(bundles: Vec<CaBundle>) -> Option<Self> {
        let ders = bundles.iter().flat_map(CaBundle::ders);
        let moments: Vec<i64> = ders.filter_map(|der| moments(der)).flatten().collect();
        let bundles: Vec<_> = bundles.into_iter().filter(|bundle| !bundle.is_empty()).collect();
        (!bundles.is_empty()).then_some(Self { bundles, moments })
    }

    /// Verifies against any of the bundles. Returns the last error if none matches.
    fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), VerifyError> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(VerifyError::NoCertificate);
        };
        let mut result = Err(VerifyError::NoAuthority);
        for bundle in &self.bundles {
            result = chain::verify_client(leaf, intermediates, bundle, now).map_err(VerifyError::from);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

/// Returns the seconds at which the validity of this certificate begins and ends. Only the validity
/// is parsed: a certificate that is invalid elsewhere may still be usable in a chain, and then its
/// expiry counts.
fn moments(der: &CertificateDer<'_>) -> Option<[i64; 2]> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    Some([validity.not_before.timestamp(), validity.not_after.timestamp().saturating_add(1)])
}

impl Trust {
    pub(crate) fn new(
        made_from: (u64, u64),
        client: Vec<CaBundle>,
        front_proxy: Option<RequestHeaderConfig>,
    ) -> Self {
        let mut store = RootCertStore::empty();
        let front_ca = front_proxy.as_ref().map(|config| &config.ca);
        for der in client.iter().chain(front_ca).flat_map(CaBundle::ders) {
            // A root that rustls cannot parse is only missing from the hints.
            let _ = store.add(der.clone());
        }
        Self {
            made_from,
            client: CaSet::new(client),
            front_proxy: front_proxy.and_then(|config| Some((CaSet::new(vec![config.ca.clone()])?, config))),
            hints: store.subjects(),
        }
    }

    /// Returns the header configuration of the front proxy, if one is configured.
    pub(crate) fn request_header(&self) -> Option<&RequestHeaderConfig> {
        self.front_proxy.as_ref().map(|(_, config)| config)
    }

    /// Verifies a chain, leaf first.
    pub(crate) fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> ChainVerification {
        let second = now.as_second();
        let (mut from, mut until) = (i64::MIN, i64::MAX);
        let sets = self.client.iter().chain(self.front_proxy.as_ref().map(|(set, _)| set));
        let of_sets = sets.flat_map(|set| set.moments.iter().copied());
        for moment in chain.iter().filter_map(moments).flatten().chain(of_sets) {
            if moment <= second {
                from = from.max(moment);
            } else {
                until = until.min(moment);
            }
        }
        ChainVerification {
            made_from: self.made_from,
            from,
            until,
            front_proxy: self.verify_front_proxy(chain, now),
            client: self.verify_client(chain, now),
        }
    }

    fn verify_front_proxy(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> FrontProxyVerification {
        let Some((set, config)) = &self.front_proxy else { return FrontProxyVerification::NoOpinion };
        if let Err(error) = set.verify(chain, now) {
            return FrontProxyVerification::Failed(error.to_string());
        }
        if config.allowed_names.is_empty() {
            return FrontProxyVerification::Trusted;
        }
        match chain.first().map(|leaf| Certificate::parse_der(leaf)) {
            Some(Ok(leaf)) if config.allowed_names.contains(&leaf.subject_cn) => {
                FrontProxyVerification::Trusted
            }
            Some(Ok(leaf)) => FrontProxyVerification::Failed(format!(
                "x509: subject with cn={} is not in the allowed list",
                leaf.subject_cn
            )),
            Some(Err(error)) => FrontProxyVerification::Failed(error.to_string()),
            None => FrontProxyVerification::NoOpinion,
        }
    }

    fn verify_client(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> ClientVerification {
        let Some(set) = &self.client else { return ClientVerification::NoOpinion };
        if let Err(error) = set.verify(chain, now) {
            return ClientVerification::Failed(format!("verifying certificate failed: {error}"));
        }
        match chain.first().map(user) {
            Some(Ok(Some(user))) => ClientVerification::User(user.with_authenticated_group().into()),
            Some(Ok(None)) | None => ClientVerification::NoOpinion,
            Some(Err(error)) => ClientVerification::Failed(error.to_string()),
        }
    }
}

/// The verification result of a chain, and the time for which it is valid.
pub(crate) struct ChainVerification {
    made_from: (u64, u64),
    from: i64,
    until: i64,
    pub(crate) front_proxy: FrontProxyVerification,
    pub(crate) client: ClientVerification,
}

impl ChainVerification {
    /// Returns whether this result is still valid.
    pub(crate) fn holds(&self, trust: &Trust, now: Timestamp) -> bool {
        let second = now.as_second();
        self.made_from == trust.made_from && self.from <= second && second < self.until
    }
}

/// Whether the chain is a certificate of the front proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrontProxyVerification {
    NoOpinion,
    Trusted,
    Failed(String),
}

/// Whether the chain is a certificate of a user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientVerification {
    NoOpinion,
    User(KnownUser),
    Failed(String),
}

/// Returns the user of a verified certificate; `None` when it has no common name.
fn user(leaf: &CertificateDer<'_>) -> Result<Option<User>, SubjectError> {
    let certificate = Certificate::parse_der(leaf)?;
    if certificate.subject_cn.is_empty() {
        return Ok(None);
    }
    let credential_id = format!("X509SHA256={}", certificate.sha256_hex());
    Ok(Some(User {
        uid: uid(certificate.uids)?,
        name: certificate.subject_cn,
        groups: certificate.organizations,
        extra: BTreeMap::from([(CREDENTIAL_ID_EXTRA.to_owned(), vec![credential_id])]),
    }))
}

/// Returns the UID of the subject. Kubernetes accepts exactly one non-empty UID, or none.
fn uid(mut uids: Vec<String>) -> Result<String, SubjectError> {
    match uids.pop() {
        None => Ok(String::new()),
        Some(_) if !uids.is_empty() => Err(SubjectError::SeveralUids),
        Some(uid) if uid.is_empty() => Err(SubjectError::EmptyUid),
        Some(uid) => Ok(uid),
    }
}

/// Returns the cache key of a verification result.
pub(crate) fn chain_digest(chain: &[CertificateDer<'_>]) -> Digest {
    let mut context = Context::new(&SHA256);
    for certificate in chain {
        context.update(&certificate.len().to_le_bytes());
        context.update(certificate);
    }
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_has_one_uid_or_none() {
        let uids = |uids: &[&str]| {
            uid(uids.iter().map(|uid| (*uid).to_owned()).collect()).map_err(|error| error.to_string())
        };
        assert_eq!(uids(&[]), Ok(String::new()));
        assert_eq!(uids(&["u"]), Ok("u".to_owned()));
        assert_eq!(uids(&[""]), Err("UID cannot be an empty string".to_owned()));
        for several in [&["u", "v"][..], &["u", "u"], &["", "u"]] {
            assert_eq!(uids(several), Err("expected 1 UID, but found multiple".to_owned()), "{several:?}");
        }
    }

    #[test]
    fn the_validity_is_read_from_an_otherwise_invalid_certificate() {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 2);
        // A subject alternative name extension with invalid content.
        params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![5, 0]));
        let odd = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert!(Certificate::parse_der(odd.der()).is_err());
        let second = |text: &str| text.parse::<Timestamp>().unwrap().as_second();
        let wanted = [second("2026-01-01T00:00:00Z"), second("2026-01-02T00:00:01Z")];
        assert_eq!(moments(odd.der()), Some(wanted));
    }
}
