//! Decoder of request bodies: reads JSON or YAML in one pass, with the error messages of a Go API
//! server. Protobuf is a format of the server, but not of its kinds: such a body is only read as
//! far as the error message of a Go API server requires.
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
use pinniped_kube_types::protobuf::Envelope;
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;

use super::catalog::Kind;
use super::encode::{MEDIA_TYPES, not_in_protobuf};
use super::openapi::models;

mod reader;
mod warnings;

use reader::{Document, Limit, MAX_DEPTH, ReadError, RetainedField};

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
    /// The envelope of Kubernetes around protobuf.
    Protobuf,
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
        "application/vnd.kubernetes.protobuf" => Ok(BodyForm::Protobuf),
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
    let unrecognized = |error: String| unrecognized(kind, body, &error);
    if form == BodyForm::Protobuf {
        return Err(refuse_protobuf(kind, suffix, body));
    }
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
    let refused = |error: String| unsuitable(kind, &given_kind, &given_version, &error);
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

/// Returns the error about a body in protobuf: a malformed envelope, an unknown kind, or that the
/// kind has no protobuf format.
fn refuse_protobuf(kind: Kind, suffix: &GroupSuffix, body: &[u8]) -> Box<Status> {
    let envelope = match Envelope::decode(body) {
        Ok(envelope) => envelope,
        Err(error) => return unrecognized(kind, body, &error.to_string()),
    };
    for (text, field) in
        [(envelope.kind, RetainedField::Kind), (envelope.api_version, RetainedField::ApiVersion)]
    {
        if text.len() > field.most_bytes() {
            return Box::new(Status::request_entity_too_large(Limit::Text(field)));
        }
    }
    let (given_kind, given_version) = (envelope.kind_text(), envelope.api_version_text());
    let given_kind = if given_kind.is_empty() { kind.as_str() } else { &given_kind };
    let of_url = kind.group_version(suffix);
    let is_complete = given_version.matches('/').count() <= 1
        && given_version.rsplit('/').next().is_some_and(|version| !version.is_empty());
    let given_version = if is_complete { &*given_version } else { of_url.as_str() };
    let error = match registered(suffix, given_kind, given_version) {
        Some(_) => not_in_protobuf(&format!("{VERSION}.{given_kind}")),
        None => not_registered(given_kind, given_version),
    };
    unsuitable(kind, given_kind, given_version, &error)
}

/// Returns the error about a body whose kind cannot be read.
fn unrecognized(kind: Kind, body: &[u8], error: &str) -> Box<Status> {
    Box::new(Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {error} ({})",
        kind.as_str(),
        summary(body)
    )))
}

/// Returns the error about an object that is not a valid object of `kind`.
fn unsuitable(kind: Kind, given_kind: &str, given_version: &str, error: &str) -> Box<Status> {
    let version = given_version.rsplit('/').next().unwrap_or_default();
    Box::new(Status::bad_request(format!(
        "{given_kind} in version {} cannot be handled as a {}: {error}",
        quote(version),
        kind.as_str()
    )))
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
    if document.api_version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {}", document.api_version));
    }
    let given_version = match document.api_version.as_str() {
        "" => kind.group_version(suffix),
        given => given.to_owned(),
    };
    Ok((given_kind, given_version))
}

fn check_kind(kind: Kind, suffix: &GroupSuffix, given_kind: &str, given_version: &str) -> Result<(), String> {
    match registered(suffix, given_kind, given_version) {
        Some(known) if known == kind && given_kind == kind.as_str() => Ok(()),
        Some(_) => Err(format!(
            "converting ({VERSION}.{given_kind}) to ({}.{}): unknown conversion",
            kind.package(),
            kind.as_str()
        )),
        None => Err(not_registered(given_kind, given_version)),
    }
}

/// Returns the kind of this server that is meant, or whose list is meant.
fn registered(suffix: &GroupSuffix, given_kind: &str, given_version: &str) -> Option<Kind> {
    let (group, version) = given_version.split_once('/').unwrap_or(("", given_version));
    let known = Kind::of_group(group, suffix).filter(|_| version == VERSION)?;
    let is_known = given_kind == known.as_str() || given_kind.strip_suffix("List") == Some(known.as_str());
    is_known.then_some(known)
}

fn not_registered(given_kind: &str, given_version: &str) -> String {
    format!(
        "no kind {} is registered for version {} in scheme \"pinniped-concierge\"",
        quote(given_kind),
        quote(given_version)
    )
}

#[cfg(test)]
mod tests;
