//! Parses the content of Secrets. The error texts are Contour's: they become the end of status
//! messages.

use k8s_openapi::api::core::v1::Secret;
use pinniped_pki::{BundleError, CaBundle, Certificate, CertificateError, CertificatePair, PairError, pem};

const CERTIFICATE: &str = "tls.crt";
const PRIVATE_KEY: &str = "tls.key";
const CA_BUNDLE: &str = "ca.crt";
const REVOCATION_LISTS: &str = "crl.pem";

/// The PEM label of a revocation list.
const REVOCATION_LIST: &str = "X509 CRL";

/// An error in a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::build) enum SecretFault {
    #[error("Secret not found")]
    NotFound,
    #[error("secret type is not \"kubernetes.io/tls\" or \"Opaque\"")]
    Type,
    #[error("missing TLS certificate")]
    NoCertificate,
    #[error("invalid TLS certificate: {0}")]
    Certificate(ContentFault),
    #[error("missing TLS private key")]
    NoPrivateKey,
    #[error("invalid TLS private key: {0}")]
    PrivateKey(ContentFault),
    #[error("empty \"ca.crt\" key")]
    NoCaBundle,
    #[error("invalid CA certificate bundle: {0}")]
    CaBundle(ContentFault),
    #[error("empty \"crl.pem\" key")]
    NoRevocationLists,
    #[error(transparent)]
    RevocationLists(ContentFault),
}

/// An error in a value of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::build) enum ContentFault {
    #[error("failed to parse PEM block")]
    BrokenBlock,
    #[error("unexpected block type '{0}'")]
    UnexpectedBlock(String),
    #[error("failed to locate certificate")]
    NoCertificate,
    #[error("certificate has no common name or subject alt name")]
    NoName,
    #[error("failed to locate private key")]
    NoPrivateKey,
    #[error("multiple private keys")]
    ManyPrivateKeys,
    #[error("failed to locate CRL")]
    NoRevocationList,
    #[error(transparent)]
    X509(CertificateError),
    #[error(transparent)]
    Pair(PairError),
    #[error(transparent)]
    Bundle(BundleError),
}

/// Parses a certificate chain and the key of its first certificate.
pub(super) fn serving(secret: &Secret) -> Result<CertificatePair, SecretFault> {
    check_type(secret)?;
    let certificate = value(secret, CERTIFICATE).ok_or(SecretFault::NoCertificate)?;
    check_chain(certificate).map_err(SecretFault::Certificate)?;
    let key = value(secret, PRIVATE_KEY).ok_or(SecretFault::NoPrivateKey)?;
    check_key(key).map_err(SecretFault::PrivateKey)?;
    // Contour leaves this check to Envoy, which refuses a mismatch without a status.
    CertificatePair::parse(certificate, key)
        .map_err(|error| SecretFault::PrivateKey(ContentFault::Pair(error)))
}

/// Parses a CA bundle.
pub(super) fn ca(secret: &Secret) -> Result<CaBundle, SecretFault> {
    check_type(secret)?;
    let bundle = value(secret, CA_BUNDLE).filter(|text| !text.is_empty()).ok_or(SecretFault::NoCaBundle)?;
    check_bundle(bundle).map_err(SecretFault::CaBundle)?;
    CaBundle::from_pem(bundle).map_err(|error| SecretFault::CaBundle(ContentFault::Bundle(error)))
}

/// Parses revocation lists into DER.
pub(super) fn revocations(secret: &Secret) -> Result<Vec<Vec<u8>>, SecretFault> {
    check_type(secret)?;
    let lists = value(secret, REVOCATION_LISTS).filter(|text| !text.is_empty());
    let (blocks, rest) = pem::blocks_and_rest(lists.ok_or(SecretFault::NoRevocationLists)?);
    let ders: Vec<_> = blocks
        .into_iter()
        .filter(|block| block.label == REVOCATION_LIST)
        .map(|block| block.contents.to_vec())
        .collect();
    let fault = if has_header(rest) {
        ContentFault::BrokenBlock
    } else if ders.is_empty() {
        ContentFault::NoRevocationList
    } else {
        return Ok(ders);
    };
    Err(SecretFault::RevocationLists(fault))
}

fn check_type(secret: &Secret) -> Result<(), SecretFault> {
    match secret.type_.as_deref() {
        None | Some("" | "Opaque" | "kubernetes.io/tls") => Ok(()),
        Some(_) => Err(SecretFault::Type),
    }
}

fn value<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret.data.as_ref()?.get(key).map(|value| value.0.as_slice())
}

fn check_chain(text: &[u8]) -> Result<(), ContentFault> {
    let (blocks, rest) = pem::blocks_and_rest(text);
    for (index, block) in blocks.iter().enumerate() {
        if block.label != pem::CERTIFICATE {
            return Err(ContentFault::UnexpectedBlock(block.label.clone()));
        }
        let certificate = Certificate::parse_der(&block.contents).map_err(ContentFault::X509)?;
        let is_named = !certificate.subject_cn.trim().is_empty()
            || !certificate.dns_names.is_empty()
            || !certificate.ip_addresses.is_empty();
        if index == 0 && !is_named {
            return Err(ContentFault::NoName);
        }
    }
    check_end(rest)?;
    if blocks.is_empty() { Err(ContentFault::NoCertificate) } else { Ok(()) }
}

/// Validates the PEM blocks of a bundle. Like Contour, it does not validate the certificates as
/// X.509.
fn check_bundle(text: &[u8]) -> Result<(), ContentFault> {
    let (blocks, rest) = pem::blocks_and_rest(text);
    if let Some(other) = blocks.iter().find(|block| block.label != pem::CERTIFICATE) {
        return Err(ContentFault::UnexpectedBlock(other.label.clone()));
    }
    check_end(rest)?;
    if blocks.is_empty() { Err(ContentFault::NoCertificate) } else { Ok(()) }
}

fn check_key(text: &[u8]) -> Result<(), ContentFault> {
    let (blocks, rest) = pem::blocks_and_rest(text);
    let mut keys = 0;
    for block in &blocks {
        match block.label.as_str() {
            "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => keys += 1,
            "EC PARAMETERS" => {}
            other => return Err(ContentFault::UnexpectedBlock(other.to_owned())),
        }
    }
    check_end(rest)?;
    match keys {
        0 => Err(ContentFault::NoPrivateKey),
        1 => Ok(()),
        _ => Err(ContentFault::ManyPrivateKeys),
    }
}

fn check_end(rest: &[u8]) -> Result<(), ContentFault> {
    if has_header(rest) { Err(ContentFault::BrokenBlock) } else { Ok(()) }
}

/// Returns whether text outside of PEM blocks contains a line with the start of a block. Other text
/// is allowed.
fn has_header(text: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN";
    const DASHES: &[u8] = b"-----";
    text.split(|byte| *byte == b'\n').any(|line| {
        let begin = line.windows(BEGIN.len()).position(|part| part == BEGIN);
        begin.is_some_and(|at| line[at + BEGIN.len()..].windows(DASHES.len()).any(|part| part == DASHES))
    })
}
