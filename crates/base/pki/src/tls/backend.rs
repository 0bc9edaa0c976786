//! TLS configurations of clients that connect to a backend. The backend's certificate is verified
//! only if there are requirements for it.

use std::sync::{Arc, LazyLock};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{
    CipherRestriction, Profile, TlsError,
    client::{BundleVerifier, presenting},
    profile::provider,
};
use crate::{CaBundle, CertificatePair};

/// The requirements for a backend's certificate.
#[derive(Clone, Copy, Debug)]
pub struct BackendTrust<'a> {
    /// The CAs that may have issued it.
    pub ca: &'a CaBundle,
    /// The names of which it must have at least one.
    pub names: &'a [Box<str>],
}

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| provider(&CipherRestriction::default()));

/// Returns the configuration of a client that accepts any certificate without `trust`, and presents
/// `own` when the server requests a certificate.
///
/// # Errors
///
/// Returns an error when the CA bundle has no usable root, or a name is invalid.
pub fn backend_config(
    trust: Option<BackendTrust<'_>>,
    own: Option<&CertificatePair>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Some(BackendTrust { ca, names }) => Arc::new(OneOf {
            inner: BundleVerifier::new(ca.clone(), &PROVIDER).map_err(TlsError::Bundle)?,
            names: names.iter().map(|name| server_name(name)).collect::<Result<_, _>>()?,
        }),
        None => Arc::new(Any),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(Profile::Default.versions())
        .expect("every profile has suites and groups for its versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = presenting(builder, own);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(4);
    Ok(Arc::new(config))
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))
}

/// Verifies that a certificate was issued by one of these CAs and has one of these names,
/// regardless of the dialled name.
#[derive(Debug)]
struct OneOf {
    inner: BundleVerifier,
    names: Vec<ServerName<'static>>,
}

impl ServerCertVerifier for OneOf {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut result = Err(CertificateError::NotValidForName.into());
        for name in &self.names {
            result = self.inner.verify_server_cert(end_entity, intermediates, name, ocsp_response, now);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Accepts any certificate. The connection is encrypted but not authenticated, which protects only
/// against passive attackers.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &PROVIDER.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &PROVIDER.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        PROVIDER.signature_verification_algorithms.supported_schemes()
    }
}
