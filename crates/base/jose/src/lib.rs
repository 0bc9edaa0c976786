//! JSON Web Signature (RFC 7515) and JSON Web Key (RFC 7517): tokens in the compact form, and the
//! public keys that verify them.
//!
//! Start with [`Jws::parse`] and [`KeySet::verify`]. A token only names its algorithm; the caller
//! lists the allowed ones, and the key must be made for it. `none` and the algorithms with a shared
//! secret do not exist in [`Algorithm`], so nothing can verify them. Keys and addresses that a
//! token itself brings (`jwk`, `x5c`, `jku`, `x5u`) are not read.
//!
//! All input may come from an attacker. Each size, number and depth has a limit, which is a
//! constant of the module that applies it, and text that has two meanings is refused: duplicate
//! member names, padding, unused bits of base64url.
//!
//! This crate does no I/O and reads no clock. It does not interpret the payload, does not decrypt
//! (JWE) and, outside of tests, does not sign.
//!
//! ```
//! use pinniped_jose::{Algorithm, Jws, KeySet};
//!
//! // The example of RFC 7515, appendix A.3.
//! let keys = KeySet::parse(
//!     br#"{"keys": [{"kty": "EC", "crv": "P-256",
//!          "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
//!          "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#,
//! )?;
//! let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
//!              cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djx\
//!              La8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
//! let jws = Jws::parse(token)?;
//! assert_eq!(keys.verify(&jws, &[Algorithm::Es256])?, Algorithm::Es256);
//! assert!(keys.verify(&jws, &[Algorithm::Rs256]).is_err());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod algorithm;
pub mod json;
mod jwk;
mod jws;
mod key_set;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use algorithm::Algorithm;
pub use jwk::{JwkError, KeyIdentity, PublicKey};
pub use jws::{Jws, JwsError, MAX_TOKEN_SIZE, UnsupportedAlgorithm};
pub use key_set::{KeySet, KeySetError, MAX_KEY_SET_SIZE, MAX_KEYS, SignatureError, verify_with};
