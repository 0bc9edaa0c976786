//! Our CustomResourceDefinitions mean what upstream's mean.

use serde_json::Value;

use crate::{difference, documents};

/// Where in a definition the schema lies.
const SCHEMA: &str = ".spec.versions[v1alpha1].schema.openAPIV3Schema";

/// Differences that every definition has.
const EVERYWHERE: &[&str] = &[
    // The tool that wrote upstream's did not write ours.
    "- .metadata.annotations = {\"controller-gen.kubebuilder.io/version\":\"v0.21.0\"}",
    // Upstream's install adds the label to what lies in its source tree; our source is what is installed.
    "+ .metadata.labels = {\"app\":\"pinniped-concierge\"}",
];

/// Additions to the CredentialIssuer: strategies that upstream does not have, what is observed about a serving
/// certificate from outside, and a bundle that may be empty when clients are to use their system's roots. Below
/// [`SCHEMA`].
const CREDENTIAL_ISSUER: &[&str] = &[
    "+ .properties.spec.properties.certificateSigningRequests = …",
    "+ .properties.spec.properties.impersonationProxy.properties.service.properties.externalTrafficPolicy = …",
    "+ .properties.spec.properties.impersonationProxy.properties.service.properties.ipFamilyPolicy = …",
    "+ .properties.spec.properties.impersonationProxy.properties.service.properties.loadBalancerClass = …",
    "+ .properties.spec.properties.impersonationProxy.properties.service.properties.loadBalancerSourceRanges = …",
    "+ .properties.spec.properties.impersonationProxy.properties.tls.properties.validation = …",
    "+ .properties.spec.properties.serviceAccountTokens = …",
    "+ .properties.status.properties.conditions = …",
    "- .properties.status.properties.strategies.items.properties.frontend.properties.impersonationProxyInfo.properties.certificateAuthorityData.minLength = 1",
    "+ .properties.status.properties.strategies.items.properties.frontend.properties.serviceAccountTokenInfo = …",
    "+ .properties.status.properties.strategies.items.properties.frontend.properties.type.enum[\"ServiceAccountToken\"] = \"ServiceAccountToken\"",
    "+ .properties.status.properties.strategies.items.properties.type.enum[\"KubeCertificateSigningRequest\"] = \"KubeCertificateSigningRequest\"",
    "+ .properties.status.properties.strategies.items.properties.type.enum[\"ServiceAccountToken\"] = \"ServiceAccountToken\"",
];

#[test]
fn definitions_differ_from_upstream_only_where_intended() {
    for file in documents::CRDS {
        let theirs = documents::one(&format!("testdata/upstream/crds/{file}"));
        let ours = documents::one(&format!("deploy/crds/{file}"));
        let found = difference::of(&without_wording(&theirs), &without_wording(&ours))
            .into_iter()
            .map(|line| match line.split_once(" = {\"") {
                // Whole additions are spelled out in the test below.
                Some((head, _)) if line.starts_with('+') && head.contains(SCHEMA) => format!("{head} = …"),
                _ => line,
            })
            .collect();
        let own: &[&str] = if file.contains("credentialissuers") { CREDENTIAL_ISSUER } else { &[] };
        let own: Vec<String> =
            own.iter().map(|line| line.replacen(" .", &format!(" {SCHEMA}."), 1)).collect();
        let intended: Vec<&str> = EVERYWHERE.iter().copied().chain(own.iter().map(String::as_str)).collect();
        difference::assert_exactly(file, &found, &intended);
    }
}

#[test]
fn additions_to_the_credential_issuer_are_all_optional_and_without_defaults() {
    let issuer = documents::one("deploy/crds/config.concierge.pinniped.dev_credentialissuers.yaml");
    let schema = without_wording(&schema(&issuer));
    let spec = &schema["properties"]["spec"];
    assert_eq!(spec["required"], serde_json::json!(["impersonationProxy"]));
    assert_eq!(
        spec["properties"]["certificateSigningRequests"],
        serde_json::json!({
            "type": "object",
            "properties": {"mode": {"type": "string", "enum": ["auto", "enabled", "disabled"]}}
        })
    );
    assert_eq!(
        spec["properties"]["serviceAccountTokens"],
        serde_json::json!({
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["disabled", "enabled"]},
                "namespace": {"type": "string", "minLength": 1, "maxLength": 63},
                "tokenLifetimeSeconds": {"type": "integer", "format": "int64", "minimum": 60, "maximum": 600},
                "idleTimeoutSeconds": {"type": "integer", "format": "int64", "minimum": 60},
                "constrainedImpersonation": {"type": "string", "enum": ["disabled", "auto"]}
            }
        })
    );
    assert_eq!(
        spec["properties"]["impersonationProxy"]["properties"]["tls"]["properties"]["validation"],
        serde_json::json!({"type": "string", "enum": ["Warn", "Enforce", "Off"]})
    );
    let service = &spec["properties"]["impersonationProxy"]["properties"]["service"]["properties"];
    for (field, wanted) in [
        ("externalTrafficPolicy", serde_json::json!({"type": "string", "enum": ["Cluster", "Local"]})),
        (
            "ipFamilyPolicy",
            serde_json::json!({"type": "string", "enum": ["SingleStack", "PreferDualStack", "RequireDualStack"]}),
        ),
        ("loadBalancerClass", serde_json::json!({"type": "string", "minLength": 1, "maxLength": 316})),
        (
            "loadBalancerSourceRanges",
            serde_json::json!({
                "type": "array", "maxItems": 1024, "items": {"type": "string", "minLength": 1, "maxLength": 64}
            }),
        ),
    ] {
        assert_eq!(service[field], wanted, "{field}");
    }
    let status = &schema["properties"]["status"];
    assert_eq!(status["required"], serde_json::json!(["strategies"]));
    let authenticator = documents::one(
        "testdata/upstream/crds/authentication.concierge.pinniped.dev_webhookauthenticators.yaml",
    );
    let conditions = &self::schema(&authenticator)["properties"]["status"]["properties"]["conditions"];
    assert_eq!(
        status["properties"]["conditions"],
        without_wording(conditions),
        "as upstream's other conditions"
    );
    let frontend = &status["properties"]["strategies"]["items"]["properties"]["frontend"]["properties"];
    assert_eq!(frontend["serviceAccountTokenInfo"], frontend["tokenCredentialRequestInfo"]);
}

#[test]
fn every_property_is_described_in_words_of_our_own() {
    for file in documents::CRDS {
        let ours = schema(&documents::one(&format!("deploy/crds/{file}")));
        let theirs = schema(&documents::one(&format!("testdata/upstream/crds/{file}")));
        let mut descriptions = Vec::new();
        descriptions_of(&ours, "", &mut descriptions);
        let mut foreign = Vec::new();
        descriptions_of(&theirs, "", &mut foreign);
        for (path, description) in &descriptions {
            // The API server describes the metadata itself and takes nothing else there.
            assert!(
                !description.trim().is_empty() || path == ".metadata",
                "{file}: {path} has no description"
            );
            assert!(
                description.is_empty() || foreign.iter().all(|(_, other)| other != description),
                "{file}: {path} is described in upstream's words"
            );
        }
        assert!(descriptions.len() > 10, "{file}");
    }
}

#[test]
fn the_install_file_is_the_definitions_one_after_the_other() {
    let mut files: Vec<_> = std::fs::read_dir(documents::path("deploy/crds"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, documents::CRDS);
    let whole: String = files.iter().map(|file| documents::text(&format!("deploy/crds/{file}"))).collect();
    assert_eq!(documents::text("deploy/install-pinniped-concierge-crds.yaml"), whole);
}

pub(crate) fn schema(definition: &Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// The same without descriptions, but with properties that are called `description`.
fn without_wording(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(key, value)| !(*key == "description" && value.is_string()))
            .map(|(key, value)| (key.clone(), without_wording(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_wording).collect(),
        other => other.clone(),
    }
}

fn descriptions_of(schema: &Value, path: &str, found: &mut Vec<(String, String)>) {
    found.push((path.to_owned(), schema["description"].as_str().unwrap_or_default().to_owned()));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        descriptions_of(property, &format!("{path}.{name}"), found);
    }
    if schema["items"].is_object() && schema["items"]["type"] == "object" {
        descriptions_of(&schema["items"], &format!("{path}[]"), found);
    }
}
