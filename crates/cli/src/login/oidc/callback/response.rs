//! The responses of the callback listener, as data.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;
use url::Url;

use super::page;

/// The body of a response.
pub(super) type Body = Full<Bytes>;

/// The security headers of every response.
const SECURITY: [(&str, &str); 9] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-frame-options", "DENY"),
    ("x-xss-protection", "1; mode=block"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-dns-prefetch-control", "off"),
    ("cache-control", "no-cache,no-store,max-age=0,must-revalidate"),
    ("pragma", "no-cache"),
    ("expires", "0"),
];
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const LOGGED_IN: &str = "you have been logged in and may now close this tab";

/// The form of the responses to the browser.
#[derive(Clone, Debug)]
pub(super) struct ResponseParams {
    /// The origin of the issuer, which may read the responses.
    pub(super) origin: String,
    /// Whether the issuer is a Supervisor, whose script expects upstream's texts.
    pub(super) is_supervisor: bool,
    pub(super) issuer: String,
    pub(super) client_id: String,
}

/// Returns the origin of an issuer for CORS.
pub(super) fn origin(issuer: &Url) -> String {
    let port = issuer.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", issuer.scheme(), issuer.host_str().unwrap_or_default())
}

fn respond(status: StatusCode, headers: &[(HeaderName, &str)], body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let all = response.headers_mut();
    for (name, value) in SECURITY {
        all.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            all.insert(name.clone(), value);
        }
    }
    response
}

/// Returns the response for a path other than that of the callback.
pub(super) fn not_found() -> Response<Body> {
    respond(StatusCode::NOT_FOUND, &[(header::CONTENT_TYPE, TEXT)], "404 page not found\n")
}

/// Returns the response without content.
pub(super) fn empty(status: StatusCode) -> Response<Body> {
    respond(status, &[], "")
}

impl ResponseParams {
    /// Returns the response to a preflight request (CORS, and access to private networks).
    pub(super) fn preflight(&self, headers: &HeaderMap) -> Response<Body> {
        let mut response = respond(
            StatusCode::NO_CONTENT,
            &[
                (header::ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.as_str()),
                (header::VARY, "*"),
                (header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "false"),
                (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
                (HeaderName::from_static("access-control-allow-private-network"), "true"),
            ],
            "",
        );
        if let Some(requested) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)
            && !requested.is_empty()
        {
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
        }
        response
    }

    /// Returns the response after a login of `user`, which may be empty.
    pub(super) fn success(&self, user: &str) -> Response<Body> {
        if self.is_supervisor {
            return self.readable(StatusCode::OK, TEXT, None, LOGGED_IN.to_owned());
        }
        let page = page::success(user, &self.issuer, &self.client_id);
        self.readable(StatusCode::OK, HTML, Some(&page::policy()), page)
    }

    /// Returns the response after a failure.
    pub(super) fn failure(&self, status: StatusCode, error: &str, remedy: &str) -> Response<Body> {
        let text = format!("{}: {error}", status.canonical_reason().unwrap_or_default());
        if self.is_supervisor {
            return self.readable(status, TEXT, None, format!("{text}\n"));
        }
        self.readable(status, HTML, Some(&page::policy()), page::failure(&text, remedy))
    }

    fn readable(
        &self,
        status: StatusCode,
        type_: &str,
        policy: Option<&str>,
        body: String,
    ) -> Response<Body> {
        let mut headers = vec![
            (header::CONTENT_TYPE, type_),
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, self.origin.as_str()),
            (header::VARY, "*"),
        ];
        headers.extend(policy.map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
        respond(status, &headers, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_has_no_path_and_no_default_port() {
        for (issuer, expected) in [
            ("https://a.example.com/some/path", "https://a.example.com"),
            ("https://a.example.com:443/", "https://a.example.com"),
            ("https://127.0.0.1:8443/x?y", "https://127.0.0.1:8443"),
            ("https://[::1]:8443", "https://[::1]:8443"),
        ] {
            assert_eq!(origin(&Url::parse(issuer).unwrap()), expected);
        }
    }

    #[test]
    fn every_response_has_the_security_headers() {
        let params = ResponseParams {
            origin: "https://i".into(),
            is_supervisor: true,
            issuer: "https://i".into(),
            client_id: "c".into(),
        };
        let html = ResponseParams { is_supervisor: false, ..params.clone() };
        for response in [
            not_found(),
            empty(StatusCode::METHOD_NOT_ALLOWED),
            params.preflight(&HeaderMap::new()),
            params.success("u"),
            params.failure(StatusCode::FORBIDDEN, "e", "r"),
        ] {
            for (name, value) in SECURITY {
                assert_eq!(response.headers()[name], value, "{response:?}");
            }
        }
        for response in [html.success("u"), html.failure(StatusCode::BAD_REQUEST, "e", "r")] {
            for (name, value) in &SECURITY[1..] {
                assert_eq!(response.headers()[*name], value, "{response:?}");
            }
            assert_eq!(response.headers()["content-security-policy"], page::policy().as_str());
        }
    }
}
