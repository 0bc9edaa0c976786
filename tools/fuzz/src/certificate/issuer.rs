//! Two CAs that are equal in each run, so that seeds stay valid. Their keys are public and have no
//! other use.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, PKCS_ED25519, SerialNumber};

/// The fixed current time.
pub const NOW: &str = "2026-11-21T12:00:00Z";
/// The required name of the front proxy.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// First byte of an input: the CA of clients signs the rest.
pub const SIGNED: u8 = 0;
/// First byte of an input: the CA of the front proxy signs the rest.
pub const SIGNED_BY_FRONT_PROXY_CA: u8 = 2;
/// First byte of an input: the rest is a list of certificates.
pub const CHAIN: u8 = 1;

/// A certificate authority.
pub struct Ca {
    /// Its certificate.
    pub der: Vec<u8>,
    /// The parameters of its certificate.
    pub params: CertificateParams,
    /// Its key.
    pub key: KeyPair,
    signer: Ed25519KeyPair,
}

impl Ca {
    /// The CA of ordinary clients.
    pub fn client() -> Self {
        Self::new("fuzz-client-ca", 7)
    }

    /// The CA of the front proxy.
    pub fn front_proxy() -> Self {
        Self::new("fuzz-front-proxy-ca", 9)
    }

    fn new(name: &str, seed: u8) -> Self {
        let key = key(seed);
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let der = params.self_signed(&key).expect("a CA can be made").der().to_vec();
        let signer = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("any 32 bytes are a key");
        Self { der, params, key, signer }
    }

    /// Returns a certificate around these bytes, which need not be valid.
    pub fn sign(&self, to_be_signed: &[u8]) -> Vec<u8> {
        // AlgorithmIdentifier of Ed25519, RFC 8410.
        const ALGORITHM: [u8; 7] = [0x30, 5, 6, 3, 0x2b, 0x65, 0x70];
        let signature = self.signer.sign(to_be_signed);
        let bits = [&[0][..], signature.as_ref()].concat();
        element(0x30, &[to_be_signed, &ALGORITHM, &element(3, &bits)].concat())
    }

    /// Returns the public key as encoded in a certificate.
    pub fn public_key(&self) -> Vec<u8> {
        self.signer.public_key().as_ref().to_vec()
    }
}

/// Returns the key that is derived from this seed.
pub fn key(seed: u8) -> KeyPair {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("any 32 bytes are a key");
    let pkcs8 = pair.to_pkcs8().expect("a key can be written");
    KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8.as_ref().into(), &PKCS_ED25519).expect("it is such a key")
}

/// Returns the parameters of a certificate that is valid at [`NOW`].
pub fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(1));
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2027, 1, 1);
    params
}

/// Whether the key made this signature; only Ed25519 is used here.
pub fn is_signed(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

/// Returns a DER element.
pub fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match contents.len() {
        length @ 0..=0x7f => out.push(length as u8),
        length => out.extend([0x83, (length >> 16) as u8, (length >> 8) as u8, length as u8]),
    }
    // DER requires the shortest form of a length.
    if let [_, 0x83, 0, high, low] = out[..] {
        out = if high == 0 { vec![tag, 0x81, low] } else { vec![tag, 0x82, high, low] };
    }
    out.extend_from_slice(contents);
    out
}
