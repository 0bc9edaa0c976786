//! Compares our types with our definitions: the types keep every field that a schema allows, and
//! the API server prunes no field that a type writes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use pinniped_concierge_api::authentication::{
    AuthenticatorPhase, AuthenticatorStatus, CertificateAuthorityDataSource, ClaimValidationRule,
    ExtraMapping, JwtAuthenticator, JwtAuthenticatorSpec, JwtTokenClaims, TlsSpec, UserValidationRule,
    WebhookAuthenticator, WebhookAuthenticatorSpec,
};
use pinniped_concierge_api::config::{
    CertificateSigningRequestsSpec, CredentialIssuer, CredentialIssuerFrontend, CredentialIssuerSpec,
    CredentialIssuerStatus, CredentialIssuerStrategy, FrontendType, ImpersonationProxyInfo,
    ImpersonationProxyServiceSpec, ImpersonationProxySpec, ImpersonationProxyTlsSpec,
    ServiceAccountTokenInfo, ServiceAccountTokensSpec, ServingCertificateStatus, StrategyReason,
    StrategyStatus, StrategyType, TokenCredentialRequestApiInfo,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{crds, documents};

/// The amount of a schema that a sample fills in.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    /// Every property.
    Everything,
    /// Required properties only.
    Required,
}

/// Creates an object that conforms to a schema.
pub(crate) fn sample(schema: &Value, extent: Extent) -> Value {
    if let Some(choice) = schema["enum"].as_array().and_then(|choices| choices.last()) {
        return choice.clone();
    }
    match schema["type"].as_str().expect("a structural schema has types") {
        "object" if schema["additionalProperties"].is_object() => {
            json!({"some/key": sample(&schema["additionalProperties"], extent)})
        }
        "object" => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            properties
                .iter()
                .filter(|(name, _)| extent == Extent::Everything || required.iter().any(|r| r == *name))
                .map(|(name, property)| (name.clone(), sample(property, extent)))
                .collect()
        }
        "array" => json!([sample(&schema["items"], extent)]),
        "boolean" => json!(true),
        "integer" => schema["minimum"].as_i64().map_or(json!(7), |minimum| json!(minimum + 1)),
        "string" if schema["format"] == "date-time" => json!("2026-11-21T10:00:00Z"),
        "string" if schema["pattern"].as_str().is_some_and(|p| p.starts_with("^https://")) => {
            json!("https://example.com")
        }
        "string" => json!("Text"),
        other => panic!("no sample for type {other}"),
    }
}

fn assert_nothing_lost<T: Serialize + DeserializeOwned>(file: &str) {
    let definition = documents::one(&format!("deploy/crds/{file}"));
    let schema = crds::schema(&definition);
    for extent in [Extent::Everything, Extent::Required] {
        let mut object = sample(&schema, extent);
        object["kind"] = definition["spec"]["names"]["kind"].clone();
        object["apiVersion"] = json!(format!("{}/v1alpha1", definition["spec"]["group"].as_str().unwrap()));
        object["metadata"] = json!({"name": "x", "labels": {"a": "b"}, "generation": 3});
        let typed: T = serde_json::from_value(object.clone())
            .unwrap_or_else(|error| panic!("{file}: {error}: {object}"));
        assert_eq!(serde_json::to_value(&typed).unwrap(), object, "{file}");
    }
}

#[test]
fn types_lose_nothing_that_a_schema_allows() {
    assert_nothing_lost::<JwtAuthenticator>(documents::CRDS[0]);
    assert_nothing_lost::<WebhookAuthenticator>(documents::CRDS[1]);
    assert_nothing_lost::<CredentialIssuer>(documents::CRDS[2]);
}

/// Collects the paths of `object` that the API server would prune because the schema does not
/// contain them, and the required ones that are missing.
fn misfits(schema: &Value, object: &Value, path: &str, found: &mut Vec<String>) {
    match object {
        Value::Object(_) if path == ".metadata" => {}
        Value::Object(members) => {
            for (name, member) in members {
                let property = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                match property {
                    Some(property) => misfits(property, member, &format!("{path}.{name}"), found),
                    None => found.push(format!("{path}.{name} is not in the schema")),
                }
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                if !members.contains_key(name.as_str().unwrap()) {
                    found.push(format!("{path}.{} is missing", name.as_str().unwrap()));
                }
            }
        }
        Value::Array(items) => {
            items.iter().for_each(|item| misfits(&schema["items"], item, &format!("{path}[]"), found));
        }
        scalar => {
            let choices = schema["enum"].as_array();
            if choices.is_some_and(|choices| !choices.contains(scalar)) {
                found.push(format!("{path} may not be {scalar}"));
            }
            let fits = match schema["type"].as_str() {
                Some("string") => scalar.is_string(),
                Some("integer") => scalar.is_i64(),
                _ => false,
            };
            if !fits {
                found.push(format!("{path} is of another type than {scalar}"));
            }
        }
    }
}

fn assert_nothing_pruned<T: Serialize>(file: &str, object: &T) {
    let schema = crds::schema(&documents::one(&format!("deploy/crds/{file}")));
    let mut found = Vec::new();
    misfits(&schema, &serde_json::to_value(object).unwrap(), "", &mut found);
    assert!(found.is_empty(), "{file}: {found:#?}");
}

fn text() -> String {
    "Text".to_owned()
}

fn condition() -> Condition {
    Condition {
        last_transition_time: time(),
        message: text(),
        observed_generation: Some(1),
        reason: text(),
        status: "True".to_owned(),
        type_: text(),
    }
}

fn time() -> Time {
    Time("2026-11-21T10:00:00Z".parse().unwrap())
}

fn tls() -> Option<TlsSpec> {
    let source = CertificateAuthorityDataSource { kind: "Secret".to_owned(), name: text(), key: text() };
    Some(TlsSpec {
        certificate_authority_data: Some(text()),
        certificate_authority_data_source: Some(source),
    })
}

fn status() -> Option<AuthenticatorStatus> {
    Some(AuthenticatorStatus { conditions: vec![condition()], phase: Some(AuthenticatorPhase::Ready) })
}

// The objects below set every member and use no defaults, so a new member does not compile until it
// is added here.

#[test]
fn webhook_authenticators_are_not_pruned() {
    let object = WebhookAuthenticator {
        kind: text(),
        api_version: text(),
        metadata: ObjectMeta::default(),
        spec: WebhookAuthenticatorSpec { endpoint: text(), tls: tls() },
        status: status(),
    };
    assert_nothing_pruned(documents::CRDS[1], &object);
}

#[test]
fn jwt_authenticators_are_not_pruned() {
    let object = JwtAuthenticator {
        kind: text(),
        api_version: text(),
        metadata: ObjectMeta::default(),
        spec: JwtAuthenticatorSpec {
            issuer: text(),
            audience: text(),
            claims: JwtTokenClaims {
                groups: text(),
                groups_expression: text(),
                username: text(),
                username_expression: text(),
                extra: vec![ExtraMapping { key: text(), value_expression: text() }],
            },
            claim_validation_rules: vec![ClaimValidationRule {
                claim: text(),
                required_value: text(),
                expression: text(),
                message: text(),
            }],
            user_validation_rules: vec![UserValidationRule { expression: text(), message: text() }],
            tls: tls(),
        },
        status: status(),
    };
    assert_nothing_pruned(documents::CRDS[0], &object);
}

#[test]
fn credential_issuers_are_not_pruned() {
    let frontend = CredentialIssuerFrontend {
        type_: FrontendType::ServiceAccountToken,
        token_credential_request_info: Some(TokenCredentialRequestApiInfo {
            server: text(),
            certificate_authority_data: text(),
        }),
        impersonation_proxy_info: Some(ImpersonationProxyInfo {
            endpoint: text(),
            certificate_authority_data: String::new(),
        }),
        service_account_token_info: Some(ServiceAccountTokenInfo {
            server: text(),
            certificate_authority_data: text(),
        }),
    };
    let object = CredentialIssuer {
        kind: text(),
        api_version: text(),
        metadata: ObjectMeta::default(),
        spec: Some(CredentialIssuerSpec {
            impersonation_proxy: Some(ImpersonationProxySpec {
                mode: "auto".to_owned(),
                service: ImpersonationProxyServiceSpec {
                    type_: Some("None".to_owned()),
                    load_balancer_ip: Some(text()),
                    annotations: BTreeMap::from([(text(), text())]),
                    load_balancer_class: Some(text()),
                    load_balancer_source_ranges: vec![text()],
                    external_traffic_policy: Some("Local".to_owned()),
                    ip_family_policy: Some("SingleStack".to_owned()),
                },
                external_endpoint: Some(text()),
                tls: Some(ImpersonationProxyTlsSpec {
                    certificate_authority_data: Some(text()),
                    secret_name: Some(text()),
                    validation: Some("Off".to_owned()),
                }),
            }),
            certificate_signing_requests: Some(CertificateSigningRequestsSpec {
                mode: Some("enabled".to_owned()),
            }),
            service_account_tokens: Some(ServiceAccountTokensSpec {
                mode: Some("enabled".to_owned()),
                namespace: Some(text()),
                token_lifetime_seconds: Some(300),
                idle_timeout_seconds: Some(86400),
                constrained_impersonation: Some("auto".to_owned()),
            }),
        }),
        status: Some(CredentialIssuerStatus {
            strategies: vec![CredentialIssuerStrategy {
                type_: StrategyType::ServiceAccountToken,
                status: StrategyStatus::Success,
                reason: StrategyReason::Listening,
                message: text(),
                last_update_time: time(),
                frontend: Some(frontend),
            }],
            conditions: vec![condition()],
            serving_certificate: Some(ServingCertificateStatus { not_after: time() }),
        }),
    };
    assert_nothing_pruned(documents::CRDS[2], &object);
}

#[test]
fn enums_have_the_values_that_the_schemas_list() {
    let issuer = crds::schema(&documents::one(&format!("deploy/crds/{}", documents::CRDS[2])));
    let strategy = &issuer["properties"]["status"]["properties"]["strategies"]["items"]["properties"];
    assert_eq!(strategy["type"]["enum"], json!(StrategyType::KNOWN));
    assert_eq!(strategy["status"]["enum"], json!(StrategyStatus::KNOWN));
    assert_eq!(strategy["reason"]["enum"], json!(StrategyReason::KNOWN));
    assert_eq!(strategy["frontend"]["properties"]["type"]["enum"], json!(FrontendType::KNOWN));
    for file in &documents::CRDS[..2] {
        let schema = crds::schema(&documents::one(&format!("deploy/crds/{file}")));
        let phase = &schema["properties"]["status"]["properties"]["phase"]["enum"];
        assert_eq!(phase, &json!(AuthenticatorPhase::KNOWN));
    }
}
