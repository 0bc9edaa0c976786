//! Checks the chain that a client presented, after the handshake.
//!
//! The handshake only proves that the client holds the key of its certificate ([`crate::tls`]); whether the
//! certificate says anything is asked here, per request, with the CAs of that moment. The messages are those of
//! Go's `crypto/x509`, which people know.

use jiff::Timestamp;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, anchor_from_trusted_cert,
};
use x509_parser::prelude::{X509Certificate, X509Version};

use crate::{CaBundle, certificate};

/// Why a chain was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A certificate of the chain is not good any more.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is after {not_after}")]
    Expired {
        /// The time asked about.
        now: Timestamp,
        /// The end of the certificate.
        not_after: Timestamp,
    },
    /// A certificate of the chain is not good yet.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is before {not_before}")]
    NotYetValid {
        /// The time asked about.
        now: Timestamp,
        /// The start of the certificate.
        not_before: Timestamp,
    },
    /// No chain of good signatures leads to a root.
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    /// The certificate is not for clients.
    #[error("x509: certificate specifies an incompatible key usage")]
    IncompatibleUsage,
    /// The certificate is not one.
    #[error("x509: malformed certificate")]
    Malformed,
    /// Any other reason.
    #[error("x509: {0}")]
    Other(webpki::Error),
}

/// Verifies that `leaf` is good at `now` for a client and leads, over `intermediates`, to one of `roots`, or is itself
/// one of them.
///
/// Certificates of version 1, which `openssl x509 -req` makes unless told otherwise, are accepted when a root itself
/// signed them.
///
/// # Errors
///
/// See [`ChainError`]. Without roots every chain is of an unknown authority.
pub fn verify_client(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &CaBundle,
    now: Timestamp,
) -> Result<(), ChainError> {
    if roots.ders().iter().any(|root| root == leaf) {
        return verify_trusted_client(leaf, now);
    }
    verify(leaf, intermediates, roots, now, KeyUsage::client_auth())
}

/// A certificate that is trusted itself needs no issuer, and may be a CA's.
fn verify_trusted_client(leaf: &[u8], now: Timestamp) -> Result<(), ChainError> {
    let leaf = certificate::parse(leaf).map_err(|_| ChainError::Malformed)?;
    check_time(&leaf, now)?;
    let usage = leaf.extended_key_usage().map_err(|_| ChainError::Malformed)?;
    if usage.is_none_or(|usage| usage.value.client_auth || usage.value.any) {
        Ok(())
    } else {
        Err(ChainError::IncompatibleUsage)
    }
}

/// As [`verify_client`], for the certificate of a server. Names are not looked at.
///
/// # Errors
///
/// See [`ChainError`].
pub fn verify_server(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &CaBundle,
    now: Timestamp,
) -> Result<(), ChainError> {
    verify(leaf, intermediates, roots, now, KeyUsage::server_auth())
}

fn verify(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &CaBundle,
    now: Timestamp,
    usage: KeyUsage,
) -> Result<(), ChainError> {
    let algorithms = default_provider().signature_verification_algorithms.all;
    let anchors: Vec<_> = roots
        .ders()
        .iter()
        .filter(|root| is_good_at(root, now))
        .filter_map(|root| anchor_from_trusted_cert(root).ok())
        .collect();
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let end_entity = match EndEntityCert::try_from(leaf) {
        Ok(end_entity) => end_entity,
        Err(webpki::Error::UnsupportedCertVersion) => return verify_version_1(leaf, roots, now, algorithms),
        Err(_) => return Err(ChainError::Malformed),
    };
    end_entity
        .verify_for_usage(algorithms, &anchors, intermediates, time, OrAny(usage), None, None)
        .map(|_| ())
        .map_err(|error| explain(error, now))
}

/// A certificate for any purpose is good for ours, as Go has it. webpki wants the purpose by name.
struct OrAny(KeyUsage);

impl ExtendedKeyUsageValidator for OrAny {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        const ANY: [usize; 5] = [2, 5, 29, 37, 0];
        match self.0.validate(purposes) {
            Err(webpki::Error::RequiredEkuNotFoundContext(context))
                if context.present.iter().any(|purpose| *purpose == ANY) =>
            {
                Ok(())
            }
            verdict => verdict,
        }
    }
}

fn explain(error: webpki::Error, now: Timestamp) -> ChainError {
    let timestamp = |time: UnixTime| {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
    };
    let now = whole_second(now);
    match error {
        webpki::Error::CertExpired { not_after, .. } => {
            ChainError::Expired { now, not_after: timestamp(not_after) }
        }
        webpki::Error::CertNotValidYet { not_before, .. } => {
            ChainError::NotYetValid { now, not_before: timestamp(not_before) }
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            ChainError::UnknownAuthority
        }
        webpki::Error::RequiredEkuNotFoundContext(_) => ChainError::IncompatibleUsage,
        webpki::Error::BadDer | webpki::Error::BadDerTime => ChainError::Malformed,
        other => ChainError::Other(other),
    }
}

/// webpki knows version 3 only. A certificate without extensions has few ways to be wrong: time, issuer, signature. One that
/// has extensions all the same, or a version that nobody has written down, would escape what they demand.
fn verify_version_1(
    leaf: &[u8],
    roots: &CaBundle,
    now: Timestamp,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> Result<(), ChainError> {
    let leaf = certificate::parse(leaf).map_err(|_| ChainError::Malformed)?;
    if !matches!(leaf.version(), X509Version::V1 | X509Version::V2) || !leaf.extensions().is_empty() {
        return Err(ChainError::Malformed);
    }
    check_time(&leaf, now)?;
    for root in roots.ders() {
        let Ok(root) = certificate::parse(root) else { continue };
        if root.subject().as_raw() == leaf.issuer().as_raw() && is_signed_by(&leaf, &root, algorithms) {
            return check_time(&root, now);
        }
    }
    Err(ChainError::UnknownAuthority)
}

fn is_signed_by(
    leaf: &X509Certificate<'_>,
    root: &X509Certificate<'_>,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> bool {
    // SubjectPublicKeyInfo, in it the AlgorithmIdentifier, whose contents are what webpki compares.
    let Some(key_algorithm) = contents(root.public_key().raw).and_then(contents) else {
        return false;
    };
    let key = root.public_key().subject_public_key.data.as_ref();
    let message = leaf.tbs_certificate.as_ref();
    let signature = leaf.signature_value.data.as_ref();
    // The algorithm named in the certificate is not looked at: a signature that verifies under any algorithm of the
    // provider for this kind of key is one that the holder of the key made over this very certificate.
    algorithms
        .iter()
        .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == key_algorithm)
        .any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
}

/// What is inside of the first DER element of `der`.
fn contents(der: &[u8]) -> Option<&[u8]> {
    use x509_parser::{asn1_rs::Any, prelude::FromDer as _};
    Any::from_der(der).ok().map(|(_, any)| any.data)
}

/// Is this root within its validity? webpki does not ask that of a root; Go does.
fn is_good_at(root: &CertificateDer<'_>, now: Timestamp) -> bool {
    certificate::parse(root).is_ok_and(|root| check_time(&root, now).is_ok())
}

fn check_time(certificate: &X509Certificate<'_>, now: Timestamp) -> Result<(), ChainError> {
    let malformed = |_| ChainError::Malformed;
    let validity = certificate.validity();
    let not_before = Timestamp::from_second(validity.not_before.timestamp()).map_err(malformed)?;
    let not_after = Timestamp::from_second(validity.not_after.timestamp()).map_err(malformed)?;
    let now = whole_second(now);
    if now < not_before {
        return Err(ChainError::NotYetValid { now, not_before });
    }
    if now > not_after {
        return Err(ChainError::Expired { now, not_after });
    }
    Ok(())
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;
