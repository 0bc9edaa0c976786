//! Port 443: the server name of the ClientHello selects the destination of a connection before the
//! gateway sends any byte.
//!
//! ```text
//! peek ClientHello ── SNI ──► Passthrough ──► connect to an endpoint, relay every byte,
//!        │                │                   including the ClientHello
//!        │                └─► Terminate ──┬─► HTTP (crate::http)
//!        │                                └─► bytes: connect, relay the decrypted bytes
//!        └── no TLS, no server name, an unknown one: closed without a certificate
//! ```

use std::sync::Arc;
use std::time::Duration;

use pinniped_gateway_routing::table::{
    TCP_IDLE_TIMEOUT, TcpProxy, Terminated, Termination, TlsAction, TlsHost, TlsTarget,
};
use pinniped_http_server::connection::{https, linger};
use pinniped_http_server::{ConnectionError, ConnectionPermit, Handler, Limits, Peer, Shared};
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::active_table::ActiveTable;
use crate::client_hello::ClientHelloError;
use crate::gateway::Inner;
use crate::http::{Entry, Http};
use crate::peek::{self, PeekError};
use crate::relay::{self, RelayError, RelayedBytes, TransferMethod};
use crate::termination::HostTlsConfig;

/// The response of Go's servers to plain HTTP on a TLS port; users search for this text.
const PLAIN_HTTP: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// The handler of port 443.
#[derive(Clone, Debug)]
pub(crate) struct TlsPort(pub(crate) Arc<Inner>);

/// The destination of a connection.
enum Destination {
    Passthrough(Arc<ActiveTable>, Arc<TlsHost>),
    Bytes(Arc<ActiveTable>, Arc<TlsHost>, Arc<HostTlsConfig>),
    Requests(Entry, Arc<HostTlsConfig>),
}

impl Handler for TlsPort {
    async fn run(self, shared: Arc<Shared>, stream: TcpStream, peer: Peer) -> Result<(), ConnectionError> {
        let Self(inner) = self;
        let Shared { limits, draining } = &*shared;
        let hello = tokio::select! {
            biased;
            hello = timeout(limits.handshake_timeout, peek::client_hello(&stream)) => hello,
            () = draining.cancelled() => return Ok(()),
        };
        let hello = match hello {
            Ok(Ok(hello)) => hello,
            Ok(Err(PeekError::Bad(bad))) => {
                inner.counts.not_tls.one();
                refuse(stream, bad).await;
                return Err(other(bad));
            }
            Ok(Err(unfinished)) => {
                inner.counts.client_hello_unfinished.one();
                return Err(other(unfinished));
            }
            Err(_elapsed) => {
                inner.counts.client_hello_unfinished.one();
                return Err(ConnectionError::HandshakeTimeout);
            }
        };
        let destination = match inner.destination(hello.server_name) {
            Ok(destination) => destination,
            Err(error) => {
                peek::discard(&stream);
                return Err(error);
            }
        };
        match destination {
            Destination::Passthrough(active, host) => {
                let TlsAction::Passthrough(proxy) = &host.action else { return Ok(()) };
                pass(&inner, &active, proxy, &stream, &peer.permit).await
            }
            Destination::Bytes(active, host, tls_config) => {
                let TlsAction::Terminate(Termination { inside: Terminated::Tcp(proxy), .. }) = &host.action
                else {
                    return Ok(());
                };
                // Boxed, as the next one, so that passed-through connections reserve no space for
                // it.
                Box::pin(unwrap(&inner, &active, proxy, &tls_config, limits, stream, &peer.permit)).await
            }
            Destination::Requests(entry, tls_config) => {
                let grace = inner.revoked_grace;
                let service = Http::new(inner, entry);
                let serving = https(limits, &tls_config.retired, &tls_config.acceptor, service, stream, peer);
                let overdue = Box::pin(async {
                    tls_config.grant.revoked.cancelled().await;
                    sleep(grace).await;
                });
                tokio::select! {
                    biased;
                    ended = serving => ended,
                    () = overdue => Err(other(RequestsOverdue)),
                }
            }
        }
    }
}

impl Inner {
    fn destination(&self, name: Option<Box<str>>) -> Result<Destination, ConnectionError> {
        let active = self.active();
        match active.table.tls.by_sni(name.as_deref()) {
            Some(TlsTarget::Host(host)) if matches!(host.action, TlsAction::Passthrough(_)) => {
                return Ok(Destination::Passthrough(Arc::clone(&active), Arc::clone(host)));
            }
            Some(_) => {}
            None => {
                self.counts.unknown_name.one();
                return Err(other(UnknownName(name)));
            }
        }
        // The TLS configuration of a host and the table that it belongs to must be consistent.
        let mut tls_configs = self.tls_configs.lock();
        let active = self.active();
        let target = active.table.tls.by_sni(name.as_deref());
        let tls_config = target.map(|target| tls_configs.of(target, &self.draining)).transpose();
        drop(tls_configs);
        let tls_config = tls_config.map_err(|error| {
            self.counts.unservable.one();
            other(error)
        });
        let tls_config = tls_config?.flatten();
        match (target, tls_config) {
            (Some(TlsTarget::Host(host)), None) => {
                Ok(Destination::Passthrough(Arc::clone(&active), Arc::clone(host)))
            }
            (Some(TlsTarget::Host(host)), Some(tls_config)) => match (&host.action, name) {
                (TlsAction::Terminate(Termination { inside: Terminated::Http(_), .. }), Some(name)) => {
                    let validation = tls_config.validation().cloned();
                    let ended = tls_config.grant.ended.clone();
                    Ok(Destination::Requests(Entry::Host { name, validation, ended }, tls_config))
                }
                _ => Ok(Destination::Bytes(Arc::clone(&active), Arc::clone(host), tls_config)),
            },
            (Some(TlsTarget::Fallback(_)), Some(tls_config)) => {
                Ok(Destination::Requests(Entry::Fallback { name }, tls_config))
            }
            (None, _) | (Some(TlsTarget::Fallback(_)), None) => {
                self.counts.unknown_name.one();
                Err(other(UnknownName(name)))
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("there is no host with the name {0:?}")]
struct UnknownName(Option<Box<str>>);

#[derive(Debug, thiserror::Error)]
#[error("requests went on for too long after the grant of their host was revoked or its client CA changed")]
struct RequestsOverdue;

fn other(error: impl std::error::Error + Send + Sync + 'static) -> ConnectionError {
    ConnectionError::Other(Box::new(error))
}

/// Refuses a client that does not start TLS, with a response if it sent HTTP.
async fn refuse(mut stream: TcpStream, bad: ClientHelloError) {
    if bad != ClientHelloError::PlainHttp {
        return peek::discard(&stream);
    }
    if stream.write_all(PLAIN_HTTP).await.is_ok() {
        linger(stream).await;
    }
}

/// Passes a connection through unchanged.
async fn pass(
    inner: &Inner,
    active: &ActiveTable,
    proxy: &TcpProxy,
    stream: &TcpStream,
    permit: &ConnectionPermit,
) -> Result<(), ConnectionError> {
    let connected = async {
        let upstream = inner.weights.pick(&proxy.backends);
        active.backend(upstream)?.connect(&upstream.endpoints).await.map_err(|error| debug(&error)).ok()
    };
    let Some((to, _server)) = connected.await else {
        inner.counts.unconnected.one();
        peek::discard(stream);
        return Ok(());
    };
    inner.counts.relayed.one();
    permit.relay();
    let moved = relay::relay(stream, &to, TCP_IDLE_TIMEOUT, TransferMethod::Adaptive).await;
    inner.ended(moved)
}

/// Terminates TLS and relays the bytes inside.
async fn unwrap(
    inner: &Inner,
    active: &ActiveTable,
    proxy: &TcpProxy,
    tls_config: &HostTlsConfig,
    limits: &Limits,
    stream: TcpStream,
    permit: &ConnectionPermit,
) -> Result<(), ConnectionError> {
    let handshake = timeout(limits.handshake_timeout, tls_config.acceptor.accept(stream)).await;
    let mut client = handshake
        .map_err(|_elapsed| ConnectionError::HandshakeTimeout)?
        .map_err(ConnectionError::Handshake)?;
    let upstream = inner.weights.pick(&proxy.backends);
    let Some(backend) = active.backend(upstream) else { return Ok(()) };
    let connected = backend.connect(&upstream.endpoints).await;
    let Ok((to, server)) = connected.map_err(|error| debug(&error)) else {
        inner.counts.unconnected.one();
        linger(client).await;
        return Ok(());
    };
    inner.counts.relayed.one();
    permit.confirm();
    let moved = match backend.tls().map_err(other)? {
        None => {
            let mut to = to;
            relay::relay_streams(&mut client, &mut to, TCP_IDLE_TIMEOUT, &tls_config.grant.revoked).await
        }
        Some((config, name)) => {
            let name = name.unwrap_or(ServerName::IpAddress(server.address.ip().into()));
            let wrapped = timeout(HANDSHAKE_WITH_BACKEND, TlsConnector::from(config).connect(name, to)).await;
            let mut to = match wrapped {
                Ok(Ok(to)) => to,
                Ok(Err(error)) => return Err(other(error)),
                Err(elapsed) => return Err(other(elapsed)),
            };
            relay::relay_streams(&mut client, &mut to, TCP_IDLE_TIMEOUT, &tls_config.grant.revoked).await
        }
    };
    inner.ended(moved)
}

const HANDSHAKE_WITH_BACKEND: Duration = Duration::from_secs(10);

impl Inner {
    fn ended(&self, (moved, result): (RelayedBytes, Result<(), RelayError>)) -> Result<(), ConnectionError> {
        self.counts.relayed_from_clients.add(moved.first_to_second);
        self.counts.relayed_to_clients.add(moved.second_to_first);
        result.map_err(other)
    }
}

fn debug(error: &dyn std::error::Error) {
    tracing::debug!(%error, "no endpoint accepts the connection");
}
