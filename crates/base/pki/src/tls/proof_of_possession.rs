//! Accepts any client certificate whose key the client holds.
//!
//! The API server asks for a certificate (`tls.RequestClientCert`) and judges it when it authenticates a request, so
//! that an expired certificate beside a good token is no harm. rustls' own verifier would end the connection.

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use webpki::RawPublicKeyEntity;

use super::hints::Hints;
use crate::certificate;

/// The verifier.
#[derive(Debug)]
pub(super) struct ProofOfPossession {
    pub(super) hints: Hints,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ProofOfPossession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.hints.now()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = public_key(cert)?;
        let key = RawPublicKeyEntity::try_from(&spki).map_err(|_| CertificateError::BadEncoding)?;
        let (_, candidates) = self
            .algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == dss.scheme)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        // In TLS 1.2 a scheme does not name the curve, so each algorithm is tried.
        if candidates
            .iter()
            .any(|algorithm| key.verify_signature(*algorithm, message, dss.signature()).is_ok())
        {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &public_key(cert)?, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The key of a certificate of any version; webpki reads version 3 only.
fn public_key(cert: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
    let parsed = certificate::parse(cert).map_err(|_| CertificateError::BadEncoding)?;
    Ok(SubjectPublicKeyInfoDer::from(parsed.public_key().raw.to_vec()))
}
