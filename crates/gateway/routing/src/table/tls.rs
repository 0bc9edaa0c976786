//! Port 443: which connection ends here, with which certificate, and which one goes on as it is.

use std::sync::Arc;

use pinniped_delegation::grants::SecretReference;
use pinniped_pki::{CaBundle, CertificatePair};

use super::{
    backend::TcpProxy,
    host::{HostMap, HostPattern, host_of},
    matching::RequestFacts,
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

/// From one version to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TlsVersions {
    /// The lowest.
    pub min: TlsVersion,
    /// The highest, which is not below.
    pub max: TlsVersion,
}

impl Default for TlsVersions {
    fn default() -> Self {
        Self { min: TlsVersion::V1_2, max: TlsVersion::V1_3 }
    }
}

/// Which parts of a client's certificate the backend is told, in `x-forwarded-client-cert`. A header of this name that
/// a client sends is always dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ForwardedCertificate {
    /// Its subject.
    pub subject: bool,
    /// Itself.
    pub certificate: bool,
    /// Its chain.
    pub chain: bool,
    /// Its DNS names.
    pub dns_names: bool,
    /// Its URI names.
    pub uri_names: bool,
}

/// What clients have to show in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientValidation {
    /// The CAs that the certificate may be of.
    pub ca: Arc<CaBundle>,
    /// Revocation lists, DER. The certificate must not be on one.
    pub revocations: Option<Arc<[Vec<u8>]>>,
    /// Only the client's own certificate is looked up there, not those above it.
    pub revocations_of_leaf_only: bool,
    /// A client without a certificate is welcome; one that is shown must be good.
    pub optional: bool,
    /// What the backend is told.
    pub forward: Option<ForwardedCertificate>,
}

/// What is inside TLS that ends here.
#[derive(Clone, Debug)]
pub enum Terminated {
    /// Requests. ALPN: `h2`, `http/1.1`.
    Http(Arc<Routes>),
    /// Bytes. No ALPN.
    Tcp(TcpProxy),
}

/// TLS ends here.
#[derive(Clone, Debug)]
pub struct Termination {
    /// What is served.
    pub certificate: Arc<CertificatePair>,
    /// The Secret that it is of. While this stays, another certificate is a renewed one.
    pub secret: SecretReference,
    /// The versions.
    pub versions: TlsVersions,
    /// What clients have to show.
    pub client_validation: Option<Arc<ClientValidation>>,
    /// What is inside.
    pub inside: Terminated,
}

/// What happens to a connection.
#[derive(Clone, Debug)]
pub enum TlsAction {
    /// Every byte goes on as it is, the ClientHello too.
    Passthrough(TcpProxy),
    /// TLS ends here.
    Terminate(Termination),
}

/// A host of port 443.
#[derive(Clone, Debug)]
pub struct TlsHost {
    /// Its name.
    pub pattern: HostPattern,
    /// What happens to its connections.
    pub action: TlsAction,
}

impl TlsHost {
    /// What to do with a request on a connection that was opened for `sni`. The two must name the same host: a
    /// client that has a certificate for one of them, or was asked for one, proves nothing for the other.
    pub fn route(&self, sni: &str, request: &RequestFacts<'_>) -> Decision<'_> {
        let TlsAction::Terminate(Termination { inside: Terminated::Http(routes), .. }) = &self.action else {
            return Decision::NotFound;
        };
        let host = host_of(request.authority);
        if !host.eq_ignore_ascii_case(sni) {
            return Decision::Misdirected;
        }
        // A server name may be deeper than the wildcard that it was found by; a request's host may not.
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

/// For clients that name no host, or one that nobody has: the hosts that asked for it, chosen by the `Host` header.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// What is served.
    pub certificate: Arc<CertificatePair>,
    /// The versions.
    pub versions: TlsVersions,
    /// The routes of each host.
    pub hosts: HostMap<Arc<Routes>>,
}

impl Fallback {
    /// What to do with a request.
    pub fn route(&self, request: &RequestFacts<'_>) -> Decision<'_> {
        match self.hosts.by_host(host_of(request.authority)).and_then(|routes| routes.find(request)) {
            Some(route) => Decision::Take(route),
            None => Decision::NotFound,
        }
    }
}

/// Where a connection belongs.
#[derive(Clone, Copy, Debug)]
pub enum TlsTarget<'a> {
    /// To this host.
    Host(&'a Arc<TlsHost>),
    /// To the hosts that serve those without a name.
    Fallback(&'a Arc<Fallback>),
}

/// Port 443.
#[derive(Debug, Default)]
pub struct TlsTable {
    /// The hosts.
    pub hosts: HostMap<Arc<TlsHost>>,
    /// For everything else.
    pub fallback: Option<Arc<Fallback>>,
}

impl TlsTable {
    /// Where a connection with this server name, or without one, belongs. Nowhere: it is closed, without a
    /// certificate.
    pub fn by_sni(&self, name: Option<&str>) -> Option<TlsTarget<'_>> {
        let host = name.and_then(|name| self.hosts.by_sni(name)).map(TlsTarget::Host);
        host.or_else(|| self.fallback.as_ref().map(TlsTarget::Fallback))
    }
}
