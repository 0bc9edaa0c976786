//! The token of our own service account, as the header of every impersonated request.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use pinniped_http_headers::precomputed::PrecomputedHeaders;
use pinniped_secret::{Token, TokenSource};

/// A token that may be replaced, and its header.
pub(super) struct Credential {
    tokens: Arc<dyn TokenSource>,
    made: ArcSwapOption<(Arc<Token>, Arc<PrecomputedHeaders>)>,
}

impl Credential {
    pub(super) fn new(tokens: Arc<dyn TokenSource>) -> Self {
        Self { tokens, made: ArcSwapOption::empty() }
    }

    /// Reports to the source of the token that the API server has refused a request with this
    /// header, unless the token has been replaced.
    pub(super) fn refused(&self, header: &Arc<PrecomputedHeaders>) {
        if let Some(made) = &*self.made.load()
            && Arc::ptr_eq(&made.1, header)
        {
            self.tokens.refused(&made.0);
        }
    }

    /// Returns the header for the current token, if there is one. It is built once per token,
    /// because a token is a kilobyte long and validated byte by byte.
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

/// Returns a credential in the form in which it is added to a request.
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
    fn a_refusal_is_reported_only_for_the_current_token() {
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
    fn the_header_changes_with_the_token() {
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
