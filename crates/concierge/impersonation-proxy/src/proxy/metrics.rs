//! Metrics of the data plane. Label sets are closed: they never contain a user name or a path.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use pinniped_apiserver::chain::RequestResult;
use pinniped_apiserver::in_flight::InFlightMetrics;
use pinniped_apiserver::refusal::Refusal;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum ResultLabel {
    Forwarded,
    Upgraded,
    BadRequest,
    Unauthenticated,
    Forbidden,
    ReviewFailed,
    Overloaded,
    CannotAct,
    BadGateway,
    Deadline,
    ShuttingDown,
    Panicked,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: ResultLabel,
}

impl ResultLabel {
    /// Returns the label of a result.
    pub(super) fn of(result: &RequestResult<'_>) -> Self {
        match result {
            RequestResult::Served(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Self::Upgraded
            }
            RequestResult::Served(_) => Self::Forwarded,
            RequestResult::Panicked => Self::Panicked,
            RequestResult::Refused(refusal) => match refusal {
                Refusal::BadPath
                | Refusal::BadTimeout(_)
                | Refusal::BadImpersonation(_)
                | Refusal::HeadTooLarge => Self::BadRequest,
                Refusal::NoRequestInfo(_) | Refusal::Internal(_) | Refusal::Status(_) => Self::CannotAct,
                Refusal::ShuttingDown => Self::ShuttingDown,
                Refusal::Deadline => Self::Deadline,
                Refusal::Unauthenticated => Self::Unauthenticated,
                Refusal::Forbidden(_) => Self::Forbidden,
                Refusal::Review(_) => Self::ReviewFailed,
                Refusal::Overloaded => Self::Overloaded,
                Refusal::BadGateway => Self::BadGateway,
            },
        }
    }
}

/// Metrics of all proxies of a process, whichever runs. Create it once and
/// [`register`](Self::register) it.
#[derive(Clone, Debug)]
pub struct ImpersonatorMetrics {
    requests: Family<ResultLabels, Counter>,
    in_flight: InFlightMetrics,
    seconds_to_head: Histogram,
    upstream_connections: Gauge,
    upstream_streams: Gauge,
    upstream_short_reads: Gauge,
    at_hand: Arc<AtHand>,
}

/// Metrics that every request needs, resolved once to avoid a lookup under a lock.
#[derive(Debug, Default)]
struct AtHand {
    ended: [OnceLock<Counter>; ResultLabel::Panicked as usize + 1],
}

impl Default for ImpersonatorMetrics {
    fn default() -> Self {
        let buckets = [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];
        Self {
            requests: Family::default(),
            in_flight: InFlightMetrics::default(),
            seconds_to_head: Histogram::new(buckets),
            upstream_connections: Gauge::default(),
            upstream_streams: Gauge::default(),
            upstream_short_reads: Gauge::default(),
            at_hand: Arc::default(),
        }
    }
}

impl ImpersonatorMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("pinniped_impersonator");
        registry.register("requests", "Requests by result", self.requests.clone());
        self.in_flight.register(registry);
        registry.register(
            "response_head_seconds",
            "Time from a request's head to its response's head",
            self.seconds_to_head.clone(),
        );
        registry.register(
            "upstream_connections",
            "HTTP/2 connections to the API server, refreshed once a minute",
            self.upstream_connections.clone(),
        );
        registry.register(
            "upstream_streams",
            "HTTP/2 streams to the API server, refreshed once a minute",
            self.upstream_streams.clone(),
        );
        registry.register(
            "upstream_http1_connections",
            "HTTP/1.1 connections to the API server for short reads, refreshed once a minute",
            self.upstream_short_reads.clone(),
        );
    }

    pub(super) fn ended(&self, result: ResultLabel, after: Duration) {
        let counter = self.at_hand.ended[result as usize]
            .get_or_init(|| self.requests.get_or_create_owned(&ResultLabels { result }));
        counter.inc();
        self.seconds_to_head.observe(after.as_secs_f64());
    }

    pub(super) fn in_flight(&self) -> InFlightMetrics {
        self.in_flight.clone()
    }

    pub(super) fn upstream(&self, stats: pinniped_kube_client::UpstreamStats) {
        self.upstream_connections.set(i64::try_from(stats.connections).unwrap_or(i64::MAX));
        self.upstream_streams.set(i64::try_from(stats.streams).unwrap_or(i64::MAX));
        self.upstream_short_reads.set(i64::try_from(stats.short_reads).unwrap_or(i64::MAX));
    }
}
