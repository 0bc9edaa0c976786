//! A replica of the control plane in this process, and the tables that it publishes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_controller::lease::{LeaseParams, Timing};
use pinniped_gateway_controller::{Election, GatewayMetrics, Params, StatusAddresses, run};
use pinniped_gateway_routing::table::{Action, Decision, RequestParts, TlsAction, TlsTarget};
use pinniped_gateway_routing::{RoutingTable, Settings};
use pinniped_tasks::TaskMonitor;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;

/// Long enough for a few thousand requests while a compiler uses the machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Replica {
    tables: watch::Receiver<Option<Arc<RoutingTable>>>,
    published: Arc<AtomicUsize>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Returns parameters that watch these namespaces, write no addresses, and write statuses without
/// an election.
pub(crate) fn params(client: kube::Client, namespaces: &[&str]) -> Params {
    Params {
        client,
        settings: Settings::default(),
        watch_namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
        addresses: StatusAddresses::Configured(String::new()),
        election: Election::Alone,
        monitor: TaskMonitor::default(),
    }
}

/// Returns an election with this Lease name, and with frequent attempts, so that a released Lease
/// is acquired soon. The other durations are the default ones, so that a busy machine loses no
/// leadership.
pub(crate) fn lease(name: &str, identity: &str) -> Election {
    Election::Lease(LeaseParams {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        owner: None,
        labels: Default::default(),
        timing: Timing { retry: Duration::from_millis(300), ..Timing::default() },
    })
}

impl Replica {
    pub(crate) fn start(params: Params) -> Self {
        let (sender, tables) = watch::channel(None);
        let (published, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let count = Arc::clone(&published);
        let publish = move |table| {
            count.fetch_add(1, Ordering::SeqCst);
            sender.send_replace(Some(table));
        };
        let task = tokio::spawn(run(params, publish, GatewayMetrics::default(), stop.clone()));
        Self { tables, published, stop, task }
    }

    /// Waits for a table that satisfies `is_so` and returns the elapsed time.
    pub(crate) async fn await_table(
        &self,
        what: &str,
        is_so: impl Fn(&Table) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let mut tables = self.tables.clone();
        let found = tables.wait_for(|table| table.clone().is_some_and(|table| is_so(&Table(table))));
        let found = tokio::time::timeout(PATIENCE, found).await;
        found
            .with_context(|| format!("never seen: {what}"))?
            .with_context(|| format!("ended before {what}"))?;
        Ok(began.elapsed())
    }

    /// Returns the number of published tables.
    pub(crate) fn published(&self) -> usize {
        self.published.load(Ordering::SeqCst)
    }

    /// Waits for the first table.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        self.await_table("a table", |_| true).await.map(drop)
    }

    /// Returns the current table.
    pub(crate) fn table(&self) -> anyhow::Result<Table> {
        Ok(Table(self.tables.borrow().clone().context("no table yet")?))
    }

    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.task.await?;
        Ok(())
    }
}

/// A published table.
pub(crate) struct Table(Arc<RoutingTable>);

impl Table {
    /// Returns the certificate that a client gets for this host.
    pub(crate) fn certificate(&self, host: &str) -> Option<String> {
        match self.0.tls.by_sni(Some(host))? {
            TlsTarget::Host(found) => match &found.action {
                TlsAction::Terminate(end) => Some(end.certificate.certificate_pem().to_owned()),
                TlsAction::Passthrough(_) => None,
            },
            TlsTarget::Fallback(fallback) => Some(fallback.certificate.certificate_pem().to_owned()),
        }
    }

    /// Returns whether port 80 serves the host.
    pub(crate) fn plain(&self, host: &str) -> bool {
        self.decide(host, |decision| !matches!(decision, Decision::NotFound))
    }

    /// Returns the endpoints of a host's first backend on port 80.
    pub(crate) fn endpoints(&self, host: &str) -> Vec<String> {
        self.decide(host, |decision| match decision {
            Decision::Take(route) => match &route.action {
                Action::Forward(forward) => {
                    forward.backends.pick(0).endpoints.iter().map(ToString::to_string).collect()
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        })
    }

    fn decide<T>(&self, host: &str, apply: impl FnOnce(Decision<'_>) -> T) -> T {
        let parts = RequestParts {
            method: &http::Method::GET,
            authority: host,
            path: "/",
            query: None,
            headers: &http::HeaderMap::new(),
        };
        apply(self.0.plain.route(&parts))
    }
}
