//! The request info of a request. Input: `METHOD target`, and after a newline a user name.

use std::time::Duration;

use http::{Method, Uri};
use percent_encoding::percent_decode_str;
use pinniped_kube_request::anonymous::AnonymousPolicy;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::request_info::{RequestInfo, RequestInfoError};
use pinniped_kube_request::{deadline, forbidden};

const VERBS: [&str; 10] =
    ["", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy"];
const LONGEST: Duration = Duration::from_secs(60);

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let (line, user) = split(data, b'\n');
    let (method, target) = split(line, b' ');
    let (Ok(method), Ok(uri)) = (Method::from_bytes(method), Uri::try_from(target)) else { return };
    let info = match RequestInfo::parse(&method, &uri) {
        Ok(info) => info,
        Err(RequestInfoError::BadEscape(raw)) => {
            assert!(raw == uri.path() && has_bad_escape(&raw), "{raw:?} can be decoded");
            return;
        }
        Err(RequestInfoError::NoTarget(_)) => {
            assert!(uri.path().is_empty() && method != Method::CONNECT);
            return;
        }
        Err(RequestInfoError::NoKind(shown)) => {
            let path = decode(uri.path());
            let end = path.trim_end_matches('/');
            assert!(end.ends_with("watch") || end.ends_with("proxy"));
            assert!(!shown.contains(|c: char| c.is_ascii_control() || c == ' '), "{shown:?}");
            return;
        }
    };
    assert!(!has_bad_escape(uri.path()), "{:?} cannot be decoded", uri.path());
    assert_eq!(info.path, decode(uri.path()));
    if info.is_resource {
        resource(&info, &method)
    } else {
        non_resource(&info, &method)
    }
    selectors(&info);
    again(&info, &method, &uri);
    decisions(&info, &uri, &String::from_utf8_lossy(user));
}

fn split(data: &[u8], at: u8) -> (&[u8], &[u8]) {
    match data.iter().position(|&byte| byte == at) {
        Some(position) => (&data[..position], &data[position + 1..]),
        None => (data, b""),
    }
}

/// Decodes a path. Each invalid byte becomes one U+FFFD, as in Go's JSON encoder.
fn decode(path: &str) -> String {
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

fn has_bad_escape(path: &str) -> bool {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = path.as_bytes();
    // The digits of an escape contain no '%', so checking each '%' is sufficient.
    let bad = |at: usize| !is_hex(bytes.get(at + 1)) || !is_hex(bytes.get(at + 2));
    (0..bytes.len()).any(|at| bytes[at] == b'%' && bad(at))
}

fn resource(info: &RequestInfo, method: &Method) {
    let segments: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    assert_eq!(info.api_prefix, segments[0]);
    assert!(matches!(segments[0], "api" | "apis"));
    let version_at = match segments[0] {
        "api" => 1,
        _ => 2,
    };
    assert_eq!(info.api_group, if version_at == 1 { "" } else { segments[1] });
    assert_eq!(info.api_version, segments[version_at]);
    assert!(VERBS.contains(&info.verb.as_str()), "{:?}", info.verb);
    let parts: Vec<&str> = info.parts().collect();
    for part in parts.iter().copied().chain([
        info.api_group.as_str(),
        &info.api_version,
        &info.namespace,
        &info.resource,
        &info.subresource,
        &info.name,
    ]) {
        assert!(!part.contains('/'), "{part:?} is more than a segment");
    }
    assert!(!parts.is_empty() && segments.ends_with(&parts));
    assert_eq!(parts[0], info.resource);
    match parts.get(1) {
        Some(name) if !name.is_empty() => assert_eq!(&info.name, name),
        // A list may be restricted to one name.
        _ => assert!(
            info.name.is_empty()
                || matches!(info.verb.as_str(), "list" | "watch")
                    && !matches!(info.name.as_str(), "." | "..")
                    && !info.name.contains('%'),
            "{info:?}"
        ),
    }
    if !info.namespace.is_empty() {
        let after = |pair: &[&str]| pair[0] == "namespaces" && pair[1] == info.namespace;
        assert!(segments[version_at + 1..].windows(2).any(after));
    }
    if info.verb != "proxy" {
        assert_eq!(info.subresource, parts.get(2).copied().unwrap_or_default());
    }
    let in_path = matches!(segments[version_at + 1], "watch" | "proxy");
    let allowed: &[&str] = match method.as_str() {
        _ if in_path => &["watch", "proxy"],
        "GET" | "HEAD" => &["get", "list", "watch"],
        "POST" => &["create"],
        "PUT" => &["update"],
        "PATCH" => &["patch"],
        "DELETE" => &["delete", "deletecollection"],
        _ => &[""],
    };
    assert!(allowed.contains(&info.verb.as_str()), "{method} gives {:?}", info.verb);
}

fn non_resource(info: &RequestInfo, method: &Method) {
    assert_eq!(info.verb, method.as_str().to_ascii_lowercase());
    let is_about_resource = !info.resource.is_empty()
        || !info.subresource.is_empty()
        || !info.namespace.is_empty()
        || !info.name.is_empty()
        || info.parts().next().is_some();
    assert!(!is_about_resource, "{info:?}");
}

fn selectors(info: &RequestInfo) {
    for selector in [&info.field_selector, &info.label_selector].into_iter().flatten() {
        assert!(info.is_resource && !selector.is_empty());
        assert!(matches!(info.verb.as_str(), "list" | "watch" | "deletecollection"));
    }
}

/// Checks that another spelling of the same path has the same result; otherwise one could be
/// authorized and another one served.
fn again(info: &RequestInfo, method: &Method, uri: &Uri) {
    if !info.path.starts_with('/') {
        return;
    }
    for escaped_slash in [false, true] {
        let mut target = String::from("/");
        for &byte in &info.path.as_bytes()[1..] {
            if byte == b'/' && !escaped_slash {
                target.push('/');
            } else {
                target.push_str(&format!("%{byte:02x}"));
            }
        }
        if let Some(query) = uri.query() {
            target.push('?');
            target.push_str(query);
        }
        let Ok(other) = Uri::try_from(target) else { continue };
        assert_eq!(RequestInfo::parse(method, &other).as_ref(), Ok(info));
    }
    if *method == Method::GET {
        let mut head = RequestInfo::parse(&Method::HEAD, uri).expect("a path does not depend on the method");
        if !info.is_resource {
            "get".clone_into(&mut head.verb);
        }
        assert_eq!(&head, info);
    }
}

fn decisions(info: &RequestInfo, uri: &Uri, user: &str) {
    let attributes = Attributes::from(info.clone());
    assert_eq!(attributes.verb(), info.verb);
    assert_eq!(matches!(attributes, Attributes::Resource(_)), info.is_resource);

    let nobody = AnonymousPolicy { health: false, other: false };
    if nobody.admits(info) {
        assert!(info.is_resource && info.api_group.starts_with("login.concierge."));
        assert_eq!(info.resource, "tokencredentialrequests");
    }
    if info.is_long_running() {
        let streams = ["attach", "exec", "proxy", "log", "portforward"].contains(&info.subresource.as_str());
        assert!(
            matches!(info.verb.as_str(), "watch" | "proxy")
                || streams
                || info.path.starts_with("/debug/pprof/")
        );
    }
    match deadline::limit(uri.query(), LONGEST) {
        Ok(limit) => assert!(limit <= LONGEST && !limit.is_zero()),
        Err(text) => assert!(text.starts_with("invalid timeout specified in the request URL - ")),
    }

    // Our refusal is a valid Status, and no part of it breaks its line.
    let status = forbidden::status(user, &attributes, "no");
    let json = status.to_json();
    assert!(!json.contains('\n'));
    assert_eq!(
        serde_json::from_str::<pinniped_kube_types::status::Status>(&json).ok().as_ref(),
        Some(&status)
    );
    let text = forbidden::internal_error_text(&uri.to_string(), "no");
    assert!(!text.contains(['\n', '<', '>']));
}
