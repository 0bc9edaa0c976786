//! Removal of hop-by-hop headers (RFC 9110, section 7.6.1), in place.
//!
//! Remove hop-by-hop headers before you add headers of the proxy: a client that names one of these
//! in its `Connection` header must not be able to remove it.
//!
//! `Trailer` stays: trailers are forwarded, so its announcement remains true, and a server written
//! in Go passes only announced trailers to its handlers.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};

const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");
const PROXY_AUTHORIZATION: HeaderName = HeaderName::from_static("proxy-authorization");

const HOP_BY_HOP: [HeaderName; 7] =
    [PROXY_CONNECTION, KEEP_ALIVE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE];

/// Returns whether a header applies to one connection only. For a check of each name of a message,
/// this is considerably cheaper than a lookup of each hop-by-hop name in the map.
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "proxy-connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Removes the hop-by-hop headers of a request. `TE: trailers` stays, because it requests a feature
/// that the proxy forwards.
pub fn strip_request(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let trailers = has_token(headers, &TE, "trailers");
    strip(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes the hop-by-hop headers of a response.
pub fn strip_response(headers: &mut HeaderMap) {
    // Most messages have none.
    if headers.keys().any(is_hop_by_hop) {
        strip(headers);
    }
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|&b| b == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Returns the protocol to which a request wants to upgrade: the value of `Upgrade`, if
/// `Connection` has the token `upgrade`.
pub fn upgrade_type(headers: &HeaderMap) -> Option<HeaderValue> {
    if !has_token(headers, &CONNECTION, "upgrade") {
        return None;
    }
    headers.get(UPGRADE).filter(|value| !value.is_empty()).cloned()
}

/// Returns whether client libraries written in Go treat this as a request for an upgrade: any
/// `Connection` value that contains `upgrade`. Use it for logs. Only a request with an
/// [`upgrade_type`] can leave HTTP.
pub fn wants_http1(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .any(|value| value.as_bytes().windows(7).any(|window| window.eq_ignore_ascii_case(b"upgrade")))
}

/// Returns whether a comma-separated header contains this token, in any case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&b| b == b','))
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    #[test]
    fn each_removed_name_is_a_hop_by_hop_header() {
        for name in HOP_BY_HOP.iter().chain([&CONNECTION]) {
            assert!(is_hop_by_hop(name), "{name}");
        }
        for name in ["trailer", "accept", "content-length", "x-connection"] {
            assert!(!is_hop_by_hop(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn hop_by_hop_headers_and_what_connection_names_are_removed() {
        let mut given = headers(&[
            ("connection", "keep-alive, X-Foo"),
            ("connection", "x-bar"),
            ("keep-alive", "5"),
            ("proxy-authorization", "x"),
            ("proxy-connection", "x"),
            ("te", "gzip"),
            ("trailer", "a"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-foo", "1"),
            ("x-bar", "1"),
            ("forwarded", "for=1"),
            ("x-forwarded-host", "h"),
            ("audit-id", "a"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        strip_request(&mut given);
        assert_eq!(
            given,
            headers(&[
                ("forwarded", "for=1"),
                ("x-forwarded-host", "h"),
                ("audit-id", "a"),
                ("accept", "a"),
                ("accept", "b"),
                ("trailer", "a"),
            ])
        );
    }

    #[test]
    fn te_is_reduced_to_trailers() {
        let mut given = headers(&[("te", "deflate, Trailers")]);
        strip_request(&mut given);
        assert_eq!(given, headers(&[("te", "trailers")]));
        strip_response(&mut given);
        assert!(given.is_empty());
    }

    #[test]
    fn upgrades_need_both_headers() {
        for (pairs, wanted, http1) in [
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")][..], Some("SPDY/3.1"), true),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "websocket")], Some("websocket"), true),
            (&[("connection", "Upgrade")], None, true),
            (&[("upgrade", "websocket")], None, false),
            (&[("connection", "x-upgrade-y"), ("upgrade", "websocket")], None, true),
            (&[("connection", "close")], None, false),
        ] {
            let given = headers(pairs);
            assert_eq!(upgrade_type(&given), wanted.map(HeaderValue::from_static), "{pairs:?}");
            assert_eq!(wants_http1(&given), http1, "{pairs:?}");
        }
    }
}
