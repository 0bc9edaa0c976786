//! TLS configurations of servers.

use std::{fmt, sync::Arc};

use rustls::{
    DistinguishedName, ServerConfig,
    server::{
        ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};

use super::{
    CipherRestriction, Profile, hints::Hints, profile::provider, proof_of_possession::ProofOfPossession,
};
use crate::CertificateStore;

/// Returns the subjects of the CAs whose client certificates the server accepts; called in every
/// handshake.
pub type ClientCaHints = Arc<dyn Fn() -> Vec<DistinguishedName> + Send + Sync>;

/// The handling of client certificates.
#[derive(Clone)]
pub enum ClientCertificates {
    /// The server requests no certificate.
    Ignore,
    /// The server requests a certificate with these CA names. The handshake also accepts a client
    /// without a certificate, or with an untrusted one; but the client must have its private key.
    Request(ClientCaHints),
}

impl fmt::Debug for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ignore => "Ignore",
            Self::Request(_) => "Request",
        })
    }
}

/// Returns the configuration of a server that presents the pair in `serving` for any name or none,
/// and fails handshakes while there is none.
///
/// Sessions are not resumed: command line clients open new connections each time, a cache would
/// keep the certificates of clients in memory, and a ticket must not extend the use of a refused
/// pair.
pub fn server_config(
    profile: Profile,
    ciphers: &CipherRestriction,
    serving: &CertificateStore,
    client_certificates: ClientCertificates,
    alpn: &[&[u8]],
) -> Arc<ServerConfig> {
    let provider = provider(ciphers);
    let verifier: Arc<dyn ClientCertVerifier> = match client_certificates {
        ClientCertificates::Ignore => Arc::new(NoClientAuth),
        ClientCertificates::Request(hints) => Arc::new(ProofOfPossession {
            hints: Hints::new(hints),
            algorithms: provider.signature_verification_algorithms,
        }),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(profile.versions())
        .expect("every profile has suites and groups for its versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(StoreResolver(serving.clone())));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// Resolves to the pair in the store.
#[derive(Debug)]
struct StoreResolver(CertificateStore);

impl ResolvesServerCert for StoreResolver {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.current().map(|pair| Arc::clone(pair.certified_key()))
    }
}
