//! Decoder of request bodies: reads JSON or YAML in one pass, with the error messages of a Go API
//! server.
//!
//! Any client may send a body, so its content must not cost more memory than its bytes: `reader.rs`
//! checks all members against the API's model, but retains only those that the server uses, and
//! refuses bodies beyond its limits. `warnings.rs` collects unknown and duplicate fields.

use data_encoding::HEXLOWER;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use pinniped_concierge_api::login::TokenCredentialRequestSpec;
use pinniped_concierge_api::names::VERSION;
use pinniped_go_compat::json::quote;
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;

use super::catalog::Kind;
use super::encode::MEDIA_TYPES;
use super::openapi::models;

mod reader;
mod warnings;

use reader::{Document, Limit, MAX_DEPTH, ReadError};

/// The treatment of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyForm {
    Json,
    Yaml,
}

/// Returns the format that `Content-Type` specifies; JSON without this header.
pub(super) fn body_form(headers: &HeaderMap) -> Result<BodyForm, Box<Status>> {
    let given = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let given = given.as_deref().unwrap_or_default();
    let media_type = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        "" if given.is_empty() => Ok(BodyForm::Json),
        "application/json" => Ok(BodyForm::Json),
        "application/yaml" => Ok(BodyForm::Yaml),
        // This includes protobuf: these kinds have no protobuf format.
        _ => Err(Box::new(Status::unsupported_media_type(&MEDIA_TYPES))),
    }
}

/// The members of a request that the server uses, and the mistakes that cause warnings. All other
/// members are validated and dropped: a response repeats nothing of them.
#[derive(Debug)]
pub(super) struct Decoded {
    /// The object's name, for error messages; may be empty.
    pub(super) name: String,
    /// The spec of a TokenCredentialRequest. Another kind has none.
    pub(super) spec: TokenCredentialRequestSpec,
    pub(super) warnings: Vec<String>,
}

/// Decodes an object of `kind`.
pub(super) fn decode(
    kind: Kind,
    suffix: &GroupSuffix,
    form: BodyForm,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Box<Status>> {
    let unrecognized = |error: String| {
        Box::new(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            kind.as_str(),
            summary(body)
        )))
    };
    let model = models::find(&format!("{}.{VERSION}.{}", kind.package(), kind.as_str()));
    let reports_mistakes = validation != FieldValidation::Ignore;
    let document = reader::read(form, body, model, reports_mistakes).map_err(|error| match error {
        ReadError::Malformed(text) => unrecognized(text),
        ReadError::Limit(limit @ (Limit::Nodes | Limit::Text(_))) => {
            Box::new(Status::request_entity_too_large(limit))
        }
        ReadError::Limit(Limit::Depth) => unrecognized(format!(
            "couldn't get version/kind; json parse error: exceeded max depth of {MAX_DEPTH}"
        )),
        ReadError::Limit(Limit::Aliases) => {
            unrecognized("yaml: document contains excessive aliasing".to_owned())
        }
    })?;
    if document.root != "object" {
        return Err(unrecognized(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type \
             struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            document.root
        )));
    }
    let (given_kind, given_version) = identify(&document, kind, suffix).map_err(unrecognized)?;
    let refused = |error: String| {
        let version = given_version.rsplit('/').next().unwrap_or_default();
        Box::new(Status::bad_request(format!(
            "{given_kind} in version {} cannot be handled as a {}: {error}",
            quote(version),
            kind.as_str()
        )))
    };
    check_kind(kind, suffix, &given_kind, &given_version).map_err(&refused)?;
    if let Some(wrong) = document.type_error {
        return Err(refused(wrong));
    }
    let warnings = document.warnings.into_texts();
    if validation == FieldValidation::Strict && !warnings.is_empty() {
        return Err(refused(format!("strict decoding error: {}", warnings.join(", "))));
    }
    if document.has_invalid_time {
        return Err(refused("a value is not of the form that its field needs".to_owned()));
    }
    Ok(Decoded { name: document.name, spec: document.spec, warnings })
}

/// Returns the first bytes of a body for the message.
fn summary(body: &[u8]) -> String {
    const MOST: usize = 30;
    let head = &body[..body.len().min(MOST)];
    let text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => HEXLOWER.encode(head),
    };
    if body.len() > MOST { text + " ..." } else { text }
}

/// Returns kind and version of the body. If they are missing, they are those of the URL.
fn identify(document: &Document, kind: Kind, suffix: &GroupSuffix) -> Result<(String, String), String> {
    if let Some((found, field)) = document.kind_type_error {
        return Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go struct \
             field .{field} of type string"
        ));
    }
    let given_kind = match document.kind.as_str() {
        "" => kind.as_str().to_owned(),
        given => given.to_owned(),
    };
    let given_version = match document.api_version.as_str() {
        "" => kind.group_version(suffix),
        given => given.to_owned(),
    };
    Ok((given_kind, given_version))
}

fn check_kind(kind: Kind, suffix: &GroupSuffix, given_kind: &str, given_version: &str) -> Result<(), String> {
    let (group, version) = given_version.split_once('/').unwrap_or(("", given_version));
    let known =
        Kind::of_group(group, suffix).filter(|known| version == VERSION && known.as_str() == given_kind);
    match known {
        Some(known) if known == kind => Ok(()),
        Some(known) => Err(format!(
            "converting ({VERSION}.{}) to ({}.{}): unknown conversion",
            known.as_str(),
            kind.package(),
            kind.as_str()
        )),
        None => Err(format!(
            "no kind {} is registered for version {} in scheme \"pinniped-concierge\"",
            quote(given_kind),
            quote(given_version)
        )),
    }
}

#[cfg(test)]
mod tests;
