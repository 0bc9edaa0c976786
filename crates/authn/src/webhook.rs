//! TokenReview over HTTPS to an endpoint of the administrator's choice.

use futures::future::BoxFuture;
use pinniped_core::identity::User;
use pinniped_pki::tls::Roots;
use url::Url;

use crate::registry::{AuthenticateError, TokenAuthenticator};
use crate::token::Token;

/// A client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// TLS settings are not usable.
    #[error("{0}")]
    Tls(String),
}

/// The endpoint could not be dialled; the text is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeError(pub(crate) String);

/// Asks one webhook.
pub struct WebhookClient {}

impl WebhookClient {
    /// A client for this endpoint that trusts these roots.
    pub fn new(_endpoint: &Url, _roots: Roots) -> Result<Self, WebhookError> {
        todo!()
    }
}

impl TokenAuthenticator for WebhookClient {
    fn authenticate<'a>(&'a self, _: &'a Token) -> BoxFuture<'a, Result<Option<User>, AuthenticateError>> {
        todo!()
    }
}

/// Dials the endpoint and completes a TLS handshake, nothing more.
pub async fn probe(_endpoint: &Url, _roots: Roots) -> Result<(), ProbeError> {
    todo!()
}
