//! Reads a document in one pass, and retains only the members that the server uses.
//!
//! A tree of the document would be many times as large as its text: `{}` in a list takes three
//! bytes in JSON and a hundred in memory. Therefore no tree is built. Each value is checked against
//! the model of its object when it is read, as sigs.k8s.io/json does in a Go API server, and is
//! then dropped. The memory is that of the retained members, of the names in one map (which may not
//! occur twice), and of the warnings; all of them have limits.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use jiff::Timestamp;
use pinniped_concierge_api::login::{CredentialType, TokenCredentialRequestSpec};
use pinniped_go_compat::json::parse_error;
use pinniped_secret::text::SecretString;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;

use super::BodyForm;
use super::warnings::{Path, Warnings};
use crate::apiserver::openapi::models::{self, Form, Model, Type};

/// Maximum number of names and values in a body. A login has about fifteen. Annotations and managed
/// fields of `kubectl` have some hundreds at most.
pub(super) const MAX_NODES: usize = 10_000;

/// Maximum depth of nested objects and lists.
pub(super) const MAX_DEPTH: usize = 64;

/// Maximum size of a token in bytes, which is that of ID tokens in the crate `jose`. A login
/// retains its token until it completes, and a webhook may be slow.
pub(super) const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Maximum size of another retained text in bytes. Names of objects have 253 at most.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 10;

/// Maximum number of anchors, of aliases and of merge keys in YAML.
const MAX_ALIASES: usize = 100;

/// Maximum size of the text that is retained for aliases in YAML, in bytes.
const MAX_ANCHORED_BYTES: usize = 256 << 10;

/// A limit of bodies. Its text describes the limit in error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Limit {
    #[error("{MAX_NODES} names and values")]
    Nodes,
    #[error("{MAX_DEPTH} nested objects and lists")]
    Depth,
    #[error("{MAX_ALIASES} aliases")]
    Aliases,
    #[error("{} bytes for {}", .0.most_bytes(), .0.path())]
    Text(RetainedField),
}

/// The reason why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{0}")]
    Malformed(String),
    #[error("limit is {0}")]
    Limit(Limit),
}

/// A member that is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetainedField {
    Kind,
    ApiVersion,
    Name,
    Token,
    AuthenticatorGroup,
    AuthenticatorKind,
    AuthenticatorName,
    AcceptedTypes,
}

impl RetainedField {
    fn of(model: &Model, field: &str) -> Option<Self> {
        match (model.name, field) {
            (_, "kind") if model.form == Form::Kind => Some(Self::Kind),
            (_, "apiVersion") if model.form == Form::Kind => Some(Self::ApiVersion),
            ("meta.ObjectMeta", "name") => Some(Self::Name),
            ("login.v1alpha1.TokenCredentialRequestSpec", "token") => Some(Self::Token),
            ("login.v1alpha1.TokenCredentialRequestSpec", "acceptCredentialTypes") => {
                Some(Self::AcceptedTypes)
            }
            ("core.TypedLocalObjectReference", "apiGroup") => Some(Self::AuthenticatorGroup),
            ("core.TypedLocalObjectReference", "kind") => Some(Self::AuthenticatorKind),
            ("core.TypedLocalObjectReference", "name") => Some(Self::AuthenticatorName),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::ApiVersion => "apiVersion",
            Self::Name => "metadata.name",
            Self::Token => "spec.token",
            Self::AuthenticatorGroup => "spec.authenticator.apiGroup",
            Self::AuthenticatorKind => "spec.authenticator.kind",
            Self::AuthenticatorName => "spec.authenticator.name",
            Self::AcceptedTypes => "spec.acceptCredentialTypes",
        }
    }

    pub(super) fn most_bytes(self) -> usize {
        if self == Self::Token { MAX_TOKEN_BYTES } else { MAX_TEXT_BYTES }
    }
}

/// The retained content of a body, and its mistakes.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// The type of the document in the words of Go.
    pub(super) root: &'static str,
    pub(super) kind: String,
    pub(super) api_version: String,
    pub(super) name: String,
    pub(super) spec: TokenCredentialRequestSpec,
    pub(super) warnings: Warnings,
    /// The type of a `kind` or `apiVersion` that is not a text, and the member's name.
    pub(super) kind_type_error: Option<(&'static str, &'static str)>,
    /// The message about the first other value of a wrong type.
    pub(super) type_error: Option<String>,
    pub(super) has_invalid_time: bool,
    reports_mistakes: bool,
    nodes: usize,
    exceeded: Option<Limit>,
}

/// Reads a body whose document has this model.
pub(super) fn read(
    form: BodyForm,
    body: &[u8],
    model: Option<&'static Model>,
    reports_mistakes: bool,
) -> Result<Document, ReadError> {
    let mut document = Document { reports_mistakes, ..Document::default() };
    let expected = model.map_or(Expected::Anything, Expected::Object);
    let root =
        Node { expected, slot: None, owner: None, path: &Path::Root, depth: 0, document: &mut document };
    let result = match form {
        BodyForm::Json => read_json(body, root),
        BodyForm::Yaml => read_yaml(body, root),
        // `decode` refuses it before.
        BodyForm::Protobuf => Err(ReadError::Malformed("the body is not text".to_owned())),
    };
    match (document.exceeded, result) {
        (Some(limit), _) => Err(ReadError::Limit(limit)),
        (None, Err(error)) => Err(error),
        (None, Ok(root)) => Ok(Document { root, ..document }),
    }
}

fn read_json(body: &[u8], root: Node<'_>) -> Result<&'static str, ReadError> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let result = root.deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    result.map_err(|error| {
        let text = parse_error(body, &error);
        ReadError::Malformed(format!("couldn't get version/kind; json parse error: {text}"))
    })
}

fn read_yaml(body: &[u8], root: Node<'_>) -> Result<&'static str, ReadError> {
    let text = std::str::from_utf8(body)
        .map_err(|_| ReadError::Malformed("yaml: invalid leading UTF-8 octet".to_owned()))?;
    // `Document::count` limits the values that are read; these limits are for the content that the
    // parser retains in addition: anchors, merged objects, and objects as keys.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 4 * MAX_NODES,
            max_depth: MAX_DEPTH,
            max_documents: 1,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_recorded_anchor_events: MAX_NODES,
            max_recorded_anchor_bytes: MAX_ANCHORED_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_NODES },
        emit_comments: false,
        with_snippet: false,
    };
    let result =
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| root.deserialize(yaml));
    result.map_err(|error| match yaml_limit(&error) {
        Some(limit) => ReadError::Limit(limit),
        // The parser's message may quote the body, which contains a token.
        None => ReadError::Malformed(
            "couldn't get version/kind; json parse error: the body is not valid YAML".to_owned(),
        ),
    })
}

/// Returns the limit that a document in YAML exceeds, if that is the error.
fn yaml_limit(error: &serde_saphyr::Error) -> Option<Limit> {
    use serde_saphyr::Error;

    match error {
        Error::Budget { breach, .. } => Some(match breach {
            BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => Limit::Nodes,
            BudgetBreach::Depth { .. } => Limit::Depth,
            BudgetBreach::Aliases { .. }
            | BudgetBreach::Anchors { .. }
            | BudgetBreach::MergeKeys { .. }
            | BudgetBreach::AliasAnchorRatio { .. }
            | BudgetBreach::RecordedAnchorEvents { .. }
            | BudgetBreach::RecordedAnchorBytes { .. } => Limit::Aliases,
            _ => return None,
        }),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => Some(Limit::Aliases),
        Error::AliasError { error, .. } => yaml_limit(error),
        _ => None,
    }
}

impl Document {
    /// Counts a name or a value.
    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.nodes += 1;
        if self.nodes > MAX_NODES { Err(self.exceed(Limit::Nodes)) } else { Ok(()) }
    }

    /// Returns an error that stops the parser.
    fn exceed<E: Error>(&mut self, limit: Limit) -> E {
        self.exceeded = Some(limit);
        E::custom("limit exceeded")
    }

    fn report(&mut self, what: &str, path: &Path<'_>) {
        if self.reports_mistakes {
            self.warnings.note(what, path);
        }
    }

    fn retain<E: Error>(&mut self, slot: RetainedField, text: Cow<'_, str>) -> Result<(), E> {
        if text.len() > slot.most_bytes() {
            return Err(self.exceed(Limit::Text(slot)));
        }
        let authenticator = &mut self.spec.authenticator;
        match slot {
            RetainedField::Kind => self.kind = text.into_owned(),
            RetainedField::ApiVersion => self.api_version = text.into_owned(),
            RetainedField::Name => self.name = text.into_owned(),
            RetainedField::Token => self.spec.token = Some(SecretString::from(text.into_owned())),
            RetainedField::AuthenticatorGroup => authenticator.api_group = Some(text.into_owned()),
            RetainedField::AuthenticatorKind => authenticator.kind = text.into_owned(),
            RetainedField::AuthenticatorName => authenticator.name = text.into_owned(),
            RetainedField::AcceptedTypes => self.accept(CredentialType::from(&*text)),
        }
        Ok(())
    }

    /// Adds a type that the client accepts. Unknown types only show that the list is not empty, so
    /// one of them is enough.
    fn accept(&mut self, type_: CredentialType) {
        let is_known = |type_: &CredentialType| !matches!(type_, CredentialType::Other(_));
        let types = &mut self.spec.accept_credential_types;
        let is_listed = |other: &CredentialType| *other == type_ || !(is_known(other) || is_known(&type_));
        if !types.iter().any(is_listed) {
            types.push(type_);
        }
    }
}

/// The type that a value must have.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Any value, which is ignored.
    Anything,
    Text,
    Flag,
    Count,
    Time,
    Object(&'static Model),
    List(&'static Type),
    Map(&'static Type),
}

impl Expected {
    fn of(ty: &'static Type) -> Self {
        match ty {
            Type::Text => Self::Text,
            Type::Flag => Self::Flag,
            Type::Count => Self::Count,
            Type::List(items, _) => Self::List(items),
            Type::Map(values) => Self::Map(values),
            Type::Object(name) | Type::Pointer(name) => match models::find(name) {
                Some(model) if model.form == Form::Time => Self::Time,
                // Sets of fields are not decoded by an API server either.
                Some(model) if model.name != "meta.FieldsV1" => Self::Object(model),
                _ => Self::Anything,
            },
        }
    }

    /// Returns the name of the type in Go.
    fn go_type(self) -> String {
        match self {
            Self::Anything => "interface {}".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Flag => "bool".to_owned(),
            Self::Count => "int64".to_owned(),
            Self::Time => "v1.Time".to_owned(),
            Self::List(items) => format!("[]{}", Self::of(items).go_type()),
            Self::Map(values) => format!("map[string]{}", Self::of(values).go_type()),
            Self::Object(model) => {
                let (package, name) = model.name.rsplit_once('.').unwrap_or(("", model.name));
                let package = match package {
                    "meta" | "core" => "v1",
                    other => other.rsplit('.').next().unwrap_or_default(),
                };
                format!("{package}.{name}")
            }
        }
    }
}

/// Reads one value, and returns its type in the words of Go.
struct Node<'a> {
    expected: Expected,
    slot: Option<RetainedField>,
    /// The model of the object whose field this is, or contains this.
    owner: Option<&'static Model>,
    path: &'a Path<'a>,
    /// The number of objects and lists around this.
    depth: usize,
    document: &'a mut Document,
}

impl Node<'_> {
    /// Notes that the value is of a wrong type. As in Go, the first such error is reported after
    /// the rest of the document has been read.
    fn wrong(&mut self, found: &'static str) {
        if let Some(slot @ (RetainedField::Kind | RetainedField::ApiVersion)) = self.slot {
            self.document.kind_type_error.get_or_insert((found, slot.path()));
            return;
        }
        let (owner, path, expected) = (self.owner, self.path, self.expected);
        self.document.type_error.get_or_insert_with(|| {
            let owner = owner.map_or("", |model| model.name.rsplit('.').next().unwrap_or_default());
            format!(
                "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {}",
                path.fields(),
                expected.go_type()
            )
        });
    }

    fn number(mut self, is_integer: bool) -> &'static str {
        match self.expected {
            Expected::Anything => {}
            Expected::Count if is_integer => {}
            _ => self.wrong("number"),
        }
        "number"
    }

    fn text<E: Error>(mut self, text: Cow<'_, str>) -> Result<&'static str, E> {
        match (self.expected, self.slot) {
            (Expected::Text, Some(slot)) => self.document.retain(slot, text)?,
            (Expected::Text, None) | (Expected::Anything, _) => {}
            (Expected::Time, _) => {
                self.document.has_invalid_time |= text.parse::<Timestamp>().is_err();
            }
            _ => self.wrong("string"),
        }
        Ok("string")
    }

    fn enter<E: Error>(&mut self) -> Result<(), E> {
        if self.depth >= MAX_DEPTH { Err(self.document.exceed(Limit::Depth)) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        self.document.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    /// As in Go, null removes an optional value and a list, and has no effect on other values.
    fn visit_unit<E: Error>(self) -> Result<&'static str, E> {
        let spec = &mut self.document.spec;
        match (self.slot, self.expected) {
            (Some(RetainedField::AuthenticatorGroup), _) => spec.authenticator.api_group = None,
            (Some(RetainedField::AcceptedTypes), Expected::List(_)) => spec.accept_credential_types.clear(),
            (Some(RetainedField::AcceptedTypes), _) => self.document.accept(CredentialType::from("")),
            _ => {}
        }
        Ok("null")
    }

    fn visit_bool<E: Error>(mut self, _: bool) -> Result<&'static str, E> {
        if !matches!(self.expected, Expected::Flag | Expected::Anything) {
            self.wrong("bool");
        }
        Ok("bool")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<&'static str, E> {
        Ok(self.number(true))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<&'static str, E> {
        Ok(self.number(i64::try_from(value).is_ok()))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<&'static str, E> {
        Ok(self.number(false))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<&'static str, E> {
        self.text(Cow::Borrowed(value))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<&'static str, E> {
        self.text(Cow::Owned(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<&'static str, A::Error> {
        self.enter()?;
        let (expected, slot) = match self.expected {
            Expected::List(items) => (Expected::of(items), self.slot),
            Expected::Anything => (Expected::Anything, None),
            _ => {
                self.wrong("array");
                (Expected::Anything, None)
            }
        };
        if slot == Some(RetainedField::AcceptedTypes) {
            self.document.spec.accept_credential_types.clear();
        }
        let mut at = 0;
        loop {
            let item = Node {
                expected,
                slot,
                owner: self.owner,
                path: &Path::Item(self.path, at),
                depth: self.depth + 1,
                document: &mut *self.document,
            };
            if items.next_element_seed(item)?.is_none() {
                return Ok("array");
            }
            at += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<&'static str, A::Error> {
        self.enter()?;
        let model = match self.expected {
            Expected::Object(model) => Some(model),
            Expected::Map(_) | Expected::Anything => None,
            _ => {
                self.wrong("object");
                self.expected = Expected::Anything;
                None
            }
        };
        let mut seen_fields = 0_u64;
        let mut seen_keys: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(name) = entries.next_key_seed(Name)? {
            self.document.count()?;
            let field = model.and_then(|model| {
                let mut fields = model.fields.iter().enumerate();
                fields.find(|(_, field)| field.name == name).map(|(at, field)| (model, at, field))
            });
            let path = match model {
                Some(_) => Path::Field(self.path, &name),
                None => Path::Key(self.path, &name),
            };
            let (expected, slot, owner) = match (field, self.expected) {
                (Some((model, at, field)), _) => {
                    if seen_fields & (1 << at) != 0 {
                        self.document.report("duplicate", &path);
                    }
                    seen_fields |= 1 << at;
                    (Expected::of(&field.ty), RetainedField::of(model, field.name), Some(model))
                }
                (None, Expected::Map(values)) => {
                    if seen_keys.contains(&name) {
                        self.document.report("duplicate", &path);
                    }
                    (Expected::of(values), None, self.owner)
                }
                (None, Expected::Object(_)) => {
                    self.document.report("unknown", &path);
                    (Expected::Anything, None, self.owner)
                }
                (None, _) => (Expected::Anything, None, self.owner),
            };
            entries.next_value_seed(Node {
                expected,
                slot,
                owner,
                path: &path,
                depth: self.depth + 1,
                document: &mut *self.document,
            })?;
            if matches!(self.expected, Expected::Map(_)) {
                seen_keys.insert(name);
            }
        }
        Ok("object")
    }
}

/// Reads the name of a member, without a copy where the body contains it literally.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }

    fn visit_string<E: Error>(self, name: String) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(name))
    }
}
