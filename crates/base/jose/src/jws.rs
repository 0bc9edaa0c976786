//! A signed token in the compact form (RFC 7515, section 7.1).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use crate::Algorithm;
use crate::json::{JsonError, parse_object};

/// Maximum length of a token in bytes. A longer one is refused before anything of it is decoded.
/// Tokens are sent in header fields, for which servers have lower limits.
pub const MAX_TOKEN_SIZE: usize = 64 * 1024;

/// The reason why a token is malformed. No text contains a part of the token.
#[derive(Debug, thiserror::Error)]
pub enum JwsError {
    /// The token is longer than [`MAX_TOKEN_SIZE`].
    #[error("the token is longer than {MAX_TOKEN_SIZE} bytes")]
    TooLong,
    /// The token does not have three parts.
    #[error("compact JWS format must have three parts")]
    Parts,
    /// A part is not base64url without padding, or has unused bits that are not zero.
    #[error("the {0} is not valid base64url")]
    Base64(&'static str),
    /// The header is not an unambiguous JSON object.
    #[error("the header is not valid: {0}")]
    HeaderJson(#[source] JsonError),
    /// A parameter of the header is missing, or is not a string.
    #[error("the header parameter {0:?} is not a string")]
    Parameter(&'static str),
    /// The header has critical parameters; this crate implements no extension that has one (RFC
    /// 7515, section 4.1.11).
    #[error("the header has critical parameters that are not supported")]
    Critical,
}

/// The error for a token whose algorithm is not allowed. The text is the end of Go's sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsupported algorithm, expected [{}] got {got:?}", Quoted(.expected))]
pub struct UnsupportedAlgorithm {
    /// The allowed algorithms.
    pub expected: Vec<Algorithm>,
    /// The algorithm that the token names.
    pub got: String,
}

struct Quoted<'a>(&'a [Algorithm]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, algorithm) in self.0.iter().enumerate() {
            write!(f, "{}\"{algorithm}\"", if index == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// A well-formed token whose signature is not verified. `Debug` prints nothing of the token.
#[derive(Clone)]
pub struct Jws<'t> {
    algorithm: String,
    key_id: Option<String>,
    type_: Option<String>,
    /// Header and payload as they were sent.
    signing_input: &'t str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl fmt::Debug for Jws<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jws").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

impl<'t> Jws<'t> {
    /// Parses a token. It must have no white space around it.
    ///
    /// # Errors
    /// Returns an error when the token is malformed.
    pub fn parse(token: &'t str) -> Result<Self, JwsError> {
        if token.len() > MAX_TOKEN_SIZE {
            return Err(JwsError::TooLong);
        }
        let (signing_input, signature) = token.rsplit_once('.').ok_or(JwsError::Parts)?;
        let (header, payload) = signing_input.split_once('.').ok_or(JwsError::Parts)?;
        if payload.contains('.') {
            return Err(JwsError::Parts);
        }
        let header = parse_object(&decode("header", header)?).map_err(JwsError::HeaderJson)?;
        if header.contains_key("crit") {
            return Err(JwsError::Critical);
        }
        Ok(Self {
            algorithm: string(&header, "alg")?.ok_or(JwsError::Parameter("alg"))?,
            // An empty ID selects no key, as if it were missing.
            key_id: string(&header, "kid")?.filter(|id| !id.is_empty()),
            type_: string(&header, "typ")?,
            signing_input,
            payload: decode("payload", payload)?,
            signature: decode("signature", signature)?,
        })
    }

    /// Returns the name of the algorithm in the header (`alg`), which may be any text.
    pub fn algorithm_name(&self) -> &str {
        &self.algorithm
    }

    /// Returns the algorithm if it is one of `allowed`.
    ///
    /// # Errors
    /// Returns an error when it is not, for example for `none`.
    pub fn algorithm(&self, allowed: &[Algorithm]) -> Result<Algorithm, UnsupportedAlgorithm> {
        let known = Algorithm::parse(&self.algorithm).filter(|algorithm| allowed.contains(algorithm));
        known.ok_or_else(|| UnsupportedAlgorithm { expected: allowed.to_vec(), got: self.algorithm.clone() })
    }

    /// Returns the ID of the key (`kid`), unless it is empty.
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// Returns the type of the token (`typ`).
    pub fn type_name(&self) -> Option<&str> {
        self.type_.as_deref()
    }

    /// Returns the payload. Before the signature is verified, it may be an attacker's.
    pub fn unverified_payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn signing_input(&self) -> &[u8] {
        self.signing_input.as_bytes()
    }

    pub(crate) fn signature(&self) -> &[u8] {
        &self.signature
    }
}

fn decode(part: &'static str, text: &str) -> Result<Vec<u8>, JwsError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| JwsError::Base64(part))
}

fn string(header: &Map<String, Value>, name: &'static str) -> Result<Option<String>, JwsError> {
    match header.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(JwsError::Parameter(name)),
    }
}

#[cfg(test)]
mod tests;
