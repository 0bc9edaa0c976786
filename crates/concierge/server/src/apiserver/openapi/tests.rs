use std::path::Path;

use super::*;

/// The recorded document of upstream. The intentional differences are:
///
/// 1. Descriptions are in our own words (every description of upstream has a counterpart).
/// 2. Shared v2 parameters are inlined.
/// 3. `required` is a set, and its order differs.
/// 4. Our additions, see [`take_away_ours`].
fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/upstream/api").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut document: Value = serde_json::from_str(&text).expect("JSON");
    let shared = document.as_object_mut().expect("an object").remove("parameters").unwrap_or_default();
    inline(&mut document, &shared);
    document
}

fn inline(value: &mut Value, shared: &Value) {
    if let Some(name) =
        value.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/parameters/"))
    {
        *value = shared[name].clone();
        return;
    }
    match value {
        Value::Object(members) => members.values_mut().for_each(|member| inline(member, shared)),
        Value::Array(items) => items.iter_mut().for_each(|item| inline(item, shared)),
        _ => {}
    }
}

/// Removes the fields and the model that upstream does not have, each of which must exist.
fn take_away_ours(mut document: Value) -> Value {
    let path = if document["swagger"].is_string() { "/definitions" } else { "/components/schemas" };
    let models = document.pointer_mut(path).and_then(Value::as_object_mut).expect("models");
    let package = "dev.pinniped.apis.concierge.login.v1alpha1.";
    for (model, field) in [
        ("TokenCredentialRequestSpec", "acceptCredentialTypes"),
        ("TokenCredentialRequestStatus", "impersonate"),
    ] {
        let properties =
            models[&format!("{package}{model}")]["properties"].as_object_mut().expect("properties");
        assert!(properties.remove(field).is_some(), "{model}.{field}");
    }
    assert!(models.remove(&format!("{package}ImpersonatedUser")).is_some());
    document
}

/// Compares everything except the texts of descriptions.
fn compare(path: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let keys = |members: &Map<String, Value>| -> Vec<String> { members.keys().cloned().collect() };
            let (mut our_keys, mut their_keys) = (keys(ours), keys(theirs));
            our_keys.sort();
            their_keys.sort();
            // Additional descriptions are allowed.
            our_keys.retain(|key| key != "description" || theirs.contains_key(key));
            assert_eq!(our_keys, their_keys, "{path}");
            for (key, their_value) in theirs {
                match (key.as_str(), their_value) {
                    ("description", Value::String(_)) => {
                        assert!(ours[key].as_str().is_some_and(|text| !text.is_empty()), "{path}.{key}");
                    }
                    ("required", Value::Array(names)) => {
                        let sorted = |names: &[Value]| -> Vec<String> {
                            let mut names: Vec<String> = names.iter().map(Value::to_string).collect();
                            names.sort();
                            names
                        };
                        let ours = ours[key].as_array().expect("a list");
                        assert_eq!(sorted(ours), sorted(names), "{path}.{key}");
                    }
                    _ => compare(&format!("{path}.{key}"), &ours[key], their_value),
                }
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            assert_eq!(ours.len(), theirs.len(), "{path}");
            for (at, (our_item, their_item)) in ours.iter().zip(theirs).enumerate() {
                compare(&format!("{path}[{at}]"), our_item, their_item);
            }
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

#[test]
fn the_v2_document_equals_the_recorded_one() {
    let ours = take_away_ours(v2::document(&GroupSuffix::default()));
    compare("v2", &ours, &recorded("openapi-v2.json"));
}

#[test]
fn the_v3_documents_equal_the_recorded_ones() {
    let documents = v3::documents(&GroupSuffix::default());
    for group in ["identity", "login"] {
        let key = format!("apis/{group}.concierge.pinniped.dev/v1alpha1");
        let (_, ours) = documents.iter().find(|(name, _)| *name == key).expect("that document");
        let ours = if group == "login" { take_away_ours(ours.clone()) } else { ours.clone() };
        compare(group, &ours, &recorded(&format!("openapi-v3-{group}.json")));
    }
    let keys: Vec<&str> = documents.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "apis",
            "apis/identity.concierge.pinniped.dev",
            "apis/identity.concierge.pinniped.dev/v1alpha1",
            "apis/login.concierge.pinniped.dev",
            "apis/login.concierge.pinniped.dev/v1alpha1",
            "version",
        ]
    );
}

#[test]
fn a_suffix_appears_in_paths_names_and_kinds_but_not_in_models() {
    let suffix = GroupSuffix::parse("tuna.io").expect("a suffix");
    let document = v2::document(&suffix);
    let create = &document["paths"]["/apis/login.concierge.tuna.io/v1alpha1/tokencredentialrequests"]["post"];
    assert_eq!(create["operationId"], "createLoginConciergeTunaIoV1alpha1TokenCredentialRequest");
    assert_eq!(create["tags"], json!(["loginConciergeTunaIo_v1alpha1"]));
    let model = &document["definitions"]["dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequest"];
    assert_eq!(model["x-kubernetes-group-version-kind"][0]["group"], "login.concierge.tuna.io");
    assert!(!document.to_string().contains("concierge.pinniped.dev"));
}

#[test]
fn every_reference_has_a_model() {
    for model in models::MODELS {
        for field in model.fields {
            let mut ty = &field.ty;
            while let Type::List(inner, _) | Type::Map(inner) = ty {
                ty = inner;
            }
            if let Type::Object(name) | Type::Pointer(name) = ty {
                assert!(models::find(name).is_some(), "{}.{} names {name}", model.name, field.name);
            }
        }
    }
}

#[test]
fn the_index_lists_each_document_with_its_hash() {
    let documents = Documents::new(&GroupSuffix::default());
    let index: Value = serde_json::from_slice(&documents.v3_index.bytes).expect("JSON");
    for (key, document) in &documents.v3 {
        assert_eq!(document.hash.len(), 128);
        assert_eq!(
            index["paths"][key]["serverRelativeURL"],
            format!("/openapi/v3/{key}?hash={}", document.hash)
        );
    }
}
