//! JSON documents that a provider returns.

use pinniped_go_compat::json::{parse_error, quote};
use pinniped_http_client::https::FullResponse;

/// The error for a response that is not the expected JSON document, with go-oidc's text. The
/// content type matters only for the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseJsonError {
    /// The response claims to be JSON.
    #[error("got Content-Type = application/json, but could not unmarshal as JSON: {0}")]
    Json(String),
    /// The response has another content type.
    #[error("expected Content-Type = application/json, got {}: {problem}", quote(.content_type))]
    ContentType {
        /// The content type.
        content_type: String,
        /// The error of the parser.
        problem: String,
    },
}

impl ResponseJsonError {
    pub(crate) fn new(response: &FullResponse, error: &serde_json::Error) -> Self {
        let problem = if error.is_data() { error.to_string() } else { parse_error(&response.body, error) };
        Self::with_problem(response, problem)
    }

    pub(crate) fn with_problem(response: &FullResponse, problem: String) -> Self {
        let content_type = response.content_type();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if media_type.eq_ignore_ascii_case("application/json") {
            Self::Json(problem)
        } else {
            Self::ContentType { content_type: content_type.to_owned(), problem }
        }
    }
}
