//! OpenAPI v2 and v3, built once at start from the [table of models](models) and the list of
//! operations: as JSON, v2 also as protobuf, each also compressed.
//!
//! `kubectl explain` and `kubectl create --validate` read them through the API server, which merges
//! the documents of all servers and finds these objects by group, version and kind.

use std::io::Write as _;

use aws_lc_rs::digest::{SHA512, digest};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use pinniped_kube_types::suffix::GroupSuffix;
use serde_json::{Map, Value, json};

use super::catalog::Kind;

pub(super) mod models;
mod operations;
mod protobuf;
pub(super) mod serve;
mod v2;
mod v3;

use models::{Form, ListKind, Model, Type};

/// The media types of objects.
const MEDIA_TYPES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// The size from which documents are compressed, in bytes: smaller ones fit into one packet. Go's
/// `gziphandler` has the same limit.
const COMPRESSED_FROM_BYTES: usize = 1400;

/// A serialized document.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) bytes: Bytes,
    /// The bytes in the format of gzip, if the document is large enough.
    pub(super) compressed: Option<Bytes>,
    /// Upper-case hexadecimal SHA-512 of the JSON document, without quotes.
    pub(super) hash: String,
}

impl Document {
    /// Serializes a document as JSON.
    pub(super) fn json(value: &Value) -> Self {
        let bytes = value.to_string().into_bytes();
        let hash = digest(&SHA512, &bytes).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Self::new(bytes, hash)
    }

    fn new(bytes: Vec<u8>, hash: String) -> Self {
        let compressed = (bytes.len() >= COMPRESSED_FROM_BYTES).then(|| compress(&bytes)).flatten();
        Self { bytes: bytes.into(), compressed, hash }
    }

    /// Returns the hash as an entity tag.
    pub(super) fn etag(&self) -> String {
        format!("\"{}\"", self.hash)
    }
}

/// Returns the bytes in the format of gzip.
fn compress(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail.
    encoder.write_all(bytes).and_then(|()| encoder.finish()).ok().map(Bytes::from)
}

/// All OpenAPI documents of an installation.
#[derive(Clone, Debug)]
pub(super) struct Documents {
    pub(super) v2: Document,
    /// The same document as protobuf, with the hash of the JSON document, as in an API server.
    pub(super) v2_protobuf: Document,
    /// The list of the v3 documents.
    pub(super) v3_index: Document,
    /// The documents by their path below `/openapi/v3/`.
    pub(super) v3: Vec<(String, Document)>,
}

impl Documents {
    pub(super) fn new(suffix: &GroupSuffix) -> Self {
        let v3: Vec<(String, Document)> =
            v3::documents(suffix).into_iter().map(|(key, value)| (key, Document::json(&value))).collect();
        let paths: Map<String, Value> = v3
            .iter()
            .map(|(key, document)| {
                let url = format!("/openapi/v3/{key}?hash={}", document.hash);
                (key.clone(), json!({ "serverRelativeURL": url }))
            })
            .collect();
        let document = v2::document(suffix);
        let v2 = Document::json(&document);
        Self {
            v2_protobuf: Document::new(protobuf::encode(&document), v2.hash.clone()),
            v2,
            v3_index: Document::json(&json!({ "paths": paths })),
            v3,
        }
    }
}

/// Returns title and version of both documents: those of every aggregated server that does not set
/// them.
fn info() -> Value {
    json!({ "title": "Generic API Server", "version": "0.0" })
}

/// The differences between the schemas of the two OpenAPI versions.
trait Dialect {
    /// Returns a reference to a model. With `defaulted`, the member is always present and its
    /// default is `{}`.
    fn reference(&self, full_name: &str, defaulted: bool) -> Map<String, Value>;
    /// Returns whether zero values are written as defaults.
    fn has_defaults(&self) -> bool;
}

/// Returns the schema of a model.
fn schema(model: &Model, suffix: &GroupSuffix, dialect: &dyn Dialect) -> Value {
    let mut schema = Map::new();
    schema.insert("description".to_owned(), json!(model.description));
    if model.form == Form::Time {
        schema.insert("type".to_owned(), json!("string"));
        schema.insert("format".to_owned(), json!("date-time"));
        return schema.into();
    }
    schema.insert("type".to_owned(), json!("object"));
    if !model.fields.is_empty() {
        let properties: Map<String, Value> = model
            .fields
            .iter()
            .map(|field| {
                let mut property = type_schema(&field.ty, field.required, dialect);
                property.insert("description".to_owned(), json!(field.description));
                (field.name.to_owned(), property.into())
            })
            .collect();
        schema.insert("properties".to_owned(), properties.into());
    }
    let required: Vec<&str> =
        model.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    let gvk = match model.form {
        Form::Kind => {
            let mut parts = model.name.splitn(3, '.');
            let (package, version, kind) = (parts.next(), parts.next(), parts.next());
            let group = Kind::ALL.into_iter().find(|kind| Some(kind.package()) == package);
            Some(json!({ "group": group.map(|kind| kind.group(suffix)), "version": version, "kind": kind }))
        }
        Form::Meta => {
            Some(json!({ "group": "", "version": "v1", "kind": model.name.trim_start_matches("meta.") }))
        }
        Form::Atomic => {
            schema.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
            None
        }
        Form::Plain | Form::Time => None,
    };
    if let Some(gvk) = gvk {
        schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk]));
    }
    schema.into()
}

fn type_schema(ty: &Type, always_there: bool, dialect: &dyn Dialect) -> Map<String, Value> {
    let scalar = |name: &str, zero: Value| {
        let mut schema = Map::from_iter([("type".to_owned(), json!(name))]);
        if always_there && dialect.has_defaults() {
            schema.insert("default".to_owned(), zero);
        }
        schema
    };
    match ty {
        Type::Text => scalar("string", json!("")),
        Type::Flag => scalar("boolean", json!(false)),
        Type::Count => {
            let mut schema = scalar("integer", json!(0));
            schema.insert("format".to_owned(), json!("int64"));
            schema
        }
        Type::Object(name) => dialect.reference(&models::full_name(name), true),
        Type::Pointer(name) => dialect.reference(&models::full_name(name), false),
        Type::Map(values) => {
            let values = type_schema(values, true, dialect);
            Map::from_iter([
                ("type".to_owned(), json!("object")),
                ("additionalProperties".to_owned(), values.into()),
            ])
        }
        Type::List(items, kind) => {
            let items = type_schema(items, true, dialect);
            let mut schema =
                Map::from_iter([("type".to_owned(), json!("array")), ("items".to_owned(), items.into())]);
            let markers: &[(&str, Value)] = match kind {
                ListKind::Plain => &[],
                ListKind::Atomic => &[("list-type", json!("atomic"))],
                ListKind::Finalizers => &[("list-type", json!("set")), ("patch-strategy", json!("merge"))],
                ListKind::Owners => &[
                    ("list-type", json!("map")),
                    ("list-map-keys", json!(["uid"])),
                    ("patch-merge-key", json!("uid")),
                    ("patch-strategy", json!("merge")),
                ],
            };
            for (name, value) in markers {
                schema.insert(format!("x-kubernetes-{name}"), value.clone());
            }
            schema
        }
    }
}

#[cfg(test)]
mod tests;
