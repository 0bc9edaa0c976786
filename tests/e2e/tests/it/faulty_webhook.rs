//! Two webhooks, of which one is faulty: logins through the other one are not affected.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::apis;
use crate::installed::TIME_LIMIT;
use crate::separate_concierge::{SeparateConcierge, with_proxy};
use crate::service_account_tokens::webhook::{Fault, Webhook};

const APP: &str = "faulty-webhook";
const HEALTHY: &str = "healthy";
const FAULTY: &str = "faulty";
/// Number of concurrent logins through the faulty webhook.
const LOGINS: usize = 50;
/// Number of logins through the healthy webhook, one after the other.
const HEALTHY_LOGINS: usize = 10;
/// Number of concurrent logins of one client that exceeds its share.
const GREEDY_LOGINS: usize = 100;
/// The share of one client of one webhook (`LOGINS_IN_FLIGHT` in `exchange.rs` of the aggregated
/// API has the calculation).
const SHARE: usize = 72;
/// The time for which the Concierge waits for a webhook, in which a fault therefore has no result.
const WEBHOOK_DEADLINE: Duration = Duration::from_secs(30);

struct Installation {
    own: SeparateConcierge,
    client: kube::Client,
    faulty: Webhook,
}

/// One test, because an installation takes seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_through_one_webhook_work_while_another_one_is_faulty() {
    let Some(own) = SeparateConcierge::install(APP, &[], |text| with_proxy(&text)).await else { return };
    own.await_api().await;
    let (healthy, faulty) = (Webhook::start().unwrap(), Webhook::start().unwrap());
    own.create_authenticator_named(HEALTHY, &healthy).await;
    own.create_authenticator_named(FAULTY, &faulty).await;
    let client = apis::anonymous(own.world).await;
    let installation = Arc::new(Installation { own, client, faulty });
    for authenticator in [HEALTHY, FAULTY] {
        installation.await_login(authenticator).await;
    }
    for fault in [Fault::Silent, Fault::BlackHole] {
        let result = unresponsive(&installation, fault).await;
        installation.own.check(result.with_context(|| format!("{fault:?}")));
    }
    let result = garbage(&installation).await;
    installation.own.check(result);
    let result = one_client_leaves_permits_for_others(&installation).await;
    installation.own.check(result);
    let restarts: Vec<_> = installation.own.pods.list(APP).iter().map(|(_, pod)| pod.restarts).collect();
    assert_eq!(restarts, [0]);
}

impl Installation {
    /// Logs in through the API server, and returns the status of the response.
    async fn log_in(&self, authenticator: &str) -> anyhow::Result<Value> {
        let request = self.own.login_request(authenticator, &json!({"username": "faulty-pinny"}));
        let response = apis::post(&self.client, &self.own.login_path(), &request).await?;
        Ok(response["status"].clone())
    }

    async fn await_login(&self, authenticator: &str) {
        let waited = wait::until_ok(TIME_LIMIT, format!("a login through {authenticator}"), async || {
            let status = self.log_in(authenticator).await?;
            ensure!(status["credential"]["clientCertificateData"].is_string(), "{status}");
            Ok(())
        });
        self.own.check(waited.await);
    }

    /// Starts concurrent logins through the faulty webhook.
    fn start_logins(self: &Arc<Self>) -> JoinSet<anyhow::Result<Value>> {
        let mut logins = JoinSet::new();
        for _ in 0..LOGINS {
            let installation = Arc::clone(self);
            logins.spawn(async move { installation.log_in(FAULTY).await });
        }
        logins
    }

    async fn healthy_logins_work(&self) -> anyhow::Result<()> {
        for _ in 0..HEALTHY_LOGINS {
            let status = tokio::time::timeout(WEBHOOK_DEADLINE, self.log_in(HEALTHY)).await;
            let status = status.context("a healthy login waits")??;
            ensure!(status["credential"]["clientCertificateData"].is_string(), "{status}");
        }
        Ok(())
    }

    /// Ends the fault, and waits until logins through the webhook work again.
    async fn recover(&self) {
        self.faulty.set_fault(Fault::None);
        self.await_login(FAULTY).await;
    }
}

/// Logins through the healthy webhook complete while all logins through the other one wait.
async fn unresponsive(installation: &Arc<Installation>, fault: Fault) -> anyhow::Result<()> {
    installation.faulty.set_fault(fault);
    let mut logins = installation.start_logins();
    wait::until_ok(TIME_LIMIT, format!("{LOGINS} logins that wait"), async || {
        ensure!(installation.faulty.held() >= LOGINS, "{} wait", installation.faulty.held());
        Ok(())
    })
    .await?;
    installation.healthy_logins_work().await?;
    if let Some(ended) = logins.try_join_next() {
        anyhow::bail!("a login did not wait: {:?}", ended?);
    }
    // The clients go away, and so do the requests to the webhook.
    drop(logins);
    wait::until_ok(TIME_LIMIT, "an idle webhook", async || {
        ensure!(installation.faulty.held() == 0, "{} wait", installation.faulty.held());
        Ok(())
    })
    .await?;
    installation.recover().await;
    Ok(())
}

/// Logins through the healthy webhook work while logins through the other one fail.
async fn garbage(installation: &Arc<Installation>) -> anyhow::Result<()> {
    installation.faulty.set_fault(Fault::Garbage);
    let mut logins = installation.start_logins();
    installation.healthy_logins_work().await?;
    while let Some(ended) = logins.join_next().await {
        let status = ended??;
        ensure!(status == json!({"message": "authentication failed"}), "{status}");
    }
    installation.recover().await;
    Ok(())
}

/// A client that reaches the Concierge directly gets its share of the permits for the faulty
/// webhook, and 429 beyond it. It can log in through the other webhook, and so can other clients.
async fn one_client_leaves_permits_for_others(installation: &Arc<Installation>) -> anyhow::Result<()> {
    installation.faulty.set_fault(Fault::Silent);
    let (_, pod) = installation.own.pods.list(APP).into_iter().next().context("no pod")?;
    let direct = Direct::open(pod.ip.context("no address")?).await?;
    let mut logins = JoinSet::new();
    for _ in 0..GREEDY_LOGINS {
        let (mut direct, installation) = (direct.clone(), Arc::clone(installation));
        logins.spawn(async move { direct.log_in(&installation, FAULTY).await });
    }
    // The requests beyond the share are refused, and only they have a response.
    for _ in SHARE..GREEDY_LOGINS {
        let ended = tokio::time::timeout(TIME_LIMIT, logins.join_next()).await.context("too many permits")?;
        let (code, headers, _) = ended.context("no login")???;
        ensure!((code, headers.contains_key("retry-after")) == (429, true), "{code} {headers:?}");
    }
    wait::until_ok(TIME_LIMIT, "the share of one client", async || {
        ensure!(installation.faulty.held() == SHARE, "{} wait", installation.faulty.held());
        Ok(())
    })
    .await?;
    let (code, _, response) = direct.clone().log_in(installation, HEALTHY).await?;
    ensure!(code == 201 && response["status"]["credential"].is_object(), "{code} {response}");
    installation.healthy_logins_work().await?;
    ensure!(logins.try_join_next().is_none(), "a login did not wait");
    drop(logins);
    installation.recover().await;
    Ok(())
}

/// A connection to the aggregated API without the API server in between.
#[derive(Clone)]
struct Direct {
    sender: http2::SendRequest<Full<Bytes>>,
    _driver: Arc<JoinSet<()>>,
}

impl Direct {
    async fn open(ip: Ipv4Addr) -> anyhow::Result<Self> {
        let tcp = TcpStream::connect((ip, 10250)).await?;
        let tls = wire::connect_unverified(tcp, "concierge", &[b"h2"], None).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { sender, _driver: Arc::new(driver) })
    }

    async fn log_in(
        &mut self,
        installation: &Installation,
        authenticator: &str,
    ) -> anyhow::Result<(u16, HeaderMap, Value)> {
        let body = installation.own.login_request(authenticator, &json!({"username": "faulty-pinny"}));
        let request = Request::post(format!("https://concierge{}", installation.own.login_path()))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        self.sender.ready().await?;
        let (parts, body) = self.sender.send_request(request).await?.into_parts();
        let body = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        Ok((parts.status.as_u16(), parts.headers, body))
    }
}
