//! The spans of a request: one from its head to the head of the response, and one for the request
//! to a backend. They contain no host, no path, no query and no header value.

use http::Request;
use pinniped_gateway_routing::table::Upstream;
use pinniped_traces::{RequestSpan, Span, SpanKind, Tracer, method_name};

/// Records requests. Clones share the tracer.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Starts the spans.
    pub tracer: Tracer,
    /// Whether a request continues the trace of its client, which then decides whether the request
    /// is recorded.
    pub trusts_clients: bool,
}

impl Traces {
    /// Starts the span of a request. `None` if it is not recorded.
    // Boxed because requests are rarely recorded.
    pub(super) fn begin<B>(&self, scheme: &'static str, request: &Request<B>) -> Option<Box<RequestSpan>> {
        let span = self.tracer.begin(request.headers(), || self.trusts_clients)?;
        let method = method_name(request.method());
        span.set_name(method);
        span.set("http.request.method", method);
        span.set("url.scheme", scheme);
        Some(Box::new(span))
    }
}

/// Starts the span of the request to a backend, and puts it into the headers of the request.
pub(super) fn forward<B>(
    parent: &RequestSpan,
    upstream: &Upstream,
    request: &mut Request<B>,
) -> Option<Span> {
    let span = parent.child("Forward", SpanKind::Client)?;
    span.set("http.request.method", method_name(request.method()));
    span.set("peer.service", &upstream.id.service.to_string());
    span.inject(request.headers_mut());
    Some(span)
}
