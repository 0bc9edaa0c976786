//! Signs tokens, for tests only.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::Algorithm;

/// A key pair that signs tokens with one algorithm.
pub struct Signer {
    algorithm: Algorithm,
    id: String,
    pair: Pair,
}

enum Pair {
    Rsa(Box<RsaKeyPair>),
    Ec(EcdsaKeyPair),
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Encodes as base64url without padding.
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns a token with this header, payload and signature.
pub fn token(header: &str, payload: &str, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let input = format!("{}.{}", base64url(header), base64url(payload));
    let signature = base64url(sign(input.as_bytes()));
    format!("{input}.{signature}")
}

impl Signer {
    /// Generates a key pair; RSA keys have 2048 bits.
    ///
    /// # Panics
    /// Panics when no key can be generated.
    pub fn generate(algorithm: Algorithm, id: &str) -> Self {
        let pair = match ecdsa(algorithm) {
            None => Pair::Rsa(Box::new(RsaKeyPair::generate(KeySize::Rsa2048).expect("an RSA key"))),
            Some(curve) => Pair::Ec(EcdsaKeyPair::generate(curve).expect("an EC key")),
        };
        Self { algorithm, id: id.to_owned(), pair }
    }

    /// Returns the ID of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the public key as JWK with `kid`, `use` and `alg`.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let (n, e) = rsa_numbers(pair.public_key().as_ref());
                json!({"kty": "RSA", "n": base64url(n), "e": base64url(e)})
            }
            Pair::Ec(pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = match self.algorithm {
                    Algorithm::Es384 => "P-384",
                    Algorithm::Es512 => "P-521",
                    _ => "P-256",
                };
                json!({"kty": "EC", "crv": curve, "x": base64url(x), "y": base64url(y)})
            }
        };
        jwk["kid"] = self.id.as_str().into();
        jwk["use"] = "sig".into();
        jwk["alg"] = self.algorithm.as_str().into();
        jwk
    }

    /// Returns the public key in the encoding of its library: for RSA, the DER of PKCS #1.
    pub fn public_key(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ec(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// Returns a token with the usual header and this payload.
    pub fn sign(&self, payload: &Value) -> String {
        let header = json!({"alg": self.algorithm.as_str(), "kid": self.id, "typ": "JWT"});
        self.sign_text(&header.to_string(), &payload.to_string())
    }

    /// Returns a token with any header and payload.
    pub fn sign_text(&self, header: &str, payload: &str) -> String {
        token(header, payload, |input| self.signature(input))
    }

    /// Returns the signature of `input`.
    ///
    /// # Panics
    /// Panics when the library cannot sign.
    pub fn signature(&self, input: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Ec(pair) => pair.sign(&random, input).expect("a signature").as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let encoding = match self.algorithm {
                    Algorithm::Rs384 => &signature::RSA_PKCS1_SHA384,
                    Algorithm::Rs512 => &signature::RSA_PKCS1_SHA512,
                    Algorithm::Ps256 => &signature::RSA_PSS_SHA256,
                    Algorithm::Ps384 => &signature::RSA_PSS_SHA384,
                    Algorithm::Ps512 => &signature::RSA_PSS_SHA512,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, input, &mut signed).expect("a signature");
                signed
            }
        }
    }

    /// Returns a key pair with the same keys and another algorithm of the same kind.
    ///
    /// # Panics
    /// Panics for an EC key, whose curve determines the algorithm.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        assert!(matches!(self.pair, Pair::Rsa(_)) && ecdsa(algorithm).is_none(), "only for RSA keys");
        Self { algorithm, ..self }
    }
}

/// Returns a JWK Set with the public keys.
pub fn key_set<'a>(signers: impl IntoIterator<Item = &'a Signer>) -> Value {
    json!({"keys": signers.into_iter().map(Signer::jwk).collect::<Vec<_>>()})
}

/// Returns the claim `at_hash` of an access token for SHA-256.
pub fn at_hash_sha256(access_token: &str) -> String {
    base64url(&digest(&SHA256, access_token.as_bytes()).as_ref()[..16])
}

fn ecdsa(algorithm: Algorithm) -> Option<&'static EcdsaSigningAlgorithm> {
    match algorithm {
        Algorithm::Es256 => Some(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        Algorithm::Es384 => Some(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        Algorithm::Es512 => Some(&signature::ECDSA_P521_SHA512_FIXED_SIGNING),
        _ => None,
    }
}

/// Reads modulus and exponent from `RSAPublicKey` in DER.
fn rsa_numbers(der: &[u8]) -> (&[u8], &[u8]) {
    let (sequence, _) = element(der);
    let (modulus, rest) = element(sequence);
    let (exponent, _) = element(rest);
    (modulus.strip_prefix(&[0]).unwrap_or(modulus), exponent)
}

/// Splits off the content of the first element.
fn element(der: &[u8]) -> (&[u8], &[u8]) {
    let (length, start) = match der[1] {
        short @ 0..0x80 => (usize::from(short), 2),
        long => {
            let count = usize::from(long & 0x7f);
            let length = der[2..2 + count].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, 2 + count)
        }
    };
    der[start..].split_at(length)
}
