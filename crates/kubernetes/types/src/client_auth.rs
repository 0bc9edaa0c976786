//! `client.authentication.k8s.io/v1beta1`: what kubectl and its credential plugins say to each other.
//!
//! kubectl hands an [`ExecCredential`] with a spec to the plugin in `KUBERNETES_EXEC_INFO`; the plugin prints one with
//! a status. Member order is that of client-go, because cache keys are hashes over these texts.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use pinniped_secret::text::SecretString;

/// The one version that is spoken here.
pub const API_VERSION: &str = "client.authentication.k8s.io/v1beta1";

/// The kind's name.
pub const KIND: &str = "ExecCredential";

/// Environment variable in which kubectl hands over its side.
pub const EXEC_INFO_VARIABLE: &str = "KUBERNETES_EXEC_INFO";

/// A question of kubectl or an answer of a plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecCredential {
    /// Always [`KIND`].
    #[serde(default)]
    pub kind: String,
    /// [`API_VERSION`] in everything we write.
    #[serde(default)]
    pub api_version: String,
    /// What kubectl says.
    #[serde(default)]
    pub spec: ExecCredentialSpec,
    /// What the plugin says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExecCredentialStatus>,
}

impl ExecCredential {
    /// A plugin's answer.
    pub fn answer(status: ExecCredentialStatus) -> Self {
        Self {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            spec: ExecCredentialSpec::default(),
            status: Some(status),
        }
    }
}

/// What kubectl tells a plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecCredentialSpec {
    /// The cluster, if the kubeconfig asks for it to be told (`provideClusterInfo`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// Whether standard input belongs to a person.
    pub interactive: bool,
}

/// A cluster, as its kubeconfig describes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    /// URL of the API server.
    pub server: String,
    /// Name to verify instead of the URL's host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_server_name: String,
    /// Whether the server's certificate goes unchecked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// Base64 of the PEM bundle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_authority_data: String,
    /// Proxy on the way to the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy_url: String,
    /// Whether answers come uncompressed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_compression: bool,
    /// The cluster's `client.authentication.k8s.io/exec` extension, letter by letter; written as `null` when absent.
    pub config: Option<Box<RawValue>>,
}

/// A credential for kubectl: a token, a certificate with its key, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecCredentialStatus {
    /// When it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_timestamp: Option<Time>,
    /// A bearer token.
    #[serde(skip_serializing_if = "SecretString::is_empty")]
    pub token: SecretString,
    /// Client certificate, PEM.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_certificate_data: String,
    /// Its private key, PEM.
    #[serde(skip_serializing_if = "SecretString::is_empty")]
    pub client_key_data: SecretString,
    /// Headers that go with every request, by name. Not in upstream Kubernetes: a kubectl that does not know them drops
    /// them and says nothing, so nobody may write them unless asked to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub request_headers: BTreeMap<String, Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinniped_go_compat::json as gojson;

    #[test]
    fn an_answer_has_the_upstream_bytes() {
        let status = ExecCredentialStatus {
            expiration_timestamp: Some(Time("2026-11-21T10:00:00Z".parse().unwrap())),
            token: "a<b".into(),
            ..ExecCredentialStatus::default()
        };
        assert_eq!(
            gojson::to_string(&ExecCredential::answer(status)),
            r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":false},"status":{"expirationTimestamp":"2026-11-21T10:00:00Z","token":"a\u003cb"}}"#
        );
    }

    #[test]
    fn headers_stand_behind_the_credential() {
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
    fn cluster_info_keeps_its_extension_letter_by_letter() {
        let text = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1",
            "spec":{"cluster":{"server":"https://x","certificate-authority-data":"AAAA","config":{"z": 1.0, "a": "&"}},"interactive":true}}"#;
        let parsed: ExecCredential = serde_json::from_str(text).unwrap();
        assert_eq!(
            gojson::to_string(&parsed.spec.cluster.unwrap()),
            r#"{"server":"https://x","certificate-authority-data":"AAAA","config":{"z":1.0,"a":"\u0026"}}"#
        );
    }

    #[test]
    fn an_absent_extension_is_written_as_null() {
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
        assert!(!format!("{:?}", ExecCredential::answer(status)).contains("hunter"));
    }
}
