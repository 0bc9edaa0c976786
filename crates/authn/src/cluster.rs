//! Reviews asked of the API server: whose token is this, and may this user do that.

use std::sync::Arc;

use pinniped_core::attributes::Attributes;
use pinniped_core::identity::User;

use crate::token::Token;

/// A review could not be had. Never an allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The call failed; the text is what client-go says in that case.
    #[error("{0}")]
    Call(String),
}

/// An authorization verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed.
    Allow,
    /// Denied for good.
    Deny {
        /// The authorizer's reason, may be empty.
        reason: String,
    },
    /// Nobody allows it.
    NoOpinion {
        /// The authorizer's reason, may be empty.
        reason: String,
    },
}

/// Asks TokenReviews, with a cache.
#[derive(Clone)]
pub struct TokenReviewer {}

impl TokenReviewer {
    /// Reviews go out with this client.
    pub fn new(_client: kube::Client) -> Self {
        todo!()
    }

    /// Whose token is this? `None`: nobody's.
    pub async fn review(&self, _token: &Token) -> Result<Option<Arc<User>>, ReviewError> {
        todo!()
    }
}

/// Asks SubjectAccessReviews, with a cache.
#[derive(Clone)]
pub struct Authorizer {}

impl Authorizer {
    /// Reviews go out with this client.
    pub fn new(_client: kube::Client) -> Self {
        todo!()
    }

    /// May this user do that?
    pub async fn authorize(&self, _user: &User, _attributes: &Attributes) -> Result<Decision, ReviewError> {
        todo!()
    }
}
