//! Functions for the fuzz targets, so that the modules that they test stay private.

use http::HeaderMap;
use pinniped_concierge_api::login::TokenCredentialRequestSpec;
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;

use super::catalog::Kind;
use super::decode::{self, FieldValidation};

/// Decodes the body of a request that creates a TokenCredentialRequest. The second part of the
/// result is the number of warnings. `strict` stands for `fieldValidation=Strict`; otherwise
/// mistakes cause warnings.
///
/// # Errors
/// The response to a body that is refused.
pub fn decode_login(
    headers: &HeaderMap,
    body: &[u8],
    strict: bool,
) -> Result<(TokenCredentialRequestSpec, usize), Box<Status>> {
    let form = decode::body_form(headers)?;
    let validation = if strict { FieldValidation::Strict } else { FieldValidation::Warn };
    let decoded =
        decode::decode(Kind::TokenCredentialRequest, &GroupSuffix::default(), form, body, validation)?;
    Ok((decoded.spec, decoded.warnings.len()))
}
