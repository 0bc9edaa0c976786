//! A request to the callback listener, as data.

use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;

use pinniped_go_compat::json::quote;
use pinniped_go_compat::url::first_query_value;

/// The maximum size of a form in bytes.
const MAX_FORM: usize = 1024 * 1024;

/// The purpose of a request.
#[derive(Debug)]
pub(super) enum CallbackRequest {
    /// A preflight request, before a page of the issuer sends a request.
    Preflight { origin: String, headers: HeaderMap },
    /// The same, without the origin of the page.
    PreflightWithoutOrigin,
    /// A method that no browser sends here.
    OtherMethod(Method),
    /// A form that cannot be read.
    InvalidForm(&'static str),
    /// The result of the authorization.
    Callback(CallbackParams),
}

/// The parameters of the authorization response (RFC 6749 §4.1.2).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallbackParams {
    pub(super) state: String,
    pub(super) code: String,
    /// The text for an error of the provider.
    pub(super) error: Option<String>,
}

/// Reads a request.
pub(super) async fn read(request: Request<Incoming>) -> CallbackRequest {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    match parts.method {
        Method::OPTIONS => match parts.headers.get(ORIGIN).filter(|origin| !origin.is_empty()) {
            Some(origin) => CallbackRequest::Preflight {
                origin: String::from_utf8_lossy(origin.as_bytes()).into_owned(),
                headers: parts.headers,
            },
            None => CallbackRequest::PreflightWithoutOrigin,
        },
        Method::GET => CallbackRequest::Callback(params(&[query])),
        Method::POST => match form(&parts.headers, body).await {
            Ok(form) => CallbackRequest::Callback(params(&[form.as_str(), query])),
            Err(error) => CallbackRequest::InvalidForm(error),
        },
        method => CallbackRequest::OtherMethod(method),
    }
}

/// Returns the body of a form; empty for a body of another type.
async fn form(headers: &HeaderMap, body: Incoming) -> Result<String, &'static str> {
    let type_ = headers.get(CONTENT_TYPE).and_then(|type_| type_.to_str().ok()).unwrap_or_default();
    let media_type = type_.split(';').next().unwrap_or_default().trim();
    let body = Limited::new(body, MAX_FORM).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() { "http: POST too large" } else { "unexpected EOF" }
    })?;
    if !media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return Ok(String::new());
    }
    String::from_utf8(body.to_bytes().into()).map_err(|_| "the form is not valid UTF-8")
}

/// Returns the parameters from forms and queries; the first one that has a parameter determines it.
fn params(sources: &[&str]) -> CallbackParams {
    let value = |name| sources.iter().find_map(|source| first_query_value(source, name)).unwrap_or_default();
    let (error, description) = (value("error"), value("error_description"));
    CallbackParams {
        state: value("state"),
        code: value("code"),
        error: (!error.is_empty()).then(|| login_failed(&error, &description)),
    }
}

/// Returns the text for an error of the provider.
pub(in crate::login::oidc) fn login_failed(error: &str, description: &str) -> String {
    match description {
        "" => format!("login failed with code {}", quote(error)),
        description => format!("login failed with code {}: {description}", quote(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_come_from_the_form_before_the_query() {
        let found = params(&["state=a&code=b+c%26", "state=x&error="]);
        assert_eq!(found, CallbackParams { state: "a".into(), code: "b c&".into(), error: None });
        assert_eq!(params(&[""]), CallbackParams { state: String::new(), code: String::new(), error: None });
        for (query, error) in [
            ("error=access_denied", "login failed with code \"access_denied\""),
            ("error=a%22&error_description=some+text%21", "login failed with code \"a\\\"\": some text!"),
        ] {
            assert_eq!(params(&[query]).error.as_deref(), Some(error));
        }
    }
}
