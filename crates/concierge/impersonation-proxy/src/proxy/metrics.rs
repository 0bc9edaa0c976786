//! Metrics of the impersonation proxy, in addition to those of its handler chain.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use http::StatusCode;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use pinniped_apiserver::chain::RequestResult;
use pinniped_apiserver::metrics::{RequestMetrics, Server, ServerMetrics};
use pinniped_apiserver::refusal::Refusal;
use pinniped_concierge_metrics::{self as definitions, listeners};
use pinniped_http_client::upstream::RequestBody;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Listeners, ServerHandle, Stats};
use pinniped_kube_client::{Upstream, UpstreamStats};
use pinniped_metrics::{CounterTable, Metrics};
use pinniped_reverse_proxy::Direction;

/// The result of a request. The order is that of [`PROXY_RESULTS`](definitions::PROXY_RESULTS).
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
    /// Returns the value of the label.
    pub(super) fn name(self) -> &'static str {
        definitions::PROXY_RESULTS[self as usize].0
    }

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

/// The bytes of all requests. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct ByteCounts(CounterTable<1>);

impl ByteCounts {
    pub(super) fn add(&self, direction: Direction, bytes: u64) {
        let at = match direction {
            Direction::FromClient => 0,
            Direction::ToClient => 1,
        };
        self.0.add([at], bytes);
    }

    /// Counts the body of a request: at once if its length is known, otherwise while it is read.
    pub(super) fn count_body(&self, body: &mut RequestBody) {
        if let Some(length) = body.size_hint().exact() {
            if length > 0 {
                self.add(Direction::FromClient, length);
            }
            return;
        }
        let this = self.clone();
        let counted = std::mem::take(body).map_frame(move |frame| {
            let length = frame.data_ref().map_or(0, Bytes::len);
            this.add(Direction::FromClient, length as u64);
            frame
        });
        *body = RequestBody::Boxed(counted.boxed_unsync());
    }
}

/// Metrics of all proxies of a process, whichever runs. Create it once and
/// [`register`](Self::register) it.
#[derive(Clone, Debug)]
pub struct ImpersonatorMetrics {
    chain: ServerMetrics,
    listeners: Listeners,
    requests: CounterTable<1>,
    bytes: ByteCounts,
    /// The proxy that started last. A proxy that has stopped has no values.
    running: Arc<Mutex<Weak<RunningProxy>>>,
}

/// The parts of a running proxy that metrics read when they are scraped. The proxy owns them until
/// it has stopped.
pub(super) struct RunningProxy {
    connections: Box<dyn Fn() -> Stats + Send + Sync>,
    tunnels: Tunnels,
    upstream: Upstream,
}

impl fmt::Debug for RunningProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningProxy").finish_non_exhaustive()
    }
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
            requests: CounterTable::new(&definitions::PROXY_REQUESTS),
            bytes: ByteCounts(CounterTable::new(&definitions::PROXY_BYTES)),
            running: Arc::default(),
        }
    }

    /// Registers the metrics, without those of the chain and of the listener.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.requests);
        metrics.add(&self.bytes.0);
        let running = Arc::clone(&self.running);
        let families = [
            &definitions::PROXY_UPGRADED,
            &definitions::UPSTREAM_CONNECTIONS,
            &definitions::UPSTREAM_STREAMS,
            &definitions::UPSTREAM_HTTP1_CONNECTIONS,
        ];
        metrics.collect(move |samples| {
            let running = running.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            let Some(RunningProxy { tunnels, upstream, .. }) = running.as_deref() else { return };
            let UpstreamStats { connections, streams, short_reads } = upstream.stats();
            for (family, count) in
                families.into_iter().zip([tunnels.open(), connections, streams, short_reads])
            {
                samples.push(family, [], u64::try_from(count).unwrap_or(u64::MAX));
            }
        });
    }

    /// Exports the connections of this proxy instead of those of the previous one, until the result
    /// is dropped.
    #[must_use]
    pub(super) fn started(
        &self,
        handle: &ServerHandle,
        tunnels: &Tunnels,
        upstream: &Upstream,
    ) -> Arc<RunningProxy> {
        let running = Arc::new(RunningProxy {
            connections: Box::new(handle.stats_source()),
            tunnels: tunnels.clone(),
            upstream: upstream.clone(),
        });
        let stats = Arc::downgrade(&running);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Weak::clone(&stats);
        self.listeners.add_temporary(listeners::IMPERSONATION_PROXY, move || {
            stats.upgrade().map(|running| (running.connections)())
        });
        running
    }

    pub(super) fn ended(&self, result: ResultLabel) {
        self.requests.add([result as usize], 1);
    }

    pub(super) fn bytes(&self) -> &ByteCounts {
        &self.bytes
    }

    pub(super) fn chain(&self) -> ServerMetrics {
        self.chain.clone()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;
    use pinniped_http_server::BoxError;

    use super::*;

    #[tokio::test]
    async fn the_bytes_of_a_body_count_with_and_without_a_known_length() {
        let metrics = ImpersonatorMetrics::default();
        let mut known = RequestBody::Full(Bytes::from_static(b"12345"));
        metrics.bytes().count_body(&mut known);
        metrics.bytes().count_body(&mut RequestBody::Empty);
        assert_eq!(metrics.bytes.0.get([0]), 5);
        let parts =
            ["67", "8"].map(|part| Ok::<_, BoxError>(Frame::data(Bytes::from_static(part.as_bytes()))));
        let body = StreamBody::new(futures::stream::iter(parts));
        let mut unknown = RequestBody::Boxed(body.boxed_unsync());
        metrics.bytes().count_body(&mut unknown);
        let read = unknown.collect().await.expect("a body").to_bytes();
        assert_eq!((&read[..], metrics.bytes.0.get([0])), (&b"678"[..], 8));
    }

    #[test]
    fn the_results_have_the_order_of_their_labels() {
        for (result, label) in [
            (ResultLabel::Forwarded, "forwarded"),
            (ResultLabel::BadRequest, "bad_request"),
            (ResultLabel::Unauthenticated, "unauthenticated"),
            (ResultLabel::ReviewFailed, "review_failed"),
            (ResultLabel::Overloaded, "overloaded"),
            (ResultLabel::CannotAct, "cannot_act"),
            (ResultLabel::BadGateway, "bad_gateway"),
            (ResultLabel::ShuttingDown, "shutting_down"),
            (ResultLabel::Abandoned, "abandoned"),
        ] {
            assert_eq!(definitions::PROXY_RESULTS[result as usize].0, label);
        }
        assert_eq!(definitions::PROXY_RESULTS.len(), ResultLabel::Abandoned as usize + 1);
    }
}
