//! Spans of requests and of the calls that they wait for.
//!
//! The current span is that of OpenTelemetry's `Context`, which is attached to the thread while the
//! future of a request is polled. A task that a request starts has no current span; the request
//! gives it a [`Span`].

use http::{HeaderMap, Method, StatusCode};
use opentelemetry::trace::{
    FutureExt as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceState,
    Tracer as _, WithContext,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use crate::trace_context;

/// Maximum length of a text in a span, in bytes. Clients choose many of them.
const MAX_TEXT: usize = 256;

/// Starts the spans of requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Tracer {
    tracer: SdkTracer,
    /// Whether the sampling rate is above 0, so that requests may begin traces.
    begins_traces: bool,
    /// A context without a span in which [`child`] finds the tracer.
    base: Context,
}

/// The span of a request that this program serves. It ends when it is dropped.
#[derive(Debug)]
pub struct RequestSpan(Span);

/// The span of a call or a step. It ends when it is dropped.
#[derive(Debug)]
pub struct Span {
    context: Context,
    has_result: bool,
}

impl Tracer {
    pub(crate) fn new(tracer: SdkTracer, begins_traces: bool) -> Self {
        let base = Context::new().with_value(tracer.clone());
        Self { tracer, begins_traces, base }
    }

    /// Starts the span of a request with these headers. `None` if it is not recorded.
    ///
    /// A request of a client that `is_trusted` is recorded if the client records its own span, and
    /// continues the trace of the client. Any other request begins a trace, which is recorded at
    /// the configured rate, unless that is 0. `is_trusted` is only called for a client that sends a
    /// valid context.
    pub fn begin(&self, headers: &HeaderMap, is_trusted: impl FnOnce() -> bool) -> Option<RequestSpan> {
        let client = trace_context::extract(headers);
        let (parent, linked) = match client {
            Some(client) if is_trusted() => (Some(client), None),
            linked => (None, linked),
        };
        // The sampler would only create a random trace ID.
        if parent.is_none() && !self.begins_traces {
            return None;
        }
        let builder = SpanBuilder::from_name("HTTP").with_kind(SpanKind::Server);
        let parent = match parent {
            Some(parent) => self.base.with_remote_span_context(parent),
            None => self.base.clone(),
        };
        let span = self.tracer.build_with_context(builder, &parent);
        if !opentelemetry::trace::Span::is_recording(&span) {
            return None;
        }
        let context = self.base.with_span(span);
        if let Some(client) = linked {
            context.span().add_link(without_state(&client), Vec::new());
        }
        Some(RequestSpan(Span { context, has_result: false }))
    }
}

/// The state of a trace that another party began is not needed for a link.
fn without_state(span: &SpanContext) -> SpanContext {
    SpanContext::new(span.trace_id(), span.span_id(), span.trace_flags(), true, TraceState::NONE)
}

impl RequestSpan {
    /// Returns a future in which the span is the current one.
    pub fn instrument<F: Future>(&self, future: F) -> WithContext<F> {
        future.with_context(self.0.context.clone())
    }

    /// Sets the name.
    pub fn set_name(&self, name: &str) {
        self.0.context.span().update_name(truncated(name).to_owned());
    }

    /// Sets an attribute. A long value is truncated.
    pub fn set(&self, key: &'static str, value: &str) {
        self.0.set(key, value);
    }

    /// Starts the span of a call or a step below this span, which need not be the current one.
    pub fn child(&self, name: &'static str, kind: SpanKind) -> Option<Span> {
        child_of(&self.0.context, name, kind)
    }

    /// Records the response and ends the span. A span that is dropped without a response has the
    /// attribute `error.type` with the value `cancelled`.
    pub fn end(&self, status: StatusCode) {
        let context = &self.0.context;
        set_status(context, status);
        // A request that the client should not have sent is no error of this server.
        if status.is_server_error() {
            set_error(context, status.as_str());
        }
        context.span().end();
    }
}

/// Starts the span of a call or a step below the current span. `None` if there is no current span,
/// so the request is not recorded.
pub fn child(name: &'static str, kind: SpanKind) -> Option<Span> {
    Context::map_current(|context| child_of(context, name, kind))
}

fn child_of(context: &Context, name: &'static str, kind: SpanKind) -> Option<Span> {
    let tracer = context.get::<SdkTracer>()?;
    let span = tracer.build_with_context(SpanBuilder::from_name(name).with_kind(kind), context);
    Some(Span { context: context.with_span(span), has_result: false })
}

/// Returns the method for an attribute, or `_OTHER` for one that a client invented, as the semantic
/// conventions for HTTP require.
pub fn method_name(method: &Method) -> &str {
    const KNOWN: [Method; 9] = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
        Method::CONNECT,
        Method::PATCH,
        Method::TRACE,
    ];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

impl Span {
    /// Replaces the headers of the trace context with those of this span.
    pub fn inject(&self, headers: &mut HeaderMap) {
        trace_context::inject(&self.context, headers);
    }

    /// Sets an attribute. A long value is truncated.
    pub fn set(&self, key: &'static str, value: &str) {
        self.context.span().set_attribute(KeyValue::new(key, truncated(value).to_owned()));
    }

    /// Records the status code of a response. The codes from 400 are errors.
    pub fn respond(&mut self, status: StatusCode) {
        self.has_result = true;
        set_status(&self.context, status);
        if status.is_client_error() || status.is_server_error() {
            self.fail(status.as_str());
        }
    }

    /// Records a success without a status code.
    pub fn succeed(&mut self) {
        self.has_result = true;
    }

    /// Records a failure. Its type is one of few constants, never a text that another party chose.
    pub fn fail(&mut self, error_type: &str) {
        self.has_result = true;
        set_error(&self.context, error_type);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // Neither has an effect on a span that has ended.
        if !self.has_result {
            set_error(&self.context, "cancelled");
        }
        self.context.span().end();
    }
}

fn set_status(context: &Context, status: StatusCode) {
    context.span().set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
}

fn set_error(context: &Context, error_type: &str) {
    let span = context.span();
    span.set_attribute(KeyValue::new("error.type", error_type.to_owned()));
    span.set_status(Status::error(""));
}

fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests;
