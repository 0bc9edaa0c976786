//! The `login.concierge.<suffix>/v1alpha1` API: the exchange of a token for a credential of the
//! cluster.
//!
//! Tokens and keys are [`SecretString`]s, so the `Debug` output of every type in this module can be
//! logged.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::names;
use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_secret::text::SecretString;

/// Requests a credential of this cluster in exchange for a token. The response has the same type
/// with only the status filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCredentialRequest {
    /// Always `TokenCredentialRequest`; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
    /// Group and version of the installation; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub api_version: String,
    /// Standard metadata, empty in a response.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// The token, set in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub spec: TokenCredentialRequestSpec,
    /// The credential or an error message, set in a response.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: TokenCredentialRequestStatus,
}

cluster_resource!(TokenCredentialRequest, group: names::GROUP_LOGIN, kind: "TokenCredentialRequest", plural: "tokencredentialrequests");

impl TokenCredentialRequest {
    /// Returns a request.
    pub fn new(suffix: &GroupSuffix, spec: TokenCredentialRequestSpec) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            api_version: Self::group_version(suffix),
            spec,
            ..Self::default()
        }
    }

    /// Returns a response, which repeats nothing of the request.
    pub fn response(suffix: &GroupSuffix, status: TokenCredentialRequestStatus) -> Self {
        Self { status, ..Self::new(suffix, TokenCredentialRequestSpec::default()) }
    }
}

/// A token, and the authenticator that validates it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenCredentialRequestSpec {
    /// The token; must not be empty in a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretString>,
    /// The authenticator that validates the token.
    #[serde(deserialize_with = "null_as_default")]
    pub authenticator: TypedLocalObjectReference,
    /// The credential types that the client supports; if empty, client certificates only. Not in
    /// upstream Pinniped, whose servers ignore it.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub accept_credential_types: Vec<CredentialType>,
}

impl TokenCredentialRequestSpec {
    /// Returns whether the client accepts a credential of this type.
    pub fn accepts(&self, type_: &CredentialType) -> bool {
        match self.accept_credential_types.as_slice() {
            [] => *type_ == CredentialType::ClientCertificate,
            named => named.contains(type_),
        }
    }
}

open_enum! {
    /// The type of a credential.
    CredentialType {
        /// A client certificate and its private key.
        ClientCertificate = "ClientCertificate",
        /// A service account token, to be used only with impersonation headers. Not in upstream
        /// Pinniped.
        ServiceAccountToken = "ServiceAccountToken",
    }
}

/// A reference to an object by kind and name in the wire format of Kubernetes' `core/v1`: an absent
/// group is `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypedLocalObjectReference {
    /// API group of the object.
    pub api_group: Option<String>,
    /// Kind of the object.
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
    /// Name of the object.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
}

/// Either a credential, or a message that explains why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenCredentialRequestStatus {
    /// The credential, set on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<ClusterCredential>,
    /// Error message for the user, set on failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The user that every request with the credential must impersonate; present if and only if the
    /// credential is a token. Not in upstream Pinniped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonate: Option<ImpersonatedUser>,
}

/// The user that a client with a service account token impersonates: the user who logged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpersonatedUser {
    /// Username, never empty in a response.
    #[serde(deserialize_with = "null_as_default")]
    pub username: String,
    /// Unique identifier, if the user has one.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub uid: String,
    /// Groups, sorted and without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub groups: Vec<String>,
    /// Extra attributes by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential of the cluster: either a client certificate with its private key, or a service
/// account token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterCredential {
    /// Expiration time of the credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_timestamp: Option<Time>,
    /// A bearer token.
    #[serde(skip_serializing_if = "SecretString::is_empty", deserialize_with = "null_as_default")]
    pub token: SecretString,
    /// Client certificate as PEM.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub client_certificate_data: String,
    /// Private key of the client certificate as PEM.
    #[serde(skip_serializing_if = "SecretString::is_empty", deserialize_with = "null_as_default")]
    pub client_key_data: SecretString,
}

/// A list of `TokenCredentialRequest` objects for `kubectl get`, always empty because no object is
/// stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCredentialRequestList {
    /// Always `TokenCredentialRequestList`.
    #[serde(default)]
    pub kind: String,
    /// Group and version of the installation.
    #[serde(default)]
    pub api_version: String,
    /// Standard metadata of lists.
    #[serde(default)]
    pub metadata: ListMeta,
    /// The items of the list.
    #[serde(default, deserialize_with = "null_as_default")]
    pub items: Vec<TokenCredentialRequest>,
}

impl TokenCredentialRequestList {
    /// Returns the empty list at resource version 0.
    pub fn empty(suffix: &GroupSuffix) -> Self {
        Self {
            kind: "TokenCredentialRequestList".to_owned(),
            api_version: TokenCredentialRequest::group_version(suffix),
            metadata: ListMeta { resource_version: Some("0".to_owned()), ..ListMeta::default() },
            items: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential() -> ClusterCredential {
        ClusterCredential {
            expiration_timestamp: Some(Time("2026-11-21T10:00:00.75Z".parse().unwrap())),
            client_certificate_data: "CERT\n".into(),
            client_key_data: "KEY\n".into(),
            ..ClusterCredential::default()
        }
    }

    #[test]
    fn responses_have_the_upstream_bytes() {
        let suffix = GroupSuffix::parse("tuna.io").unwrap();
        let head = r#"{"kind":"TokenCredentialRequest","apiVersion":"login.concierge.tuna.io/v1alpha1","metadata":{},"spec":{"authenticator":{"apiGroup":null,"kind":"","name":""}},"#;
        for (status, tail) in [
            (
                TokenCredentialRequestStatus {
                    credential: None,
                    message: Some("authentication failed".into()),
                    impersonate: None,
                },
                r#""status":{"message":"authentication failed"}}"#,
            ),
            (
                TokenCredentialRequestStatus {
                    credential: Some(credential()),
                    ..TokenCredentialRequestStatus::default()
                },
                r#""status":{"credential":{"expirationTimestamp":"2026-11-21T10:00:00Z","clientCertificateData":"CERT\n","clientKeyData":"KEY\n"}}}"#,
            ),
        ] {
            assert_eq!(
                pinniped_go_compat::json::to_string(&TokenCredentialRequest::response(&suffix, status)),
                format!("{head}{tail}")
            );
        }
        assert_eq!(
            pinniped_go_compat::json::to_string(&TokenCredentialRequestList::empty(&suffix)),
            r#"{"kind":"TokenCredentialRequestList","apiVersion":"login.concierge.tuna.io/v1alpha1","metadata":{"resourceVersion":"0"},"items":[]}"#
        );
    }

    #[test]
    fn an_empty_body_is_an_empty_request() {
        let request: TokenCredentialRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request, TokenCredentialRequest::default());
    }

    #[test]
    fn null_means_absent_as_it_does_in_go() {
        for body in [
            r#"{"kind":null,"apiVersion":null,"metadata":null,"spec":null,"status":null}"#,
            r#"{"spec":{"token":null,"authenticator":null},"status":{"credential":null,"message":null}}"#,
            r#"{"metadata":{"creationTimestamp":null},"spec":{"authenticator":{"apiGroup":null,"kind":null,"name":null}}}"#,
        ] {
            assert_eq!(
                serde_json::from_str::<TokenCredentialRequest>(body).unwrap(),
                TokenCredentialRequest::default(),
                "{body}"
            );
        }
    }

    #[test]
    fn a_client_that_names_no_type_accepts_only_certificates() {
        let old = TokenCredentialRequestSpec::default();
        assert!(old.accepts(&CredentialType::ClientCertificate));
        assert!(!old.accepts(&CredentialType::ServiceAccountToken));
        let new: TokenCredentialRequestSpec =
            serde_json::from_str(r#"{"acceptCredentialTypes":["ServiceAccountToken","Passkey"]}"#).unwrap();
        assert!(new.accepts(&CredentialType::ServiceAccountToken));
        assert!(!new.accepts(&CredentialType::ClientCertificate));
        assert!(!pinniped_go_compat::json::to_string(&old).contains("accept"), "upstream's bytes");
    }

    #[test]
    fn debug_output_has_no_token_and_no_key() {
        let spec = TokenCredentialRequestSpec {
            token: Some("hunter2".into()),
            ..TokenCredentialRequestSpec::default()
        };
        let mut request = TokenCredentialRequest::new(&GroupSuffix::default(), spec);
        request.status.credential = Some(ClusterCredential {
            token: "hunter3".into(),
            client_key_data: "hunter4".into(),
            ..credential()
        });
        let debug = format!("{request:?} {request:#?}");
        assert!(!debug.contains("hunter"), "{debug}");
        assert!(debug.contains("[redacted]"));
    }
}
