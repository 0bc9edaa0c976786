//! TLS configurations of servers with many hosts: each host has its own certificate, and may
//! require a valid client certificate.

use std::sync::{Arc, LazyLock};

use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::CryptoProvider,
    server::{
        NoClientAuth, NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier,
        danger::ClientCertVerifier,
    },
    sign::SingleCertAndKey,
    version::{TLS12, TLS13},
};
use rustls_pki_types::CertificateRevocationListDer;

use super::{CipherRestriction, profile::provider};
use crate::{CaBundle, CertificatePair};

/// The TLS versions of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Only TLS 1.2.
    Only1_2,
    /// Only TLS 1.3.
    Only1_3,
    /// TLS 1.2 and 1.3.
    Both,
}

impl Versions {
    fn list(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Only1_2 => ONLY_1_2,
            Self::Only1_3 => ONLY_1_3,
            Self::Both => BOTH,
        }
    }
}

static ONLY_1_2: &[&SupportedProtocolVersion] = &[&TLS12];
static ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];
static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The requirements for client certificates, without which the handshake fails.
#[derive(Clone, Copy, Debug)]
pub struct ClientDemand<'a> {
    /// The CAs that may have issued a certificate.
    pub ca: &'a CaBundle,
    /// Certificate revocation lists in DER.
    pub revocations: Option<&'a [Vec<u8>]>,
    /// Whether only the client's own certificate is checked against the revocation lists.
    pub revocations_of_leaf_only: bool,
    /// Whether a client without a certificate is accepted.
    pub optional: bool,
}

/// The requirements cannot be verified.
#[derive(Debug, thiserror::Error)]
#[error("could not use the CA bundle or the revocation lists for client certificates: {0}")]
pub struct ClientDemandError(#[from] VerifierBuilderError);

/// Shared by all hosts, because there may be many thousands of them.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| provider(&CipherRestriction::default()));

/// Returns the configuration of a server that presents this pair for any name or none. Sessions are
/// not resumed, because a ticket must not extend the use of a pair or of a client's certificate
/// that is no longer valid.
///
/// # Errors
///
/// Returns an error when the requirements for client certificates cannot be verified.
pub fn host_config(
    versions: Versions,
    pair: &CertificatePair,
    demand: Option<ClientDemand<'_>>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ClientDemandError> {
    let verifier = match demand {
        Some(demand) => verifier(demand)?,
        None => Arc::new(NoClientAuth),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(versions.list())
        .expect("there are suites and groups for both versions")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(pair.certified_key()))));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn verifier(demand: ClientDemand<'_>) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(demand.ca.ders().iter().cloned());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&PROVIDER));
    if let Some(lists) = demand.revocations {
        builder = builder.with_crls(lists.iter().cloned().map(CertificateRevocationListDer::from));
        if demand.revocations_of_leaf_only {
            builder = builder.only_check_end_entity_revocation();
        }
    }
    if demand.optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build()
}
