//! The accept loop, the ownership of connections, and the graceful shutdown.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pinniped_http_core::workers::{MAX_WORKERS, OpenByWorker, Workers};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::capacity::ConnectionPermit;
use crate::connection::{self, ConnectionError, Peer};
use crate::limits::Limits;
use crate::listener::{AcceptFailure, Listener, classify};
use crate::service::Service;

/// First and longest pause after an accept that failed for lack of files or memory.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Serves HTTPS on `listener` until the handle is drained or dropped. Must be called within a tokio
/// runtime.
///
/// The service is cloned for each connection.
pub fn serve<S: Service>(
    listener: Listener,
    tls: Arc<rustls::ServerConfig>,
    service: S,
    limits: Limits,
) -> ServerHandle {
    serve_on(None, listener, tls, service, limits)
}

/// Serves HTTPS like [`serve`], with the connections on [workers](Workers) if there are any.
/// Upgraded connections also run on the workers, so dropping the last reference to the workers
/// closes them too.
pub fn serve_on<S: Service>(
    workers: Option<Arc<Workers>>,
    listener: Listener,
    tls: Arc<rustls::ServerConfig>,
    service: S,
    limits: Limits,
) -> ServerHandle {
    serve_with(workers, listener, Https { tls: TlsAcceptor::from(tls), service }, limits)
}

/// Handles accepted connections. It is cloned for each connection.
pub trait Handler: Clone + Send + 'static {
    /// Serves one connection until it ends. See [`connection::https`] and [`connection::http`].
    fn run(
        self,
        shared: Arc<Shared>,
        stream: TcpStream,
        peer: Peer,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static;
}

/// The state that all connections of one server share.
#[derive(Debug)]
pub struct Shared {
    /// The limits of the server.
    pub limits: Limits,
    /// Cancelled when the server stops: connections close gracefully, or are dropped after a grace
    /// period.
    pub draining: CancellationToken,
}

#[derive(Clone)]
struct Https<S> {
    tls: TlsAcceptor,
    service: S,
}

impl<S: Service> Handler for Https<S> {
    async fn run(self, shared: Arc<Shared>, stream: TcpStream, peer: Peer) -> Result<(), ConnectionError> {
        let Shared { limits, draining } = &*shared;
        connection::https(limits, draining, &self.tls, self.service, stream, peer).await
    }
}

/// Accepts connections on `listener` and passes them to `handler`, with the same limits and the
/// same graceful shutdown as [`serve`]. Must be called within a tokio runtime.
pub fn serve_with<H: Handler>(
    workers: Option<Arc<Workers>>,
    listener: Listener,
    handler: H,
    limits: Limits,
) -> ServerHandle {
    let local_addr = listener.local_addr();
    let draining = CancellationToken::new();
    let killed = CancellationToken::new();
    let open_by_worker = workers.as_ref().map(|workers| workers.add_server());
    let counters = Arc::new(Counters { open_by_worker, ..Counters::default() });
    let (failure, failed) = watch::channel(None);
    let shared = Arc::new(Shared { limits, draining: draining.clone() });
    let server = Server { shared, killed: killed.clone(), counters: Arc::clone(&counters), workers };
    let task = tokio::spawn(async move {
        server.run(listener, handler, FailureReport(Some(failure))).await;
    });
    ServerHandle { local_addr, draining, killed, counters, failed, task: Some(task) }
}

/// A running server. Dropping it terminates the server and all its connections at once;
/// [`ServerHandle::drain`] shuts it down gracefully.
#[derive(Debug)]
pub struct ServerHandle {
    local_addr: SocketAddr,
    draining: CancellationToken,
    killed: CancellationToken,
    counters: Arc<Counters>,
    failed: watch::Receiver<Option<Arc<str>>>,
    task: Option<JoinHandle<()>>,
}

impl ServerHandle {
    /// Returns the local address, with the actual port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Starts the graceful shutdown without waiting: the listener closes, HTTP/2 clients get
    /// GOAWAY, and HTTP/1.1 connections close after the running request. No connection is forced to
    /// close before [`ServerHandle::drain`].
    pub fn begin_drain(&self) {
        self.draining.cancel();
    }

    /// Shuts the server down: closes the listener at once, sends GOAWAY to every HTTP/2 client,
    /// lets requests finish for at most `grace`, then resets the remaining connections. When it
    /// returns, no task of this server runs and its port is free.
    ///
    /// Upgraded connections do not belong to the server any more: see [`crate::tunnels`].
    pub async fn drain(mut self, grace: Duration) {
        self.draining.cancel();
        let Some(mut task) = self.task.take() else { return };
        if tokio::time::timeout(grace, &mut task).await.is_err() {
            self.killed.cancel();
            if let Err(error) = task.await {
                tracing::error!(%error, "the accept loop failed");
            }
        }
    }

    /// Resolves with a description when the accept loop ends without a request to stop; otherwise
    /// never.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let mut failed = self.failed.clone();
        async move {
            let reason = match failed.wait_for(Option::is_some).await {
                Ok(reason) => reason.as_deref().map(str::to_owned),
                Err(_stopped_on_request) => None,
            };
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the connection counters.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Returns a function that reads the connection counters and can outlive the handle, for
    /// example for a metrics endpoint.
    pub fn stats_source(&self) -> impl Fn() -> Stats + Clone + Send + use<> {
        let counters = Arc::clone(&self.counters);
        move || counters.read()
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.draining.cancel();
        if let Some(task) = self.task.take() {
            // This drops the listener and the set of connections, which aborts their tasks.
            task.abort();
        }
    }
}

/// The connection counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of open connections, including those in their handshake, excluding upgraded ones.
    pub open: u64,
    /// Number of workers; 0 if the connections run on the runtime of the program.
    pub workers: usize,
    /// Number of open connections of each worker, at its number.
    pub open_on_worker: [u64; MAX_WORKERS],
    /// Number of accepted connections.
    pub accepted: u64,
    /// Number of connections that were closed right after accept because [`Limits::connections`]
    /// were open, or [`Limits::capacity`] had no permit.
    pub refused: u64,
    /// Number of connections that ended in the TLS handshake, by error or timeout.
    pub handshakes_failed: u64,
    /// Number of accept calls that failed for lack of files or memory.
    pub accept_failures: u64,
    /// Number of connections that were closed because the client cancelled too many requests.
    pub too_many_resets: u64,
}

impl Stats {
    /// Returns the number of open connections of each worker, in the order of the workers; empty if
    /// there are no workers.
    pub fn open_by_worker(&self) -> &[u64] {
        &self.open_on_worker[..self.workers.min(MAX_WORKERS)]
    }
}

#[derive(Debug, Default)]
struct Counters {
    open: AtomicU64,
    /// `None` if there are no workers.
    open_by_worker: Option<OpenByWorker>,
    accepted: AtomicU64,
    refused: AtomicU64,
    handshakes_failed: AtomicU64,
    accept_failures: AtomicU64,
    too_many_resets: AtomicU64,
}

impl Counters {
    fn read(&self) -> Stats {
        let mut open_on_worker = [0; MAX_WORKERS];
        let by_worker = self.open_by_worker.as_ref();
        for (slot, open) in open_on_worker.iter_mut().zip(by_worker.into_iter().flat_map(OpenByWorker::read))
        {
            *slot = open as u64;
        }
        Stats {
            open: self.open.load(Ordering::Relaxed),
            workers: by_worker.map_or(0, |open| open.read().len()),
            open_on_worker,
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            handshakes_failed: self.handshakes_failed.load(Ordering::Relaxed),
            accept_failures: self.accept_failures.load(Ordering::Relaxed),
            too_many_resets: self.too_many_resets.load(Ordering::Relaxed),
        }
    }
}

/// Reports to the handle when the accept loop terminates unexpectedly, including by a panic. It
/// reports at once: the open connections may last for hours, and meanwhile no new client could be
/// served.
struct FailureReport(Option<watch::Sender<Option<Arc<str>>>>);

impl FailureReport {
    fn done(mut self, result: Result<(), io::Error>) {
        let sender = self.0.take();
        if let (Some(sender), Err(error)) = (sender, result) {
            sender.send_replace(Some(Arc::from(format!("the listener failed: {error}"))));
        }
    }
}

impl Drop for FailureReport {
    fn drop(&mut self) {
        if let Some(sender) = &self.0 {
            sender.send_replace(Some(Arc::from("the accept loop ended unexpectedly")));
        }
    }
}

struct Server {
    shared: Arc<Shared>,
    killed: CancellationToken,
    counters: Arc<Counters>,
    workers: Option<Arc<Workers>>,
}

type Connections = JoinSet<Result<(), ConnectionError>>;

/// Records the end of a connection's task when it is dropped.
struct TaskGuard(Arc<ConnectionPermit>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Server {
    async fn run<H: Handler>(self, listener: Listener, handler: H, report: FailureReport) {
        let mut connections = Connections::new();
        // `accept` takes the listener by value, so that the listener is closed when it returns,
        // before the connections are awaited.
        report.done(self.accept(listener, handler, &mut connections).await);
        self.shared.draining.cancel();
        loop {
            tokio::select! {
                biased;
                () = self.killed.cancelled() => {
                    connections.shutdown().await;
                    self.counters.open.store(0, Ordering::Relaxed);
                    return;
                }
                ended = connections.join_next() => match ended {
                    Some(ended) => self.reap(ended),
                    None => return,
                },
            }
        }
    }

    async fn accept<H: Handler>(
        &self,
        listener: Listener,
        handler: H,
        connections: &mut Connections,
    ) -> io::Result<()> {
        let listener = listener.into_tokio()?;
        let mut pause = ACCEPT_PAUSE.0;
        let mut is_exhausted = false;
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.shared.draining.cancelled() => return Ok(()),
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    self.reap(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer_addr)) => {
                    pause = ACCEPT_PAUSE.0;
                    if is_exhausted {
                        is_exhausted = false;
                        tracing::info!("connections are accepted again");
                    }
                    self.counters.accepted.fetch_add(1, Ordering::Relaxed);
                    let limits = &self.shared.limits;
                    let within = connections.len() < limits.connections;
                    let permit = within.then(|| limits.capacity.connect(peer_addr.ip())).and_then(Result::ok);
                    let Some(permit) = permit else {
                        self.counters.refused.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    self.counters.open.fetch_add(1, Ordering::Relaxed);
                    let peer = Peer { addr: peer_addr, permit: Arc::clone(&permit) };
                    permit.runs_as(self.spawn(handler.clone(), stream, peer, connections));
                }
                Err(error) => match classify(&error) {
                    AcceptFailure::Connection => {}
                    AcceptFailure::Listener => return Err(error),
                    AcceptFailure::Exhausted => {
                        self.counters.accept_failures.fetch_add(1, Ordering::Relaxed);
                        if !is_exhausted {
                            is_exhausted = true;
                            tracing::warn!(%error, "connections cannot be accepted, trying again");
                        }
                        tokio::select! {
                            () = self.shared.draining.cancelled() => return Ok(()),
                            () = tokio::time::sleep(pause) => {}
                        }
                        pause = (pause * 2).min(ACCEPT_PAUSE.1);
                    }
                },
            }
        }
    }

    fn spawn<H: Handler>(
        &self,
        handler: H,
        stream: TcpStream,
        peer: Peer,
        connections: &mut Connections,
    ) -> AbortHandle {
        let shared = Arc::clone(&self.shared);
        let task = TaskGuard(Arc::clone(&peer.permit));
        let (Some(workers), Some(open)) = (&self.workers, &self.counters.open_by_worker) else {
            crate::listener::tune(&stream, shared.limits.tcp_keepalive);
            return connections.spawn(async move {
                let _task = task;
                handler.run(shared, stream, peer).await
            });
        };
        let permit = workers.assign(open);
        let worker = permit.runtime().clone();
        let run = async move {
            let (_permit, _task) = (permit, task);
            // A tokio socket belongs to the runtime in which it was created.
            let stream = stream.into_std().and_then(TcpStream::from_std).map_err(ConnectionError::Address)?;
            crate::listener::tune(&stream, shared.limits.tcp_keepalive);
            handler.run(shared, stream, peer).await
        };
        connections.spawn_on(run, &worker)
    }

    fn reap(&self, ended: Result<Result<(), ConnectionError>, JoinError>) {
        self.counters.open.fetch_sub(1, Ordering::Relaxed);
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                if error.is_handshake() {
                    self.counters.handshakes_failed.fetch_add(1, Ordering::Relaxed);
                }
                if let ConnectionError::TooManyResets = error {
                    self.counters.too_many_resets.fetch_add(1, Ordering::Relaxed);
                }
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::debug!(%error, cause, "connection ended");
            }
            Err(error) if error.is_cancelled() => {
                tracing::debug!("a connection was closed to free capacity for others");
            }
            Err(error) => tracing::error!(%error, "a connection's task failed"),
        }
    }
}
