//! Tests of an API server that is killed and restarted under load: clients wait for its reviews
//! instead of getting an error.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_error::find;
use pinniped_kube_client::UpstreamLimits;
use pinniped_test_support::{wait, wire};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::concierge::{concierge, control_plane, token};

const PATIENCE: Duration = Duration::from_secs(60);
const PROXIED: &str = "/api/v1/namespaces/default/configmaps?limit=1";
const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
/// The authenticator does not exist, so the login fails like one with an invalid token: 201, after
/// all reviews.
const LOGIN_BODY: &str = r#"{"spec":{"token":"t","authenticator":{"kind":"k","name":"n"}}}"#;
/// Number of concurrent requests of each kind.
const CLIENTS: usize = 8;
/// Tokens for one request each, so that no review is cached.
const TOKENS: usize = 3000;
/// Number of successful requests of each kind before the API server is killed, and after it is
/// back.
const ENOUGH: usize = 40;

/// The time after which a review of a server that is away may fail: the timeout of one call to it.
const REVIEW_MAY_FAIL_AFTER: Duration = Duration::from_secs(10);

/// A response that is not a success.
struct Failure {
    started: Instant,
    ended: Instant,
    status: u16,
    text: String,
}

impl Failure {
    /// Whether a review may have failed: the API server was away for at least the timeout of a
    /// call. On a busy machine it needs that long to start.
    fn is_explained_by(&self, outage: &Outage) -> bool {
        self.ended >= outage.killed + REVIEW_MAY_FAIL_AFTER && self.started <= outage.ready
    }
}

/// The time between the end of the API server and the readiness of the next one.
struct Outage {
    killed: Instant,
    ready: Instant,
}

/// Requests in a loop, each with a new token.
struct Load {
    failures: Mutex<Vec<Failure>>,
    succeeded: AtomicUsize,
}

impl Load {
    async fn run(&self, address: SocketAddr, tokens: &Mutex<Vec<String>>, login: bool) -> anyhow::Result<()> {
        let tcp = TcpStream::connect(address).await?;
        let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], None).await?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        loop {
            let token =
                tokens.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.pop().context("no tokens left")?;
            let (method, path, body) = if login { ("POST", LOGIN, LOGIN_BODY) } else { ("GET", PROXIED, "") };
            let request = Request::builder()
                .method(method)
                .uri(format!("https://localhost{path}"))
                .header("content-type", "application/json")
                .header("authorization", format!("Bearer {token}"))
                .body(Full::new(Bytes::from_static(body.as_bytes())))?;
            sender.ready().await?;
            let started = Instant::now();
            // A forwarded request may be interrupted together with the API server, even in the
            // middle of its body. The reset of the stream then discards a head that was not sent.
            let (head, body) = match sender.send_request(request).await {
                Ok(response) => response.into_parts(),
                Err(error) if !login && is_interruption(&error) => continue,
                Err(error) => return Err(error.into()),
            };
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            if head.status.is_success() {
                self.succeeded.fetch_add(1, Ordering::SeqCst);
            } else {
                let text = String::from_utf8_lossy(&body).into_owned();
                let (ended, status) = (Instant::now(), head.status.as_u16());
                let failure = Failure { started, ended, status, text };
                self.failures.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(failure);
            }
        }
    }

    fn succeeded(&self) -> usize {
        self.succeeded.load(Ordering::SeqCst)
    }
}

/// Returns whether the server reset the stream because the body of the response ended too early.
fn is_interruption(error: &hyper::Error) -> bool {
    find::<h2::Error>(error)
        .is_some_and(|error| error.is_reset() && error.reason() == Some(h2::Reason::INTERNAL_ERROR))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_api_server_fails_no_review() -> anyhow::Result<()> {
    let plane = control_plane().await?;
    let admin = plane.client().await?;
    let mut minting = JoinSet::new();
    for _ in 0..20 {
        let admin = admin.clone();
        minting.spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..TOKENS / 20 {
                tokens.push(token(&admin).await?);
            }
            anyhow::Ok(tokens)
        });
    }
    let minted = minting.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
    let tokens = Arc::new(Mutex::new(minted));
    let concierge = concierge(&plane, token(&admin).await?, UpstreamLimits::default()).await?;

    let load = || Arc::new(Load { failures: Mutex::default(), succeeded: AtomicUsize::new(0) });
    let (proxied, logins) = (load(), load());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        for (load, address, login) in
            [(&proxied, concierge.proxy.local_addr(), false), (&logins, concierge.api.local_addr(), true)]
        {
            let (load, tokens) = (Arc::clone(load), Arc::clone(&tokens));
            clients.spawn(async move { load.run(address, &tokens, login).await });
        }
    }
    let progress = async |from: (usize, usize), when: &str| {
        wait::until_ok(PATIENCE, format!("requests to succeed {when}"), async || {
            let now = (proxied.succeeded(), logins.succeeded());
            ensure!(now.0 >= from.0 + ENOUGH && now.1 >= from.1 + ENOUGH, "{now:?} after {from:?}");
            Ok(())
        })
        .await
    };
    let mut outages = Vec::new();
    for round in 0..2 {
        progress((proxied.succeeded(), logins.succeeded()), "before the restart").await?;
        let killed = Instant::now();
        plane.restart_api_server().await.with_context(|| format!("restart {round}"))?;
        outages.push(Outage { killed, ready: Instant::now() });
        progress((proxied.succeeded(), logins.succeeded()), "after the restart").await?;
    }
    if let Some(ended) = clients.try_join_next() {
        ended??;
    }
    clients.shutdown().await;

    // A forwarded request may end in a 502, if the API server goes away during the request or does
    // not listen. A review is retried.
    for (load, what) in [(&proxied, "proxied"), (&logins, "logins")] {
        let failures = load.failures.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        let is_explained = |failure: &Failure| outages.iter().any(|outage| failure.is_explained_by(outage));
        let unexpected = failures.iter().filter(|one| one.status != 502 && !is_explained(one));
        let unexpected: Vec<_> = unexpected.map(|one| (one.status, &one.text)).collect();
        ensure!(unexpected.is_empty(), "{what}: {unexpected:?}");
    }
    Ok(())
}
