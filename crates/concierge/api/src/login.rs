//! `login.concierge.<suffix>/v1alpha1`: the exchange of a token for a credential of the cluster.
//!
//! Tokens and keys are [`SecretString`]s: the `Debug` form of everything here can be logged.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use crate::names;
use pinniped_kube_types::resource::{cluster_resource, null_as_default, open_enum};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_secret::text::SecretString;

/// Asks for a credential of this cluster in exchange for a token; also the answer, in which only the status is filled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenCredentialRequest {
    /// Always `TokenCredentialRequest`; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
    /// Group and version of the installation; may be absent in a request.
    #[serde(default, deserialize_with = "null_as_default")]
    pub api_version: String,
    /// Standard metadata, empty in an answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// The question.
    #[serde(default, deserialize_with = "null_as_default")]
    pub spec: TokenCredentialRequestSpec,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: TokenCredentialRequestStatus,
}

cluster_resource!(TokenCredentialRequest, group: names::GROUP_LOGIN, kind: "TokenCredentialRequest", plural: "tokencredentialrequests");

impl TokenCredentialRequest {
    /// A question.
    pub fn new(suffix: &GroupSuffix, spec: TokenCredentialRequestSpec) -> Self {
        Self {
            kind: Self::KIND.to_owned(),
            api_version: Self::group_version(suffix),
            spec,
            ..Self::default()
        }
    }

    /// An answer: nothing of the question comes back.
    pub fn answer(suffix: &GroupSuffix, status: TokenCredentialRequestStatus) -> Self {
        Self { status, ..Self::new(suffix, TokenCredentialRequestSpec::default()) }
    }
}

/// A token, and who is to judge it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenCredentialRequestSpec {
    /// The token; must not be empty in a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretString>,
    /// The authenticator that judges it.
    #[serde(deserialize_with = "null_as_default")]
    pub authenticator: TypedLocalObjectReference,
    /// The kinds of credential that the client knows how to use; none named means a client certificate. Not in
    /// upstream Pinniped, whose servers ignore it.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub accept_credential_types: Vec<CredentialType>,
}

impl TokenCredentialRequestSpec {
    /// Does the client take a credential of this type?
    pub fn accepts(&self, type_: &CredentialType) -> bool {
        match self.accept_credential_types.as_slice() {
            [] => *type_ == CredentialType::ClientCertificate,
            named => named.contains(type_),
        }
    }
}

open_enum! {
    /// A kind of credential.
    CredentialType {
        /// A client certificate and its key.
        ClientCertificate = "ClientCertificate",
        /// A service account's token, which is to be used with impersonation headers only. Not in upstream Pinniped.
        ServiceAccountToken = "ServiceAccountToken",
    }
}

/// A reference to an object by kind and name, with Kubernetes' `core/v1` wire form: an absent group is `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypedLocalObjectReference {
    /// The object's API group.
    pub api_group: Option<String>,
    /// The object's kind.
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
    /// The object's name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
}

/// Either a credential or a reason why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenCredentialRequestStatus {
    /// The credential, on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<ClusterCredential>,
    /// What to tell the user, on failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whom every request that carries the credential must impersonate; present exactly when the credential is a
    /// token. Not in upstream Pinniped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impersonate: Option<ImpersonatedUser>,
}

/// The user that the holder of a service account's token impersonates: the user who logged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpersonatedUser {
    /// User name, never empty in an answer.
    #[serde(deserialize_with = "null_as_default")]
    pub username: String,
    /// Unique id, if the user has one.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub uid: String,
    /// Groups, sorted and each once.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub groups: Vec<String>,
    /// Further facts about the user, by key.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_as_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A credential of the cluster: a client certificate with its key, or a service account's token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterCredential {
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_timestamp: Option<Time>,
    /// A bearer token.
    #[serde(skip_serializing_if = "SecretString::is_empty", deserialize_with = "null_as_default")]
    pub token: SecretString,
    /// Client certificate, PEM.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "null_as_default")]
    pub client_certificate_data: String,
    /// Its private key, PEM.
    #[serde(skip_serializing_if = "SecretString::is_empty", deserialize_with = "null_as_default")]
    pub client_key_data: SecretString,
}

/// The collection, of which `kubectl get` wants to know; nothing is ever stored, so it is empty.
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
    /// The members.
    #[serde(default, deserialize_with = "null_as_default")]
    pub items: Vec<TokenCredentialRequest>,
}

impl TokenCredentialRequestList {
    /// The empty list at resource version 0.
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
    fn answers_have_the_upstream_bytes() {
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
                pinniped_go_compat::json::to_string(&TokenCredentialRequest::answer(&suffix, status)),
                format!("{head}{tail}")
            );
        }
        assert_eq!(
            pinniped_go_compat::json::to_string(&TokenCredentialRequestList::empty(&suffix)),
            r#"{"kind":"TokenCredentialRequestList","apiVersion":"login.concierge.tuna.io/v1alpha1","metadata":{"resourceVersion":"0"},"items":[]}"#
        );
    }

    #[test]
    fn an_empty_body_is_a_request_without_anything() {
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
    fn an_old_client_takes_certificates_and_nothing_else() {
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
