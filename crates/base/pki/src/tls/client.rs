//! TLS configurations of clients.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
    client::{
        Resumption, VerifierBuilderError, WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    sign::SingleCertAndKey,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use rustls_platform_verifier::Verifier;
use webpki::EndEntityCert;

use super::{CipherRestriction, Profile, profile::provider};
use crate::{CaBundle, CertificatePair, certificate};

/// A client connects to a few servers only.
const RESUMABLE_SESSIONS: usize = 16;

/// The certificate authorities that a client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// Those that the operating system, or the container image, trusts.
    System,
    /// Only these.
    Bundle(CaBundle),
}

/// The reason why there is no client configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The system has no roots, or they cannot be read.
    #[error("could not load the system's certificate authorities: {0}")]
    SystemRoots(#[source] Error),
    /// No certificate of the bundle can be a root.
    #[error("could not use CA bundle: {0}")]
    Bundle(#[source] VerifierBuilderError),
    /// The text is neither a DNS name nor an address.
    #[error("{0:?} is no name of a server")]
    Name(String),
}

/// Returns the configuration of a client without a certificate that verifies servers with `roots`.
///
/// # Errors
///
/// Returns an error when there are no roots.
pub fn client_config(profile: Profile, roots: Roots, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_with(profile, &CipherRestriction::default(), roots, alpn)
}

/// Returns a configuration like [`client_config`], with restricted TLS 1.2 suites.
///
/// # Errors
///
/// Returns an error when there are no roots.
pub fn client_config_with(
    profile: Profile,
    ciphers: &CipherRestriction,
    roots: Roots,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_with_certificate(profile, ciphers, roots, None, alpn)
}

/// Returns a configuration like [`client_config_with`] that presents `own` when the server requests
/// a certificate.
///
/// # Errors
///
/// Returns an error when there are no roots.
pub fn client_config_with_certificate(
    profile: Profile,
    ciphers: &CipherRestriction,
    roots: Roots,
    own: Option<&CertificatePair>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = provider(ciphers);
    let verifier = verifier(roots, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(profile.versions())
        .expect("every profile has suites and groups for its versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = presenting(builder, own);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(RESUMABLE_SESSIONS);
    Ok(Arc::new(config))
}

/// Completes a configuration: the client presents `own` when the server requests a certificate.
pub(super) fn presenting(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    own: Option<&CertificatePair>,
) -> ClientConfig {
    match own {
        Some(pair) => builder
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(pair.certified_key())))),
        None => builder.with_no_client_auth(),
    }
}

/// Returns the verifier of these configurations, for a client with a configuration of its own.
///
/// # Errors
///
/// Returns an error when there are no roots.
pub fn server_verifier(roots: Roots) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    verifier(roots, &provider(&CipherRestriction::default()))
}

fn verifier(roots: Roots, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    Ok(match roots {
        Roots::System => Arc::new(Verifier::new(Arc::clone(provider)).map_err(TlsError::SystemRoots)?),
        Roots::Bundle(bundle) => Arc::new(BundleVerifier::new(bundle, provider).map_err(TlsError::Bundle)?),
    })
}

/// The verifier of rustls with one addition: a server certificate that is itself in the bundle is
/// trusted even if it is a CA certificate. `openssl req -x509` creates such certificates, and Go
/// accepts them.
#[derive(Debug)]
pub(super) struct BundleVerifier {
    inner: Arc<WebPkiServerVerifier>,
    bundle: CaBundle,
}

impl BundleVerifier {
    pub(super) fn new(
        bundle: CaBundle,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, VerifierBuilderError> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(bundle.ders().iter().cloned());
        let inner =
            WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider)).build()?;
        Ok(Self { inner, bundle })
    }
}

impl ServerCertVerifier for BundleVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(error) if is_ca_as_server(&error) && self.bundle.ders().contains(end_entity) => {
                verify_trusted(end_entity, server_name, now)
            }
            result => result,
        }
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

fn is_ca_as_server(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Performs the remaining checks of a certificate that is itself trusted: purpose, time and name.
fn verify_trusted(
    end_entity: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let parsed = certificate::parse(end_entity).map_err(|_| CertificateError::BadEncoding)?;
    let purposes = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    if purposes.is_some_and(|purposes| !purposes.value.server_auth && !purposes.value.any) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    let unix =
        |time: i64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(time.max(0).unsigned_abs()));
    let not_before = unix(parsed.validity().not_before.timestamp());
    let not_after = unix(parsed.validity().not_after.timestamp());
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    EndEntityCert::try_from(end_entity)
        .and_then(|end_entity| end_entity.verify_is_valid_for_subject_name(server_name))
        .map_err(|_| CertificateError::NotValidForName)?;
    Ok(ServerCertVerified::assertion())
}
