//! Metrics of the impersonation proxy, in addition to those of its handler chain.

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use pinniped_apiserver::chain::RequestResult;
use pinniped_apiserver::metrics::{RequestMetrics, Server, ServerMetrics};
use pinniped_apiserver::refusal::Refusal;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Listeners, ServerHandle};
use pinniped_metrics::definitions::{concierge, connections};
use pinniped_metrics::{CounterTable, GaugeTable, Metrics};

/// The result of a request. The order is that of [`PROXY_RESULTS`](concierge::PROXY_RESULTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Abandoned,
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
            RequestResult::Abandoned => Self::Abandoned,
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
    chain: ServerMetrics,
    listeners: Listeners,
    requests: CounterTable<1>,
    upstream_connections: GaugeTable<0>,
    upstream_streams: GaugeTable<0>,
    upstream_short_reads: GaugeTable<0>,
    /// The upgraded connections of the latest proxy.
    tunnels: Arc<Mutex<Option<Tunnels>>>,
}

impl Default for ImpersonatorMetrics {
    fn default() -> Self {
        Self::new(&RequestMetrics::default(), Listeners::default())
    }
}

impl ImpersonatorMetrics {
    /// Creates the metrics. Proxies add their listener to `listeners`.
    pub fn new(requests: &RequestMetrics, listeners: Listeners) -> Self {
        Self {
            chain: requests.of(Server::Proxy),
            listeners,
            requests: CounterTable::new(&concierge::PROXY_REQUESTS),
            upstream_connections: GaugeTable::new(&concierge::UPSTREAM_CONNECTIONS),
            upstream_streams: GaugeTable::new(&concierge::UPSTREAM_STREAMS),
            upstream_short_reads: GaugeTable::new(&concierge::UPSTREAM_HTTP1_CONNECTIONS),
            tunnels: Arc::default(),
        }
    }

    /// Registers the metrics, without those of the chain and of the listener.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.requests);
        metrics.add(&self.upstream_connections);
        metrics.add(&self.upstream_streams);
        metrics.add(&self.upstream_short_reads);
        let tunnels = Arc::clone(&self.tunnels);
        metrics.collect(&concierge::PROXY_UPGRADED, move |samples| {
            if let Some(tunnels) = &*tunnels.lock().unwrap_or_else(PoisonError::into_inner) {
                samples.push([], u64::try_from(tunnels.open()).unwrap_or(u64::MAX));
            }
        });
    }

    /// Exports the connections of this proxy instead of those of the previous one.
    pub(super) fn started(&self, handle: &ServerHandle, tunnels: &Tunnels) {
        self.listeners.add(connections::IMPERSONATION_PROXY, handle.stats_source());
        *self.tunnels.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnels.clone());
    }

    pub(super) fn ended(&self, result: ResultLabel) {
        self.requests.add([result as usize], 1);
    }

    pub(super) fn chain(&self) -> ServerMetrics {
        self.chain.clone()
    }

    pub(super) fn upstream(&self, stats: pinniped_kube_client::UpstreamStats) {
        for (gauge, count) in [
            (&self.upstream_connections, stats.connections),
            (&self.upstream_streams, stats.streams),
            (&self.upstream_short_reads, stats.short_reads),
        ] {
            gauge.set([], i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_have_the_order_of_their_labels() {
        for (result, label) in [
            (ResultLabel::Forwarded, "Forwarded"),
            (ResultLabel::Unauthenticated, "Unauthenticated"),
            (ResultLabel::Overloaded, "Overloaded"),
            (ResultLabel::Abandoned, "Abandoned"),
        ] {
            assert_eq!(concierge::PROXY_RESULTS.get(result as usize), Some(&label));
            assert_eq!(format!("{result:?}"), label);
        }
        assert_eq!(concierge::PROXY_RESULTS.len(), ResultLabel::Abandoned as usize + 1);
    }
}
