//! The server's side.

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

/// Gives the subjects of the CAs whose client certificates are welcome; asked in every handshake.
pub type ClientCaHints = Arc<dyn Fn() -> Vec<DistinguishedName> + Send + Sync>;

/// What to do about client certificates.
#[derive(Clone)]
pub enum ClientCertificates {
    /// Never ask for one.
    Ignore,
    /// Ask for one with these hints. None, or one that nobody would trust, is as good in the handshake; but the
    /// client must hold its key.
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

/// A server which serves whatever `serving` holds, to any name or none, and fails handshakes while that is nothing.
///
/// Sessions are not resumed: kubectl and its like start afresh each time, a cache would hold the certificates of its
/// clients in memory, and a pair that is refused must not live on in tickets.
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
        .with_cert_resolver(Arc::new(Held(serving.clone())));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// Resolves to what the holder holds.
#[derive(Debug)]
struct Held(CertificateStore);

impl ResolvesServerCert for Held {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.current().map(|pair| Arc::clone(pair.certified_key()))
    }
}
