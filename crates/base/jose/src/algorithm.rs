//! The signature algorithms (RFC 7518, section 3).

use std::fmt;

use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::signature::{self, EcdsaVerificationAlgorithm, RsaParameters};

/// A signature algorithm with a key pair. Algorithms with a shared secret, and `none`, are
/// deliberately not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// ECDSA with P-521 and SHA-512.
    Es512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
}

/// A curve, which determines the algorithm (RFC 7518, section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Curve {
    P256,
    P384,
    P521,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Es256,
        Self::Es384,
        Self::Es512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
    ];

    /// The algorithms of an RSA key.
    pub(crate) const RSA: [Self; 6] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512];

    /// Returns the algorithm with this name, which is case-sensitive.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Es512 => "ES512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
        }
    }

    /// Returns the hash of `data` with the algorithm's hash function.
    pub fn digest(self, data: &[u8]) -> Digest {
        let function = match self {
            Self::Rs256 | Self::Es256 | Self::Ps256 => &digest::SHA256,
            Self::Rs384 | Self::Es384 | Self::Ps384 => &digest::SHA384,
            Self::Rs512 | Self::Es512 | Self::Ps512 => &digest::SHA512,
        };
        digest::digest(function, data)
    }

    /// Returns the parameters of an RSA algorithm. They refuse keys below 2048 and above 8192 bits.
    pub(crate) fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Self::Es256 | Self::Es384 | Self::Es512 => return None,
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Curve {
    /// Returns the curve with this name in a JWK (RFC 7518, section 6.2.1.1).
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "P-256" => Some(Self::P256),
            "P-384" => Some(Self::P384),
            "P-521" => Some(Self::P521),
            _ => None,
        }
    }

    /// Returns the length of a coordinate in bytes.
    pub(crate) fn coordinate(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }

    /// Returns the algorithms of a key on this curve: one.
    pub(crate) fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::P256 => &[Algorithm::Es256],
            Self::P384 => &[Algorithm::Es384],
            Self::P521 => &[Algorithm::Es512],
        }
    }

    pub(crate) fn ecdsa(self) -> &'static EcdsaVerificationAlgorithm {
        match self {
            Self::P256 => &signature::ECDSA_P256_SHA256_FIXED,
            Self::P384 => &signature::ECDSA_P384_SHA384_FIXED,
            Self::P521 => &signature::ECDSA_P521_SHA512_FIXED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_has_its_name_and_no_other_name_is_one() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::parse(algorithm.as_str()), Some(algorithm));
        }
        for name in ["none", "None", "HS256", "HS384", "HS512", "rs256", "ES256K", "EdDSA", "RSA-OAEP", ""] {
            assert_eq!(Algorithm::parse(name), None, "{name}");
        }
    }
}
