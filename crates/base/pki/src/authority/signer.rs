//! An adapter that lets the builder of x509-cert sign with an aws-lc-rs key.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, RSA_PKCS1_SHA256},
};
use der::{
    Document, Encode as _,
    asn1::{Any, BitString, Null},
    oid::{
        ObjectIdentifier,
        db::{
            rfc5912::{
                ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, SHA_256_WITH_RSA_ENCRYPTION,
            },
            rfc8410::ID_ED_25519,
        },
    },
};
use spki::{
    AlgorithmIdentifierOwned, DynSignatureAlgorithmIdentifier, EncodePublicKey, SignatureBitStringEncoding,
    SubjectPublicKeyInfoOwned,
};

use crate::key::KeyPair;

/// A key that signs certificates, with the algorithm that Go selects for it.
pub(super) struct Signer {
    key: KeyPair,
    public_key: PublicKey,
    random: SystemRandom,
}

/// The public key, which is only encoded.
#[derive(Clone)]
pub(super) struct PublicKey(SubjectPublicKeyInfoOwned);

/// A signature as encoded in a certificate.
pub(super) struct Signature(pub(super) Vec<u8>);

impl Signer {
    pub(super) fn new(key: KeyPair, public_key: SubjectPublicKeyInfoOwned) -> Self {
        Self { key, public_key: PublicKey(public_key), random: SystemRandom::new() }
    }

    fn algorithm(&self) -> ObjectIdentifier {
        match &self.key {
            KeyPair::Rsa(_) => SHA_256_WITH_RSA_ENCRYPTION,
            KeyPair::Ed25519(_) => ID_ED_25519,
            KeyPair::Ecdsa(pair) if *pair.algorithm() == ECDSA_P256_SHA256_ASN1_SIGNING => ECDSA_WITH_SHA_256,
            KeyPair::Ecdsa(pair) if *pair.algorithm() == ECDSA_P384_SHA384_ASN1_SIGNING => ECDSA_WITH_SHA_384,
            KeyPair::Ecdsa(_) => ECDSA_WITH_SHA_512,
        }
    }
}

impl signature::Signer<Signature> for Signer {
    fn try_sign(&self, message: &[u8]) -> signature::Result<Signature> {
        let failed = |_| signature::Error::new();
        match &self.key {
            KeyPair::Rsa(pair) => {
                let mut bytes = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &self.random, message, &mut bytes).map_err(failed)?;
                Ok(Signature(bytes))
            }
            KeyPair::Ecdsa(pair) => {
                let signed = pair.sign(&self.random, message).map_err(failed)?;
                Ok(Signature(signed.as_ref().to_vec()))
            }
            KeyPair::Ed25519(pair) => {
                let signed = pair.try_sign(message).map_err(failed)?;
                Ok(Signature(signed.as_ref().to_vec()))
            }
        }
    }
}

impl signature::Keypair for Signer {
    type VerifyingKey = PublicKey;

    fn verifying_key(&self) -> PublicKey {
        self.public_key.clone()
    }
}

impl EncodePublicKey for PublicKey {
    fn to_public_key_der(&self) -> spki::Result<Document> {
        Ok(Document::try_from(self.0.to_der()?)?)
    }
}

impl DynSignatureAlgorithmIdentifier for Signer {
    fn signature_algorithm_identifier(&self) -> spki::Result<AlgorithmIdentifierOwned> {
        let oid = self.algorithm();
        // The parameters are NULL for RSA (RFC 4055, section 5) and absent for the others (RFC
        // 5758, section 3.2, and RFC 8410, section 3).
        let parameters = (oid == SHA_256_WITH_RSA_ENCRYPTION).then(|| Any::from(Null));
        Ok(AlgorithmIdentifierOwned { oid, parameters })
    }
}

impl SignatureBitStringEncoding for Signature {
    fn to_bitstring(&self) -> der::Result<BitString> {
        BitString::from_bytes(&self.0)
    }
}
