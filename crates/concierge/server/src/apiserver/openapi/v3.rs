//! The OpenAPI 3.0 documents, one per group and version, each with only the models that it
//! references.

use std::collections::BTreeSet;

use pinniped_concierge_api::names::VERSION;
use pinniped_kube_types::suffix::GroupSuffix;
use serde_json::{Map, Value, json};

use super::models::{self, Type};
use super::operations::{self, Action, CREATE, LIST, Operation, PRETTY, Parameter};
use super::{Dialect, MEDIA_TYPES, info, schema};

struct V3;

impl Dialect for V3 {
    // In OpenAPI 3.0, a reference cannot have siblings, so it is wrapped.
    fn reference(&self, full_name: &str, defaulted: bool) -> Map<String, Value> {
        let mut schema = Map::from_iter([("allOf".to_owned(), json!([{ "$ref": reference(full_name) }]))]);
        if defaulted {
            schema.insert("default".to_owned(), json!({}));
        }
        schema
    }

    fn has_defaults(&self) -> bool {
        true
    }
}

fn reference(full_name: &str) -> String {
    format!("#/components/schemas/{full_name}")
}

/// Returns the documents by their keys.
pub(super) fn documents(suffix: &GroupSuffix) -> Vec<(String, Value)> {
    operations::all(suffix)
        .into_iter()
        .map(|(key, operations)| (key, document(&operations, suffix)))
        .collect()
}

fn document(operations: &[Operation], suffix: &GroupSuffix) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    let mut needed: BTreeSet<&'static str> = BTreeSet::new();
    for operation in operations {
        need(&operation.response_model, &mut needed);
        let path = paths.entry(operation.path.clone()).or_insert_with(|| json!({}));
        path[operation.action.method()] = render(operation, suffix);
        if operation.action.on_kind().is_some() {
            path["parameters"] = json!([parameter(&PRETTY)]);
        }
    }
    let schemas: Map<String, Value> = needed
        .into_iter()
        .filter_map(models::find)
        .map(|model| (model.full_name(), schema(model, suffix, &V3)))
        .collect();
    json!({ "openapi": "3.0.0", "info": info(), "paths": paths, "components": { "schemas": schemas } })
}

fn need(name: &str, needed: &mut BTreeSet<&'static str>) {
    let Some(model) = models::find(name) else { return };
    if !needed.insert(model.name) {
        return;
    }
    for field in model.fields {
        let mut ty = &field.ty;
        while let Type::List(inner, _) | Type::Map(inner) = ty {
            ty = inner;
        }
        if let Type::Object(name) | Type::Pointer(name) = ty {
            need(name, needed);
        }
    }
}

fn render(operation: &Operation, suffix: &GroupSuffix) -> Value {
    let content = |media_types: &[&str]| {
        let schema = json!({ "$ref": reference(&models::full_name(&operation.response_model)) });
        let content: Map<String, Value> =
            media_types.iter().map(|media| ((*media).to_owned(), json!({ "schema": schema }))).collect();
        Value::from(content)
    };
    let produces: Vec<&str> = match operation.action {
        Action::Version => vec!["application/json"],
        Action::Discover | Action::Create(_) => MEDIA_TYPES.into(),
        Action::List(_) => {
            let watched =
                ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
            MEDIA_TYPES.into_iter().chain(watched).collect()
        }
    };
    let ok = |description: &str| json!({ "description": description, "content": content(&produces) });
    let mut rendered = json!({
        "description": operation.description,
        "operationId": operation.id,
        "responses": { "200": ok("OK") },
        "tags": [operation.tag],
    });
    if let Some((action, kind)) = operation.action.on_kind() {
        rendered["x-kubernetes-action"] = json!(action);
        rendered["x-kubernetes-group-version-kind"] =
            json!({ "group": kind.group(suffix), "version": VERSION, "kind": kind.as_str() });
    }
    match operation.action {
        Action::List(_) => rendered["parameters"] = LIST.iter().map(parameter).collect(),
        Action::Create(_) => {
            rendered["parameters"] = CREATE.iter().map(parameter).collect();
            rendered["requestBody"] = json!({ "content": content(&["*/*"]), "required": true });
            rendered["responses"]["201"] = ok("Created");
            rendered["responses"]["202"] = ok("Accepted");
        }
        Action::Discover | Action::Version => {}
    }
    rendered
}

fn parameter(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": { "type": parameter.ty, "uniqueItems": true },
    })
}
