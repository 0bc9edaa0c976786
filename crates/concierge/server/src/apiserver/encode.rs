//! Encoder of responses: JSON or YAML, as complete objects, tables, or only their metadata.
//!
//! The kinds of this server have no protobuf format. Errors, discovery documents and the metadata
//! of objects are available in protobuf.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_apiserver::respond::{self, Encoding, Negotiated, accept};
use pinniped_concierge_api::names::VERSION;
use pinniped_go_compat::json as gojson;
use pinniped_go_compat::json::quote;
use pinniped_http_server::{Body, body};
use pinniped_kube_request::request_info::first_query_value;
use pinniped_kube_types::protobuf::{Envelope, Message};
use pinniped_kube_types::status::Status;
use serde::Serialize;
use serde_json::{Value, json};

use super::catalog::Kind;
use super::discovery::DiscoveryDocument;
use super::openapi::models;

/// The media types in error messages.
pub(super) const MEDIA_TYPES: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// The transformation of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Transform {
    None,
    /// `Table` of this version of `meta.k8s.io`.
    Table(String),
    /// `PartialObjectMetadata` of this version, or the list of it. The client may request the
    /// wrong one of the two.
    Partial(String, Shape),
}

/// The negotiated format of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    encoding: Encoding,
    pretty: bool,
    transform: Transform,
    /// The query parameter `includeObject`, which applies to tables.
    included_object: String,
}

/// Whether the response is a single object or a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Object,
    List,
}

impl Shape {
    /// Returns the ending of the names of kinds.
    fn suffix(self) -> &'static str {
        match self {
            Self::Object => "",
            Self::List => "List",
        }
    }
}

impl Output {
    /// Negotiates the format. It may be one that [`Self::write`] refuses: like in an API server,
    /// the request is processed first.
    pub(super) fn negotiate(headers: &HeaderMap, query: Option<&str>) -> Result<Self, Box<Status>> {
        let pretty = respond::wants_pretty(headers, query);
        let included_object =
            query.and_then(|query| first_query_value(query, "includeObject")).unwrap_or_default();
        let Some(clauses) = accept::from_headers(headers) else {
            return Ok(Self {
                encoding: Encoding::Json,
                pretty,
                transform: Transform::None,
                included_object,
            });
        };
        let chosen = clauses.iter().find_map(|clause| {
            Encoding::ALL.into_iter().filter(|encoding| encoding.is_covered_by(clause)).find_map(|encoding| {
                let transform = transform(clause, encoding)?;
                let pretty = pretty || clause.param("pretty") == Some("1");
                Some((encoding, pretty, transform))
            })
        });
        match chosen {
            None => Err(Box::new(no_format(headers))),
            Some((encoding, pretty, transform)) => Ok(Self { encoding, pretty, transform, included_object }),
        }
    }

    /// Encodes an object or list of `kind`.
    ///
    /// # Errors
    /// 406 when the object does not have the negotiated format, 400 for an invalid option.
    pub(super) fn write<T: Serialize>(
        &self,
        status: StatusCode,
        object: &T,
        kind: Kind,
        shape: Shape,
    ) -> Result<Response<Body>, Box<Status>> {
        match &self.transform {
            Transform::None if self.encoding == Encoding::Protobuf => {
                let go_type = format!("{VERSION}.{}{}", kind.as_str(), shape.suffix());
                Err(Box::new(not_acceptable(not_in_protobuf(&go_type))))
            }
            Transform::None => Ok(self.encode(status, object)),
            Transform::Table(version) => {
                let object = self.object_of_row(object, version)?;
                Ok(self.encode(status, &table(version, shape, &object)))
            }
            Transform::Partial(version, requested) if *requested == shape => {
                if self.encoding == Encoding::Protobuf {
                    let body = partial_in_protobuf(version, shape);
                    return Ok(respond(status, Encoding::Protobuf.media_type(), body));
                }
                Ok(self.encode(status, &partial(version, shape)))
            }
            Transform::Partial(_, requested) => {
                let is = if shape == Shape::List { "a list" } else { "not a list" };
                Err(Box::new(not_acceptable(format!(
                    "you requested PartialObjectMetadata{}, but the requested object is {is} (*{}.{}{})",
                    requested.suffix(),
                    kind.package(),
                    kind.as_str(),
                    shape.suffix()
                ))))
            }
        }
    }

    /// Returns the object of a row, as much of it as the client requests.
    fn object_of_row<T: Serialize>(&self, object: &T, version: &str) -> Result<Value, Box<Status>> {
        match self.included_object.as_str() {
            "" | "Metadata" => Ok(partial(version, Shape::Object)),
            "None" => Ok(Value::Null),
            "Object" => Ok(serde_json::to_value(object).unwrap_or_default()),
            other => Err(Box::new(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be \
                 'Metadata', 'Object', 'None', or empty",
                quote(other)
            )))),
        }
    }

    fn encode<T: Serialize>(&self, status: StatusCode, value: &T) -> Response<Body> {
        if self.encoding == Encoding::Yaml
            && let Some(yaml) = respond::json_to_yaml(&gojson::to_string(value))
        {
            return respond(status, Encoding::Yaml.media_type(), yaml);
        }
        let text =
            if self.pretty { gojson::to_string_pretty(value) } else { gojson::to_string(value) + "\n" };
        respond(status, Encoding::Json.media_type(), text)
    }
}

/// Returns the transformation that a clause requests of an object in this encoding. `None` when it
/// is not supported, and the next clause applies.
fn transform(clause: &accept::Clause, encoding: Encoding) -> Option<Transform> {
    let stream = clause.param("stream").unwrap_or_default();
    let is_stream = stream.is_empty() || stream == "watch" && encoding != Encoding::Yaml;
    if !is_stream || !matches!(clause.param("sv"), None | Some("" | "v1")) {
        return None;
    }
    let target = [clause.param("g"), clause.param("v"), clause.param("as")];
    match target {
        [None, None, None] => Some(Transform::None),
        [Some("meta.k8s.io"), Some(version @ ("v1" | "v1beta1")), Some(kind)] => match kind {
            "Table" if encoding != Encoding::Protobuf => Some(Transform::Table(version.to_owned())),
            "PartialObjectMetadata" => Some(Transform::Partial(version.to_owned(), Shape::Object)),
            "PartialObjectMetadataList" => Some(Transform::Partial(version.to_owned(), Shape::List)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the message about a Go type that has no protobuf format.
pub(super) fn not_in_protobuf(go_type: &str) -> String {
    format!(
        "object *{go_type} does not implement the protobuf marshalling interface and cannot be encoded to a \
         protobuf message"
    )
}

/// Returns the 406 for a client that accepts none of the formats. In an API server, the router
/// refuses other media types, and the handler other parameters of these media types.
fn no_format(headers: &HeaderMap) -> Status {
    let accepts_media_type = accept::parse_all(headers)
        .iter()
        .any(|clause| Encoding::ALL.into_iter().any(|encoding| encoding.is_covered_by(clause)));
    if accepts_media_type {
        Status::not_acceptable(&MEDIA_TYPES)
    } else {
        Status::no_acceptable_representation(&MEDIA_TYPES)
    }
}

fn not_acceptable(message: String) -> Status {
    let mut status = Status::bad_request(message);
    "NotAcceptable".clone_into(&mut status.reason);
    status.code = 406;
    status
}

/// Returns the object as a table. Objects in responses have no name, so a created object is one row
/// without a name, and a list has no rows.
fn table(version: &str, shape: Shape, object: &Value) -> Value {
    let description = |field: &str| {
        let model = models::find("meta.ObjectMeta");
        model
            .and_then(|model| model.fields.iter().find(|candidate| candidate.name == field))
            .map_or("", |field| field.description)
    };
    let (metadata, rows) = match shape {
        Shape::Object => (json!({}), json!([{ "cells": ["", "0001-01-01T00:00:00Z"], "object": object }])),
        Shape::List => (json!({ "resourceVersion": "0" }), Value::Null),
    };
    let column = |name: &str, ty: &str, format: &str, description: &str| json!({ "name": name, "type": ty, "format": format, "description": description, "priority": 0 });
    json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": metadata,
        "columnDefinitions": [
            column("Name", "string", "name", description("name")),
            column("Created At", "date", "", description("creationTimestamp")),
        ],
        "rows": rows,
    })
}

fn partial(version: &str, shape: Shape) -> Value {
    let version = format!("meta.k8s.io/{version}");
    match shape {
        Shape::Object => json!({ "kind": "PartialObjectMetadata", "apiVersion": version, "metadata": {} }),
        Shape::List => json!({
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": { "resourceVersion": "0" },
            "items": [],
        }),
    }
}

/// Returns the same as [`partial`] in protobuf.
fn partial_in_protobuf(version: &str, shape: Shape) -> Vec<u8> {
    let metadata = match shape {
        Shape::Object => object_meta(""),
        Shape::List => list_meta("0"),
    };
    let mut partial = Message::default();
    partial.message(1, &metadata);
    let kind = format!("PartialObjectMetadata{}", shape.suffix());
    Envelope::encode(&format!("meta.k8s.io/{version}"), &kind, &partial)
}

/// Returns `meta.v1.ObjectMeta` with no other member than the name.
pub(super) fn object_meta(name: &str) -> Message {
    let mut meta = Message::default();
    meta.string(1, name);
    for empty in 2..=6 {
        meta.string(empty, "");
    }
    // The generation and the creation time.
    meta.number(7, 0).message(8, &Message::default());
    meta
}

/// Returns `meta.v1.ListMeta` with no other member than the resource version.
pub(super) fn list_meta(resource_version: &str) -> Message {
    let mut meta = Message::default();
    meta.string(1, "").string(2, resource_version).string(3, "");
    meta
}

/// Returns a complete response.
pub(super) fn respond(
    status: StatusCode,
    content_type: &'static str,
    content: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(body::full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Responds with a document that has this tag, or with 304 if the client has it already.
pub(super) fn tagged(
    headers: &HeaderMap,
    etag: &str,
    document: impl FnOnce() -> Response<Body>,
) -> Response<Body> {
    let is_known =
        headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
        });
    let mut response = if is_known {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        document()
    };
    if let Ok(etag) = HeaderValue::try_from(etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

/// Responds with a discovery document.
pub(super) fn document(
    document: &DiscoveryDocument,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Response<Body> {
    let negotiated = Negotiated::from_headers(headers, query);
    match negotiated.encoding {
        Some(encoding) => {
            respond(StatusCode::OK, encoding.media_type(), document.encode(encoding, negotiated.pretty))
        }
        None => respond::status(&no_format(headers), &negotiated),
    }
}

/// Responds with indented JSON, regardless of the `Accept` header.
pub(super) fn pretty(status: StatusCode, value: &Value) -> Response<Body> {
    respond(status, Encoding::Json.media_type(), gojson::to_string_pretty(value))
}
