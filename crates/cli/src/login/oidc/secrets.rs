//! The random values of one login: state (RFC 6749 §10.12), nonce (OpenID Connect Core §3.1.2.1),
//! and the PKCE verifier (RFC 7636).

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};

use super::OidcError;

/// The values; all are in hexadecimal form.
pub(super) struct LoginSecrets {
    state: String,
    nonce: String,
    verifier: String,
}

/// Prints nothing: the values protect the login until it is complete.
impl fmt::Debug for LoginSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginSecrets([redacted])")
    }
}

impl LoginSecrets {
    /// Generates the values of one login.
    pub(super) fn generate() -> Result<Self, OidcError> {
        Ok(Self { state: random::<16>()?, nonce: random::<16>()?, verifier: random::<32>()? })
    }

    /// Returns the state.
    pub(super) fn state(&self) -> &str {
        &self.state
    }

    /// Returns whether `state` is that of this login. The time does not depend on the value.
    pub(super) fn is_state(&self, state: &str) -> bool {
        verify_slices_are_equal(self.state.as_bytes(), state.as_bytes()).is_ok()
    }

    /// Returns the nonce.
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    /// Returns the PKCE verifier.
    pub(super) fn verifier(&self) -> &str {
        &self.verifier
    }

    /// Returns the PKCE challenge, for the method `S256`.
    pub(super) fn challenge(&self) -> String {
        challenge(&self.verifier)
    }
}

fn challenge(verifier: &str) -> String {
    BASE64URL_NOPAD.encode(digest(&SHA256, verifier.as_bytes()).as_ref())
}

fn random<const N: usize>() -> Result<String, OidcError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| OidcError::Random)?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_random_and_as_long_as_those_of_upstream() {
        let (one, other) = (LoginSecrets::generate().unwrap(), LoginSecrets::generate().unwrap());
        assert_eq!((one.state.len(), one.nonce.len(), one.verifier.len()), (32, 32, 64));
        assert!(one.state != other.state && one.nonce != other.nonce && one.verifier != other.verifier);
        assert!(one.is_state(one.state()) && !one.is_state(other.state()) && !one.is_state(""));
        assert_eq!(format!("{one:?}"), "LoginSecrets([redacted])");
    }

    #[test]
    fn the_challenge_is_that_of_rfc_7636_appendix_b() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
