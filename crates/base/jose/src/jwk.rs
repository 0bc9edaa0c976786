//! A public key (RFC 7517) that verifies signatures.

use std::fmt;
use std::sync::OnceLock;

use aws_lc_rs::signature::{ParsedPublicKey, RsaPublicKeyComponents};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::Algorithm;
use crate::algorithm::Curve;
use crate::json::from_object;
use crate::jws::Jws;

/// Sizes of RSA keys in bits. RFC 7518, section 3.3, requires 2048 or more; Go 1.26 accepts 1024.
/// The upper limit bounds the time of a verification.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Maximum length of an RSA exponent in bytes. Larger exponents only make a verification slow.
const MAX_EXPONENT: usize = 4;

/// The reason why a key does not verify signatures.
#[derive(Debug, thiserror::Error)]
pub enum JwkError {
    /// The text is not a JWK.
    #[error("not a JSON Web Key")]
    Json(#[source] serde_json::Error),
    /// The type of the key, or its curve, is not supported.
    #[error("the type of the key is not supported")]
    UnsupportedType,
    /// The key is for encryption, or for signing only (`use`, `key_ops`).
    #[error("the key is not for the verification of signatures")]
    Purpose,
    /// The key contains a private key, so every reader of the key set can sign with it.
    #[error("the key contains a private key")]
    Private,
    /// The algorithm of the key is not supported, or does not fit its type or curve.
    #[error("the algorithm of the key is not supported, or does not fit its type")]
    Algorithm,
    /// A number of the key is missing or malformed.
    #[error("the key parameter {0:?} is not valid")]
    Parameter(&'static str),
    /// An RSA key is too short or too long.
    #[error("the RSA key has {0} bits")]
    Size(usize),
}

/// A public key. The form that the cryptographic library needs is prepared on first use and then
/// cached, so that a verification costs no more than the signature.
pub struct PublicKey {
    id: Option<String>,
    material: Material,
    /// The algorithms for which the key is made.
    uses: Box<[Use]>,
}

#[derive(PartialEq, Eq, Hash)]
enum Material {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Ec { curve: Curve, point: Vec<u8> },
}

struct Use {
    algorithm: Algorithm,
    /// `None` if the library refuses the key, for example a point that is not on the curve.
    prepared: OnceLock<Option<ParsedPublicKey>>,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The parts that distinguish a key from others: its ID, its parameters, and its algorithms.
#[derive(PartialEq, Eq, Hash)]
pub struct KeyIdentity<'k> {
    id: Option<&'k str>,
    material: &'k Material,
    algorithms: Vec<Algorithm>,
}

/// The members that are read. `x5u`, `x5c` and thumbprints are not.
#[derive(Deserialize)]
struct RawJwk {
    kty: String,
    #[serde(rename = "use")]
    use_: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    d: Option<IgnoredAny>,
}

impl PublicKey {
    /// Parses a JWK.
    ///
    /// # Errors
    /// Returns the reason why the key does not verify signatures.
    pub fn parse(json: &str) -> Result<Self, JwkError> {
        let raw: RawJwk = from_object(json.as_bytes()).map_err(JwkError::Json)?;
        let is_for_signatures = raw.use_.as_deref().is_none_or(|purpose| purpose == "sig");
        let verifies = raw.key_ops.as_ref().is_none_or(|all| all.iter().any(|one| one == "verify"));
        let (material, all): (_, &[Algorithm]) = match raw.kty.as_str() {
            "RSA" => (rsa(&raw)?, &Algorithm::RSA),
            "EC" => ec(&raw)?,
            _ => return Err(JwkError::UnsupportedType),
        };
        if !(is_for_signatures && verifies) {
            return Err(JwkError::Purpose);
        }
        if raw.d.is_some() {
            return Err(JwkError::Private);
        }
        let named = raw.alg.as_deref().filter(|name| !name.is_empty());
        let uses: Box<[Use]> = all
            .iter()
            .filter(|algorithm| named.is_none_or(|name| name == algorithm.as_str()))
            .map(|&algorithm| Use { algorithm, prepared: OnceLock::new() })
            .collect();
        if uses.is_empty() {
            return Err(JwkError::Algorithm);
        }
        Ok(Self { id: raw.kid.filter(|id| !id.is_empty()), material, uses })
    }

    /// Returns the ID of the key (`kid`), unless it is empty.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the parts by which keys are compared.
    pub fn identity(&self) -> KeyIdentity<'_> {
        let algorithms = self.uses.iter().map(|one| one.algorithm).collect();
        KeyIdentity { id: self.id(), material: &self.material, algorithms }
    }

    /// Returns whether the key is made for this algorithm.
    pub fn is_for(&self, algorithm: Algorithm) -> bool {
        self.uses.iter().any(|one| one.algorithm == algorithm)
    }

    /// Returns whether the key signed the token with `algorithm`, which must be the token's.
    pub(crate) fn has_signed(&self, jws: &Jws<'_>, algorithm: Algorithm) -> bool {
        let Some(one) = self.uses.iter().find(|one| one.algorithm == algorithm) else { return false };
        let prepared = one.prepared.get_or_init(|| self.material.prepare(algorithm));
        let valid = |key: &ParsedPublicKey| key.verify_sig(jws.signing_input(), jws.signature()).is_ok();
        prepared.as_ref().is_some_and(valid)
    }
}

impl Material {
    fn prepare(&self, algorithm: Algorithm) -> Option<ParsedPublicKey> {
        match self {
            Self::Rsa { modulus, exponent } => {
                let components = RsaPublicKeyComponents { n: modulus, e: exponent };
                components.to_parsed_public_key(algorithm.rsa()?).ok()
            }
            Self::Ec { curve, point } => ParsedPublicKey::new(curve.ecdsa(), point).ok(),
        }
    }
}

fn rsa(raw: &RawJwk) -> Result<Material, JwkError> {
    let modulus = number("n", raw.n.as_deref())?;
    let exponent = number("e", raw.e.as_deref())?;
    let bits = modulus.len() * 8 - modulus.first().map_or(0, |first| first.leading_zeros() as usize);
    if !RSA_BITS.contains(&bits) {
        return Err(JwkError::Size(bits));
    }
    // An even modulus is no product of two odd primes, and an even exponent has no inverse.
    if modulus.last().is_none_or(|last| last % 2 == 0) {
        return Err(JwkError::Parameter("n"));
    }
    if exponent.len() > MAX_EXPONENT || exponent.last().is_none_or(|last| last % 2 == 0) || exponent == [1] {
        return Err(JwkError::Parameter("e"));
    }
    Ok(Material::Rsa { modulus, exponent })
}

fn ec(raw: &RawJwk) -> Result<(Material, &'static [Algorithm]), JwkError> {
    let curve = raw.crv.as_deref().and_then(Curve::parse).ok_or(JwkError::UnsupportedType)?;
    let mut point = Vec::with_capacity(1 + 2 * curve.coordinate());
    // The uncompressed form.
    point.push(4);
    for (name, text) in [("x", raw.x.as_deref()), ("y", raw.y.as_deref())] {
        let bytes = decode(name, text)?;
        // RFC 7518, section 6.2.1.2: leading zeros are part of the coordinate.
        if bytes.len() != curve.coordinate() {
            return Err(JwkError::Parameter(name));
        }
        point.extend_from_slice(&bytes);
    }
    Ok((Material::Ec { curve, point }, curve.algorithms()))
}

/// Decodes a number. Leading zeros are dropped: some providers write a sign byte.
fn number(name: &'static str, text: Option<&str>) -> Result<Vec<u8>, JwkError> {
    let mut bytes = decode(name, text)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    Ok(bytes)
}

/// Decodes base64url. Some providers add padding, which Go's libraries drop.
fn decode(name: &'static str, text: Option<&str>) -> Result<Vec<u8>, JwkError> {
    let text = text.ok_or(JwkError::Parameter(name))?.trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(text).map_err(|_| JwkError::Parameter(name))
}

#[cfg(test)]
mod tests;
