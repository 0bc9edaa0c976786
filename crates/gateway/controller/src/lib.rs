//! The gateway's control plane: what lies in the cluster becomes the routing table, and the objects are told.
//!
//! ```text
//! observe   ── watches ──► mirrors of what the table can depend on, and no more
//! batch     ── 100 ms after an event, at most 500 ms after the first
//! rebuild   ── off the async threads ──► publish(table)             every replica
//!                                    └─► verdicts ──► statuses, Events of Ingresses    the leader alone
//! ```
//!
//! What objects mean is decided in `pinniped-gateway-routing`. This crate refuses to know it: it brings the objects there,
//! and carries the answers to where they belong.
//!
//! A kind that is not installed contributes nothing and is asked for again; a right that is missing is named once in
//! the log and costs only what needs it. Neither blocks the start.

mod apply;
mod changes;
mod events;
mod kinds;
mod metrics;
mod mirror;
mod observe;
mod rebuild;
mod reported_kinds;
mod statuses;

use std::sync::Arc;

use pinniped_gateway_routing::{RoutingTable, Settings};
use pinniped_tasks::{TaskGroup, TaskMonitor};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::apply::{Memory, StatusWriter};
use self::events::EventWriter;
use self::observe::Listeners;
use self::rebuild::Rebuilder;
use pinniped_controller::lease::{LeaderElection, Leadership, LeaseParams};
use pinniped_controller::runtime::Trigger;

pub use metrics::GatewayMetrics;

/// What the control plane is told.
#[derive(Clone)]
pub struct Params {
    /// For watches, and for writing statuses.
    pub client: kube::Client,
    /// What objects mean to this gateway.
    pub settings: Settings,
    /// The namespaces whose objects it sees. None: every one.
    pub watch_namespaces: Vec<String>,
    /// What statuses say about where the gateway can be reached.
    pub addresses: StatusAddresses,
    /// Who writes statuses.
    pub election: Election,
    /// Receives the unexpected end of the election or of a watch.
    pub monitor: TaskMonitor,
}

/// Where the gateway can be reached, as statuses tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusAddresses {
    /// At these addresses and names, with commas between.
    Configured(String),
    /// Where the load balancer of this Service is.
    OfService {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// Which of several replicas writes statuses. All of them serve.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Election {
    /// The one that holds this Lease.
    Lease(LeaseParams),
    /// This one: there is no other.
    Alone,
}

/// Runs until `stop`. Calls `publish` with each new table: first when every kind has been listed, or refused to be. It
/// is called on a thread that may block, by one caller at a time, within the runtime's context.
///
/// At the end nobody writes any more, then the Lease is given back.
pub async fn run(
    params: Params,
    publish: impl Fn(Arc<RoutingTable>) + Send + Sync + 'static,
    metrics: GatewayMetrics,
    stop: CancellationToken,
) {
    let Params { client, settings, watch_namespaces, addresses, election, monitor } = params;
    let mut elections = TaskGroup::new(&monitor);
    let leadership = match election {
        Election::Alone => Leadership::fixed(true),
        Election::Lease(lease) => {
            let election = LeaderElection::new(client.clone(), lease);
            let leadership = election.leadership();
            elections.spawn("leader election", |stop| election.run(stop));
            leadership
        }
    };
    let serve = async {
        let listeners = Listeners { changes: Arc::default(), statuses: Trigger::new() };
        let mut watching =
            observe::start(&client, &settings, &watch_namespaces, &addresses, &listeners, &monitor);
        watching.answered().await;
        let (sender, verdicts) = watch::channel(Arc::default());
        let rebuilder = Rebuilder {
            settings,
            observed: Arc::clone(&watching.observed),
            changes: listeners.changes,
            publish: Arc::new(publish),
            verdicts: sender,
            metrics: metrics.clone(),
        };
        let events = EventWriter {
            client: client.clone(),
            observed: Arc::clone(&watching.observed),
            verdicts: verdicts.clone(),
            leadership: leadership.clone(),
            announced: Default::default(),
            forbidden: false,
        };
        let statuses = StatusWriter {
            client,
            observed: Arc::clone(&watching.observed),
            verdicts,
            addresses: watching.addresses.clone(),
            leadership,
            trigger: listeners.statuses,
            metrics,
            memory: Memory::default(),
        };
        tokio::join!(rebuilder.run(), statuses.run(), events.run());
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = serve => {}
    }
    elections.stop().await;
}
