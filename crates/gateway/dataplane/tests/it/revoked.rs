//! Open connections when the grant of their host is revoked or its client CA changes.

use std::sync::Arc;
use std::time::Duration;

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_dataplane::Gateway;
use pinniped_gateway_routing::table::{
    Action, Fallback, HostPattern, Routes, TcpProxy, Terminated, Termination, TlsAction, TlsVersions,
};
use pinniped_test_support::certs::{Authority, Pair};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::upgrades::{request, websocket};
use crate::world::{
    Backend, CA, Client, Table, certificate, demand, forward, gateway, gateway_with, pair, prefix,
    termination, to, until, within,
};

/// A host with a TLS configuration that the tests change.
struct Host {
    pair: Pair,
    inside: Terminated,
}

impl Host {
    fn new(inside: Terminated) -> Self {
        Self { pair: pair(&["a.local"]), inside }
    }

    fn termination(&self) -> Termination {
        termination(&self.pair, self.inside.clone())
    }

    fn serve(&self, gateway: &Gateway, change: impl FnOnce(&mut Termination)) {
        let mut termination = self.termination();
        change(&mut termination);
        Table::new().tls("a.local", TlsAction::Terminate(termination)).serve(gateway);
    }
}

/// Returns routes that allow WebSockets.
fn websockets(backend: &Backend) -> Arc<Routes> {
    let mut open = forward(to(&[backend.address]));
    open.websockets = true;
    Arc::new(Routes::new([Arc::new(prefix("/", Action::Forward(open)))]))
}

/// A backend that returns the received bytes in upper case.
async fn echo() -> Backend {
    Backend::start(|mut stream: TcpStream| async move {
        let mut bytes = [0; 100];
        while let Ok(read @ 1..) = stream.read(&mut bytes).await {
            let _gone = stream.write_all(&bytes[..read].to_ascii_uppercase()).await;
        }
    })
    .await
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An open connection to the echo backend.
struct Open(Box<dyn Stream>);

impl Open {
    async fn upgraded(gateway: &Gateway, client: &Client, name: &str) -> Self {
        let stream = client.connect(gateway.tls_addr(), name).await.unwrap();
        let request = request("/", "websocket");
        let response = pinniped_test_support::wire::raw_request(stream, request.as_bytes()).await.unwrap();
        assert_eq!(response.status, 101, "{}", response.head);
        Self(Box::new(response.stream))
    }

    async fn of_bytes(gateway: &Gateway, client: &Client) -> Self {
        Self(Box::new(client.connect(gateway.tls_addr(), "a.local").await.unwrap()))
    }

    async fn is_alive(&mut self) {
        self.0.write_all(b"a").await.unwrap();
        assert_eq!(within(self.0.read_u8()).await.unwrap(), b'A');
    }

    /// Waits until the connection terminates, with an end of stream or an error.
    async fn ends(&mut self) {
        let ended = within(self.0.read(&mut [0])).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
}

/// Opens a connection of each kind.
async fn open(gateway: &Gateway, host: &Host, client: &Client) -> Open {
    match &host.inside {
        Terminated::Http(_) => Open::upgraded(gateway, client, "a.local").await,
        Terminated::Tcp(_) => Open::of_bytes(gateway, client).await,
    }
}

async fn hosts() -> (Vec<Backend>, Vec<Host>) {
    let (sockets, bytes) = (websocket().await, echo().await);
    let hosts = vec![
        Host::new(Terminated::Http(websockets(&sockets))),
        Host::new(Terminated::Tcp(TcpProxy { backends: to(&[bytes.address]) })),
    ];
    (vec![sockets, bytes], hosts)
}

#[tokio::test]
async fn upgraded_and_tcp_connections_close_with_the_grant_and_survive_a_renewal() {
    let (_backends, hosts) = hosts().await;
    let gateway = gateway();
    for host in hosts {
        host.serve(&gateway, |_| {});
        let client = Client::new();
        let mut first = open(&gateway, &host, &client).await;
        let renewed = pair(&["a.local"]);
        host.serve(&gateway, |termination| termination.certificate = certificate(&renewed));
        let mut second = open(&gateway, &host, &client).await;
        // Neither a renewed certificate nor a change of another host closes a connection.
        host.serve(&gateway, |termination| termination.certificate = certificate(&renewed));
        first.is_alive().await;
        second.is_alive().await;
        Table::new().serve(&gateway);
        first.ends().await;
        second.ends().await;
        until("no tunnel is open", || gateway.tunnels() == 0).await;
    }
}

#[tokio::test]
async fn upgraded_and_tcp_connections_close_when_the_certificate_comes_from_another_secret() {
    let (_backends, hosts) = hosts().await;
    let gateway = gateway();
    for host in hosts {
        host.serve(&gateway, |_| {});
        let mut open = open(&gateway, &host, &Client::new()).await;
        open.is_alive().await;
        let own = SecretReference { namespace: "ns".into(), name: "own".into() };
        host.serve(&gateway, |termination| termination.secret = own);
        open.ends().await;
    }
}

#[tokio::test]
async fn upgraded_and_tcp_connections_close_when_the_client_ca_changes() {
    let (_backends, hosts) = hosts().await;
    let gateway = gateway();
    let other = Authority::new("other CA").unwrap();
    let client = || Client::new().showing(&CA.client("pinny", None).unwrap());
    for host in hosts {
        let demanding = |ca: &Authority| Some(Arc::new(demand(ca)));
        host.serve(&gateway, |termination| termination.client_validation = demanding(&CA));
        let mut open = open(&gateway, &host, &client()).await;
        open.is_alive().await;
        host.serve(&gateway, |termination| termination.client_validation = demanding(&CA));
        open.is_alive().await;
        host.serve(&gateway, |termination| termination.client_validation = demanding(&other));
        open.ends().await;
    }
}

#[tokio::test]
async fn an_upgraded_connection_of_the_fallback_closes_only_with_its_host() {
    let backend = websocket().await;
    let gateway = gateway();
    let own = pair(&["any.local"]);
    let table = |hosts: &[&str]| {
        let mut table = Table::new();
        let hosts = hosts.iter().map(|host| (HostPattern::parse(host), websockets(&backend))).collect();
        let (certificate, versions) = (certificate(&own), TlsVersions::default());
        table.0.tls.fallback = Some(Arc::new(Fallback { certificate, versions, hosts }));
        table
    };
    table(&["a.local", "b.local"]).serve(&gateway);
    let mut open = Open::upgraded(&gateway, &Client::new(), "any.local").await;
    open.is_alive().await;
    table(&["a.local"]).serve(&gateway);
    open.is_alive().await;
    table(&["b.local"]).serve(&gateway);
    open.ends().await;
}

#[tokio::test]
async fn an_endless_request_is_aborted_after_the_grace_period_only_when_the_grant_is_revoked() {
    let endless = Backend::start(|mut stream: TcpStream| async move {
        let _head = stream.read(&mut [0; 4096]).await;
        let _gone =
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n").await;
        let _until_the_end = stream.read(&mut [0]).await;
    })
    .await;
    let gateway = gateway_with(|params| params.revoked_grace = Duration::from_millis(200));
    let mut forever = forward(to(&[endless.address]));
    (forever.timeouts.response, forever.timeouts.idle) = (None, None);
    let routes = Routes::new([Arc::new(prefix("/", Action::Forward(forever)))]);
    let host = Host::new(Terminated::Http(Arc::new(routes)));
    for revoked in [false, true] {
        host.serve(&gateway, |_| {});
        let mut stream = Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.local\r\n\r\n").await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"x\r\n") {
            seen.push(within(stream.read_u8()).await.unwrap());
        }
        if revoked {
            Table::new().serve(&gateway);
            let ended = within(stream.read(&mut [0])).await;
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        } else {
            let renewed = pair(&["a.local"]);
            host.serve(&gateway, |termination| termination.certificate = certificate(&renewed));
            let wait = tokio::time::timeout(Duration::from_millis(600), stream.read_u8());
            wait.await.expect_err("a renewed certificate cuts nothing");
        }
    }
}
