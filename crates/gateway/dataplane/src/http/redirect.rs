//! Redirect responses.

use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode};
use pinniped_gateway_routing::table::{PathEdit, Redirect, host_of};
use pinniped_http_server::Body;

use super::direct_response;

/// The parts of the request's URL.
pub(super) struct From<'a> {
    pub(super) scheme: &'a str,
    pub(super) authority: &'a str,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
}

/// Returns a 301 response with the same URL and the scheme `https`.
pub(super) fn to_https(authority: &str, path: &str, query: Option<&str>) -> Response<Body> {
    let redirect = Redirect {
        scheme: Some("https".into()),
        host: None,
        port: None,
        path: None,
        status: StatusCode::MOVED_PERMANENTLY,
    };
    self::redirect(&redirect, &From { scheme: "http", authority, path, query })
}

/// Returns the redirect response of a route.
pub(super) fn redirect(redirect: &Redirect, from: &From<'_>) -> Response<Body> {
    let mut response = direct_response::status(redirect.status);
    match HeaderValue::from_str(&location(redirect, from)) {
        Ok(location) => {
            response.headers_mut().insert(LOCATION, location);
            response
        }
        Err(_unprintable) => direct_response::status(StatusCode::BAD_REQUEST),
    }
}

fn location(redirect: &Redirect, from: &From<'_>) -> String {
    let scheme = redirect.scheme.as_deref().unwrap_or(from.scheme);
    let host = redirect.host.as_deref().unwrap_or_else(|| host_of(from.authority));
    let own_port = || {
        let port = from.authority.get(host_of(from.authority).len() + 1..)?;
        // The default port of the old scheme does not apply to the new scheme.
        let default = if from.scheme == "https" { "443" } else { "80" };
        (scheme == from.scheme || port != default).then_some(port)
    };
    let port = match (redirect.port, &redirect.host) {
        (Some(port), _) => Some(port.to_string()),
        (None, Some(_)) => None,
        (None, None) => own_port().map(str::to_owned),
    };
    let path = match &redirect.path {
        Some(PathEdit::Whole(path)) => path.to_string(),
        Some(PathEdit::Prefix(rewrite)) => rewrite.apply(from.path),
        None => from.path.to_owned(),
    };
    let mut location = format!("{scheme}://{host}");
    for (mark, part) in [(":", port.as_deref()), ("", Some(path.as_str())), ("?", from.query)] {
        if let Some(part) = part {
            location.push_str(mark);
            location.push_str(part);
        }
    }
    location
}

#[cfg(test)]
mod tests {
    use pinniped_gateway_routing::table::Rewrite;

    use super::*;

    #[test]
    fn parts_that_a_redirect_does_not_set_are_unchanged() {
        let none = Redirect { scheme: None, host: None, port: None, path: None, status: StatusCode::FOUND };
        let https = Redirect { scheme: Some("https".into()), ..none.clone() };
        let host = Redirect { host: Some("other".into()), ..none.clone() };
        let port = Redirect { port: Some(8443), ..https.clone() };
        let whole = Redirect { path: Some(PathEdit::Whole("/new".into())), ..none.clone() };
        let rewrite = Rewrite { prefix_length: 2, replacement: "/b".into(), fit_slash: true };
        let prefix = Redirect { path: Some(PathEdit::Prefix(rewrite)), ..none.clone() };
        for (redirect, scheme, authority, query, wanted) in [
            (&none, "http", "h", None, "http://h/a/x"),
            (&none, "https", "h:8443", Some("q=1"), "https://h:8443/a/x?q=1"),
            (&https, "http", "h:80", None, "https://h/a/x"),
            (&https, "http", "h:8080", Some(""), "https://h:8080/a/x?"),
            (&https, "http", "[::1]:80", None, "https://[::1]/a/x"),
            (&host, "http", "h:8080", None, "http://other/a/x"),
            (&port, "http", "h:80", None, "https://h:8443/a/x"),
            (&whole, "http", "h", Some("q"), "http://h/new?q"),
            (&prefix, "http", "h", None, "http://h/b/x"),
        ] {
            let from = From { scheme, authority, path: "/a/x", query };
            assert_eq!(location(redirect, &from), wanted, "{redirect:?} {authority}");
        }
    }
}
