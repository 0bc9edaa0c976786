//! The tokens of a request, remembered before authentication takes them out.
//!
//! They are needed again only when a request can be passed through with its own token, see
//! [`pinniped_kube_request::impersonation::plan`].

use http::HeaderMap;
use pinniped_delegated_auth::bearer::{Bearer, bearer_token, websocket_token};
use pinniped_delegated_auth::request::Method;
use pinniped_secret::Token;

/// What the client sent.
#[derive(Debug)]
pub(super) struct Tokens {
    header: Bearer,
    subprotocol: Option<Token>,
}

impl Tokens {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        // A malformed subprotocol is the authenticator's to report.
        let subprotocol = websocket_token(headers).ok().flatten().map(|found| found.token);
        Self { header: bearer_token(headers), subprotocol }
    }

    /// Is the token left out because of a second space? Then the client deserves a warning.
    pub(super) fn has_extra_space(&self) -> bool {
        self.header == Bearer::ExtraSpace
    }

    /// The token to pass through for a user who was recognised in this way.
    pub(super) fn into_token(self, method: Option<Method>) -> Option<Token> {
        match method {
            Some(Method::WebSocketToken) => self.subprotocol,
            _ => self.header.into_token(),
        }
    }
}
