//! Certificates for test peers and for the control plane's PKI, issued with rcgen.
//!
//! This module deliberately does not use the product's `pinniped-pki`, so that the peers of a test
//! do not share its errors.

use std::net::IpAddr;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate and its private key, both PEM.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate_pem: String,
    /// The private key, PKCS#8 PEM.
    pub private_key_pem: String,
}

impl Pair {
    /// Returns the certificate as DER.
    ///
    /// # Errors
    /// Returns an error when the certificate is not PEM.
    pub fn der(&self) -> anyhow::Result<Vec<u8>> {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        let der = CertificateDer::from_pem_slice(self.certificate_pem.as_bytes());
        Ok(der.context("not a certificate in PEM")?.to_vec())
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

/// A certificate authority.
pub struct Authority {
    /// The CA certificate.
    pub certificate_pem: String,
    /// The private key of the CA: PKCS#8, or PKCS#1 when [`Authority::rsa`] made it.
    pub private_key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates a self-signed CA with an ECDSA P-256 key.
    ///
    /// # Errors
    /// Returns an error when rcgen rejects the name.
    pub fn new(common_name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("could not create a key")?;
        let private_key_pem = key.serialize_pem();
        Self::with_key(common_name, key, private_key_pem)
    }

    /// Creates a self-signed CA as kubeadm does: RSA with 2048 bits, the key in PKCS#1 (`RSA
    /// PRIVATE KEY`).
    ///
    /// # Errors
    /// Returns an error when rcgen rejects the name.
    pub fn rsa(common_name: &str) -> anyhow::Result<Self> {
        let key = rsa_key()?;
        let private_key_pem = pkcs1_pem(&key)?;
        Self::with_key(common_name, key, private_key_pem)
    }

    /// Returns a CA that [`Authority::new`] made with this name.
    ///
    /// # Errors
    /// Returns an error when the key is not PEM.
    pub fn load(common_name: &str, certificate_pem: String, private_key_pem: String) -> anyhow::Result<Self> {
        let key = KeyPair::from_pem(&private_key_pem).context("could not read the CA's key")?;
        let issuer = Issuer::new(ca_params(common_name), key);
        Ok(Self { certificate_pem, private_key_pem, issuer })
    }

    fn with_key(common_name: &str, key: KeyPair, private_key_pem: String) -> anyhow::Result<Self> {
        let params = ca_params(common_name);
        let certificate = params.self_signed(&key).context("could not sign the CA")?;
        Ok(Self { certificate_pem: certificate.pem(), private_key_pem, issuer: Issuer::new(params, key) })
    }

    /// Issues a client certificate with at most one group.
    ///
    /// # Errors
    /// Returns an error when rcgen rejects the name.
    pub fn client(&self, common_name: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(common_name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    /// Issues a server certificate.
    ///
    /// # Errors
    /// Returns an error when a DNS name cannot be encoded.
    pub fn server(&self, common_name: &str, dns: &[&str], ips: &[IpAddr]) -> anyhow::Result<Pair> {
        self.issue(server_params(common_name, dns, ips)?)
    }

    /// Issues a server certificate with an RSA key of 2048 bits, in PKCS#8.
    ///
    /// # Errors
    /// Returns an error when a DNS name cannot be encoded.
    pub fn rsa_server(&self, common_name: &str, dns: &[&str], ips: &[IpAddr]) -> anyhow::Result<Pair> {
        self.issue_with(server_params(common_name, dns, ips)?, &rsa_key()?)
    }

    fn issue(&self, params: CertificateParams) -> anyhow::Result<Pair> {
        self.issue_with(params, &KeyPair::generate().context("could not create a key")?)
    }

    fn issue_with(&self, mut params: CertificateParams, key: &KeyPair) -> anyhow::Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer).context("could not sign a certificate")?;
        Ok(Pair { certificate_pem: certificate.pem(), private_key_pem: key.serialize_pem() })
    }
}

fn server_params(common_name: &str, dns: &[&str], ips: &[IpAddr]) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(dns.iter().map(|d| (*d).to_owned()).collect::<Vec<_>>())?;
    params.subject_alt_names.extend(ips.iter().copied().map(SanType::IpAddress));
    params.distinguished_name = name(common_name, None);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// Creates a key pair (private, public) for signing ServiceAccount tokens, as kubeadm does.
///
/// # Errors
/// Returns an error when the key cannot be generated.
pub fn service_account_key() -> anyhow::Result<(String, String)> {
    let key = rsa_key()?;
    Ok((pkcs1_pem(&key)?, key.public_key_pem()))
}

fn rsa_key() -> anyhow::Result<KeyPair> {
    KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).context("could not create an RSA key")
}

/// Extracts the RSA key from PKCS#8 (`SEQUENCE { INTEGER, SEQUENCE, OCTET STRING }`): the content
/// of the octet string.
fn pkcs1_pem(key: &KeyPair) -> anyhow::Result<String> {
    let der = key.serialize_der();
    let parsed = (|| {
        let (content, _) = element(&der)?;
        let (_, rest) = element(content)?;
        let (_, rest) = element(rest)?;
        Some(element(rest)?.0)
    })();
    let text = STANDARD.encode(parsed.context("the RSA key is no PKCS#8")?);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    Ok(format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n", lines.join("\n")))
}

/// Returns the content of the first DER element and the bytes after it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.get(1..)?.split_first()?;
    let (length, rest) = match first {
        short if *short < 0x80 => (usize::from(*short), rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f).min(4))?;
            (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
    };
    rest.split_at_checked(length)
}

fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(common_name, None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}
