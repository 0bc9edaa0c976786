//! Compares our types of the aggregated API with the models that upstream's server publishes.

use std::collections::BTreeSet;

use pinniped_concierge_api::identity::{WhoAmIRequest, WhoAmIRequestList};
use pinniped_concierge_api::login::{TokenCredentialRequest, TokenCredentialRequestList};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::documents;

fn models(file: &str) -> Value {
    let document: Value =
        serde_json::from_str(&documents::text(&format!("testdata/upstream/api/{file}"))).unwrap();
    document["components"]["schemas"].clone()
}

/// Creates an object with every member of a model. Models of the Kubernetes libraries are not
/// compared.
fn sample(models: &Value, model: &Value) -> Value {
    let reference = model["$ref"].as_str().or_else(|| model["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|r| r.strip_prefix("#/components/schemas/")) {
        return match name {
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" => json!({"name": "x"}),
            "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta" => json!({"resourceVersion": "0"}),
            "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => json!("2026-11-21T10:00:00Z"),
            name => sample(models, models.get(name).unwrap_or_else(|| panic!("no model {name}"))),
        };
    }
    match model["type"].as_str().expect("a model has a type") {
        "object" if model["additionalProperties"].is_object() => {
            json!({"some/key": sample(models, &model["additionalProperties"])})
        }
        "object" => model["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, property)| (name.clone(), sample(models, property)))
            .collect(),
        "array" => json!([sample(models, &model["items"])]),
        "string" => json!("text"),
        other => panic!("no sample for type {other}"),
    }
}

fn assert_fits<T: Serialize + DeserializeOwned>(file: &str, name: &str) {
    let models = models(file);
    let object = sample(&models, &models[name]);
    assert!(object.as_object().is_some_and(|members| members.len() >= 4), "{name}: {object}");
    let typed: T =
        serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{name}: {error}: {object}"));
    assert_eq!(serde_json::to_value(&typed).unwrap(), object, "{name}");
}

#[test]
fn types_lose_nothing_that_a_model_has() {
    let login = "dev.pinniped.apis.concierge.login.v1alpha1.TokenCredentialRequest";
    assert_fits::<TokenCredentialRequest>("openapi-v3-login.json", login);
    assert_fits::<TokenCredentialRequestList>("openapi-v3-login.json", &format!("{login}List"));
    let identity = "dev.pinniped.apis.concierge.identity.v1alpha1.WhoAmIRequest";
    assert_fits::<WhoAmIRequest>("openapi-v3-identity.json", identity);
    assert_fits::<WhoAmIRequestList>("openapi-v3-identity.json", &format!("{identity}List"));
}

#[test]
fn both_recordings_have_the_models_of_the_two_groups() {
    let document: Value =
        serde_json::from_str(&documents::text("testdata/upstream/api/openapi-v2.json")).unwrap();
    let both: BTreeSet<String> = document["definitions"].as_object().unwrap().keys().cloned().collect();
    for file in ["openapi-v3-login.json", "openapi-v3-identity.json"] {
        for name in models(file).as_object().unwrap().keys().filter(|name| name.starts_with("dev.pinniped."))
        {
            assert!(both.contains(name), "{name} of {file}");
        }
    }
}
