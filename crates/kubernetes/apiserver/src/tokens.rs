//! The tokens of a request, copied before authentication removes them.
//!
//! A handler needs them again when it acts with the client's own token.

use http::HeaderMap;
use pinniped_delegated_auth::bearer::{Bearer, bearer_token, websocket_token};
use pinniped_delegated_auth::request::Method;
use pinniped_secret::Token;

/// The tokens that the client sent.
#[derive(Debug)]
pub(crate) struct Tokens {
    header: Bearer,
    subprotocol: Option<Token>,
}

impl Tokens {
    /// Copies the tokens of a request with these headers.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        // The authenticator reports an invalid subprotocol.
        let subprotocol = websocket_token(headers).ok().flatten().map(|found| found.token);
        Self { header: bearer_token(headers), subprotocol }
    }

    /// Returns whether the token is ignored because of an extra space, in which case the response
    /// contains a warning.
    pub(crate) fn has_extra_space(&self) -> bool {
        self.header == Bearer::ExtraSpace
    }

    /// Returns the token of a user that was authenticated with this method.
    pub(crate) fn into_token(self, method: Option<Method>) -> Option<Token> {
        match method {
            Some(Method::WebSocketToken) => self.subprotocol,
            _ => self.header.into_token(),
        }
    }
}
