//! The Swagger 2.0 document.
//!
//! Shared parameters are inlined; upstream defines them once, under names that contain hashes.

use pinniped_concierge_api::names::VERSION;
use pinniped_kube_types::suffix::GroupSuffix;
use serde_json::{Map, Value, json};

use super::models::{self, MODELS};
use super::operations::{self, Action, CREATE, LIST, Operation, PRETTY, Parameter};
use super::{Dialect, MEDIA_TYPES, info, schema};

struct V2;

impl Dialect for V2 {
    fn reference(&self, full_name: &str, _defaulted: bool) -> Map<String, Value> {
        Map::from_iter([("$ref".to_owned(), json!(format!("#/definitions/{full_name}")))])
    }

    fn has_defaults(&self) -> bool {
        false
    }
}

pub(super) fn document(suffix: &GroupSuffix) -> Value {
    let definitions: Map<String, Value> =
        MODELS.iter().map(|model| (model.full_name(), schema(model, suffix, &V2))).collect();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations::all(suffix).into_iter().flat_map(|(_, operations)| operations) {
        let path = paths.entry(operation.path.clone()).or_insert_with(|| json!({}));
        path[operation.action.method()] = render(&operation, suffix);
        if operation.action.on_kind().is_some() {
            path["parameters"] = json!([parameter(&PRETTY)]);
        }
    }
    json!({ "swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions })
}

fn render(operation: &Operation, suffix: &GroupSuffix) -> Value {
    let response_model =
        json!({ "$ref": format!("#/definitions/{}", models::full_name(&operation.response_model)) });
    let ok = |description: &str| json!({ "description": description, "schema": response_model });
    let (consumes, produces): (Vec<&str>, Vec<&str>) = match operation.action {
        Action::Discover => (MEDIA_TYPES.into(), MEDIA_TYPES.into()),
        Action::Version => (vec!["application/json"], vec!["application/json"]),
        Action::Create(_) => (vec!["*/*"], MEDIA_TYPES.into()),
        Action::List(_) => {
            let watched =
                ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
            (vec!["*/*"], MEDIA_TYPES.into_iter().chain(watched).collect())
        }
    };
    let mut rendered = json!({
        "consumes": consumes,
        "description": operation.description,
        "operationId": operation.id,
        "produces": produces,
        "responses": { "200": ok("OK") },
        "schemes": ["https"],
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
            let body = json!({ "name": "body", "in": "body", "required": true, "schema": response_model });
            rendered["parameters"] = std::iter::once(body).chain(CREATE.iter().map(parameter)).collect();
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
        "type": parameter.ty,
        "description": parameter.description,
        "uniqueItems": true,
    })
}
