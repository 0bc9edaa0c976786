//! A certificate authority: makes itself, or is loaded, and issues client and server certificates.
//!
//! What the certificates look like is upstream Pinniped's `internal/certauthority`, to the order of subject
//! attributes and extensions, because clients, tests and upgraded clusters hold such certificates. The extensions
//! of each kind are in `authority/profile.rs`, the way to aws-lc-rs' keys in `authority/signer.rs`.

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
mod signer;

/// How far back certificates begin, for clocks that run behind ours.
const BACKDATED: Duration = Duration::from_secs(5 * 60);

/// From when until when a certificate is good. Whole seconds; both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not valid before this time.
    pub not_before: Timestamp,
    /// Not valid after this time.
    pub not_after: Timestamp,
}

impl Validity {
    /// From five minutes before `now`, for clocks that run behind, until `lifetime` after it. Ends that lie
    /// outside of what a [`Timestamp`] can say are moved to its limits.
    pub fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let whole = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
        let not_before = now.saturating_sub(BACKDATED).unwrap_or(Timestamp::MIN);
        let not_after = now.saturating_add(lifetime).unwrap_or(Timestamp::MAX);
        Self { not_before: whole(not_before), not_after: whole(not_after) }
    }
}

/// Why nothing was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// No new key.
    #[error("could not generate private key")]
    GenerateKey,
    /// No serial number.
    #[error("could not generate serial number: {0}")]
    SerialNumber(#[from] RandomError),
    /// Start or end cannot be written into a certificate (which has years 1970 to 9999 here).
    #[error("could not encode validity {not_before} to {not_after}")]
    Validity {
        /// The wanted start.
        not_before: Timestamp,
        /// The wanted end.
        not_after: Timestamp,
    },
    /// A name that certificates cannot hold.
    #[error("could not encode DNS name {0:?}: not ASCII")]
    DnsName(String),
    /// Anything else that went wrong in building or signing.
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

/// Why a CA could not be loaded. The texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Certificate and key are not a pair.
    #[error("could not load CA: {0}")]
    Pair(#[source] PairError),
    /// There is a chain.
    #[error("invalid CA certificate: expected a single certificate, found {0} certificates")]
    NotSingle(usize),
    /// The certificate is not a CA's.
    #[error("invalid CA certificate: passed in key pair is not a CA")]
    NotCa,
    /// The certificate is a CA's, but its names or extensions are too odd to be carried over into others.
    #[error("invalid CA certificate: {0}")]
    Malformed(#[source] der::Error),
}

/// Who a client certificate is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSubject {
    /// Becomes the common name.
    pub username: String,
    /// Become the organizations.
    pub groups: Vec<String>,
    /// Become the organizational units, one `key=value` per value.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A fresh certificate and its key.
#[derive(Clone, Debug)]
pub struct IssuedPair {
    /// One `CERTIFICATE` block.
    pub certificate_pem: String,
    /// One PKCS#8 `PRIVATE KEY` block.
    pub private_key_pem: PrivateKeyPem,
    /// As written into the certificate.
    pub validity: Validity,
}

/// A CA certificate and the key that signs for it.
pub struct CertificateAuthority {
    certificate_pem: String,
    certificate_der: CertificateDer<'static>,
    private_key_pem: PrivateKeyPem,
    subject: Name,
    /// Goes into the certificates issued as authorityKeyIdentifier, where the CA has one.
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
    /// Makes a new, self-signed CA on P-256 whose subject is `common_name` alone.
    ///
    /// # Errors
    ///
    /// When there is no randomness, or `validity` cannot be written down.
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

    /// Loads a CA from exactly one certificate and its key: RSA in PKCS#1 or PKCS#8, EC in SEC1 or PKCS#8, Ed25519.
    ///
    /// # Errors
    ///
    /// When they are not a pair, not one, or not a CA.
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

    /// The CA's certificate; as it was given when it was loaded.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The CA's certificate.
    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate_der
    }

    /// The CA's key: SEC1 (`EC PRIVATE KEY`) when it was generated here, as given when it was loaded.
    pub fn private_key_pem(&self) -> PrivateKeyPem {
        self.private_key_pem.clone()
    }

    /// Issues a client certificate with a new P-256 key.
    ///
    /// # Errors
    ///
    /// When there is no randomness, or `validity` cannot be written down.
    pub fn issue_client(
        &self,
        subject: &ClientSubject,
        validity: &Validity,
    ) -> Result<IssuedPair, IssueError> {
        self.issue(name::client(subject)?, Kind::Client { authority: self.key_id.as_ref() }, validity)
    }

    /// Issues a server certificate with a new P-256 key and no subject.
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

/// The first 160 bits of the SHA-256 of the key (RFC 7093, method 1), as Go computes it.
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
        // The builder turns it into the UTCTime that RFC 5280 demands up to the year 2049.
        GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).ok().map(Time::GeneralTime)
    };
    match (encode(validity.not_before), encode(validity.not_after)) {
        (Some(not_before), Some(not_after)) => Ok(x509_cert::time::Validity::new(not_before, not_after)),
        _ => Err(IssueError::Validity { not_before: validity.not_before, not_after: validity.not_after }),
    }
}

#[cfg(test)]
mod tests;
