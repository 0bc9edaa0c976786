//! `Status` bodies in each encoding, as negotiated. Input: a line with `Accept`, a line with the
//! query, and the members of the status, each terminated by a zero byte.

use arbitrary::Unstructured;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use pinniped_apiserver::respond::{self, Encoding, Negotiated, accept};
use pinniped_kube_types::status::{Status, StatusCause, StatusDetails, StatusMeta};

use crate::{input, status_protobuf};

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let mut lines = data.splitn(3, |&byte| byte == b'\n');
    let (accept, query) = (lines.next().unwrap_or(b""), lines.next().unwrap_or(b""));
    let status = status(lines.next().unwrap_or(b""));

    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(accept) {
        headers.insert(ACCEPT, value);
    }
    let query = std::str::from_utf8(query).ok();
    let negotiated = Negotiated::from_headers(&headers, query);
    for clause in accept::parse_all(&headers) {
        assert!(clause.quality.is_finite());
    }
    each_encoding(&status);
    respond(&status, &negotiated);
}

fn status(data: &[u8]) -> Status {
    let (numbers, texts) = data.split_at(data.len().min(9));
    let mut numbers = Unstructured::new(numbers);
    let code = numbers.arbitrary().unwrap_or(0);
    let retry_after_seconds = numbers.arbitrary().unwrap_or(0);
    let with_details = numbers.arbitrary().unwrap_or(false);
    let mut texts = texts.split(|&byte| byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    let mut next = || texts.next().unwrap_or_default();
    let mut status = Status {
        kind: next(),
        api_version: next(),
        metadata: StatusMeta {},
        status: next(),
        message: next(),
        reason: next(),
        details: None,
        code,
    };
    if with_details {
        let (name, group, kind, uid) = (next(), next(), next(), next());
        let rest: Vec<String> = texts.collect();
        let causes = rest.chunks_exact(3).map(|cause| StatusCause {
            reason: cause[0].clone(),
            message: cause[1].clone(),
            field: cause[2].clone(),
        });
        let causes = causes.collect();
        status.details = Some(StatusDetails { name, group, kind, uid, causes, retry_after_seconds });
    }
    status
}

fn each_encoding(status: &Status) {
    let json = status.to_json();
    assert!(!json.contains(['\n', '\r', '<', '>', '&', '\u{2028}', '\u{2029}']), "{json:?}");
    assert_eq!(serde_json::from_str::<Status>(&json).ok().as_ref(), Some(status), "{json}");
    let pretty = status.to_json_pretty();
    assert_eq!(serde_json::from_str::<Status>(&pretty).ok().as_ref(), Some(status), "{pretty}");
    assert!(!pretty.ends_with('\n'));
    let protobuf = status.to_protobuf();
    assert_eq!(status_protobuf::decode(&protobuf).as_ref(), Some(status), "{protobuf:?}");
    let yaml = respond::json_to_yaml(&json).expect("it is JSON");
    assert_eq!(read_yaml(&yaml, status).as_ref(), Some(status), "{yaml}");
}

/// Parses YAML. The product writes the YAML 1.1 of Go's library, and this parser reads YAML 1.2.
/// They differ in three characters, which are line breaks in one and ordinary characters in the
/// other. Texts with these characters are not parsed: the function returns `status` for them.
fn read_yaml(yaml: &str, status: &Status) -> Option<Status> {
    if yaml.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        return Some(status.clone());
    }
    serde_saphyr::from_str(yaml).ok()
}

/// Checks that the body is in the encoding that its head declares.
fn respond(status: &Status, negotiated: &Negotiated) {
    let response = respond::status(status, negotiated);
    assert_eq!(response.status().as_u16(), status.code());
    let wait = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    assert_eq!(response.headers().contains_key(RETRY_AFTER), wait > 0);
    let media_type = response.headers()[CONTENT_TYPE].to_str().expect("a media type is text").to_owned();
    let body =
        input::block_on(response.into_body().collect()).ok().expect("the body is all there").to_bytes();
    let text = || std::str::from_utf8(&body).ok();
    let read = match media_type.as_str() {
        "application/json" => text().and_then(|text| serde_json::from_str::<Status>(text).ok()),
        "application/yaml" => text().and_then(|text| read_yaml(text, status)),
        "application/vnd.kubernetes.protobuf" => status_protobuf::decode(&body),
        other => panic!("{other} was never requested"),
    };
    assert_eq!(read.as_ref(), Some(status));
    match negotiated.encoding {
        Some(encoding) => assert_eq!(media_type, encoding.media_type()),
        None => assert_eq!(media_type, Encoding::Json.media_type()),
    }
}
