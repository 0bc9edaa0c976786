//! The claims that every verification reads (OpenID Connect Core 1.0, sections 2 and 5.6.2), with
//! the types that go-oidc gives them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pinniped_go_compat::json::type_name;
use pinniped_secret::SecretString;
use serde_json::{Map, Number, Value};

/// The error for a claim of the wrong type. It does not contain the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("json: cannot unmarshal {found} into Go struct field idToken.{claim} of type {expected}")]
pub struct ClaimsError {
    claim: &'static str,
    found: &'static str,
    expected: &'static str,
}

/// The endpoint at which a distributed claim is found (OpenID Connect Core 1.0, section 5.6.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimSource {
    /// The address; empty for an aggregated claim.
    pub endpoint: String,
    /// The bearer token for the address; empty if it needs none.
    pub access_token: SecretString,
}

#[derive(Debug)]
pub(crate) struct RegisteredClaims {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) audience: Vec<String>,
    pub(crate) expiry: Option<Timestamp>,
    pub(crate) issued_at: Option<Timestamp>,
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) nonce: String,
    pub(crate) access_token_hash: String,
    pub(crate) claim_names: BTreeMap<String, String>,
    pub(crate) claim_sources: BTreeMap<String, ClaimSource>,
}

impl RegisteredClaims {
    pub(crate) fn of(claims: &Map<String, Value>) -> Result<Self, ClaimsError> {
        Ok(Self {
            issuer: string(claims.get("iss"), "iss")?,
            subject: string(claims.get("sub"), "sub")?,
            audience: audience(claims.get("aud"))?,
            expiry: time(claims.get("exp"), "exp")?,
            issued_at: time(claims.get("iat"), "iat")?,
            not_before: time(claims.get("nbf"), "nbf")?,
            nonce: string(claims.get("nonce"), "nonce")?,
            access_token_hash: string(claims.get("at_hash"), "at_hash")?,
            claim_names: map(claims.get("_claim_names"), "_claim_names", |name| {
                string(Some(name), "_claim_names")
            })?,
            claim_sources: map(claims.get("_claim_sources"), "_claim_sources", source)?,
        })
    }
}

fn wrong(claim: &'static str, found: &Value, expected: &'static str) -> ClaimsError {
    let found = type_name(found);
    ClaimsError { claim, found, expected }
}

/// Returns a string; an empty one for null, as in Go.
fn string(value: Option<&Value>, claim: &'static str) -> Result<String, ClaimsError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(wrong(claim, other, "string")),
    }
}

/// Returns the audiences: one string or a list of strings.
fn audience(value: Option<&Value>) -> Result<Vec<String>, ClaimsError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(all)) => all.iter().map(|one| string(Some(one), "aud")).collect(),
        Some(other) => Err(wrong("aud", other, "[]string")),
    }
}

/// Returns a point in time (RFC 7519, section 2, `NumericDate`). Fractions of a second are dropped,
/// and a number in quotes is read, as in Go.
fn time(value: Option<&Value>, claim: &'static str) -> Result<Option<Timestamp>, ClaimsError> {
    let failed = |found| wrong(claim, found, "json.Number");
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(Some(seconds(number))),
        Some(text @ Value::String(quoted)) => {
            let number = serde_json::from_str(quoted).map_err(|_| failed(text))?;
            Ok(Some(seconds(&number)))
        }
        Some(other) => Err(failed(other)),
    }
}

/// Converts seconds since 1970. Times that a timestamp cannot represent become the earliest or the
/// latest one; a floating point number of that size becomes the earliest, as in Go.
fn seconds(number: &Number) -> Timestamp {
    let latest = || if number.is_u64() { i64::MAX } else { i64::MIN };
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.abs() < 9.2e18)?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the fraction is dropped, and the range was checked"
        )]
        Some(float as i64)
    });
    let whole = whole.unwrap_or_else(latest);
    Timestamp::from_second(whole).unwrap_or(if whole < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

fn map<T>(
    value: Option<&Value>,
    claim: &'static str,
    item: impl Fn(&Value) -> Result<T, ClaimsError>,
) -> Result<BTreeMap<String, T>, ClaimsError> {
    match value {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(members)) => {
            members.iter().map(|(name, value)| Ok((name.clone(), item(value)?))).collect()
        }
        Some(other) => Err(wrong(claim, other, "map")),
    }
}

fn source(value: &Value) -> Result<ClaimSource, ClaimsError> {
    const CLAIM: &str = "_claim_sources";
    match value {
        Value::Null => Ok(ClaimSource::default()),
        Value::Object(members) => Ok(ClaimSource {
            endpoint: string(members.get("endpoint"), CLAIM)?,
            access_token: string(members.get("access_token"), CLAIM)?.into(),
        }),
        other => Err(wrong(CLAIM, other, "oidc.claimSource")),
    }
}

#[cfg(test)]
mod tests;
