//! The stub's responses, in the form and size of an API server.

use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

/// A SubjectAccessReview that was allowed. Clients do not read its spec.
pub(super) const ALLOWED: &[u8] = br#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{},"status":{"allowed":true,"reason":"the stub allows everything"}}"#;

/// Returns a small ConfigMap.
pub(super) fn config_map(name: &str) -> String {
    one(name, "value", r#""kind":"ConfigMap","apiVersion":"v1","#)
}

/// Returns a list of ConfigMaps with this number of bytes of data each.
pub(super) fn config_maps(count: usize, bytes: usize) -> String {
    let value = "x".repeat(bytes);
    let items: Vec<String> = (0..count).map(|n| one(&format!("item-{n}"), &value, "")).collect();
    format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"1234"}},"items":[{}]}}"#,
        items.join(",")
    )
}

/// Returns the first event of a watch.
pub(super) fn event() -> String {
    format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", config_map("bench"))
}

fn one(name: &str, value: &str, kind: &str) -> String {
    format!(
        r#"{{{kind}"metadata":{{"name":"{name}","namespace":"bench","uid":"3f3b7c52-4c1c-4a8f-8f57-1d6f2f0f6a11","resourceVersion":"1234","creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[{{"manager":"kubectl-create","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{".":{{}},"f:key":{{}}}}}}}}]}},"data":{{"key":"{value}"}}}}"#
    )
}

/// Adds the headers of an API server's response.
pub(super) fn add_headers(headers: &mut HeaderMap) {
    const HEADERS: [(http::HeaderName, &str); 5] = [
        (http::HeaderName::from_static("audit-id"), "6c0e5ea2-43f5-4d5c-9a33-6d7e5a0c1f0d"),
        (CACHE_CONTROL, "no-cache, private"),
        (CONTENT_TYPE, "application/json"),
        (
            http::HeaderName::from_static("x-kubernetes-pf-flowschema-uid"),
            "b0bb2d0f-5e0a-4d4d-b4b2-3a0b8a1f1f4e",
        ),
        (
            http::HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid"),
            "0d6d7a53-59f7-4b6c-8f3d-9c9f2c5a7d1b",
        ),
    ];
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_list_is_eight_megabytes_of_valid_json() {
        let text = config_maps(8, 1_000_000);
        assert!((8_000_000..8_010_000).contains(&text.len()), "{}", text.len());
        for text in [text, config_map("bench"), event(), String::from_utf8_lossy(ALLOWED).into_owned()] {
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
    }
}
