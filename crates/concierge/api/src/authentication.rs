//! The `authentication.concierge.<suffix>/v1alpha1` API: the authenticators that validate users'
//! tokens.
//!
//! This module has the wire types only. `pinniped-concierge-authentication` authenticates tokens,
//! and the controllers decide the status of each authenticator.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::names;
use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;

/// An authenticator that validates tokens by sending a `TokenReview` to a webhook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookAuthenticator {
    /// Always `WebhookAuthenticator`.
    #[serde(default)]
    pub kind: String,
    /// Group and version of the installation.
    #[serde(default)]
    pub api_version: String,
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The webhook's endpoint and TLS settings.
    pub spec: WebhookAuthenticatorSpec,
    /// The observed state: whether the authenticator can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AuthenticatorStatus>,
}

cluster_resource!(WebhookAuthenticator, group: names::GROUP_AUTHENTICATION, kind: "WebhookAuthenticator", plural: "webhookauthenticators");

impl WebhookAuthenticator {
    /// Returns an object without a status.
    pub fn new(suffix: &GroupSuffix, name: impl Into<String>, spec: WebhookAuthenticatorSpec) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            api_version: Self::group_version(suffix),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec,
            status: None,
        }
    }
}

/// The endpoint and the TLS settings of a webhook that serves `TokenReview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookAuthenticatorSpec {
    /// `https` URL of the webhook.
    pub endpoint: String,
    /// The CA bundle to trust when connecting; if absent, the system's roots are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// An authenticator that validates JSON Web Tokens of one issuer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtAuthenticator {
    /// Always `JWTAuthenticator`.
    #[serde(default)]
    pub kind: String,
    /// Group and version of the installation.
    #[serde(default)]
    pub api_version: String,
    /// Standard metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The issuer, and the mapping of its claims to an identity.
    pub spec: JwtAuthenticatorSpec,
    /// The observed state: whether the authenticator can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AuthenticatorStatus>,
}

cluster_resource!(JwtAuthenticator, group: names::GROUP_AUTHENTICATION, kind: "JWTAuthenticator", plural: "jwtauthenticators");

impl JwtAuthenticator {
    /// Returns an object without a status.
    pub fn new(suffix: &GroupSuffix, name: impl Into<String>, spec: JwtAuthenticatorSpec) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            api_version: Self::group_version(suffix),
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec,
            status: None,
        }
    }
}

/// An issuer of tokens, and the mapping of its claims to an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtAuthenticatorSpec {
    /// `https` URL of the issuer, compared byte by byte.
    pub issuer: String,
    /// The audience that a token must contain.
    pub audience: String,
    /// The claims that contain the identity.
    #[serde(default, skip_serializing_if = "JwtTokenClaims::is_empty")]
    pub claims: JwtTokenClaims,
    /// Validation rules for the claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    /// Validation rules for the identity that results from the claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub user_validation_rules: Vec<UserValidationRule>,
    /// The CA bundle to trust when connecting to the issuer; if absent, the system's roots are
    /// trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// The claims that contain the identity. An empty string means absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JwtTokenClaims {
    /// Name of the claim that contains the groups.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub groups: String,
    /// CEL expression that returns the groups.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub groups_expression: String,
    /// Name of the claim that contains the username.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// CEL expression that returns the username.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username_expression: String,
    /// Extra attributes.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub extra: Vec<ExtraMapping>,
}

impl JwtTokenClaims {
    /// Returns whether no member is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One extra attribute of an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraMapping {
    /// Key of the attribute, a path under a domain.
    pub key: String,
    /// CEL expression that returns the values of the attribute.
    pub value_expression: String,
}

/// A validation rule for the claims: either a claim with a required value, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimValidationRule {
    /// Name of the required claim.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// The value that the claim must have.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub required_value: String,
    /// CEL expression that must evaluate to true.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expression: String,
    /// Error message to use when the expression evaluates to false.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A validation rule for the identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserValidationRule {
    /// CEL expression that must evaluate to true.
    pub expression: String,
    /// Error message to use when the expression evaluates to false.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The CA bundle to trust in a TLS connection: at most one of the two members is set. If neither is
/// set, the system's roots are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// PEM bundle, encoded as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Reference to an object that contains a PEM bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data_source: Option<CertificateAuthorityDataSource>,
}

/// Reference to a key of a Secret or a ConfigMap in the Concierge's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateAuthorityDataSource {
    /// `Secret` or `ConfigMap`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Key in the data of the object.
    pub key: String,
}

/// The observed state of an authenticator. Both kinds have the same status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthenticatorStatus {
    /// The latest observations, one per condition type.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// Summary of the conditions. The API server sets the default `Pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<AuthenticatorPhase>,
}

open_enum! {
    /// Summary of an authenticator's conditions.
    AuthenticatorPhase {
        /// No controller has processed the object yet.
        Pending = "Pending",
        /// Every condition is true.
        Ready = "Ready",
        /// At least one condition is not true.
        Error = "Error",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_members_stay_absent() {
        let minimal = json!({
            "kind": "JWTAuthenticator", "apiVersion": "authentication.concierge.pinniped.dev/v1alpha1",
            "metadata": {"name": "x"}, "spec": {"issuer": "https://i", "audience": "a"}
        });
        let parsed: JwtAuthenticator = serde_json::from_value(minimal.clone()).unwrap();
        assert_eq!(serde_json::to_value(&parsed).unwrap(), minimal);

        let spec = WebhookAuthenticatorSpec { endpoint: "https://w".into(), tls: None };
        let webhook = WebhookAuthenticator::new(&GroupSuffix::default(), "w", spec);
        assert_eq!(
            pinniped_go_compat::json::to_string(&webhook),
            r#"{"kind":"WebhookAuthenticator","apiVersion":"authentication.concierge.pinniped.dev/v1alpha1","metadata":{"name":"w"},"spec":{"endpoint":"https://w"}}"#
        );
    }

    #[test]
    fn a_status_with_null_conditions_is_read() {
        let status: AuthenticatorStatus =
            serde_json::from_value(json!({"phase": "Pending", "conditions": null})).unwrap();
        assert_eq!(status.phase, Some(AuthenticatorPhase::Pending));
        assert!(status.conditions.is_empty());
    }
}
