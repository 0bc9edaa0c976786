//! Metrics of the handler chain.
//!
//! Every request updates them, so their labels are positions in fixed lists, and an update takes no
//! lock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use pinniped_kube_metrics::requests::{
    DURATION, GROUPS, IN_FLIGHT, IN_FLIGHT_LIMIT, LIMITS, OVER_LIMIT, REQUESTS, SERVERS, VERBS, code_class,
};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_metrics::{CounterTable, HistogramTable, Metrics};
use tokio::time::Instant;

use crate::in_flight::Permits;
use crate::slow_requests::{SlowRequestGuard, SlowRequests};

/// A server whose requests are counted separately. The order is that of [`SERVERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The aggregated API of the program.
    AggregatedApi,
    /// The proxy in front of the API server.
    Proxy,
}

/// A limit on requests. The order is that of [`LIMITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Short,
    /// A separate limit on short requests that may change objects.
    Mutating,
    /// The length of the queue of short requests.
    Waiting,
    LongRunning,
}

/// Positions in [`GROUPS`]; the following ones are API groups by name.
const NO_RESOURCE: usize = 0;
const CORE: usize = 1;
const OTHER_GROUP: usize = 2;
const UNKNOWN_GROUP: usize = 3;
const FIRST_NAMED_GROUP: usize = 4;

/// The metrics of all servers of a process. Create it once and [`register`](Self::register) it.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: CounterTable<4>,
    duration: HistogramTable<2>,
    over_limit: CounterTable<2>,
    /// The permits of the server of each kind that started last. A server that has stopped has
    /// none.
    running: Arc<Mutex<[Weak<Permits>; SERVERS.len()]>>,
    slow: SlowRequests,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            requests: CounterTable::new(&REQUESTS),
            duration: HistogramTable::new(&DURATION),
            over_limit: CounterTable::new(&OVER_LIMIT),
            running: Arc::default(),
            slow: SlowRequests::default(),
        }
    }
}

impl RequestMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.requests);
        metrics.add(&self.duration);
        metrics.add(&self.over_limit);
        let running = Arc::clone(&self.running);
        metrics.collect(move |samples| {
            let running = running.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for ((server, _), permits) in SERVERS.iter().zip(running) {
                let Some(permits) = permits.upgrade() else { continue };
                for (limit, in_use, most) in permits.usage() {
                    let labels = [*server, LIMITS[limit as usize].0];
                    samples.push(&IN_FLIGHT, labels, in_use as u64);
                    samples.push(&IN_FLIGHT_LIMIT, labels, most as u64);
                }
            }
        });
    }

    /// Returns the slowest requests of all servers.
    pub fn slow_requests(&self) -> SlowRequests {
        self.slow.clone()
    }

    /// Returns the metrics of one server. Servers that run one after another share them.
    pub fn of(&self, server: Server) -> ServerMetrics {
        ServerMetrics { all: self.clone(), server: server as usize }
    }
}

/// The metrics of one server.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    all: RequestMetrics,
    server: usize,
}

impl Default for ServerMetrics {
    /// Returns metrics that are not exported.
    fn default() -> Self {
        RequestMetrics::default().of(Server::AggregatedApi)
    }
}

impl ServerMetrics {
    /// Exports the use of these permits instead of those of an earlier server, until they are
    /// dropped.
    pub(crate) fn started(&self, permits: &Arc<Permits>) {
        let mut running = self.all.running.lock().unwrap_or_else(PoisonError::into_inner);
        running[self.server] = Arc::downgrade(permits);
    }

    pub(crate) fn refused(&self, limit: Limit) {
        self.all.over_limit.add([self.server, limit as usize], 1);
    }

    /// Returns a guard that remembers a request if it is slow.
    pub(crate) fn watch<'a>(
        &'a self,
        attributes: &'a Attributes,
        audit_id: &'a HeaderValue,
        received: Instant,
    ) -> SlowRequestGuard<'a> {
        self.all.slow.watch(SERVERS[self.server].0, attributes, audit_id, received)
    }

    /// Records a request whose response begins after this time, or that is abandoned.
    pub(crate) fn ended(&self, labels: &RequestLabels, status: Option<StatusCode>, elapsed: Duration) {
        let (verb, group) = labels.get();
        let class = code_class(status.map(|status| status.as_u16()));
        self.all.requests.add([self.server, verb, group, class], 1);
        self.all.duration.observe([self.server, verb], elapsed);
    }
}

/// The labels of a request: positions in [`VERBS`] and [`GROUPS`]. A request whose path cannot be
/// parsed keeps the initial ones.
#[derive(Debug)]
pub(crate) struct RequestLabels {
    verb: AtomicUsize,
    group: AtomicUsize,
    is_authorized: AtomicBool,
}

impl Default for RequestLabels {
    fn default() -> Self {
        Self {
            verb: AtomicUsize::new(VERBS.len() - 1),
            group: AtomicUsize::new(NO_RESOURCE),
            is_authorized: AtomicBool::new(false),
        }
    }
}

impl RequestLabels {
    /// Sets the labels of a request. Its group remains unknown until it is authorized, so that a
    /// client without permissions cannot add a series for each group.
    pub(crate) fn set(&self, info: &RequestInfo) {
        let verb = VERBS.iter().position(|(verb, _)| *verb == info.verb).unwrap_or(VERBS.len() - 1);
        self.verb.store(verb, Ordering::Relaxed);
        self.group.store(group(info), Ordering::Relaxed);
    }

    /// Reveals the group of a request that is authorized.
    pub(crate) fn authorized(&self) {
        self.is_authorized.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> (usize, usize) {
        let group = self.group.load(Ordering::Relaxed);
        let is_hidden = group != NO_RESOURCE && !self.is_authorized.load(Ordering::Relaxed);
        (self.verb.load(Ordering::Relaxed), if is_hidden { UNKNOWN_GROUP } else { group })
    }
}

/// Returns the position of the request's group in [`GROUPS`].
fn group(info: &RequestInfo) -> usize {
    match info.api_group.as_str() {
        _ if !info.is_resource => NO_RESOURCE,
        "" => CORE,
        group => {
            let named = GROUPS.iter().skip(FIRST_NAMED_GROUP).position(|(name, _)| *name == group);
            named.map_or(OTHER_GROUP, |position| FIRST_NAMED_GROUP + position)
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use pinniped_delegated_auth::client_key::ClientKey;

    use crate::in_flight::{InFlight, InFlightLimits, RequestClass};

    use super::*;

    fn labels(method: &Method, path: &str) -> (&'static str, &'static str) {
        let labels = RequestLabels::default();
        labels.set(&RequestInfo::parse(method, &path.parse().unwrap()).unwrap());
        labels.authorized();
        let (verb, group) = labels.get();
        (VERBS[verb].0, GROUPS[group].0)
    }

    /// The maximum number of series that clients without permissions can cause.
    const MOST_UNAUTHORIZED: usize = 1000;

    #[test]
    fn clients_without_permissions_cause_few_series() {
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "INVENTED"];
        let groups = GROUPS.iter().map(|(group, _)| format!("/apis/{group}/v1/"));
        let prefixes: Vec<String> = groups.chain(["/api/v1/".to_owned(), "/".to_owned()]).collect();
        for server in [Server::AggregatedApi, Server::Proxy].map(|server| requests.of(server)) {
            for (method, prefix) in
                methods.iter().flat_map(|method| prefixes.iter().map(move |p| (method, p)))
            {
                for path in ["pods", "pods/p", "pods?watch=1", "proxy/pods/p", "watch/pods"] {
                    let method = Method::from_bytes(method.as_bytes()).unwrap();
                    let uri = format!("{prefix}{path}").parse().unwrap();
                    let labels = RequestLabels::default();
                    if let Ok(info) = RequestInfo::parse(&method, &uri) {
                        labels.set(&info);
                    }
                    for status in [101, 200, 302, 403, 503, 0] {
                        server.ended(&labels, StatusCode::from_u16(status).ok(), Duration::ZERO);
                    }
                }
            }
        }
        let text = metrics.text().unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!((500..MOST_UNAUTHORIZED).contains(&series), "{series}");
    }

    #[test]
    fn verbs_and_groups_that_clients_invent_share_one_label() {
        let custom = Method::from_bytes(b"FROBNICATE").unwrap();
        for (method, path, expected) in [
            (Method::GET, "/api/v1/namespaces/ns/pods/p", ("get", "core")),
            (Method::GET, "/api/v1/pods", ("list", "core")),
            (Method::GET, "/api/v1/pods?watch=1", ("watch", "core")),
            (Method::DELETE, "/apis/apps/v1/namespaces/ns/deployments", ("deletecollection", "apps")),
            (Method::PATCH, "/apis/metrics.k8s.io/v1/nodes/n", ("patch", "metrics.k8s.io")),
            (Method::POST, "/apis/none/v1/x", ("create", "other")),
            (Method::POST, "/apis/core/v1/x", ("create", "other")),
            (Method::POST, "/apis/other/v1/x", ("create", "other")),
            (Method::GET, "/apis/example.com/v1/x/y", ("get", "other")),
            (Method::HEAD, "/version", ("head", "none")),
            (Method::GET, "/invented/by/a/client", ("get", "none")),
            (custom, "/version", ("other", "none")),
        ] {
            assert_eq!(labels(&method, path), expected, "{path}");
        }
    }

    #[test]
    fn a_request_is_counted_by_server_verb_group_and_class_of_its_status() {
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let proxy = requests.of(Server::Proxy);
        let labels = RequestLabels::default();
        proxy.ended(&labels, Some(StatusCode::BAD_REQUEST), Duration::from_millis(3));
        labels.set(&RequestInfo::parse(&Method::GET, &"/api/v1/pods".parse().unwrap()).unwrap());
        proxy.ended(&labels, Some(StatusCode::FORBIDDEN), Duration::from_millis(3));
        labels.authorized();
        for status in [101, 999] {
            proxy.ended(&labels, StatusCode::from_u16(status).ok(), Duration::from_millis(3));
        }
        proxy.ended(&labels, None, Duration::from_secs(70));
        requests.of(Server::AggregatedApi).refused(Limit::Mutating);
        let text = metrics.text().unwrap();
        for line in [
            r#"pinniped_requests_total{server="impersonation_proxy",verb="other",group="none",code_class="4xx"} 1"#,
            r#"pinniped_requests_total{server="impersonation_proxy",verb="list",group="unknown",code_class="4xx"} 1"#,
            r#"pinniped_requests_total{server="impersonation_proxy",verb="list",group="core",code_class="1xx"} 1"#,
            r#"pinniped_requests_total{server="impersonation_proxy",verb="list",group="core",code_class="5xx"} 1"#,
            r#"pinniped_requests_total{server="impersonation_proxy",verb="list",group="core",code_class="abandoned"} 1"#,
            r#"pinniped_request_duration_seconds_bucket{le="0.005",server="impersonation_proxy",verb="list"} 3"#,
            r#"pinniped_request_duration_seconds_bucket{le="61.0",server="impersonation_proxy",verb="list"} 3"#,
            r#"pinniped_request_duration_seconds_bucket{le="+Inf",server="impersonation_proxy",verb="list"} 4"#,
            r#"pinniped_requests_over_limit_total{server="aggregated_api",limit="mutating"} 1"#,
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
        }
        assert_eq!(text.matches("pinniped_requests_total{").count(), 5, "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_request_is_counted_by_the_limit_that_it_reached() {
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let client = &ClientKey::user("u");
        let limits = InFlightLimits { short: 1, waiting: 1, long_running: 1, ..InFlightLimits::PROXY };
        let in_flight = InFlight::new(&limits, requests.of(Server::Proxy));
        let _permit = in_flight.enter(client, RequestClass::ReadOnly).await.unwrap();
        let _long = in_flight.enter(client, RequestClass::LongRunning).await.unwrap();
        assert!(in_flight.enter_exempt(client, RequestClass::ReadOnly).is_none());
        // One of them waits in vain, and the others find the queue full.
        let enter = || in_flight.enter(client, RequestClass::Mutating);
        let refused = tokio::join!(enter(), enter(), enter());
        assert!(refused.0.is_err() && refused.1.is_err() && refused.2.is_err());
        assert!(in_flight.enter(client, RequestClass::LongRunning).await.is_err());
        // A server where requests do not wait.
        let limits = InFlightLimits { short: 1, waiting: 0, ..limits };
        let in_flight = InFlight::new(&limits, requests.of(Server::AggregatedApi));
        let _permit = in_flight.enter(client, RequestClass::ReadOnly).await.unwrap();
        assert!(in_flight.enter(client, RequestClass::ReadOnly).await.is_err());
        let text = metrics.text().unwrap();
        let counts: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("pinniped_requests_over_limit_total"))
            .filter(|line| !line.ends_with(" 0"))
            .collect();
        let expected = [
            r#"{server="aggregated_api",limit="short"} 1"#,
            r#"{server="impersonation_proxy",limit="short"} 1"#,
            r#"{server="impersonation_proxy",limit="waiting"} 2"#,
            r#"{server="impersonation_proxy",limit="long_running"} 1"#,
        ];
        assert_eq!(counts, expected);
    }

    #[tokio::test]
    async fn requests_in_flight_are_those_of_the_server_that_runs() {
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let limits = |short| InFlightLimits { short, ..InFlightLimits::PROXY };
        let lines = || {
            let text = metrics.text().unwrap();
            let name = "pinniped_requests_in_flight";
            text.lines().filter_map(|line| Some(line.strip_prefix(name)?.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(lines(), [""; 0]);
        let earlier = InFlight::new(&limits(500), requests.of(Server::Proxy));
        let later = InFlight::new(&limits(2), requests.of(Server::Proxy));
        let (client, other) = (ClientKey::user("u"), ClientKey::user("v"));
        let _long = later.enter(&client, RequestClass::LongRunning).await.unwrap();
        let _short = later.enter(&client, RequestClass::ReadOnly).await.unwrap();
        let _mutating = later.enter(&other, RequestClass::Mutating).await.unwrap();
        let mut waiting = Box::pin(later.enter(&client, RequestClass::ReadOnly));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(earlier);
        let expected = [
            r#"{server="impersonation_proxy",limit="short"} 2"#,
            r#"{server="impersonation_proxy",limit="waiting"} 1"#,
            r#"{server="impersonation_proxy",limit="long_running"} 1"#,
            r#"_limit{server="impersonation_proxy",limit="short"} 2"#,
            r#"_limit{server="impersonation_proxy",limit="waiting"} 1200"#,
            r#"_limit{server="impersonation_proxy",limit="long_running"} 20000"#,
        ];
        assert_eq!(lines(), expected);
        drop(waiting);
        drop(later);
        assert_eq!(lines(), [""; 0], "the server has stopped");
    }
}
