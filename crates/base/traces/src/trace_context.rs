//! The headers `traceparent` and `tracestate` of the W3C recommendation *Trace Context*.

use http::{HeaderMap, HeaderName};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use opentelemetry_http::HeaderInjector;
use opentelemetry_sdk::propagation::TraceContextPropagator;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Maximum length of a value in bytes. Participants must be able to forward this much of
/// `tracestate` (section 3.3.1.5); a longer value is ignored.
const MAX_VALUE: usize = 512;

/// Returns the context of the client's span. `None` without a valid `traceparent`, and with several
/// of them. An invalid or long `tracestate` is ignored.
pub(crate) fn extract(headers: &HeaderMap) -> Option<SpanContext> {
    if headers.get_all(TRACEPARENT).iter().count() != 1 {
        return None;
    }
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &BoundedHeaders(headers));
    let span = context.span().span_context().clone();
    span.is_valid().then_some(span)
}

/// Replaces both headers with those of the span in `context`.
pub(crate) fn inject(context: &Context, headers: &mut HeaderMap) {
    headers.remove(TRACESTATE);
    TraceContextPropagator::new().inject_context(context, &mut HeaderInjector(headers));
    if headers.get(TRACESTATE).is_some_and(|state| state.is_empty()) {
        headers.remove(TRACESTATE);
    }
}

/// Headers without values that are too long.
struct BoundedHeaders<'a>(&'a HeaderMap);

impl Extractor for BoundedHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).filter(|value| value.len() <= MAX_VALUE)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(fields: &[(&HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn a_valid_context_is_read_and_written_unchanged() {
        let sent = headers(&[(&TRACEPARENT, VALID), (&TRACESTATE, "vendor=1,other=2")]);
        let span = extract(&sent).unwrap();
        assert!(span.is_sampled() && span.is_remote());
        let mut written = headers(&[(&TRACESTATE, "old=1"), (&TRACEPARENT, "old")]);
        inject(&Context::new().with_remote_span_context(span), &mut written);
        assert_eq!(written, sent);
    }

    #[test]
    fn an_invalid_context_is_ignored() {
        let long = format!("{VALID}-{}", "a".repeat(MAX_VALUE));
        for value in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            &long,
        ] {
            assert_eq!(extract(&headers(&[(&TRACEPARENT, value)])), None, "{value}");
        }
        assert_eq!(extract(&headers(&[])), None);
        assert_eq!(extract(&headers(&[(&TRACEPARENT, VALID), (&TRACEPARENT, VALID)])), None);
        let mut bytes = HeaderMap::new();
        bytes.insert(TRACEPARENT, HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        assert_eq!(extract(&bytes), None);
    }

    #[test]
    fn a_long_or_invalid_state_is_ignored_and_an_empty_one_is_not_sent() {
        for state in ["a=".to_owned() + &"b".repeat(MAX_VALUE), "no pairs".to_owned()] {
            let span = extract(&headers(&[(&TRACEPARENT, VALID), (&TRACESTATE, &state)])).unwrap();
            let mut written = HeaderMap::new();
            inject(&Context::new().with_remote_span_context(span), &mut written);
            assert_eq!(written, headers(&[(&TRACEPARENT, VALID)]));
        }
    }
}
