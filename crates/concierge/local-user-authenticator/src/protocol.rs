//! The TokenReview protocol, `authentication.k8s.io/v1beta1`, as pure functions: parse a request
//! into credentials or a status, and serialize the result.
//!
//! The order of the checks and the bytes of the responses are those of upstream.

use std::fmt;

use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName},
    request::Parts,
};
use pinniped_go_compat::json as gojson;
use pinniped_http_server::{Body, body};
use serde::{
    Deserialize, Serialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use zeroize::Zeroizing;

const API_VERSION: &str = "authentication.k8s.io/v1beta1";
const KIND: &str = "TokenReview";
const PATH: &str = "/authenticate";
const JSON: &str = "application/json";

/// A user's name and password, as received.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The part before the first colon.
    pub username: String,
    /// The part after the first colon.
    pub password: Zeroizing<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials([redacted])")
    }
}

/// The result of a valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationResult {
    /// An unknown user or a wrong password; the response does not distinguish them.
    Unauthenticated,
    /// The password is correct.
    Authenticated {
        /// The user's name.
        username: String,
        /// The user's groups.
        groups: Vec<String>,
    },
}

/// Checks everything except the body.
///
/// # Errors
///
/// The status of a response without a body.
pub fn check(parts: &Parts) -> Result<(), StatusCode> {
    let path = parts.uri.path();
    if path != PATH {
        tracing::debug!(path, "received request path other than /authenticate");
        return Err(StatusCode::NOT_FOUND);
    }
    if parts.method != Method::POST {
        tracing::debug!(method = %parts.method, "received request method other than post");
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    if !has_media_type(&parts.headers, &CONTENT_TYPE, &[JSON]) {
        let values = pinniped_logging::value::json(&values(&parts.headers, &CONTENT_TYPE));
        tracing::debug!({ "Content-Type" } = values.as_str(), "content type is not application/json");
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    if !has_media_type(&parts.headers, &ACCEPT, &[JSON, "application/*", "*/*"]) {
        let values = pinniped_logging::value::json(&values(&parts.headers, &ACCEPT));
        tracing::debug!({ "Accept" } = values.as_str(), "client does not accept application/json");
        return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    Ok(())
}

/// Parses the body.
///
/// # Errors
///
/// The status of a response without a body.
pub fn credentials(body: &[u8]) -> Result<Credentials, StatusCode> {
    // Only the first JSON value is parsed; the rest is ignored.
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Review>();
    let Some(first) = values.next() else {
        tracing::debug!(err = "EOF", "failed to decode body");
        return Err(StatusCode::BAD_REQUEST);
    };
    let review = first.map_err(|error| {
        // Only the kind of the error, because its text may quote the token.
        tracing::debug!(err = ?error.classify(), "failed to decode body");
        StatusCode::BAD_REQUEST
    })?;
    if review.api_version != API_VERSION {
        tracing::debug!(apiVersion = review.api_version, "invalid TokenReview apiVersion");
        return Err(StatusCode::BAD_REQUEST);
    }
    if review.kind != KIND {
        tracing::debug!(kind = review.kind, "invalid TokenReview kind");
        return Err(StatusCode::BAD_REQUEST);
    }
    let Some((username, password)) = review.token.split_once(':') else {
        tracing::debug!("bad token format in request");
        return Err(StatusCode::BAD_REQUEST);
    };
    Ok(Credentials { username: username.to_owned(), password: Zeroizing::new(password.to_owned()) })
}

/// Returns the response.
pub fn respond(result: Result<AuthenticationResult, StatusCode>) -> Response<Body> {
    let result = match result {
        Ok(result) => result,
        Err(status) => {
            let mut response = Response::new(body::empty());
            *response.status_mut() = status;
            return response;
        }
    };
    let mut response = Response::new(body::full(render(result)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// Serializes one line of JSON with the keys in Go's order, and a newline.
fn render(result: AuthenticationResult) -> String {
    #[derive(Serialize)]
    struct TokenReview {
        kind: &'static str,
        #[serde(rename = "apiVersion")]
        api_version: &'static str,
        metadata: Empty,
        spec: Empty,
        status: Status,
    }
    #[derive(Serialize)]
    struct Empty {}
    #[derive(Serialize)]
    struct Status {
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        authenticated: bool,
        user: User,
    }
    #[derive(Serialize)]
    struct User {
        #[serde(skip_serializing_if = "String::is_empty")]
        username: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        groups: Vec<String>,
    }
    let (authenticated, username, groups) = match result {
        AuthenticationResult::Unauthenticated => (false, String::new(), Vec::new()),
        AuthenticationResult::Authenticated { username, groups } => (true, username, groups),
    };
    let status = Status { authenticated, user: User { username, groups } };
    let response =
        TokenReview { kind: KIND, api_version: API_VERSION, metadata: Empty {}, spec: Empty {}, status };
    gojson::to_string(&response) + "\n"
}

/// Returns whether one of the header's comma-separated entries is one of the wanted media types.
/// Parameters are ignored.
fn has_media_type(headers: &HeaderMap, name: &HeaderName, wanted: &[&str]) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|entry| entry.split(';').next())
        .any(|entry| wanted.iter().any(|wanted| entry.trim().eq_ignore_ascii_case(wanted)))
}

fn values(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

/// The relevant part of a TokenReview. As in Go's `encoding/json`, names of members match in any
/// case, the last of several counts, and null counts as absent. Other members are skipped while
/// they are read, because a body may have thousands of them.
#[derive(Default)]
struct Review {
    api_version: String,
    kind: String,
    token: Zeroizing<String>,
}

impl<'de> Deserialize<'de> for Review {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Review;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Review, A::Error> {
                let mut review = Review::default();
                while let Some(name) = map.next_key::<String>()? {
                    match name.to_ascii_lowercase().as_str() {
                        "apiversion" => set(&mut review.api_version, map.next_value()?),
                        "kind" => set(&mut review.kind, map.next_value()?),
                        "spec" => {
                            let spec: Option<Spec> = map.next_value()?;
                            set(&mut review.token, spec.and_then(|spec| spec.0));
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(review)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// The token of a spec.
struct Spec(Option<Zeroizing<String>>);

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Spec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Spec, A::Error> {
                let mut token = None;
                while let Some(name) = map.next_key::<String>()? {
                    match name.to_ascii_lowercase().as_str() {
                        "token" => token = map.next_value::<Option<String>>()?.map(Zeroizing::new).or(token),
                        "audiences" => _ = map.next_value::<Option<Texts>>()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Spec(token))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// A list of texts, which is only validated.
struct Texts;

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;

        impl<'de> Visitor<'de> for Items {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Texts, A::Error> {
                while items.next_element::<Option<String>>()?.is_some() {}
                Ok(Texts)
            }
        }

        deserializer.deserialize_seq(Items)
    }
}

fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header names and values.
    type Fields<'a> = &'a [(&'a str, &'a str)];

    fn parts(method: Method, path: &str, headers: Fields<'_>) -> Parts {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    const CONTENT: (&str, &str) = ("Content-Type", "application/json");
    const ACCEPTED: (&str, &str) = ("Accept", "application/json");

    #[test]
    fn requests_are_checked_in_order() {
        let post = || Method::POST;
        let accept = |value: &'static str| [CONTENT, ("Accept", value)];
        let table: &[(Method, &str, Fields<'_>, u16)] = &[
            (post(), "/authenticate", &[CONTENT, ACCEPTED], 200),
            (post(), "/authenticate?timeout=30s", &[CONTENT, ACCEPTED], 200),
            (post(), "/tuna", &[], 404),
            (Method::GET, "/", &[], 404),
            (post(), "/authenticate/", &[CONTENT, ACCEPTED], 404),
            (Method::GET, "/authenticate", &[], 405),
            (Method::PUT, "/authenticate", &[CONTENT, ACCEPTED], 405),
            (post(), "/authenticate", &[ACCEPTED], 415),
            (post(), "/authenticate", &[("Content-Type", "application/xml"), ACCEPTED], 415),
            (post(), "/authenticate", &[("Content-Type", "application/json; charset=UTF-8"), ACCEPTED], 200),
            (post(), "/authenticate", &[("Content-Type", "text/plain, Application/JSON"), ACCEPTED], 200),
            (post(), "/authenticate", &[("Content-Type", "application/*"), ACCEPTED], 415),
            (post(), "/authenticate", &[CONTENT], 415),
            (post(), "/authenticate", &accept("application/xml"), 415),
            (post(), "/authenticate", &accept("application/json, */*"), 200),
            (post(), "/authenticate", &accept("something/else, application/xml, application/json"), 200),
            (post(), "/authenticate", &accept("something/else, */*, application/foo"), 200),
            (post(), "/authenticate", &accept("something/else, application/*, application/foo"), 200),
            (post(), "/authenticate", &[CONTENT, ("Accept", "a/b"), ("Accept", "*/*;q=0.1")], 200),
        ];
        for (method, path, headers, expected) in table {
            let status = check(&parts(method.clone(), path, headers)).err().unwrap_or(StatusCode::OK);
            assert_eq!(status.as_u16(), *expected, "{method} {path} {headers:?}");
        }
    }

    fn pair(username: &str, password: &str) -> Option<Credentials> {
        Some(Credentials { username: username.to_owned(), password: Zeroizing::new(password.to_owned()) })
    }

    #[test]
    fn bodies_are_parsed_like_in_go() {
        let review = |spec: &str| {
            format!(r#"{{"apiVersion":"authentication.k8s.io/v1beta1","kind":"TokenReview","spec":{spec}}}"#)
        };
        let good = review(r#"{"token":"u:p"}"#);
        let table: &[(&str, String, Option<Credentials>)] = &[
            ("good", good.clone(), pair("u", "p")),
            ("colons in the password", review(r#"{"token":"u:p:q:"}"#), pair("u", "p:q:")),
            ("nothing around the colon", review(r#"{"token":":"}"#), pair("", "")),
            ("audiences", review(r#"{"token":"u:p","audiences":["a",null]}"#), pair("u", "p")),
            ("a number as audience", review(r#"{"token":"u:p","audiences":[1]}"#), None),
            ("two specs", review(r#"{"token":"u:p"},"spec":{"x":{}},"Spec":null"#), pair("u", "p")),
            ("unknown members", review(r#"{"token":"u:p","x":{"y":[1]}}"#), pair("u", "p")),
            ("text behind", format!("{good} trailing"), pair("u", "p")),
            ("names in any case", good.replace("spec", "SPEC").replace("kind", "Kind"), pair("u", "p")),
            ("the last counts", review(r#"{"token":"u:p","Token":"v:q"}"#), pair("v", "q")),
            ("null is nothing", review(r#"{"token":"u:p","token":null,"audiences":null}"#), pair("u", "p")),
            ("no colon", review(r#"{"token":"up"}"#), None),
            ("no token", review("{}"), None),
            ("no spec", review("null"), None),
            ("spec of another type", review("[]"), None),
            ("token of another type", review(r#"{"token":5}"#), None),
            ("audiences of another type", review(r#"{"token":"u:p","audiences":"a"}"#), None),
            ("other group", good.replace("authentication.k8s.io/", "bad group/"), None),
            ("other version", good.replace("v1beta1", "bad version"), None),
            ("v1", good.replace("v1beta1", "v1"), None),
            ("other kind", good.replace("TokenReview", "wrong-kind"), None),
            ("empty", String::new(), None),
            ("garbage", "invalid body".to_owned(), None),
            ("array", "[]".to_owned(), None),
            ("null", "null".to_owned(), None),
            ("cut off", good[..good.len() - 1].to_owned(), None),
        ];
        for (name, body, expected) in table {
            assert_eq!(&credentials(body.as_bytes()).ok(), expected, "{name}");
            if expected.is_none() {
                assert_eq!(credentials(body.as_bytes()), Err(StatusCode::BAD_REQUEST), "{name}");
            }
        }
    }

    #[test]
    fn responses_have_the_bytes_of_the_go_encoder() {
        let authenticated = |username: &str, groups: &[&str]| AuthenticationResult::Authenticated {
            username: username.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
        };
        let table = [
            (AuthenticationResult::Unauthenticated, r#"{"user":{}}"#),
            (authenticated("u", &[]), r#"{"authenticated":true,"user":{"username":"u"}}"#),
            (
                authenticated("u", &["a", "", "<b>"]),
                r#"{"authenticated":true,"user":{"username":"u","groups":["a","","\u003cb\u003e"]}}"#,
            ),
        ];
        let head =
            r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{},"spec":{}"#;
        for (result, status) in table {
            assert_eq!(render(result), format!("{head},\"status\":{status}}}\n"));
        }
    }

    #[test]
    fn debug_output_of_credentials_is_redacted() {
        assert_eq!(format!("{:?}", pair("u", "p").unwrap()), "Credentials([redacted])");
    }
}
