//! Header fields of every response, and the response to a request whose handler panicked.

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, EXPIRES, Entry, HeaderName, OccupiedEntry, PRAGMA,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_DNS_PREFETCH_CONTROL, X_FRAME_OPTIONS, X_XSS_PROTECTION,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_http_server::layers::plain_error;
use pinniped_http_server::{Body, random_id};

/// Name of the header that correlates the log lines of all servers that handle a request.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The security headers of every response, including errors. They are meant for pages in browsers,
/// but clients of upstream's implementation already receive them.
pub static SECURITY_HEADERS: [(HeaderName, HeaderValue); 9] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (X_XSS_PROTECTION, HeaderValue::from_static("1; mode=block")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_DNS_PREFETCH_CONTROL, HeaderValue::from_static("off")),
    (CACHE_CONTROL, HeaderValue::from_static("no-cache,no-store,max-age=0,must-revalidate")),
    (PRAGMA, HeaderValue::from_static("no-cache")),
    (EXPIRES, HeaderValue::from_static("0")),
];

/// Adds [`SECURITY_HEADERS`]. Headers of the same name in a forwarded response stay after ours: the
/// client receives both, ours first.
pub fn add_security_headers(headers: &mut HeaderMap) {
    headers.reserve(SECURITY_HEADERS.len());
    for (name, value) in &SECURITY_HEADERS {
        put_first(headers, name.clone(), value.clone());
    }
}

/// Returns the audit identifier of a request: the value of the client's `Audit-ID` header, or a new
/// random UUID.
///
/// A value that is not plain and printable is replaced, because the identifier is logged and sent
/// back in a header.
pub fn audit_id(request_headers: &HeaderMap) -> HeaderValue {
    match request_headers.get(AUDIT_ID) {
        Some(given) if !given.is_empty() && given.to_str().is_ok() => given.clone(),
        _ => random_id(),
    }
}

/// Adds the audit identifier to a response, before an existing identifier unless that is equal.
pub fn add_audit_id(response_headers: &mut HeaderMap, mut id: HeaderValue) {
    // Each value is unique. In the HPACK table of an HTTP/2 connection it would displace fields
    // that occur in every response.
    id.set_sensitive(true);
    match response_headers.entry(AUDIT_ID) {
        Entry::Vacant(entry) => {
            entry.insert(id);
        }
        Entry::Occupied(mut ids) => {
            if *ids.get() != id {
                put_before(&mut ids, id);
            }
            ids.iter_mut().for_each(|id| id.set_sensitive(true));
        }
    }
}

/// Inserts a value before the existing values of the name.
fn put_first(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(value);
        }
        Entry::Occupied(mut entry) => put_before(&mut entry, value),
    }
}

fn put_before(entry: &mut OccupiedEntry<'_, HeaderValue>, value: HeaderValue) {
    // Most names have one value.
    let mut others: Vec<HeaderValue> = entry.iter().skip(1).cloned().collect();
    let first = entry.insert(value);
    entry.append(first);
    others.drain(..).for_each(|other| entry.append(other));
}

/// Returns the response after a handler panicked, with the text of upstream's recovery handler.
pub fn panic_response() -> Response<Body> {
    plain_error(
        StatusCode::INTERNAL_SERVER_ERROR,
        "This request caused apiserver to panic. Look in the logs for details.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_headers_come_before_those_of_a_forwarded_response() {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        add_security_headers(&mut headers);
        let values: Vec<_> = headers.get_all(CACHE_CONTROL).iter().collect();
        assert_eq!(values, ["no-cache,no-store,max-age=0,must-revalidate", "no-cache, private"]);
        assert_eq!(headers.len(), 10);
        assert_eq!(headers[EXPIRES], "0");
    }

    #[test]
    fn a_valid_audit_id_of_the_client_is_used_and_an_invalid_one_is_replaced() {
        let mut headers = HeaderMap::new();
        let fresh = audit_id(&headers);
        assert_eq!(fresh.len(), 36);
        assert_ne!(fresh, audit_id(&headers));
        headers.insert("Audit-ID", HeaderValue::from_static("from-the-client"));
        assert_eq!(audit_id(&headers), "from-the-client");
        headers.insert("Audit-ID", HeaderValue::from_static(""));
        assert_eq!(audit_id(&headers).len(), 36);
        headers.insert("Audit-ID", HeaderValue::from_bytes(b"\xffx").expect("a legal value"));
        assert_eq!(audit_id(&headers).len(), 36);
    }

    #[test]
    fn an_audit_id_that_the_upstream_repeats_is_sent_once() {
        for (existing, expected) in [
            (&[][..], &["ours"][..]),
            (&["ours"], &["ours"]),
            (&["theirs"], &["ours", "theirs"]),
            (&["theirs", "more"], &["ours", "theirs", "more"]),
        ] {
            let mut headers = HeaderMap::new();
            for id in existing {
                headers.append(AUDIT_ID, HeaderValue::from_static(id));
            }
            add_audit_id(&mut headers, HeaderValue::from_static("ours"));
            let ids: Vec<_> = headers.get_all(AUDIT_ID).iter().collect();
            assert_eq!(ids, expected);
            assert!(ids.iter().all(|id| id.is_sensitive()), "in no table of HTTP/2: {existing:?}");
        }
    }
}
