//! Verification of the certificate chain of a client or a server, after the handshake.
//!
//! A handshake only proves that the client has the private key of its certificate ([`crate::tls`]).
//! This module verifies the certificate itself, for each request, with the CAs that are current at
//! that moment. The error texts are those of Go's `crypto/x509`, which users recognize.

use jiff::Timestamp;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, anchor_from_trusted_cert,
};
use x509_parser::extensions::ExtendedKeyUsage;
use x509_parser::prelude::{X509Certificate, X509Version};

use crate::{CaBundle, certificate};

/// The reason why a chain was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A certificate of the chain has expired.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is after {not_after}")]
    Expired {
        /// The time of the verification.
        now: Timestamp,
        /// The end of the certificate's validity.
        not_after: Timestamp,
    },
    /// A certificate of the chain is not yet valid.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is before {not_before}")]
    NotYetValid {
        /// The time of the verification.
        now: Timestamp,
        /// The start of the certificate's validity.
        not_before: Timestamp,
    },
    /// No chain of valid signatures leads to a root.
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    /// The certificate is not for this purpose.
    #[error("x509: certificate specifies an incompatible key usage")]
    IncompatibleUsage,
    /// The certificate is malformed.
    #[error("x509: malformed certificate")]
    Malformed,
    /// Any other reason.
    #[error("x509: {0}")]
    Other(webpki::Error),
}

/// Verifies that `leaf` is valid at `now` for a client and leads, over `intermediates`, to one of
/// `roots`, or is itself one of them.
///
/// Certificates of version 1, which `openssl x509 -req` creates by default, are accepted when a
/// root itself signed them.
///
/// # Errors
///
/// See [`ChainError`]. Without roots every chain has an unknown authority.
pub fn verify_client(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &CaBundle,
    now: Timestamp,
) -> Result<(), ChainError> {
    if roots.ders().iter().any(|root| root == leaf) {
        return verify_trusted(leaf, now, |usage| usage.client_auth);
    }
    verify(leaf, intermediates, roots, now, KeyUsage::client_auth())
}

/// Verifies the certificate of a server that is itself one of the certificates that a client
/// trusts: it needs no issuer, and may be a CA certificate, as the clients of [`crate::tls`] accept
/// it. Names are not checked.
///
/// # Errors
///
/// See [`ChainError`].
pub fn verify_trusted_server(leaf: &CertificateDer<'_>, now: Timestamp) -> Result<(), ChainError> {
    verify_trusted(leaf, now, |usage| usage.server_auth)
}

/// Verifies time and purpose of a certificate that is itself trusted.
fn verify_trusted(
    leaf: &[u8],
    now: Timestamp,
    has_purpose: impl Fn(&ExtendedKeyUsage<'_>) -> bool,
) -> Result<(), ChainError> {
    let leaf = certificate::parse(leaf).map_err(|_| ChainError::Malformed)?;
    check_time(&leaf, now)?;
    let usage = leaf.extended_key_usage().map_err(|_| ChainError::Malformed)?;
    if usage.is_none_or(|usage| has_purpose(usage.value) || usage.value.any) {
        Ok(())
    } else {
        Err(ChainError::IncompatibleUsage)
    }
}

/// Verifies the certificate of a server like [`verify_client`]. Names are not checked.
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

/// Accepts a certificate for any purpose, as Go does. webpki requires the specific purpose.
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
            result => result,
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

/// Verifies a certificate that webpki does not support, because webpki supports only version 3. A
/// certificate without extensions needs only three checks: time, issuer, signature. A certificate
/// with extensions, or with an undefined version, is refused, because the requirements of its
/// extensions would not be checked.
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
    // The contents of the AlgorithmIdentifier in the SubjectPublicKeyInfo, which webpki compares.
    let Some(key_algorithm) = contents(root.public_key().raw).and_then(contents) else {
        return false;
    };
    let key = root.public_key().subject_public_key.data.as_ref();
    let message = leaf.tbs_certificate.as_ref();
    let signature = leaf.signature_value.data.as_ref();
    // The algorithm named in the certificate is not checked: if a signature verifies under any
    // algorithm of the provider for this kind of key, the owner of the key made it over this
    // certificate.
    algorithms
        .iter()
        .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == key_algorithm)
        .any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
}

/// Returns the contents of the first DER element of `der`.
fn contents(der: &[u8]) -> Option<&[u8]> {
    use x509_parser::{asn1_rs::Any, prelude::FromDer as _};
    Any::from_der(der).ok().map(|(_, any)| any.data)
}

/// Returns whether this root is within its validity. webpki does not check this; Go does.
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
