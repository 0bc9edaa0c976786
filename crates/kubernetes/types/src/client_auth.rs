//! Types of `client.authentication.k8s.io/v1beta1`, the API between kubectl and its credential
//! plugins.
//!
//! kubectl passes an [`ExecCredential`] with a spec to the plugin in `KUBERNETES_EXEC_INFO`. The
//! plugin prints one with a status. The order of the members is that of client-go, because cache
//! keys are hashes over the serialized text.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use pinniped_secret::text::SecretString;

/// The only supported version of the API.
pub const API_VERSION: &str = "client.authentication.k8s.io/v1beta1";

/// The name of the kind.
pub const KIND: &str = "ExecCredential";

/// The environment variable in which kubectl passes the spec to a plugin.
pub const EXEC_INFO_VARIABLE: &str = "KUBERNETES_EXEC_INFO";

/// A request of kubectl (with a spec) or the response of a plugin (with a status).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecCredential {
    /// Always [`KIND`].
    #[serde(default)]
    pub kind: String,
    /// The API version; [`API_VERSION`] in every object that this crate writes.
    #[serde(default)]
    pub api_version: String,
    /// The input of the plugin, set by kubectl.
    #[serde(default)]
    pub spec: ExecCredentialSpec,
    /// The output of the plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExecCredentialStatus>,
}

impl ExecCredential {
    /// Returns the response of a plugin with this status.
    pub fn with_status(status: ExecCredentialStatus) -> Self {
        Self {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            spec: ExecCredentialSpec::default(),
            status: Some(status),
        }
    }
}

/// The input that kubectl passes to a plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecCredentialSpec {
    /// The cluster; set if the kubeconfig requests it (`provideClusterInfo`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Whether standard input is an interactive terminal that the plugin may read.
    pub interactive: bool,
}

/// A cluster as described in a kubeconfig.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    /// URL of the API server.
    pub server: String,
    /// The name to verify in the server certificate instead of the host of the URL.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_server_name: String,
    /// Whether verification of the server certificate is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// The CA bundle: PEM, base64-encoded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority_data: String,
    /// URL of the proxy to the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy_url: String,
    /// Whether response compression is disabled.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_compression: bool,
    /// The cluster's `client.authentication.k8s.io/exec` extension, byte for byte; serialized as
    /// `null` when absent.
    pub config: Option<Box<RawValue>>,
}

/// A credential for kubectl: a token, a certificate with its key, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecCredentialStatus {
    /// The time at which the credential expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_timestamp: Option<Time>,
    /// A bearer token.
    #[serde(skip_serializing_if = "SecretString::is_empty")]
    pub token: SecretString,
    /// The client certificate, PEM.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate_data: String,
    /// The private key of the client certificate, PEM.
    #[serde(skip_serializing_if = "SecretString::is_empty")]
    pub client_key_data: SecretString,
    /// Additional header fields for every request, by name. This is not part of upstream
    /// Kubernetes: other versions of kubectl silently drop the member, so set it only on explicit
    /// request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub request_headers: BTreeMap<String, Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinniped_go_compat::json as gojson;

    #[test]
    fn the_response_has_the_bytes_of_upstream() {
        let status = ExecCredentialStatus {
            expiration_timestamp: Some(Time("2026-11-21T10:00:00Z".parse().unwrap())),
            token: "a<b".into(),
            ..ExecCredentialStatus::default()
        };
        assert_eq!(
            gojson::to_string(&ExecCredential::with_status(status)),
            r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":false},"status":{"expirationTimestamp":"2026-11-21T10:00:00Z","token":"a\u003cb"}}"#
        );
    }

    #[test]
    fn request_headers_follow_the_credential() {
        let status = ExecCredentialStatus {
            token: "t".into(),
            request_headers: [("Impersonate-Group".to_owned(), vec!["a".to_owned(), "b".to_owned()])].into(),
            ..ExecCredentialStatus::default()
        };
        let text = gojson::to_string(&status);
        assert_eq!(text, r#"{"token":"t","requestHeaders":{"Impersonate-Group":["a","b"]}}"#);
        assert_eq!(serde_json::from_str::<ExecCredentialStatus>(&text).unwrap(), status);
    }

    #[test]
    fn cluster_info_keeps_its_extension_byte_for_byte() {
        let text = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1",
            "spec":{"cluster":{"server":"https://x","certificate-authority-data":"AAAA","config":{"z": 1.0, "a": "&"}},"interactive":true}}"#;
        let parsed: ExecCredential = serde_json::from_str(text).unwrap();
        assert_eq!(
            gojson::to_string(&parsed.spec.cluster.unwrap()),
            r#"{"server":"https://x","certificate-authority-data":"AAAA","config":{"z":1.0,"a":"\u0026"}}"#
        );
    }

    #[test]
    fn an_absent_extension_is_serialized_as_null() {
        let cluster = Cluster {
            server: "https://x".into(),
            certificate_authority_data: "AAAA".into(),
            ..Cluster::default()
        };
        assert_eq!(
            gojson::to_string(&cluster),
            r#"{"server":"https://x","certificate-authority-data":"AAAA","config":null}"#
        );
        let read: Cluster = serde_json::from_str(r#"{"server":"https://x","config":null}"#).unwrap();
        assert!(read.config.is_none());
    }

    #[test]
    fn debug_output_has_no_token_and_no_key() {
        let status = ExecCredentialStatus {
            token: "hunter2".into(),
            client_key_data: "hunter3".into(),
            ..ExecCredentialStatus::default()
        };
        assert!(!format!("{:?}", ExecCredential::with_status(status)).contains("hunter"));
    }
}
