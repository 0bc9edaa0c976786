//! The request headers that backends receive.

use http::header::{EXPECT, Entry, HOST};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};
use pinniped_http_headers::hop_by_hop;
use pinniped_http_server::random_id;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Information about the connection of a request, for the backend.
pub(super) struct ClientConnection {
    pub(super) scheme: &'static str,
    pub(super) client: Option<HeaderValue>,
    pub(super) certificate: Option<HeaderValue>,
}

/// The headers that the gateway sets or interprets, in addition to hop-by-hop headers.
const TRUSTED: [&str; 7] = [
    "content-length",
    "expect",
    "host",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-request-id",
];

/// Removes hop-by-hop headers and the headers that only the gateway may set, then sets the latter.
/// Also removes `Host`: see [`set_host`].
pub(super) fn rewrite(headers: &mut HeaderMap, connection: ClientConnection) {
    // Most requests have none of these headers, and one pass over all names costs less than a
    // lookup for each of them.
    let (mut hop_by_hop, mut ours, mut folded) = (false, false, false);
    for name in headers.keys() {
        hop_by_hop |= hop_by_hop::is_hop_by_hop(name);
        ours |= matches!(name.as_str(), "expect" | "host" | "x-forwarded-client-cert");
        folded |= is_lookalike(name);
    }
    if folded {
        remove_lookalikes(headers);
    }
    if hop_by_hop {
        hop_by_hop::strip_request(headers);
    }
    if ours {
        // hyper sends `100 Continue` when the body is first read.
        headers.remove(EXPECT);
        headers.remove(HOST);
        headers.remove(X_FORWARDED_CLIENT_CERT);
    }
    if let Some(certificate) = connection.certificate {
        headers.insert(X_FORWARDED_CLIENT_CERT, certificate);
    }
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(connection.scheme));
    if let Some(client) = connection.client {
        append_client(headers, client);
    }
    if let Entry::Vacant(id) = headers.entry(X_REQUEST_ID) {
        id.insert(random_id());
    }
}

/// Returns whether many backends treat a header as another, trusted one: CGI, WSGI, Rack and PHP
/// replace `-` with `_`, so that programs cannot distinguish `X_Forwarded_Client_Cert` from the
/// name that only the gateway may set.
fn is_lookalike(name: &HeaderName) -> bool {
    let name = name.as_str();
    if !name.contains('_') {
        return false;
    }
    let folded = name.replace('_', "-");
    TRUSTED.contains(&folded.as_str())
        || HeaderName::from_bytes(folded.as_bytes()).is_ok_and(|name| hop_by_hop::is_hop_by_hop(&name))
}

fn remove_lookalikes(headers: &mut HeaderMap) {
    let lookalikes: Vec<HeaderName> = headers.keys().filter(|name| is_lookalike(name)).cloned().collect();
    for name in lookalikes {
        headers.remove(name);
    }
}

/// Appends the client address after the addresses that the client claims.
fn append_client(headers: &mut HeaderMap, client: HeaderValue) {
    let mut all = Vec::new();
    for claimed in headers.get_all(X_FORWARDED_FOR) {
        if claimed.to_str().is_ok() {
            all.extend_from_slice(claimed.as_bytes());
            all.extend_from_slice(b", ");
        }
    }
    if all.is_empty() {
        headers.insert(X_FORWARDED_FOR, client);
        return;
    }
    all.extend_from_slice(client.as_bytes());
    if let Ok(value) = HeaderValue::try_from(all) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

/// Sets `Host` for a request whose URI has no host. Returns `false` if the host is not a valid
/// header value.
pub(super) fn set_host(headers: &mut HeaderMap, authority: &Authority) -> bool {
    let host = HeaderValue::from_str(authority.as_str());
    host.map(|host| headers.insert(HOST, host)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_connection() -> ClientConnection {
        ClientConnection {
            scheme: "https",
            client: Some(HeaderValue::from_static("10.0.0.1")),
            certificate: None,
        }
    }

    #[test]
    fn forwarded_for_is_extended_and_other_claims_of_the_client_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "h"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("expect", "100-continue"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2, 3.3.3.3"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-client-cert", "Subject=\"CN=root\""),
            ("x-request-id", "mine"),
            ("accept", "*/*"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        rewrite(&mut headers, client_connection());
        let mut seen: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "accept: */*",
                "x-forwarded-for: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.1",
                "x-forwarded-proto: https",
                "x-request-id: mine",
            ]
        );
    }

    #[test]
    fn headers_that_backends_treat_as_trusted_ones_are_removed() {
        let mut headers = HeaderMap::new();
        for name in [
            "x_forwarded_client_cert",
            "x-forwarded_client_cert",
            "x_forwarded_for",
            "x_forwarded-proto",
            "x_request_id",
            "transfer_encoding",
            "content_length",
            "proxy_authorization",
            "x_custom",
            "_",
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("forged"));
        }
        rewrite(&mut headers, client_connection());
        let mut seen: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        seen.sort_unstable();
        assert_eq!(seen, ["_", "x-forwarded-for", "x-forwarded-proto", "x-request-id", "x_custom"]);
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1");
    }

    #[test]
    fn a_request_gets_an_id_and_the_client_certificate_header() {
        let mut headers = HeaderMap::new();
        let certificate = Some(HeaderValue::from_static("Hash=1"));
        rewrite(&mut headers, ClientConnection { certificate, ..client_connection() });
        assert_eq!(headers["x-request-id"].len(), 36);
        assert_eq!(headers["x-forwarded-client-cert"], "Hash=1");
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1");
    }
}
