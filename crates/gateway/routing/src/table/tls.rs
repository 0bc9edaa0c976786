//! Port 443: the hosts whose connections are terminated, with their certificates, and those whose
//! connections are passed through.

use std::collections::HashMap;
use std::sync::Arc;

use pinniped_delegation::grants::SecretReference;
use pinniped_pki::{CaBundle, CertificatePair};

use super::{
    backend::TcpProxy,
    host::{HostMap, HostPattern, host_of},
    matching::RequestParts,
    routes::{Decision, Routes},
};

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2.
    V1_2,
    /// 1.3.
    V1_3,
}

/// A range of TLS versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TlsVersions {
    /// The lowest version.
    pub min: TlsVersion,
    /// The highest version; not lower than `min`.
    pub max: TlsVersion,
}

impl Default for TlsVersions {
    fn default() -> Self {
        Self { min: TlsVersion::V1_2, max: TlsVersion::V1_3 }
    }
}

/// The parts of the client certificate that the backend receives in `x-forwarded-client-cert`. A
/// header of this name from a client is always removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ForwardedCertificate {
    /// The subject.
    pub subject: bool,
    /// The certificate.
    pub certificate: bool,
    /// The certificate chain.
    pub chain: bool,
    /// The DNS names.
    pub dns_names: bool,
    /// The URI names.
    pub uri_names: bool,
}

/// The requirements for client certificates in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientValidation {
    /// The trusted CAs.
    pub ca: Arc<CaBundle>,
    /// Revocation lists in DER form, which must not contain the certificate.
    pub revocations: Option<Arc<[Vec<u8>]>>,
    /// Checks only the client's own certificate against the lists, not the intermediate ones.
    pub revocations_of_leaf_only: bool,
    /// Accepts clients without a certificate; a certificate that a client presents must still be
    /// valid.
    pub optional: bool,
    /// The parts of the certificate that the backend receives.
    pub forward: Option<ForwardedCertificate>,
}

/// The content of a terminated TLS connection.
#[derive(Clone, Debug)]
pub enum Terminated {
    /// HTTP requests. ALPN: `h2`, `http/1.1`.
    Http(Arc<Routes>),
    /// Bytes. No ALPN.
    Tcp(TcpProxy),
}

/// The parameters of TLS termination.
#[derive(Clone, Debug)]
pub struct Termination {
    /// The serving certificate.
    pub certificate: Arc<CertificatePair>,
    /// The Secret of the certificate. While this is the same, another certificate is a renewal.
    pub secret: SecretReference,
    /// The TLS versions.
    pub versions: TlsVersions,
    /// The requirements for client certificates.
    pub client_validation: Option<Arc<ClientValidation>>,
    /// The content of the connection.
    pub inside: Terminated,
}

/// The action for a connection.
#[derive(Clone, Debug)]
pub enum TlsAction {
    /// Relays every byte unchanged, including the ClientHello.
    Passthrough(TcpProxy),
    /// Terminates TLS.
    Terminate(Termination),
}

/// A host of port 443.
#[derive(Clone, Debug)]
pub struct TlsHost {
    /// The name or wildcard.
    pub pattern: HostPattern,
    /// The action for its connections.
    pub action: TlsAction,
}

impl TlsHost {
    /// Returns the decision for a request on a connection with the server name `sni`. Both must
    /// name the same host: a client certificate that one host requires or accepts proves nothing
    /// for another host.
    pub fn route(&self, sni: &str, request: &RequestParts<'_>) -> Decision<'_> {
        let TlsAction::Terminate(Termination { inside: Terminated::Http(routes), .. }) = &self.action else {
            return Decision::NotFound;
        };
        let host = host_of(request.authority);
        if !host.eq_ignore_ascii_case(sni) {
            return Decision::Misdirected;
        }
        // A wildcard matches server names at any depth, but only one label of a request's host.
        let one_label = match &self.pattern {
            HostPattern::Wildcard(rest) => host
                .split_once('.')
                .is_some_and(|(label, after)| !label.is_empty() && after.eq_ignore_ascii_case(rest)),
            HostPattern::Exact(_) | HostPattern::Any => true,
        };
        match routes.find(request) {
            Some(route) if one_label => Decision::Take(route),
            _ => Decision::NotFound,
        }
    }
}

/// The hosts for clients without a known server name, selected by the `Host` header. A host must
/// request it.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// The serving certificate.
    pub certificate: Arc<CertificatePair>,
    /// The TLS versions.
    pub versions: TlsVersions,
    /// The routes of each host.
    pub hosts: HostMap<Arc<Routes>>,
}

impl Fallback {
    /// Returns the decision for a request.
    pub fn route(&self, request: &RequestParts<'_>) -> Decision<'_> {
        match self.hosts.by_host(host_of(request.authority)).and_then(|routes| routes.find(request)) {
            Some(route) => Decision::Take(route),
            None => Decision::NotFound,
        }
    }
}

/// The destination of a connection.
#[derive(Clone, Copy, Debug)]
pub enum TlsTarget<'a> {
    /// This host.
    Host(&'a Arc<TlsHost>),
    /// The hosts for clients without a known server name.
    Fallback(&'a Arc<Fallback>),
}

/// Port 443.
#[derive(Debug, Default)]
pub struct TlsTable {
    /// The hosts.
    pub hosts: HostMap<Arc<TlsHost>>,
    /// The fallback for all other connections.
    pub fallback: Option<Arc<Fallback>>,
}

impl TlsTable {
    /// Returns the destination of a connection with or without a server name. `None` means that the
    /// connection is closed without a certificate.
    pub fn by_sni(&self, name: Option<&str>) -> Option<TlsTarget<'_>> {
        let host = name.and_then(|name| self.hosts.by_sni(name)).map(TlsTarget::Host);
        host.or_else(|| self.fallback.as_ref().map(TlsTarget::Fallback))
    }

    /// Returns the serving certificates, each of them once, in any order.
    pub fn certificates(&self) -> Vec<&CertificatePair> {
        let hosts = self.hosts.iter().filter_map(|(_, host)| match &host.action {
            TlsAction::Terminate(termination) => Some(&termination.certificate),
            TlsAction::Passthrough(_) => None,
        });
        let fallback = self.fallback.iter().map(|fallback| &fallback.certificate);
        // The builder creates one value for each Secret.
        let unique: HashMap<_, _> = hosts.chain(fallback).map(|pair| (Arc::as_ptr(pair), &**pair)).collect();
        unique.into_values().collect()
    }
}
