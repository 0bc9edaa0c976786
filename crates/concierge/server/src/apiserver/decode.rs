//! Decoder of request bodies: converts JSON or YAML to typed objects, with the error messages of a
//! Go API server.

use std::cell::RefCell;
use std::fmt;

use data_encoding::HEXLOWER;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use pinniped_concierge_api::names::VERSION;
use pinniped_go_compat::json::{parse_error, quote};
use pinniped_kube_types::status::Status;
use pinniped_kube_types::suffix::GroupSuffix;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::catalog::Kind;
use super::encode::MEDIA_TYPES;
use super::openapi::models::{self, Form, Model, Type};

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

/// A decoded object, and the mistakes that cause warnings.
#[derive(Debug)]
pub(super) struct Decoded<T> {
    pub(super) object: T,
    pub(super) warnings: Vec<String>,
}

/// Decodes an object of `kind`.
pub(super) fn decode<T: DeserializeOwned>(
    kind: Kind,
    suffix: &GroupSuffix,
    form: BodyForm,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded<T>, Box<Status>> {
    let unrecognized = |error: String| {
        Box::new(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({})",
            kind.as_str(),
            summary(body)
        )))
    };
    let warnings = RefCell::new(Warnings::default());
    let value = parse(form, body, &warnings).map_err(unrecognized)?;
    let Value::Object(mut members) = value else {
        return Err(unrecognized(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type \
             struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            go_kind(&value)
        )));
    };
    let (given_kind, given_version) = identify(&members, kind, suffix).map_err(unrecognized)?;
    let refused = |error: String| {
        let version = given_version.rsplit('/').next().unwrap_or_default();
        Box::new(Status::bad_request(format!(
            "{given_kind} in version {} cannot be handled as a {}: {error}",
            quote(version),
            kind.as_str()
        )))
    };
    check_kind(kind, suffix, &given_kind, &given_version).map_err(&refused)?;
    members.insert("kind".to_owned(), given_kind.clone().into());
    members.insert("apiVersion".to_owned(), given_version.clone().into());

    let mut warnings = warnings.into_inner();
    if let Some(model) = models::find(&format!("{}.{VERSION}.{}", kind.package(), kind.as_str())) {
        check_object(&mut members, model, "", model, &mut warnings).map_err(&refused)?;
    }
    let warnings = match validation {
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => warnings.0,
        FieldValidation::Strict if warnings.0.is_empty() => Vec::new(),
        FieldValidation::Strict => {
            return Err(refused(format!("strict decoding error: {}", warnings.0.join(", "))));
        }
    };
    // After the checks, only values can be invalid, for example times. The parser's message may
    // quote the body, which contains a token, so it is not returned.
    let object = serde_json::from_value(Value::Object(members))
        .map_err(|_| refused("a value is not of the form that its field needs".to_owned()))?;
    Ok(Decoded { object, warnings })
}

fn parse(form: BodyForm, body: &[u8], warnings: &RefCell<Warnings>) -> Result<Value, String> {
    match form {
        BodyForm::Json => {
            let mut reader = serde_json::Deserializer::from_slice(body);
            let seed = Tree { path: Path::Root, warnings };
            let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
            value.map_err(|error| {
                format!("couldn't get version/kind; json parse error: {}", parse_error(body, &error))
            })
        }
        BodyForm::Yaml => {
            let failed =
                |_| "couldn't get version/kind; json parse error: the body is not valid YAML".to_owned();
            let text =
                std::str::from_utf8(body).map_err(|_| "yaml: invalid leading UTF-8 octet".to_owned())?;
            serde_saphyr::from_str::<Value>(text).map_err(failed)
        }
    }
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
fn identify(
    members: &Map<String, Value>,
    kind: Kind,
    suffix: &GroupSuffix,
) -> Result<(String, String), String> {
    let text = |name: &str, go_name: &str| match members.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go struct field \
             .{go_name} of type string",
            go_kind(other)
        )),
    };
    let mut given_kind = text("kind", "kind")?;
    let mut given_version = text("apiVersion", "apiVersion")?;
    if given_kind.is_empty() {
        kind.as_str().clone_into(&mut given_kind);
    }
    if given_version.is_empty() {
        given_version = kind.group_version(suffix);
    }
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

/// Checks members against the model. Wrong types are errors; unknown members are mistakes and are
/// removed.
fn check_object(
    members: &mut Map<String, Value>,
    model: &Model,
    path: &str,
    root: &Model,
    warnings: &mut Warnings,
) -> Result<(), String> {
    if model.fields.is_empty() && model.name == "meta.FieldsV1" {
        return Ok(());
    }
    for (name, value) in members.iter_mut() {
        let here = join(path, name);
        match model.fields.iter().find(|field| field.name == name) {
            Some(field) => check_value(value, &field.ty, &here, root, warnings)?,
            None => {
                warnings.note("unknown", &here);
            }
        }
    }
    // As in Go, a member that is null counts as absent.
    members.retain(|name, value| !value.is_null() && model.fields.iter().any(|field| field.name == name));
    Ok(())
}

fn check_value(
    value: &mut Value,
    ty: &Type,
    path: &str,
    root: &Model,
    warnings: &mut Warnings,
) -> Result<(), String> {
    let wrong = |value: &Value, wanted: &str| {
        let root = root.name.rsplit('.').next().unwrap_or_default();
        Err(format!(
            "json: cannot unmarshal {} into Go struct field {root}.{path} of type {wanted}",
            go_kind(value)
        ))
    };
    match (ty, value) {
        (_, Value::Null) | (Type::Text, Value::String(_)) | (Type::Flag, Value::Bool(_)) => Ok(()),
        (Type::Count, Value::Number(number)) if number.is_i64() => Ok(()),
        (Type::Object(name) | Type::Pointer(name), value) => {
            let Some(model) = models::find(name) else { return Ok(()) };
            match value {
                Value::Object(members) => check_object(members, model, path, root, warnings),
                Value::String(_) if model.form == Form::Time => Ok(()),
                other => wrong(other, &go_type(model)),
            }
        }
        (Type::List(items, _), Value::Array(values)) => {
            for (at, value) in values.iter_mut().enumerate() {
                check_value(value, items, &format!("{path}[{at}]"), root, warnings)?;
            }
            Ok(())
        }
        (Type::Map(values), Value::Object(members)) => {
            for (name, value) in members.iter_mut() {
                check_value(value, values, &join(path, name), root, warnings)?;
            }
            Ok(())
        }
        (Type::Text, other) => wrong(other, "string"),
        (Type::Flag, other) => wrong(other, "bool"),
        (Type::Count, other) => wrong(other, "int64"),
        (Type::List(..), other) => wrong(other, "[]string"),
        (Type::Map(_), other) => wrong(other, "map[string]string"),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn go_type(model: &Model) -> String {
    let (package, name) = model.name.rsplit_once('.').unwrap_or(("", model.name));
    let package = match package {
        "meta" | "core" => "v1",
        other => other.rsplit('.').next().unwrap_or_default(),
    };
    format!("{package}.{name}")
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Maximum number of reported mistakes; sigs.k8s.io/json has the same limit.
const MAX_WARNINGS: usize = 100;

/// Maximum number of reported characters of a field's path. A client could exhaust memory with
/// longer names.
const LONGEST_PATH: usize = 256;

/// Mistakes that do not invalidate the object, without duplicates.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    fn note(&mut self, what: &str, path: impl fmt::Display) {
        if self.0.len() >= MAX_WARNINGS {
            return;
        }
        let mut clipped = Clipped(String::new());
        // An error only means that the limit is reached.
        let _full = fmt::write(&mut clipped, format_args!("{path}"));
        let text = format!("{what} field {}", quote(&clipped.0));
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }
}

/// A writer that accepts at most [`LONGEST_PATH`] characters.
struct Clipped(String);

impl fmt::Write for Clipped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST_PATH - self.0.chars().count();
        match text.char_indices().nth(room) {
            None => self.0.push_str(text),
            Some((end, _)) => {
                self.0.push_str(&text[..end]);
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// The current position in the document. It is formatted only when it is reported: if it were
/// formatted for each value, the paths below a member with a long name would be many times as large
/// as the document.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Member(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Member(Path::Root, name) => write_name(f, name),
            Self::Member(parent, name) => {
                write!(f, "{parent}.")?;
                write_name(f, name)
            }
            Self::Item(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    f.write_str(name)?;
    #[cfg(test)]
    tests::FORMATTED_BYTES.with(|bytes| bytes.set(bytes.get() + name.len()));
    Ok(())
}

/// Builds a [`Value`] and records duplicate members, which `Value` itself would ignore.
struct Tree<'a> {
    path: Path<'a>,
    warnings: &'a RefCell<Warnings>,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let seed = Tree { path: Path::Item(&self.path, values.len()), warnings: self.warnings };
            match items.next_element_seed(seed)? {
                Some(value) => values.push(value),
                None => return Ok(values.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let path = Path::Member(&self.path, &name);
            let value = entries.next_value_seed(Tree { path, warnings: self.warnings })?;
            if members.contains_key(&name) {
                self.warnings.borrow_mut().note("duplicate", path);
            }
            members.insert(name, value);
        }
        Ok(members.into())
    }
}

#[cfg(test)]
mod tests;
