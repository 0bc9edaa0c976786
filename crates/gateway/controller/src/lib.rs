//! The control plane of the gateway: builds the routing table from the objects of the cluster, and
//! writes their statuses.
//!
//! ```text
//! observe   ── watches ──► mirrors of the parts that the table can depend on
//! batch     ── 100 ms after an event, at most 500 ms after the first
//! rebuild   ── on a blocking thread ──► publish(table)      every replica
//!                                   └─► validation results ──► statuses, Events
//!                                                              (the leader only)
//! ```
//!
//! `pinniped-gateway-routing` interprets the objects. This crate only reads them, passes them to
//! the builder, and delivers the results.
//!
//! A kind that is not installed contributes nothing, and the watch is retried. A missing permission
//! is logged once and affects only the features that need it. Neither blocks the start.

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
use self::events::RefusalReporter;
use self::observe::Listeners;
use self::rebuild::Rebuilder;
use pinniped_controller::client::Writer;
use pinniped_controller::event::EventWriter;
use pinniped_controller::lease::{LeaderElection, Leadership, LeaseParams};
use pinniped_controller::runtime::Trigger;
use pinniped_kube_types::event::Reporter;

pub use metrics::GatewayMetrics;

/// The name under which the gateway reports Events.
const REPORTER: &str = "pinniped-gateway";

/// The parameters of the control plane.
#[derive(Clone)]
pub struct Params {
    /// The client for watches and status writes.
    pub client: kube::Client,
    /// The settings of the routing table.
    pub settings: Settings,
    /// The namespaces to watch. If empty: all namespaces.
    pub watch_namespaces: Vec<String>,
    /// The source of the addresses in statuses.
    pub addresses: StatusAddresses,
    /// The election of the replica that writes statuses.
    pub election: Election,
    /// Receives the unexpected termination of the election or of a watch.
    pub monitor: TaskMonitor,
}

/// The source of the gateway's addresses in statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusAddresses {
    /// These comma-separated addresses and host names.
    Configured(String),
    /// The load balancer addresses of this Service.
    OfService {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
    },
}

/// The election of the replica that writes statuses. All replicas serve.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
pub enum Election {
    /// The replica that holds this Lease.
    Lease(LeaseParams),
    /// This replica, because there is no other.
    Alone,
}

/// Runs until `stop` is cancelled. Calls `publish` with each new table, for the first time when
/// every kind has been listed or its list has been refused. `publish` is called by one caller at a
/// time, on a thread that may block, within the context of the runtime.
///
/// Before it returns, all writes stop first, and then the Lease is released.
pub async fn run(
    params: Params,
    publish: impl Fn(Arc<RoutingTable>) + Send + Sync + 'static,
    metrics: GatewayMetrics,
    stop: CancellationToken,
) {
    let Params { client, settings, watch_namespaces, addresses, election, monitor } = params;
    let mut elections = TaskGroup::new(&monitor);
    let reporter = Reporter {
        controller: REPORTER,
        instance: match &election {
            Election::Alone => REPORTER.to_owned(),
            Election::Lease(lease) => lease.identity.clone(),
        },
    };
    let leadership = match election {
        Election::Alone => Leadership::fixed(true),
        Election::Lease(lease) => {
            let election = LeaderElection::new(client.clone(), lease);
            let leadership = election.leadership();
            elections.spawn("leader election", |stop| election.run(stop));
            leadership
        }
    };
    metrics.elected_by(&leadership);
    let serve = async {
        let listeners = Listeners { changes: Arc::default(), statuses: Trigger::new() };
        let mut watching =
            observe::start(&client, &settings, &watch_namespaces, &addresses, &listeners, &monitor);
        watching.responded().await;
        let (sender, results) = watch::channel(Arc::default());
        let rebuilder = Rebuilder {
            settings,
            observed: Arc::clone(&watching.observed),
            changes: listeners.changes,
            publish: Arc::new(publish),
            results: sender,
            metrics: metrics.clone(),
        };
        let refusals = RefusalReporter {
            events: EventWriter::new(client.clone(), Writer::new(leadership.clone()), reporter),
            observed: Arc::clone(&watching.observed),
            results: results.clone(),
            leadership: leadership.clone(),
            reported: Default::default(),
        };
        let statuses = StatusWriter {
            client,
            observed: Arc::clone(&watching.observed),
            results,
            addresses: watching.addresses.clone(),
            leadership,
            trigger: listeners.statuses,
            metrics,
            memory: Memory::default(),
        };
        tokio::join!(rebuilder.run(), statuses.run(), refusals.run());
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = serve => {}
    }
    elections.stop().await;
}
