//! The identity that a trusted front proxy writes into headers, equal to that of kube-apiserver's
//! aggregator.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use pinniped_kube_request::identity::User;

use crate::cluster_auth_config::RequestHeaderConfig;

const STANDARD: [HeaderName; 3] = [
    HeaderName::from_static("x-remote-user"),
    HeaderName::from_static("x-remote-uid"),
    HeaderName::from_static("x-remote-group"),
];
const STANDARD_PREFIX: &str = "x-remote-extra-";

/// A part of the identity is not UTF-8. Access reviews are JSON, so the invalid bytes would be
/// replaced, and the review could be about another user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header {0} of the front proxy is not UTF-8")]
pub(crate) struct NotText(HeaderName);

/// Returns the user in the headers, or `None` without a user name. The caller has verified the
/// certificate of the front proxy.
pub(crate) fn identity(headers: &HeaderMap, config: &RequestHeaderConfig) -> Result<Option<User>, NotText> {
    let Some(name) = first_value(headers, &config.username_headers)? else { return Ok(None) };
    let uid = first_value(headers, &config.uid_headers)?.unwrap_or_default();
    let mut groups = Vec::new();
    for header in &config.group_headers {
        for value in headers.get_all(header).iter().filter(|value| !value.is_empty()) {
            groups.push(text(header, value)?);
        }
    }
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for prefix in &config.extra_prefixes {
        for header in headers.keys() {
            let Some(encoded) = header.as_str().strip_prefix(prefix.as_str()) else { continue };
            let key = decode_key(encoded).ok_or_else(|| NotText(header.clone()))?;
            let values = extra.entry(key).or_default();
            for value in headers.get_all(header) {
                values.push(text(header, value)?);
            }
        }
    }
    Ok(Some(User { name, uid, groups, extra }))
}

/// Returns the first non-empty value of all these headers.
fn first_value(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, NotText> {
    let mut values = names.iter().filter_map(|name| Some((name, headers.get(name)?)));
    let found = values.find(|(_, value)| !value.is_empty());
    found.map(|(name, value)| text(name, value)).transpose()
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, NotText> {
    str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(|_| NotText(name.clone()))
}

/// Decodes like Go's `url.PathUnescape`, or returns the text unchanged where that fails. Returns
/// `None` when the decoded text is not UTF-8.
fn decode_key(encoded: &str) -> Option<String> {
    let bytes = encoded.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        if bytes[index] == b'%' {
            if !bytes.get(index + 1..index + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
                return Some(encoded.to_owned());
            }
            index += 2;
        }
        index += 1;
    }
    percent_decode_str(encoded).decode_utf8().ok().map(Cow::into_owned)
}

/// Removes every header that the API server could interpret as a credential or an identity.
pub(crate) fn clear(headers: &mut HeaderMap, config: Option<&RequestHeaderConfig>) {
    let configured = |name: &HeaderName| {
        config.is_some_and(|config| {
            let names = [&config.username_headers, &config.uid_headers, &config.group_headers];
            names.into_iter().any(|names| names.contains(name))
                || config.extra_prefixes.iter().any(|prefix| name.as_str().starts_with(prefix.as_str()))
        })
    };
    let goes = |name: &HeaderName| {
        *name == AUTHORIZATION
            || STANDARD.contains(name)
            || name.as_str().starts_with(STANDARD_PREFIX)
            || configured(name)
    };
    // Iterates over the few names that are present instead of one lookup for each possible name.
    // Usually none matches, and then this does not allocate.
    let found: Vec<HeaderName> = headers.keys().filter(|name| goes(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RequestHeaderConfig {
        RequestHeaderConfig {
            username_headers: vec![
                HeaderName::from_static("x-other-user"),
                HeaderName::from_static("x-remote-user"),
            ],
            uid_headers: vec![HeaderName::from_static("x-remote-uid")],
            group_headers: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned(), "x-more-".to_owned()],
            ..RequestHeaderConfig::default()
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_identity_combines_every_configured_header() {
        let headers = headers(&[
            ("x-other-user", ""),
            ("x-remote-user", "alice"),
            ("x-remote-uid", "u-1"),
            ("x-remote-group", "a"),
            ("x-remote-group", ""),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fthing", "one"),
            ("x-remote-extra-example.com%2fthing", "two"),
            ("x-remote-extra-bad%zz", "kept"),
            ("x-more-x", "y"),
        ]);
        let strings = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let expected = User {
            name: "alice".to_owned(),
            uid: "u-1".to_owned(),
            groups: strings(&["a", "b"]),
            extra: BTreeMap::from([
                ("example.com/thing".to_owned(), strings(&["one", "two"])),
                ("bad%zz".to_owned(), strings(&["kept"])),
                ("x".to_owned(), strings(&["y"])),
            ]),
        };
        assert_eq!(identity(&headers, &config()), Ok(Some(expected)));
    }

    #[test]
    fn headers_without_a_user_name_have_no_identity() {
        assert_eq!(
            identity(&headers(&[("x-remote-group", "a"), ("x-remote-user", "")]), &config()),
            Ok(None)
        );
    }

    #[test]
    fn the_uid_header_is_read_only_when_configured() {
        let config = RequestHeaderConfig { uid_headers: Vec::new(), ..config() };
        let user = identity(&headers(&[("x-remote-user", "alice"), ("x-remote-uid", "u-1")]), &config);
        assert_eq!(user.unwrap().map(|user| user.uid), Some(String::new()));
    }

    #[test]
    fn what_is_not_utf8_is_nobody() {
        for (name, value) in [
            ("x-remote-user", &b"a\xffb"[..]),
            ("x-remote-uid", b"\xc3"),
            ("x-remote-group", b"\xed\xa0\x80"),
            ("x-remote-extra-k", b"\x80"),
            ("x-remote-extra-%ff", b"v"),
        ] {
            let mut headers = headers(&[("x-remote-group", "g")]);
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
            if name != "x-remote-user" {
                headers.append("x-remote-user", HeaderValue::from_static("u"));
            }
            assert_eq!(identity(&headers, &config()), Err(NotText(HeaderName::from_static(name))), "{name}");
        }
        let text = [("x-remote-user", "ü"), ("x-remote-extra-%c3%bc", "€")];
        let headers: HeaderMap = text
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
            })
            .collect();
        let user = identity(&headers, &config()).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.extra["ü"].join(",").as_str()), ("ü", "€"));
    }

    #[test]
    fn clear_removes_every_credential_and_identity() {
        let mut headers = headers(&[
            ("authorization", "Bearer x"),
            ("x-remote-user", "a"),
            ("x-remote-uid", "a"),
            ("x-remote-group", "a"),
            ("x-remote-extra-a", "a"),
            ("x-more-b", "a"),
            ("x-other-user", "a"),
            ("accept", "text/plain"),
        ]);
        clear(&mut headers, Some(&config()));
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
