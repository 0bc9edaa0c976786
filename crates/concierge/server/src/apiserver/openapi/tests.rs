use std::io::Read as _;
use std::path::PathBuf;

use flate2::read::GzDecoder;

use super::protobuf::{Content, DOCUMENT, Shape};
use super::*;

fn recorded_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/upstream/api").join(name)
}

/// The recorded document of upstream. The intentional differences are:
///
/// 1. Descriptions are in our own words (every description of upstream has a counterpart).
/// 2. Shared v2 parameters are inlined.
/// 3. `required` is a set, and its order differs.
/// 4. Our additions, see [`take_away_ours`].
fn recorded(name: &str) -> Value {
    let path = recorded_path(name);
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

/// A field of a message: its number, and the bytes or the number that it contains.
type WireField<'a> = (u32, Result<&'a [u8], u64>);

/// Reads the fields of a message.
fn wire_fields(mut bytes: &[u8]) -> Vec<WireField<'_>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (&byte, rest) = bytes.split_first().expect("a complete number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let content = match tag & 7 {
            0 => Err(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("a length");
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                Ok(content)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((u32::try_from(tag >> 3).expect("a number"), content));
    }
    fields
}

fn named(bytes: &[u8]) -> (String, &[u8]) {
    match wire_fields(bytes).as_slice() {
        [(1, Ok(name)), (2, Ok(value))] => (String::from_utf8(name.to_vec()).expect("a name"), value),
        other => panic!("not a name and a value: {other:?}"),
    }
}

/// Converts a message back to JSON. Every field must be in the schema.
fn from_protobuf(shape: &Shape, bytes: &[u8]) -> Value {
    let fields = wire_fields(bytes);
    match shape {
        Shape::Record { fields: known, extensions } => {
            let mut object = Map::new();
            for (number, content) in fields {
                if number == *extensions {
                    let (name, any) = named(content.expect("an extension"));
                    let [(2, Ok(yaml))] = wire_fields(any)[..] else { panic!("{name} is not YAML") };
                    let yaml = std::str::from_utf8(yaml).expect("text");
                    object.insert(name, serde_saphyr::from_str(yaml).expect("YAML"));
                    continue;
                }
                let field = known.iter().find(|field| field.number == number);
                let field = field.unwrap_or_else(|| panic!("unknown field {number}"));
                let value = content_from_protobuf(field.content, content);
                match (object.get_mut(field.name).and_then(Value::as_array_mut), value) {
                    (Some(items), Value::Array(more)) => items.extend(more),
                    (_, value) => _ = object.insert(field.name.to_owned(), value),
                }
            }
            object.into()
        }
        Shape::Entries(number, shape) => fields
            .into_iter()
            .map(|(found, content)| {
                assert_eq!(found, *number);
                let (name, value) = named(content.expect("an entry"));
                (name, from_protobuf(shape, value))
            })
            .collect::<Map<_, _>>()
            .into(),
        Shape::Only(number, content) => match fields[..] {
            [(found, bytes)] if found == *number => content_from_protobuf(*content, bytes),
            _ => panic!("{fields:?}"),
        },
        Shape::BodyOr(choices) => {
            let [(found, Ok(bytes))] = fields[..] else { panic!("{fields:?}") };
            let choice = choices.iter().find(|(number, _)| *number == found).expect("one of the two");
            from_protobuf(choice.1, bytes)
        }
    }
}

fn content_from_protobuf(content: Content, value: Result<&[u8], u64>) -> Value {
    let text = || json!(std::str::from_utf8(value.expect("a text")).expect("UTF-8"));
    match content {
        Content::Text => text(),
        Content::Texts => json!([text()]),
        Content::Flag => json!(value == Err(1)),
        Content::One(shape) => from_protobuf(shape, value.expect("a message")),
        Content::Many(shape) => json!([from_protobuf(shape, value.expect("a message"))]),
    }
}

#[test]
fn the_protobuf_document_has_the_bytes_of_the_go_encoder() {
    let ours = protobuf::encode(&recorded("openapi-v2.json"));
    let theirs = std::fs::read(recorded_path("openapi-v2.pb")).expect("the recorded document");
    assert_eq!(from_protobuf(&DOCUMENT, &ours), from_protobuf(&DOCUMENT, &theirs));
    assert!(ours == theirs, "the order of the fields is different");
}

#[test]
fn the_protobuf_document_has_all_members_of_the_json_document() {
    let documents = Documents::new(&GroupSuffix::default());
    let mut json: Value = serde_json::from_slice(&documents.v2.bytes).expect("JSON");
    // Empty texts and `false` are not written. This also removes the empty group of `meta/v1`.
    fn remove_empty(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.values_mut().for_each(remove_empty);
                members.retain(|_, value| *value != json!("") && *value != json!(false));
            }
            Value::Array(items) => items.iter_mut().for_each(remove_empty),
            _ => {}
        }
    }
    let mut decoded = from_protobuf(&DOCUMENT, &documents.v2_protobuf.bytes);
    remove_empty(&mut json);
    remove_empty(&mut decoded);
    assert_eq!(decoded, json);
    assert_eq!(documents.v2_protobuf.hash, documents.v2.hash);
}

#[test]
fn large_documents_are_compressed_and_small_ones_are_not() {
    let documents = Documents::new(&GroupSuffix::default());
    let mut all = vec![&documents.v2, &documents.v2_protobuf, &documents.v3_index];
    all.extend(documents.v3.iter().map(|(_, document)| document));
    let mut compressed = 0;
    for document in all {
        assert_eq!(document.compressed.is_some(), document.bytes.len() >= COMPRESSED_FROM_BYTES);
        let Some(bytes) = &document.compressed else { continue };
        compressed += 1;
        assert!(bytes.len() < document.bytes.len());
        let mut plain = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut plain).expect("gzip");
        assert_eq!(plain, document.bytes);
    }
    assert!(compressed > 3, "{compressed}");
}
