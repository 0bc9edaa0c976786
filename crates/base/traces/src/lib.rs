//! Traces with OpenTelemetry: spans of requests, the W3C trace context of their headers, and the
//! export with OTLP over HTTPS.
//!
//! ```text
//! Tracer::begin                span of a request; decides whether it is recorded
//!   RequestSpan::instrument    the future in which the span is the current one
//!     child                    span of a call that the request waits for
//!       Span::inject           traceparent and tracestate for the server that is called
//! Exporter::run                sends finished spans in batches
//! ```
//!
//! A program without traces creates no [`Tracer`], and then nothing here runs: [`child`] reads one
//! thread-local value. A request that is not recorded has no span either, and its headers are not
//! changed.
//!
//! A client must not decide how many requests are recorded. The caller of [`Tracer::begin`] states
//! whether it trusts the client. If not, the span begins a trace of its own, which is recorded at
//! the configured rate, and refers to the span of the client with a link. OpenTelemetry for Go does
//! the same for public endpoints (`WithPublicEndpointFn` of `otelhttp`).
//!
//! Finished spans wait in a bounded queue. Spans that do not fit, and spans that the collector does
//! not accept, are lost and counted ([`Counts`]). No request waits for the collector.
//!
//! This crate does not choose the names and attributes of spans, and it records no header values.

#![forbid(unsafe_code)]

mod collector;
mod export;
mod span;
mod trace_context;

pub use collector::{EndpointError, endpoint};
pub use export::{Counts, Exporter, TracesError, TracesParams, start};
pub use opentelemetry::trace::SpanKind;
pub use span::{RequestSpan, Span, Tracer, child, method_name};
