//! A probe that records what a server presents in a handshake, to diagnose its configuration.
//!
//! The probe aborts every handshake as soon as it has all data, so no data is ever sent over an
//! unverified connection.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        ResolvesClientCert, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::WebPkiSupportedAlgorithms,
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{CipherRestriction, Profile, profile::provider};

/// The properties that a server presented.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentedTls {
    /// The server's certificates, leaf first; empty when the handshake failed before them.
    pub chain: Vec<CertificateDer<'static>>,
    /// Whether the server requested a client certificate.
    pub requests_client_certificate: bool,
}

/// A probe for one server.
#[derive(Debug)]
pub struct Probe {
    config: Arc<ClientConfig>,
    verifier: Arc<RecordingVerifier>,
}

#[derive(Debug)]
struct RecordingVerifier {
    presented: Mutex<PresentedTls>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Probe {
    /// Creates a probe that offers what a usual client offers.
    pub fn new(alpn: &[&[u8]]) -> Self {
        let provider = provider(&CipherRestriction::default());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = Arc::new(RecordingVerifier { presented: Mutex::default(), algorithms });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(Profile::Default.versions())
            .expect("every profile has suites and groups for its versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
            .with_client_cert_resolver(Arc::clone(&verifier) as Arc<dyn ResolvesClientCert>);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config.resumption = Resumption::disabled();
        Self { config: Arc::new(config), verifier }
    }

    /// Returns the configuration for one handshake, which will fail.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Returns what the server has presented so far.
    pub fn presented(&self) -> PresentedTls {
        self.verifier.presented.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RecordingVerifier {
    fn note(&self, note: impl FnOnce(&mut PresentedTls)) {
        note(&mut self.presented.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The error that aborts the handshake.
fn enough() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let chain = std::iter::once(end_entity).chain(intermediates);
        self.note(|presented| presented.chain = chain.cloned().map(CertificateDer::into_owned).collect());
        Err(enough())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(enough())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(enough())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ResolvesClientCert for RecordingVerifier {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.note(|presented| presented.requests_client_certificate = true);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use jiff::Timestamp;
    use rustls::{ClientConnection, ServerConnection};

    use super::*;
    use crate::tls::{ClientCertificates, server_config};
    use crate::{CertificateAuthority, CertificateStore, Validity};

    /// Exchanges messages between both sides until one of them fails.
    fn complete_handshake(client: &mut ClientConnection, server: &mut ServerConnection) -> bool {
        for _ in 0..10 {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut io::Cursor::new(wire)).unwrap();
            let refused = server.process_new_packets().is_err();
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut io::Cursor::new(wire)).unwrap();
            if client.process_new_packets().is_err() || refused {
                return false;
            }
        }
        true
    }

    #[test]
    fn a_probe_records_what_a_server_presents_and_never_connects() {
        crate::install_crypto_provider();
        let validity = Validity::starting(Timestamp::now(), Duration::from_secs(1000));
        let ca = CertificateAuthority::generate("ca", &validity).unwrap();
        let leaf = ca.issue_server(&["a.example.com".to_owned()], &[], &validity).unwrap();
        let store = CertificateStore::serving("serving");
        for (certificate, client_certificates) in [
            (None, ClientCertificates::Ignore),
            (Some(&leaf), ClientCertificates::Ignore),
            (Some(&leaf), ClientCertificates::Request(Arc::new(Vec::new))),
        ] {
            if let Some(leaf) = certificate {
                store.set(leaf.certificate_pem.as_bytes(), leaf.private_key_pem.as_bytes()).unwrap();
            }
            let asks = matches!(client_certificates, ClientCertificates::Request(_));
            for profile in [Profile::Default, Profile::Secure] {
                let ciphers = CipherRestriction::default();
                let config = server_config(profile, &ciphers, &store, client_certificates.clone(), &[b"h2"]);
                let probe = Probe::new(&[b"h2"]);
                let name = "other.example.com".try_into().unwrap();
                let mut client = ClientConnection::new(probe.config(), name).unwrap();
                let mut server = ServerConnection::new(config).unwrap();
                assert!(!complete_handshake(&mut client, &mut server), "it connected");
                let chain = store.current().map(|pair| pair.chain().to_vec()).unwrap_or_default();
                assert_eq!(probe.presented(), PresentedTls { chain, requests_client_certificate: asks });
            }
        }
    }
}
