//! `authentication.concierge.<suffix>/v1alpha1`: who may judge a user's token.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::names;
use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;

/// Tokens are judged by a webhook that answers `TokenReview`.
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
    /// The webhook.
    pub spec: WebhookAuthenticatorSpec,
    /// Whether it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AuthenticatorStatus>,
}

cluster_resource!(WebhookAuthenticator, group: names::GROUP_AUTHENTICATION, kind: "WebhookAuthenticator", plural: "webhookauthenticators");

impl WebhookAuthenticator {
    /// An object without a status.
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

/// A webhook that answers `TokenReview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookAuthenticatorSpec {
    /// Its `https` URL.
    pub endpoint: String,
    /// What to trust when connecting; absent means the system's roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// Tokens are JSON Web Tokens of one issuer.
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
    /// The issuer, and how its claims become an identity.
    pub spec: JwtAuthenticatorSpec,
    /// Whether it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AuthenticatorStatus>,
}

cluster_resource!(JwtAuthenticator, group: names::GROUP_AUTHENTICATION, kind: "JWTAuthenticator", plural: "jwtauthenticators");

impl JwtAuthenticator {
    /// An object without a status.
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

/// An issuer of tokens, and how its claims become an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtAuthenticatorSpec {
    /// The issuer's `https` URL, compared letter by letter.
    pub issuer: String,
    /// The audience that tokens must be meant for.
    pub audience: String,
    /// Which claims hold the identity.
    #[serde(default, skip_serializing_if = "JwtTokenClaims::is_empty")]
    pub claims: JwtTokenClaims,
    /// Rules on the claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    /// Rules on the identity made of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub user_validation_rules: Vec<UserValidationRule>,
    /// What to trust when connecting to the issuer; absent means the system's roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
}

/// Which claims hold the identity. Empty strings mean absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JwtTokenClaims {
    /// Claim with the groups.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub groups: String,
    /// CEL expression that gives the groups.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub groups_expression: String,
    /// Claim with the user name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// CEL expression that gives the user name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username_expression: String,
    /// Extra attributes.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub extra: Vec<ExtraMapping>,
}

impl JwtTokenClaims {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One extra attribute of an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraMapping {
    /// Its key, a path under a domain.
    pub key: String,
    /// CEL expression that gives its values.
    pub value_expression: String,
}

/// One rule on the claims: either a claim with a value, or an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimValidationRule {
    /// Name of a claim that must be there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// The value it must have.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub required_value: String,
    /// CEL expression that must be true.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expression: String,
    /// What to say when it is not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One rule on the identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserValidationRule {
    /// CEL expression that must be true.
    pub expression: String,
    /// What to say when it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What to trust in a TLS connection: one of the two members, or neither for the system's roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// Base64 of a PEM bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    /// Where a PEM bundle lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data_source: Option<CertificateAuthorityDataSource>,
}

/// A key of a Secret or a ConfigMap in the Concierge's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateAuthorityDataSource {
    /// `Secret` or `ConfigMap`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Key in its data.
    pub key: String,
}

/// Whether an authenticator can be used. Both kinds have the same status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthenticatorStatus {
    /// Observations, one a type.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub conditions: Vec<Condition>,
    /// Their sum. The API server fills in `Pending`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<AuthenticatorPhase>,
}

open_enum! {
    /// The sum of an authenticator's conditions.
    AuthenticatorPhase {
        /// Nobody has looked yet.
        Pending = "Pending",
        /// Every condition is true.
        Ready = "Ready",
        /// Some condition is not.
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
    fn a_status_may_be_half_written() {
        let status: AuthenticatorStatus =
            serde_json::from_value(json!({"phase": "Pending", "conditions": null})).unwrap();
        assert_eq!(status.phase, Some(AuthenticatorPhase::Pending));
        assert!(status.conditions.is_empty());
    }
}
