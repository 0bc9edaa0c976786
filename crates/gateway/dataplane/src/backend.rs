//! The state of backends in use: load balancing, and the servers behind each backend.
//!
//! A [`Backend`] lives as long as routing tables contain it, through any change of its endpoints. A
//! [`Server`] lives as long as its endpoint exists, and after that until the last connection or
//! request that uses it has finished.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fnv::FnvHashMap;
use pinniped_gateway_routing::table::{Backends, Balance, CONNECT_TIMEOUT, Upstream, UpstreamId};
use pinniped_http_client::upstream::{AddressParams, Upstream as Requests, UpstreamLimits};
use pinniped_pki::CertificatePair;
use pinniped_pki::tls::{BackendTrust, TlsError, backend_config};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The number of endpoints to try before the gateway gives up on a connection.
const ATTEMPTS: usize = 3;

/// A backend in use.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) id: UpstreamId,
    pub(crate) client_certificate: Option<Arc<CertificatePair>>,
    tls: OnceLock<Result<Arc<ClientConfig>, Arc<TlsError>>>,
    turn: AtomicU64,
    // The number of entries is bounded by the cluster's endpoints; clients cannot add any.
    servers: Mutex<FnvHashMap<SocketAddr, Arc<Server>>>,
}

/// An endpoint of a backend. Every user holds a reference, so the number of references is the load.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The HTTP client for this server, created by the first request.
    http: OnceLock<Requests>,
}

impl Backend {
    pub(crate) fn new(upstream: &Upstream) -> Self {
        Self {
            id: upstream.id.clone(),
            client_certificate: upstream.client_certificate.clone(),
            tls: OnceLock::new(),
            turn: AtomicU64::new(random()),
            servers: Mutex::default(),
        }
    }

    /// Returns whether this backend and the one in a routing table are the same.
    pub(crate) fn is(&self, upstream: &Upstream) -> bool {
        let same_certificate = match (&self.client_certificate, &upstream.client_certificate) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, Some(_)) | (Some(_), None) => false,
        };
        self.id == upstream.id && same_certificate
    }

    /// Removes the servers that are no longer endpoints.
    pub(crate) fn keep(&self, endpoints: &[SocketAddr]) {
        self.servers().retain(|address, _| endpoints.contains(address));
    }

    /// Returns the servers to try, in order.
    pub(crate) fn order(&self, endpoints: &[SocketAddr]) -> impl Iterator<Item = Arc<Server>> {
        self.turn(endpoints).map(|at| self.server(endpoints[at]))
    }

    /// Returns the order in which to try the endpoints, according to the load balancing policy.
    pub(crate) fn turn(&self, endpoints: &[SocketAddr]) -> EndpointOrder {
        let count = endpoints.len();
        let first = match (self.id.balance, count) {
            (_, 0 | 1) => 0,
            (Balance::RoundRobin, _) => below(self.turn.fetch_add(1, Ordering::Relaxed), count),
            (Balance::Random, _) => below(random(), count),
            (Balance::LeastRequest, _) => {
                let (one, other) = (below(random(), count), below(random(), count));
                if self.load(endpoints[one]) <= self.load(endpoints[other]) { one } else { other }
            }
        };
        EndpointOrder { at: first, count, left: count.min(ATTEMPTS) }
    }

    pub(crate) fn server(&self, address: SocketAddr) -> Arc<Server> {
        let mut servers = self.servers();
        let server = servers.entry(address);
        Arc::clone(server.or_insert_with(|| Arc::new(Server { address, http: OnceLock::new() })))
    }

    fn load(&self, address: SocketAddr) -> usize {
        self.servers().get(&address).map_or(0, |server| Arc::strong_count(server) - 1)
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, FnvHashMap<SocketAddr, Arc<Server>>> {
        // A panic elsewhere cannot leave the map in an inconsistent state: each statement completes
        // it.
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Indices into a list of endpoints, starting with the one that load balancing selected. Empty when
/// there is no endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointOrder {
    at: usize,
    count: usize,
    left: usize,
}

impl Iterator for EndpointOrder {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        self.at = (at + 1) % self.count;
        Some(at)
    }
}

impl Backend {
    /// Returns the TLS configuration for this backend and the server name to request; `None` for a
    /// backend without TLS.
    pub(crate) fn tls(&self) -> Result<Option<TlsWithName>, Arc<TlsError>> {
        if !self.id.protocol.is_tls() {
            return Ok(None);
        }
        let validation = self.id.validation.as_ref();
        let config = self.tls.get_or_init(|| {
            let trust = validation.map(|must| BackendTrust { ca: &must.ca, names: &must.names });
            backend_config(trust, self.client_certificate.as_deref(), &[]).map_err(|error| {
                // Logged once for each backend: the cause persists until an object changes.
                tracing::warn!(service = %self.id.service, %error, "TLS with a backend cannot be configured");
                Arc::new(error)
            })
        });
        let name = validation.and_then(|must| must.names.first());
        let name = name.and_then(|name| ServerName::try_from(name.to_string()).ok());
        config.clone().map(|config| Some((config, name)))
    }

    /// Returns the HTTP client for one of the backend's servers.
    pub(crate) fn requests<'a>(&self, server: &'a Server) -> Result<&'a Requests, Arc<TlsError>> {
        if let Some(requests) = server.http.get() {
            return Ok(requests);
        }
        let limits = UpstreamLimits {
            dial_timeout: CONNECT_TIMEOUT,
            handshake_timeout: CONNECT_TIMEOUT * 2,
            idle_timeout: self.id.idle_connection.unwrap_or(NO_LIMIT),
            streams_per_connection: 100,
            read_bytes: 64 << 10,
            header_bytes: 64 << 10,
            ..UpstreamLimits::default()
        };
        let params = AddressParams { address: server.address, tls: self.tls()?, limits };
        Ok(server.http.get_or_init(|| Requests::to_address(&params)))
    }
}

/// A TLS configuration, and the server name to request, if there is one.
type TlsWithName = (Arc<ClientConfig>, Option<ServerName<'static>>);

/// Effectively no limit, without overflow when it is added to the current time.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The error of a connection attempt that no server of a backend accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("the backend has no endpoint")]
    NoEndpoint,
    #[error("{address}: no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout { address: SocketAddr },
    #[error("{address}: {source}")]
    Refused { address: SocketAddr, source: std::io::Error },
}

impl Backend {
    /// Opens a connection to one of the endpoints. Returns the connection and its server.
    pub(crate) async fn connect(
        &self,
        endpoints: &[SocketAddr],
    ) -> Result<(TcpStream, Arc<Server>), ConnectError> {
        let mut failure = ConnectError::NoEndpoint;
        for server in self.order(endpoints) {
            let address = server.address;
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    tune(&stream);
                    return Ok((stream, server));
                }
                Ok(Err(source)) => failure = ConnectError::Refused { address, source },
                Err(_elapsed) => failure = ConnectError::Timeout { address },
            }
            tracing::debug!(error = %failure, "an endpoint does not accept connections");
        }
        Err(failure)
    }
}

/// The time without traffic after which TCP sends a keep-alive probe to a backend.
const TCP_KEEPALIVE: Duration = Duration::from_secs(180);

fn tune(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new().with_time(TCP_KEEPALIVE);
    let socket = socket2::SockRef::from(stream);
    for error in
        [stream.set_nodelay(true), socket.set_tcp_keepalive(&keepalive)].into_iter().filter_map(Result::err)
    {
        tracing::debug!(%error, "could not set an option of a connection to a backend");
    }
}

/// Selects backends by weight.
#[derive(Debug, Default)]
pub(crate) struct Weights(AtomicU64);

impl Weights {
    /// Returns the next backend. The proportions hold over any sequence of choices, not only in the
    /// long run, because the golden ratio distributes the choices evenly.
    pub(crate) fn pick<'a>(&self, backends: &'a Backends) -> &'a Arc<Upstream> {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        if let [only] = backends.choices() {
            return &only.upstream;
        }
        let total: u64 = backends.choices().iter().map(|choice| u64::from(choice.weight)).sum();
        let around = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN);
        let number = (u128::from(around) * u128::from(total)) >> 64;
        backends.pick(u64::try_from(number).unwrap_or(0))
    }
}

fn below(number: u64, count: usize) -> usize {
    usize::try_from(number % count as u64).unwrap_or(0)
}

/// Returns a random number. Not suitable for secrets.
fn random() -> u64 {
    thread_local! {
        static KEYS: (RandomState, std::cell::Cell<u64>) = (RandomState::new(), std::cell::Cell::new(0));
    }
    KEYS.with(|(keys, turn)| {
        turn.set(turn.get().wrapping_add(1));
        keys.hash_one(turn.get())
    })
}

#[cfg(test)]
mod tests;
