//! The tokens of a request, copied before authentication removes them.
//!
//! They are needed again only when a request is passed through with its own token, see
//! [`pinniped_kube_request::impersonation::plan`].

use http::HeaderMap;
use pinniped_delegated_auth::bearer::{Bearer, bearer_token, websocket_token};
use pinniped_delegated_auth::request::Method;
use pinniped_secret::Token;

/// The tokens that the client sent.
#[derive(Debug)]
pub(super) struct Tokens {
    header: Bearer,
    subprotocol: Option<Token>,
}

impl Tokens {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        // The authenticator reports an invalid subprotocol.
        let subprotocol = websocket_token(headers).ok().flatten().map(|found| found.token);
        Self { header: bearer_token(headers), subprotocol }
    }

    /// Returns whether the token is ignored because of an extra space, in which case the response
    /// contains a warning.
    pub(super) fn has_extra_space(&self) -> bool {
        self.header == Bearer::ExtraSpace
    }

    /// Returns the token to pass through for a user that was authenticated with this method.
    pub(super) fn into_token(self, method: Option<Method>) -> Option<Token> {
        match method {
            Some(Method::WebSocketToken) => self.subprotocol,
            _ => self.header.into_token(),
        }
    }
}
