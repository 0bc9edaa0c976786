//! The body of a login, as the aggregated API decodes it. Input: the media type on the first line,
//! then the body.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use pinniped_concierge::apiserver::fuzz_bridge::decode_login;
use pinniped_concierge_api::login::TokenCredentialRequestSpec;
use serde_json::Value;

/// The largest size of an error message in bytes, for bodies of any size. The longest texts that
/// a message quotes are names of fields, each of them once.
const MAX_MESSAGE: usize = 64 << 10;

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let end_of_line = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let (media_type, body) = data.split_at(end_of_line);
    let body = body.get(1..).unwrap_or_default();
    let Ok(media_type) = HeaderValue::from_bytes(media_type) else { return };
    let is_json = media_type == "application/json";
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, media_type)]);

    let lenient = decode_login(&headers, body, false);
    let strict = decode_login(&headers, body, true);
    for refused in [&lenient, &strict].into_iter().filter_map(|result| result.as_ref().err()) {
        assert!(matches!(refused.code, 400 | 413 | 415), "{refused:?}");
        assert!(refused.message.len() <= MAX_MESSAGE, "{} bytes", refused.message.len());
    }
    match (&lenient, &strict) {
        (Ok((spec, warnings)), Ok((of_strict, none))) => {
            assert_eq!(spec, of_strict);
            assert_eq!((*warnings, *none), (0, 0), "a mistake was accepted");
        }
        (Ok((_, warnings)), Err(_)) => assert_ne!(*warnings, 0, "refused without a mistake"),
        (Err(_), Ok(_)) => panic!("strict validation accepted a body that is not valid"),
        (Err(_), Err(_)) => {}
    }
    // With duplicate fields, the parsers differ: an API server reads the later one into the value
    // of the earlier one.
    if let (true, Ok((spec, _))) = (is_json, &strict) {
        compare(spec, body);
    }
}

/// Compares the fields of a login with those that another parser reads.
fn compare(spec: &TokenCredentialRequestSpec, body: &[u8]) {
    // An API server replaces bytes that are not UTF-8.
    let text = String::from_utf8_lossy(body);
    let value: Value = serde_json::from_str(&text).expect("an accepted body is JSON");
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let token = spec.token.as_ref().map(|token| token.expose());
    assert_eq!(token, text("/spec/token"));
    let authenticator = &spec.authenticator;
    assert_eq!(authenticator.name, text("/spec/authenticator/name").unwrap_or_default());
    assert_eq!(authenticator.kind, text("/spec/authenticator/kind").unwrap_or_default());
    assert_eq!(authenticator.api_group.as_deref(), text("/spec/authenticator/apiGroup"));
}
