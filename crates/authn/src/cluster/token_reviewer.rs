//! TokenReview by the API server.

use std::sync::Arc;

use aws_lc_rs::hmac;
use pinniped_core::identity::KnownUser;

use super::{Answers, KEEP, ReviewError, Reviews};
use crate::digest::Digest;
use crate::review::{TokenReviewAnswer, TokenVerdict, token_review_body};
use crate::token::Token;

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RESOURCE: &str = "post tokenreviews.authentication.k8s.io";
const ENTRIES: u64 = 8192;

/// Asks the API server whose token it is. Cheap to clone; clones share the cache.
///
/// A yes and a no are both kept for ten seconds, by a hash of the token keyed with a secret of this process.
#[derive(Clone)]
pub struct TokenReviewer(Arc<Inner>);

struct Inner {
    reviews: Reviews,
    key: hmac::Key,
    answers: Answers<Option<KnownUser>>,
}

impl TokenReviewer {
    /// Reviews go out with this client, as its own identity.
    pub fn new(client: kube::Client) -> Self {
        Self::with(Reviews::new(client))
    }

    pub(super) fn with(reviews: Reviews) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &aws_lc_rs::rand::SystemRandom::new())
            .expect("the system's random source works");
        Self(Arc::new(Inner { reviews, key, answers: Answers::new(ENTRIES, KEEP) }))
    }

    /// Whose token is this? `None`: nobody's.
    ///
    /// # Errors
    ///
    /// [`ReviewError`] when the API server cannot be asked; that answer is not kept.
    pub async fn review(&self, token: &Token) -> Result<Option<KnownUser>, ReviewError> {
        let key = self.digest(token);
        if let Some(user) = self.0.answers.known().get(&key) {
            return Ok(user);
        }
        self.0.answers.get_or_ask(key, Box::pin(self.ask(token))).await
    }

    async fn ask(&self, token: &Token) -> Result<Option<KnownUser>, ReviewError> {
        let body = token_review_body("authentication.k8s.io/v1", token);
        let answer: TokenReviewAnswer = self.0.reviews.post(PATH, RESOURCE, body).await?;
        Ok(match answer.status.unwrap_or_default().into_verdict() {
            TokenVerdict::Yes(user) => Some(user.into()),
            TokenVerdict::No(error) => {
                tracing::debug!(%error, "token not accepted");
                None
            }
        })
    }

    fn digest(&self, token: &Token) -> Digest {
        let tag = hmac::sign(&self.0.key, token.expose().as_bytes());
        let mut digest = Digest::default();
        digest.copy_from_slice(tag.as_ref());
        digest
    }
}
