//! OpenID Connect for programs that accept or request ID tokens: the discovery document of a
//! provider, its keys, and the verification of ID tokens.
//!
//! [`discover`] reads the discovery document. A [`RemoteKeySet`] caches the provider's keys and
//! fetches them again when a token has a key that it does not know; a key that the provider
//! withdraws verifies tokens for [`WITHDRAWN_KEY_LIFETIME`] more. An [`IdTokenVerifier`] lists
//! what a token must fulfil, and turns an [`UnverifiedIdToken`] into an [`IdToken`]. Errors have
//! the texts of the library `github.com/coreos/go-oidc`, because users search for them.
//!
//! This crate does not run the authorization code flow and stores no token. It interprets no claim
//! other than those that it verifies. `pinniped-jose` verifies signatures.
//!
//! ```
//! use std::time::Duration;
//!
//! use pinniped_jose::{Algorithm, KeySet};
//! use pinniped_oidc::{IdTokenVerifier, UnverifiedIdToken};
//!
//! let verifier = IdTokenVerifier {
//!     issuer: "joe".to_owned(),
//!     audience: "some-client".to_owned(),
//!     algorithms: vec![Algorithm::Es256],
//!     not_before_leeway: Duration::from_secs(60),
//! };
//! let keys = KeySet::parse(
//!     br#"{"keys": [{"kty": "EC", "crv": "P-256",
//!          "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
//!          "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#,
//! )?;
//! // The example of RFC 7515, appendix A.3, which has no audience.
//! let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
//!              cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djx\
//!              La8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
//! let token = UnverifiedIdToken::parse(token)?;
//! let now = "2011-03-22T18:00:00Z".parse()?;
//! let error = verifier.verify_with(token, &keys, now).unwrap_err();
//! assert_eq!(error.to_string(), r#"oidc: expected audience "some-client" got []"#);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod claims;
mod discovery;
mod id_token;
mod remote_keys;
mod response;
mod unverified;
mod verifier;
mod withdrawn_keys;

pub use claims::{ClaimSource, ClaimsError};
pub use discovery::{DiscoveryError, ProviderMetadata, discover};
pub use id_token::{AccessTokenHashError, IdToken, NonceError};
pub use remote_keys::{
    FetchKeysError, KeySetStatus, REFETCH_INTERVAL, RemoteKeySet, RemoteKeySetError, WaitLimits,
};
pub use response::ResponseJsonError;
pub use unverified::{MalformedToken, UnverifiedIdToken, unverified_issuer};
pub use verifier::{IdTokenVerifier, VerifyError};
pub use withdrawn_keys::WITHDRAWN_KEY_LIFETIME;
