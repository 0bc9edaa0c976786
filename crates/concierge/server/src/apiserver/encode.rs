//! Encoder of responses: JSON or YAML, as complete objects, tables, or only their metadata.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use pinniped_apiserver::respond::{self, Encoding, Negotiated, accept};
use pinniped_go_compat::json as gojson;
use pinniped_http_server::{Body, body};
use pinniped_kube_types::status::Status;
use serde::Serialize;
use serde_json::{Value, json};

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
    /// `PartialObjectMetadata` of this version.
    Partial(String),
}

/// The negotiated format of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    encoding: Encoding,
    pretty: bool,
    transform: Transform,
}

/// Whether the response is a single object or a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Object,
    List,
}

impl Output {
    /// Negotiates the format. `go_type` is the Go type of the object, for the error message.
    pub(super) fn negotiate(
        headers: &HeaderMap,
        query: Option<&str>,
        shape: Shape,
        go_type: &str,
    ) -> Result<Self, Box<Status>> {
        let pretty = respond::wants_pretty(headers, query);
        let clauses = accept::parse_all(headers);
        if clauses.is_empty() {
            return Ok(Self { encoding: Encoding::Json, pretty, transform: Transform::None });
        }
        let chosen = clauses.iter().find_map(|clause| {
            let encoding = Encoding::ALL.into_iter().find(|encoding| encoding.is_covered_by(clause))?;
            let transform = transform(clause, shape)?;
            Some(Self { encoding, pretty: pretty || clause.param("pretty") == Some("1"), transform })
        });
        match chosen {
            None => Err(Box::new(Status::no_acceptable_representation(&MEDIA_TYPES))),
            Some(output) if output.encoding == Encoding::Protobuf => Err(Box::new(not_in_protobuf(go_type))),
            Some(output) => Ok(output),
        }
    }

    /// Encodes an object or list.
    pub(super) fn write<T: Serialize>(&self, status: StatusCode, object: &T, shape: Shape) -> Response<Body> {
        let transformed = match &self.transform {
            Transform::None => None,
            Transform::Table(version) => Some(table(version, shape)),
            Transform::Partial(version) => Some(partial(version, shape)),
        };
        match transformed {
            None => self.encode(status, object),
            Some(value) => self.encode(status, &value),
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

/// Returns the transformation that a clause requests. `None` when it is not supported, and the next
/// clause applies.
fn transform(clause: &accept::Clause, shape: Shape) -> Option<Transform> {
    if clause.is_plain() {
        return Some(Transform::None);
    }
    let version = clause.param("v").filter(|version| matches!(*version, "v1" | "v1beta1"))?;
    if clause.param("g") != Some("meta.k8s.io") {
        return None;
    }
    match (clause.param("as")?, shape) {
        ("Table", _) => Some(Transform::Table(version.to_owned())),
        ("PartialObjectMetadata", Shape::Object) | ("PartialObjectMetadataList", Shape::List) => {
            Some(Transform::Partial(version.to_owned()))
        }
        _ => None,
    }
}

fn not_in_protobuf(go_type: &str) -> Status {
    let mut status = Status::bad_request(format!(
        "object *{go_type} does not implement the protobuf marshalling interface and cannot be encoded to a \
         protobuf message"
    ));
    "NotAcceptable".clone_into(&mut status.reason);
    status.code = 406;
    status
}

/// Returns the object as a table. Objects in responses have no name, so a created object is one row
/// without a name, and a list has no rows.
fn table(version: &str, shape: Shape) -> Value {
    let description = |field: &str| {
        let model = models::find("meta.ObjectMeta");
        model
            .and_then(|model| model.fields.iter().find(|candidate| candidate.name == field))
            .map_or("", |field| field.description)
    };
    let (metadata, rows) = match shape {
        Shape::Object => {
            (json!({}), json!([{ "cells": ["", "0001-01-01T00:00:00Z"], "object": partial(version, shape) }]))
        }
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

/// Responds with a discovery document, which is always JSON or YAML.
pub(super) fn document(value: &Value, headers: &HeaderMap, query: Option<&str>) -> Response<Body> {
    let negotiated = Negotiated::from_headers(headers, query);
    let text = value.to_string();
    match (negotiated.encoding, negotiated.pretty) {
        (Some(Encoding::Yaml), _) => {
            respond(StatusCode::OK, Encoding::Yaml.media_type(), respond::json_to_yaml(&text).unwrap_or(text))
        }
        (Some(Encoding::Json), true) => pretty(StatusCode::OK, value),
        (Some(Encoding::Json | Encoding::Protobuf), _) => {
            respond(StatusCode::OK, Encoding::Json.media_type(), text + "\n")
        }
        (None, _) => respond::status(&Status::not_acceptable(&MEDIA_TYPES), &negotiated),
    }
}

/// Responds with indented JSON, regardless of the `Accept` header.
pub(super) fn pretty(status: StatusCode, value: &Value) -> Response<Body> {
    respond(status, Encoding::Json.media_type(), gojson::to_string_pretty(value))
}
