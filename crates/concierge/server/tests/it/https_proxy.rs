//! Connections to the API server through a proxy with the scheme `https`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_http_client::proxy::Proxy;
use pinniped_kube_client::{Dial, RequestBody, Upstream, UpstreamParams};
use pinniped_pki::CaBundle;
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::{wait, wire};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::concierge::{Options, concierge_with, control_plane, token};

const READ: &str = "https://localhost/api/v1/namespaces/default/configmaps?limit=1";
const WATCH: &str = "https://localhost/api/v1/namespaces/default/configmaps?watch=true";
const READS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);
const CREDENTIALS: &str = "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n";

/// A proxy that speaks TLS with its clients, and opens tunnels.
struct TlsProxy {
    address: SocketAddr,
    open: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl TlsProxy {
    async fn start(pair: &Pair) -> anyhow::Result<Self> {
        pinniped_pki::install_crypto_provider();
        let builder = rustls::ServerConfig::builder().with_no_client_auth();
        let mut config = builder.with_single_cert(
            vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes())?],
            PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes())?,
        )?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (open, requests) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (now_open, seen) = (Arc::clone(&open), Arc::clone(&requests));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut tunnels = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, open, requests) = (acceptor.clone(), Arc::clone(&now_open), Arc::clone(&seen));
                tunnels.spawn(async move {
                    if let Err(error) = tunnel(tcp, acceptor, &open, &requests).await {
                        eprintln!("tunnel: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address, open, requests, _tasks: tasks })
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}

async fn tunnel(
    tcp: TcpStream,
    acceptor: TlsAcceptor,
    open: &AtomicUsize,
    requests: &Mutex<Vec<String>>,
) -> anyhow::Result<()> {
    let mut client = acceptor.accept(tcp).await?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(client.read_u8().await?);
    }
    let request = String::from_utf8(request)?;
    let target = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let mut server = TcpStream::connect(target.context("no CONNECT")?).await?;
    requests.lock().expect("lock").push(request);
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    client.flush().await?;
    open.fetch_add(1, Ordering::SeqCst);
    let copied = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    open.fetch_sub(1, Ordering::SeqCst);
    // Each side may close a connection without the end of its TLS session.
    drop(copied);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_requests_to_the_api_server_use_an_https_proxy() -> anyhow::Result<()> {
    let plane = control_plane().await?;
    // As in Go, the proxy's certificate is verified with the roots of the API server.
    let proxy_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let proxy = TlsProxy::start(&plane.ca().server("proxy", &[], &[proxy_address])?).await?;
    let dial: Arc<dyn Dial> = Arc::new(Proxy::parse(&format!("https://user:pass@{}", proxy.address))?);
    let account = token(&plane.client().await?).await?;
    let concierge =
        concierge_with(&plane, account, Options { dial: Some(dial), ..Options::default() }).await?;

    let tcp = TcpStream::connect(concierge.proxy.local_addr()).await?;
    let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], Some(&concierge.reader)).await?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let mut send = async |uri: &str| -> anyhow::Result<_> {
        sender.ready().await?;
        let response = sender.send_request(Request::get(uri).body(Empty::<Bytes>::new())?).await?;
        ensure!(response.status().is_success(), "{}", response.status());
        Ok(response.into_body())
    };
    // A stream over HTTP/2, which stays open.
    let mut watch = send(WATCH).await?;
    let event = watch.frame().await.context("no event")??.into_data().ok().context("no data")?;
    ensure!(event.starts_with(br#"{"type":"ADDED""#), "{event:?}");

    let stats = || concierge.upstream.stats();
    wait::until_ok(PATIENCE, "short reads over HTTP/1.1", async || {
        send(READ).await?.collect().await?;
        ensure!(stats().short_reads > 0, "{:?}", stats());
        Ok(())
    })
    .await?;
    // These reads use an HTTP/1.1 connection again and again: a session of TLS inside another one.
    for _ in 0..READS {
        let list = send(READ).await?.collect().await?.to_bytes();
        ensure!(list.starts_with(br#"{"kind":"ConfigMapList""#), "{list:?}");
    }
    ensure!(stats().short_reads > 0, "{:?}", stats());

    // Each connection of the pool is a tunnel, and reviews use connections of their own.
    ensure!(proxy.open() > stats().connections, "{} {:?}", proxy.open(), stats());
    let requests = proxy.requests.lock().expect("lock").clone();
    let server = plane.server().trim_start_matches("https://").trim_end_matches('/').to_owned();
    for request in requests {
        ensure!(request.starts_with(&format!("CONNECT {server} HTTP/1.1\r\n")), "{request}");
        ensure!(request.contains(CREDENTIALS), "{request}");
    }
    drop(watch);
    Ok(())
}

#[tokio::test]
async fn an_https_proxy_with_a_foreign_certificate_receives_nothing() -> anyhow::Result<()> {
    let (cluster, foreign) = (Authority::new("cluster")?, Authority::new("foreign")?);
    let proxy_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let proxy = TlsProxy::start(&foreign.server("proxy", &[], &[proxy_address])?).await?;
    let roots = CaBundle::from_pem(cluster.certificate_pem.as_bytes())?;
    let mut params = UpstreamParams::new("https://api.example:6443".parse()?, roots);
    params.dial = Some(Arc::new(Proxy::parse(&format!("https://user:pass@{}", proxy.address))?));
    let upstream = Upstream::new(params)?;
    let request = Request::get("/version").body(RequestBody::default())?;
    let error = upstream.send(request).await.err().context("a response")?;
    let error = anyhow::Error::from(error);
    let text =
        "proxyconnect tcp: tls: failed to verify certificate: x509: certificate signed by unknown authority";
    ensure!(error.root_cause().to_string() == text, "{error:#}");
    ensure!(proxy.requests.lock().expect("lock").is_empty(), "credentials were sent");
    Ok(())
}
