//! Metrics of requests: their number, their duration, and those in flight.
//!
//! Every request updates them, so their labels are positions in fixed lists. An update takes no
//! lock, and allocates memory only at the first request of a method.

use std::sync::Arc;

use http::{Method, StatusCode};
use pinniped_gateway_metrics::{METHODS, REQUEST_DURATION, REQUESTS, REQUESTS_IN_FLIGHT};
use pinniped_kube_metrics::requests::code_class;
use pinniped_metrics::{CounterTable, HistogramTable, Metrics};
use tokio::time::Instant;

use crate::gateway::Inner;

/// The metrics of the requests of a gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: CounterTable<2>,
    duration: HistogramTable<1>,
    /// Requests that are or were in flight.
    begun: CounterTable<0>,
    /// Those of them that have ended. A gauge that decreases would be negative for a moment when
    /// one worker begins a request and another one ends it.
    ended: CounterTable<0>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self {
            requests: CounterTable::new(&REQUESTS),
            duration: HistogramTable::new(&REQUEST_DURATION),
            begun: CounterTable::new(&REQUESTS_IN_FLIGHT),
            ended: CounterTable::new(&REQUESTS_IN_FLIGHT),
        }
    }
}

impl RequestMetrics {
    /// Registers the metrics.
    pub fn register(&self, metrics: &Metrics) {
        metrics.add(&self.requests);
        metrics.add(&self.duration);
        let this = self.clone();
        metrics.collect(move |samples| samples.push(&REQUESTS_IN_FLIGHT, [], this.in_flight()));
    }

    /// Returns the number of requests in flight.
    fn in_flight(&self) -> u64 {
        // In this order, because a request begins before it ends.
        let ended = self.ended.get([]);
        self.begun.get([]).saturating_sub(ended)
    }

    /// Records a request whose response begins now, or that ends now without one.
    pub(super) fn responded(&self, received: Received, status: Option<StatusCode>) {
        let class = code_class(status.map(|status| status.as_u16()));
        self.requests.add([received.method, class], 1);
        self.duration.observe([received.method], received.at.elapsed());
    }

    /// Records that a request is no longer in flight.
    pub(super) fn ended(&self) {
        self.ended.add([], 1);
    }
}

/// The receipt of the head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// The position of its method in [`METHODS`].
    method: usize,
    pub(super) at: Instant,
}

impl Received {
    /// Returns the receipt of a request with this method.
    pub(super) fn now(method: &Method) -> Self {
        let known = METHODS.iter().position(|(name, _)| *name == method.as_str());
        Self { method: known.unwrap_or(METHODS.len() - 1), at: Instant::now() }
    }
}

/// A request to a backend, until the head of its response. If it is dropped earlier, the client has
/// abandoned it.
#[derive(Debug)]
pub(super) struct InFlight {
    inner: Arc<Inner>,
    received: Received,
    has_response: bool,
    /// The request ends together with its response, which calls [`RequestMetrics::ended`].
    ends_with_response: bool,
}

impl InFlight {
    pub(super) fn begin(inner: &Arc<Inner>, received: Received) -> Self {
        inner.requests.begun.add([], 1);
        Self { inner: Arc::clone(inner), received, has_response: false, ends_with_response: false }
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the time at which the request was received.
    pub(super) fn received(&self) -> Instant {
        self.received.at
    }

    /// Records the head of the response.
    pub(super) fn responded(&mut self, status: StatusCode) {
        self.has_response = true;
        self.inner.requests.responded(self.received, Some(status));
    }

    /// The guard of the response ends the request from now on.
    pub(super) fn end_with_response(&mut self) {
        self.ends_with_response = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.has_response {
            self.inner.requests.responded(self.received, None);
        }
        if !self.ends_with_response {
            self.inner.requests.ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_counted_by_its_method_and_the_class_of_its_status() {
        let (metrics, requests) = (Metrics::new(), RequestMetrics::default());
        requests.register(&metrics);
        let respond = async |method: &[u8], milliseconds, status: Option<u16>| {
            let received = Received::now(&Method::from_bytes(method).unwrap());
            tokio::time::advance(Duration::from_millis(milliseconds)).await;
            requests.responded(received, status.map(|status| StatusCode::from_u16(status).unwrap()));
        };
        respond(b"GET", 3, Some(200)).await;
        respond(b"GET", 70_000, Some(504)).await;
        respond(b"GET", 3, None).await;
        respond(b"get", 3, Some(404)).await;
        respond(b"FROBNICATE", 3, Some(404)).await;
        respond(b"TRACE", 3, Some(101)).await;
        let text = metrics.text().unwrap();
        for line in [
            r#"pinniped_gateway_requests_total{method="GET",code_class="2xx"} 1"#,
            r#"pinniped_gateway_requests_total{method="GET",code_class="5xx"} 1"#,
            r#"pinniped_gateway_requests_total{method="GET",code_class="abandoned"} 1"#,
            r#"pinniped_gateway_requests_total{method="other",code_class="4xx"} 2"#,
            r#"pinniped_gateway_requests_total{method="TRACE",code_class="1xx"} 1"#,
            r#"pinniped_gateway_request_duration_seconds_bucket{le="0.002",method="GET"} 0"#,
            r#"pinniped_gateway_request_duration_seconds_bucket{le="0.005",method="GET"} 2"#,
            r#"pinniped_gateway_request_duration_seconds_count{method="GET"} 3"#,
            r#"pinniped_gateway_request_duration_seconds_count{method="other"} 2"#,
            "pinniped_gateway_requests_in_flight 0",
        ] {
            assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}\n{text}");
        }
        assert_eq!(text.matches("pinniped_gateway_requests_total{").count(), 5, "{text}");
    }

    #[test]
    fn a_request_in_flight_may_end_on_another_thread() {
        let requests = RequestMetrics::default();
        requests.begun.add([], 3);
        let other = requests.clone();
        std::thread::spawn(move || other.ended()).join().unwrap();
        assert_eq!(requests.in_flight(), 2);
        // A scrape may see the end of a request before its begin.
        (0..3).for_each(|_| requests.ended());
        assert_eq!(requests.in_flight(), 0);
    }
}
