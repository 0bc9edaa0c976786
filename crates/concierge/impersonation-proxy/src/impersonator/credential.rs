//! Our own service account's token, as the header that every impersonated request carries.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_secret::{Token, TokenSource};

/// A token that may be swapped, and the header made of it.
pub(super) struct Credential {
    tokens: Arc<dyn TokenSource>,
    made: ArcSwapOption<(Arc<Token>, Arc<PrecomputedHeaders>)>,
}

impl Credential {
    pub(super) fn new(tokens: Arc<dyn TokenSource>) -> Self {
        Self { tokens, made: ArcSwapOption::empty() }
    }

    /// Reports that the API server has refused a request with this header to the source of its token, unless there is
    /// another token by now.
    pub(super) fn refused(&self, header: &Arc<PrecomputedHeaders>) {
        if let Some(made) = &*self.made.load()
            && Arc::ptr_eq(&made.1, header)
        {
            self.tokens.refused(&made.0);
        }
    }

    /// The header for the token of this moment, if there is one. Made once for each token: they are a kilobyte long, and
    /// checked byte by byte.
    pub(super) fn header(&self) -> Option<Arc<PrecomputedHeaders>> {
        let token = self.tokens.token()?;
        if let Some(made) = &*self.made.load()
            && Arc::ptr_eq(&made.0, &token)
        {
            return Some(Arc::clone(&made.1));
        }
        let value = pinniped_reverse_proxy::bearer(token.expose())?;
        let header = Arc::new(ready(value));
        self.made.store(Some(Arc::new((token, Arc::clone(&header)))));
        Some(header)
    }
}

/// A credential as it goes with a request.
pub(super) fn ready(authorization: HeaderValue) -> PrecomputedHeaders {
    PrecomputedHeaders::new(vec![(AUTHORIZATION, authorization)])
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[derive(Default)]
    struct Swapped(ArcSwapOption<Token>, ArcSwapOption<Token>);

    impl TokenSource for Swapped {
        fn token(&self) -> Option<Arc<Token>> {
            self.0.load_full()
        }
        fn refused(&self, token: &Arc<Token>) {
            self.1.store(Some(Arc::clone(token)));
        }
    }

    #[test]
    fn a_refusal_is_reported_while_the_token_is_the_one_in_use() {
        let tokens = Arc::new(Swapped::default());
        let credential = Credential::new(tokens.clone());
        let refused = || tokens.1.swap(None).map(|token| token.expose().to_owned());
        tokens.0.store(Some(Arc::new(Token::new("a"))));
        let a = credential.header().unwrap();
        credential.refused(&a);
        assert_eq!(refused().as_deref(), Some("a"));
        tokens.0.store(Some(Arc::new(Token::new("b"))));
        let b = credential.header().unwrap();
        credential.refused(&a);
        assert_eq!(refused(), None);
        credential.refused(&b);
        assert_eq!(refused().as_deref(), Some("b"));
    }

    #[test]
    fn the_header_follows_the_token_at_once() {
        let tokens = Arc::new(Swapped::default());
        let credential = Credential::new(tokens.clone());
        let header = || {
            let mut headers = HeaderMap::new();
            credential.header()?.append_to(&mut headers).unwrap();
            headers.remove(AUTHORIZATION)
        };
        assert_eq!(header(), None);
        for token in ["a", "b", "b", "a"] {
            tokens.0.store(Some(Arc::new(Token::new(token))));
            let made = header().unwrap();
            assert_eq!(made, format!("Bearer {token}"));
            assert!(made.is_sensitive());
            assert_eq!(header().unwrap(), made);
        }
        tokens.0.store(None);
        assert_eq!(header(), None);
    }
}
