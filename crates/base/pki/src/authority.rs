//! A certificate authority that is generated or loaded, and issues client and server certificates.
//!
//! The certificates are the same as those of upstream's certificate authority package, including
//! the order of subject attributes and extensions, because clients, tests and upgraded
//! installations depend on such certificates. `authority/profile.rs` has the extensions of each
//! kind, `authority/signer.rs` the adapter to keys of aws-lc-rs. `authority/request.rs` requests a
//! client certificate from another authority.

use std::{collections::BTreeMap, fmt, net::IpAddr, time::Duration};

use aws_lc_rs::{
    encoding::{AsDer, EcPrivateKeyRfc5915Der, PublicKeyX509Der},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use der::{
    Decode as _, Encode as _,
    asn1::{GeneralizedTime, OctetString},
    oid::db::rfc5280::ID_CE_SUBJECT_KEY_IDENTIFIER,
};
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use spki::SubjectPublicKeyInfoOwned;
use x509_cert::{
    builder::{Builder as _, CertificateBuilder},
    ext::pkix::SubjectKeyIdentifier,
    name::Name,
    serial_number::SerialNumber,
    time::Time,
};

use self::{
    profile::{Kind, Profile},
    signer::{Signature, Signer},
};
use crate::{
    CertificatePair, PrivateKeyPem,
    key::KeyPair,
    name,
    pair::PairError,
    pem::{self, CERTIFICATE},
    random::{RandomError, serial_number},
};

mod profile;
mod request;
mod signer;

pub use request::{ClientCertificateRequest, SignedCertificateError};

/// How far in the past certificates begin, for clocks that are slow.
const BACKDATED: Duration = Duration::from_secs(5 * 60);

/// The validity of a certificate. Whole seconds; both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not valid before this time.
    pub not_before: Timestamp,
    /// Not valid after this time.
    pub not_after: Timestamp,
}

impl Validity {
    /// Returns a validity from five minutes before `now`, for clocks that are slow, until
    /// `lifetime` after `now`. Ends outside of the range of [`Timestamp`] are clamped to it.
    pub fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let not_before = now.saturating_sub(BACKDATED).unwrap_or(Timestamp::MIN);
        let not_after = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
        Self { not_before: whole(not_before), not_after: whole(not_after) }
    }
}

/// The reason why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// No key could be generated.
    #[error("could not generate private key")]
    GenerateKey,
    /// No serial number could be generated.
    #[error("could not generate serial number: {0}")]
    SerialNumber(#[from] RandomError),
    /// The start or the end cannot be encoded in a certificate (years 1970 to 9999 here).
    #[error("could not encode validity {not_before} to {not_after}")]
    Validity {
        /// The requested start.
        not_before: Timestamp,
        /// The requested end.
        not_after: Timestamp,
    },
    /// The name cannot be encoded in a certificate.
    #[error("could not encode DNS name {0:?}: not ASCII")]
    DnsName(String),
    /// Another error while the certificate was built or signed.
    #[error("could not sign certificate: {0}")]
    Sign(#[source] x509_cert::builder::Error),
}

impl From<x509_cert::builder::Error> for IssueError {
    fn from(error: x509_cert::builder::Error) -> Self {
        Self::Sign(error)
    }
}

impl From<der::Error> for IssueError {
    fn from(error: der::Error) -> Self {
        Self::Sign(error.into())
    }
}

/// The reason why a CA could not be loaded. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The certificate and the key do not belong together.
    #[error("could not load CA: {0}")]
    Pair(#[source] PairError),
    /// The input has more than one certificate.
    #[error("invalid CA certificate: expected a single certificate, found {0} certificates")]
    NotSingle(usize),
    /// The certificate is not a CA certificate.
    #[error("invalid CA certificate: passed in key pair is not a CA")]
    NotCa,
    /// The certificate is a CA certificate, but its names or extensions cannot be copied to other
    /// certificates.
    #[error("invalid CA certificate: {0}")]
    Malformed(#[source] der::Error),
}

/// The subject of a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSubject {
    /// The common name.
    pub username: String,
    /// The organizations.
    pub groups: Vec<String>,
    /// The organizational units, one `key=value` for each value.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A new certificate and its key.
#[derive(Clone, Debug)]
pub struct IssuedPair {
    /// One `CERTIFICATE` block. Intermediate authorities of another signer follow it.
    pub certificate_pem: String,
    /// One PKCS#8 `PRIVATE KEY` block.
    pub private_key_pem: PrivateKeyPem,
    /// The validity as encoded in the certificate.
    pub validity: Validity,
}

/// A CA certificate and the key that signs for it.
pub struct CertificateAuthority {
    certificate_pem: String,
    certificate_der: CertificateDer<'static>,
    private_key_pem: PrivateKeyPem,
    subject: Name,
    /// The authorityKeyIdentifier of issued certificates, if the CA has one.
    key_id: Option<OctetString>,
    signer: Signer,
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("subject", &self.subject.to_string())
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// Generates a self-signed CA with a P-256 key. Its subject is the common name `common_name`.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no randomness, or `validity` cannot be encoded.
    pub fn generate(common_name: &str, validity: &Validity) -> Result<Self, IssueError> {
        let key = generate_key()?;
        let private_key = AsDer::<EcPrivateKeyRfc5915Der<'_>>::as_der(&key.private_key())
            .map_err(|_| IssueError::GenerateKey)?;
        let private_key_pem = PrivateKeyPem::new(pem::encode("EC PRIVATE KEY", private_key.as_ref()));
        let public_key = public_key(&key)?;
        let signer = Signer::new(KeyPair::Ecdsa(key), public_key.clone());
        let subject = name::common_name(common_name)?;
        let key_id = key_id(&public_key)?;
        let profile =
            Profile { issuer: &subject, subject: subject.clone(), kind: Kind::Ca { key_id: &key_id } };
        let der = build(profile, validity, public_key, &signer)?;
        Ok(Self {
            certificate_pem: pem::encode(CERTIFICATE, &der),
            certificate_der: der.into(),
            private_key_pem,
            key_id: Some(key_id),
            subject,
            signer,
        })
    }

    /// Loads a CA from exactly one certificate and its key: RSA in PKCS#1 or PKCS#8, EC in SEC1 or
    /// PKCS#8, Ed25519.
    ///
    /// # Errors
    ///
    /// Returns an error when certificate and key do not belong together, when there is not exactly
    /// one certificate, or when it is not a CA certificate.
    pub fn load(cert_pem: &[u8], key_pem: &[u8]) -> Result<Self, LoadError> {
        let (pair, key) = CertificatePair::parse_with_key(cert_pem, key_pem).map_err(LoadError::Pair)?;
        let [der] = pair.chain() else { return Err(LoadError::NotSingle(pair.chain().len())) };
        if !pair.leaf().is_ca {
            return Err(LoadError::NotCa);
        }
        let certificate = x509_cert::Certificate::from_der(der).map_err(LoadError::Malformed)?;
        let tbs = certificate.tbs_certificate();
        let key_id = tbs
            .extensions()
            .into_iter()
            .flatten()
            .find(|extension| extension.extn_id == ID_CE_SUBJECT_KEY_IDENTIFIER)
            .map(|extension| SubjectKeyIdentifier::from_der(extension.extn_value.as_bytes()))
            .transpose()
            .map_err(LoadError::Malformed)?
            .map(|id| id.0);
        Ok(Self {
            certificate_pem: pair.certificate_pem().to_owned(),
            certificate_der: der.clone(),
            private_key_pem: pair.private_key_pem().clone(),
            subject: tbs.subject().clone(),
            key_id,
            signer: Signer::new(key, tbs.subject_public_key_info().clone()),
        })
    }

    /// Returns the CA certificate; a loaded one is unchanged.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the CA certificate in DER.
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate_der
    }

    /// Returns the CA's key: SEC1 (`EC PRIVATE KEY`) when it was generated here, unchanged when it
    /// was loaded.
    pub fn private_key_pem(&self) -> PrivateKeyPem {
        self.private_key_pem.clone()
    }

    /// Issues a client certificate with a new P-256 key.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no randomness, or `validity` cannot be encoded.
    pub fn issue_client(
        &self,
        subject: &ClientSubject,
        validity: &Validity,
    ) -> Result<IssuedPair, IssueError> {
        self.issue(name::client(subject)?, Kind::Client { authority: self.key_id.as_ref() }, validity)
    }

    /// Issues a server certificate with a new P-256 key and an empty subject.
    ///
    /// # Errors
    ///
    /// As [`Self::issue_client`], and when a DNS name is not ASCII.
    pub fn issue_server(
        &self,
        dns: &[String],
        ips: &[IpAddr],
        validity: &Validity,
    ) -> Result<IssuedPair, IssueError> {
        let names = profile::alternative_names(dns, ips)?;
        self.issue(Name::default(), Kind::Server { authority: self.key_id.as_ref(), names: &names }, validity)
    }

    fn issue(&self, subject: Name, kind: Kind<'_>, validity: &Validity) -> Result<IssuedPair, IssueError> {
        let key = generate_key()?;
        let pkcs8 = key.to_pkcs8v1().map_err(|_| IssueError::GenerateKey)?;
        let profile = Profile { issuer: &self.subject, subject, kind };
        let der = build(profile, validity, public_key(&key)?, &self.signer)?;
        Ok(IssuedPair {
            certificate_pem: pem::encode(CERTIFICATE, &der),
            private_key_pem: PrivateKeyPem::new(pem::encode("PRIVATE KEY", pkcs8.as_ref())),
            validity: *validity,
        })
    }
}

fn generate_key() -> Result<EcdsaKeyPair, IssueError> {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| IssueError::GenerateKey)
}

fn public_key(key: &EcdsaKeyPair) -> Result<SubjectPublicKeyInfoOwned, IssueError> {
    let der = AsDer::<PublicKeyX509Der<'_>>::as_der(key.public_key()).map_err(|_| IssueError::GenerateKey)?;
    Ok(SubjectPublicKeyInfoOwned::from_der(der.as_ref())?)
}

/// Returns the first 160 bits of the SHA-256 of the key (RFC 7093, method 1), as Go computes it.
fn key_id(public_key: &SubjectPublicKeyInfoOwned) -> Result<OctetString, IssueError> {
    let bits = public_key.subject_public_key.raw_bytes();
    let sum = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bits);
    Ok(OctetString::new(&sum.as_ref()[..20])?)
}

fn build(
    profile: Profile<'_>,
    validity: &Validity,
    public_key: SubjectPublicKeyInfoOwned,
    signer: &Signer,
) -> Result<Vec<u8>, IssueError> {
    let serial = SerialNumber::new(&serial_number()?)?;
    let builder = CertificateBuilder::new(profile, serial, encode_validity(validity)?, public_key)?;
    let certificate = builder.build::<_, Signature>(signer)?;
    Ok(certificate.to_der()?)
}

fn encode_validity(validity: &Validity) -> Result<x509_cert::time::Validity, IssueError> {
    let encode = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).ok()?;
        // The builder converts it to the UTCTime that RFC 5280 requires up to the year 2049.
        GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).ok().map(Time::GeneralTime)
    };
    match (encode(validity.not_before), encode(validity.not_after)) {
        (Some(not_before), Some(not_after)) => Ok(x509_cert::time::Validity::new(not_before, not_after)),
        _ => Err(IssueError::Validity { not_before: validity.not_before, not_after: validity.not_after }),
    }
}

#[cfg(test)]
mod tests;
