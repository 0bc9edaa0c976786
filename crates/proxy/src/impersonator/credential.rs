//! Our own service account's token, as the header that every impersonated request carries.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use pinniped_authn::{Token, TokenSource};

/// A token that may be swapped, and the header made of it.
pub(super) struct Credential {
    tokens: Arc<dyn TokenSource>,
    made: ArcSwapOption<(Arc<Token>, HeaderValue)>,
}

impl Credential {
    pub(super) fn new(tokens: Arc<dyn TokenSource>) -> Self {
        Self { tokens, made: ArcSwapOption::empty() }
    }

    /// The header for the token of this moment, if there is one. Made once for each token: they are a kilobyte long, and
    /// checked byte by byte.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let token = self.tokens.token()?;
        if let Some(made) = &*self.made.load()
            && Arc::ptr_eq(&made.0, &token)
        {
            return Some(made.1.clone());
        }
        let header = pinniped_forward::bearer(token.expose())?;
        self.made.store(Some(Arc::new((token, header.clone()))));
        Some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Swapped(ArcSwapOption<Token>);

    impl TokenSource for Swapped {
        fn token(&self) -> Option<Arc<Token>> {
            self.0.load_full()
        }
    }

    #[test]
    fn the_header_follows_the_token_at_once() {
        let tokens = Arc::new(Swapped(ArcSwapOption::empty()));
        let credential = Credential::new(tokens.clone());
        assert_eq!(credential.header(), None);
        for token in ["a", "b", "b", "a"] {
            tokens.0.store(Some(Arc::new(Token::new(token))));
            let header = credential.header().unwrap();
            assert_eq!(header, format!("Bearer {token}"));
            assert!(header.is_sensitive());
            assert_eq!(credential.header().unwrap(), header);
        }
        tokens.0.store(None);
        assert_eq!(credential.header(), None);
    }
}
