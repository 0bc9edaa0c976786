//! The API server's address and CA as published in `kube-public/cluster-info`.
//!
//! kubeadm creates that ConfigMap. It contains a kubeconfig without credentials, parsed here as
//! client-go parses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use pinniped_concierge_api::config::TokenCredentialRequestApiInfo;
use pinniped_go_compat::base64;
use serde::Deserialize;

use crate::status_text::StatusText;

/// Namespace and name of the ConfigMap.
const OBJECT: &str = "kube-public/cluster-info";

/// Key of the kubeconfig.
const KEY: &str = "kubeconfig";

/// Reasons why the address and CA are not available, with upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterInfoError {
    /// The ConfigMap does not exist.
    #[error("failed to get {OBJECT} configmap: configmap \"cluster-info\" not found")]
    NotFound,
    /// The ConfigMap could not be read; the text is the API server's.
    #[error("failed to get {OBJECT} configmap: {0}")]
    Get(#[source] StatusText),
    /// The ConfigMap does not contain the information.
    #[error("could not extract Kubernetes API endpoint info from {OBJECT} configmap: {0}")]
    Content(#[from] ContentError),
}

/// Reasons why the ConfigMap does not contain the information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// The key is missing.
    #[error("missing \"{KEY}\" key")]
    NoKey,
    /// The value is not a kubeconfig.
    #[error("key \"{KEY}\" does not contain a valid kubeconfig")]
    Invalid,
    /// The kubeconfig has no clusters.
    #[error("kubeconfig in key \"{KEY}\" does not contain any clusters")]
    NoCluster,
}

/// Returns the address and CA for clients. `url` replaces the address.
///
/// # Errors
///
/// Returns [`ClusterInfoError`], whose text is for the status.
pub fn info(
    found: &Result<Option<Arc<ConfigMap>>, StatusText>,
    url: Option<&str>,
) -> Result<TokenCredentialRequestApiInfo, ClusterInfoError> {
    let config_map = match found {
        Ok(Some(config_map)) => config_map,
        Ok(None) => return Err(ClusterInfoError::NotFound),
        Err(error) => return Err(ClusterInfoError::Get(error.clone())),
    };
    let cluster = cluster(config_map)?;
    let server = url.map_or(cluster.server.unwrap_or_default(), ToOwned::to_owned);
    let certificate_authority_data = cluster.certificate_authority_data.unwrap_or_default();
    Ok(TokenCredentialRequestApiInfo { server, certificate_authority_data })
}

fn cluster(config_map: &ConfigMap) -> Result<Cluster, ContentError> {
    let text = config_map.data.as_ref().and_then(|data| data.get(KEY)).ok_or(ContentError::NoKey)?;
    // Parsed as JSON like in client-go, where a number is not a string.
    let document: Option<serde_json::Value> =
        serde_saphyr::from_str(text).map_err(|_| ContentError::Invalid)?;
    let kubeconfig = match document {
        None | Some(serde_json::Value::Null) => Kubeconfig::default(),
        Some(document @ serde_json::Value::Object(_)) => {
            serde_json::from_value(document).map_err(|_| ContentError::Invalid)?
        }
        Some(_) => return Err(ContentError::Invalid),
    };
    if !kubeconfig.is_supported() {
        return Err(ContentError::Invalid);
    }
    // client-go stores clusters by name.
    let mut named: BTreeMap<String, Cluster> =
        kubeconfig.clusters.unwrap_or_default().into_iter().map(|item| (item.name, item.cluster)).collect();
    // An invalid bundle of any cluster makes the kubeconfig invalid. Go skips line breaks in it.
    for cluster in named.values_mut() {
        let Some(data) = &mut cluster.certificate_authority_data else { continue };
        base64::decode(data.as_bytes()).map_err(|_| ContentError::Invalid)?;
        data.retain(|c| !matches!(c, '\r' | '\n'));
    }
    named.into_values().next().ok_or(ContentError::NoCluster)
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Kubeconfig {
    kind: Option<String>,
    api_version: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
}

impl Kubeconfig {
    /// Returns whether kind and API version are supported. Both are optional, but another kind of
    /// object is an error.
    fn is_supported(&self) -> bool {
        let or = |field: &Option<String>, only: &str| {
            field.as_deref().is_none_or(|text| text.is_empty() || text == only)
        };
        or(&self.kind, "Config") && or(&self.api_version, "v1")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    certificate_authority_data: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str =
        "could not extract Kubernetes API endpoint info from kube-public/cluster-info configmap: ";

    fn published(kubeconfig: &str, url: Option<&str>) -> Result<(String, String), String> {
        let data = BTreeMap::from([(KEY.to_owned(), kubeconfig.to_owned())]);
        let config_map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        let info = info(&Ok(Some(Arc::new(config_map))), url).map_err(|error| error.to_string())?;
        Ok((info.server, info.certificate_authority_data))
    }

    #[test]
    fn the_cluster_is_selected_as_in_client_go() {
        let kubeadm = "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: c29tZSBDQQ==\n    \
                       server: https://10.0.0.1:6443\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\n\
                       preferences: {}\nusers: null\n";
        let found = |server: &str, ca: &str| Ok((server.to_owned(), ca.to_owned()));
        let invalid = || Err(format!("{PREFIX}key \"kubeconfig\" does not contain a valid kubeconfig"));
        let none = || Err(format!("{PREFIX}kubeconfig in key \"kubeconfig\" does not contain any clusters"));
        let cases = [
            (kubeadm, None, found("https://10.0.0.1:6443", "c29tZSBDQQ==")),
            (kubeadm, Some("https://x"), found("https://x", "c29tZSBDQQ==")),
            // JSON is YAML, and kind and version are optional.
            (r#"{"clusters":[{"name":"a","cluster":{"server":"https://a"}}]}"#, None, found("https://a", "")),
            (
                r#"{"clusters":[{"name":"b","cluster":{"server":"https://b"}},{"name":"a","cluster":{"server":"https://a"}}]}"#,
                None,
                found("https://a", ""),
            ),
            (
                "clusters:\n- name: a\n  cluster:\n    server: https://a\n    certificate-authority-data: |\n      c29t\n      ZSBDQQ==\n",
                None,
                found("https://a", "c29tZSBDQQ=="),
            ),
            ("", None, none()),
            ("{}", None, none()),
            ("clusters: []", None, none()),
            ("clusters: null", None, none()),
            ("just words", None, invalid()),
            ("\tx", None, invalid()),
            ("[]", None, invalid()),
            ("kind: Secret\napiVersion: v1", None, invalid()),
            ("kind: Config\napiVersion: v2", None, invalid()),
            ("clusters: {}", None, invalid()),
            (r#"{"clusters":[{"name":"a","cluster":{"server":7}}]}"#, None, invalid()),
            (r#"{"clusters":[{"name":"a","cluster":{"certificate-authority-data":"!"}}]}"#, None, invalid()),
        ];
        for (kubeconfig, url, wanted) in cases {
            assert_eq!(published(kubeconfig, url), wanted, "{kubeconfig}");
        }
    }

    #[test]
    fn a_missing_object_or_key_is_named() {
        let error = |found| info(&found, None).unwrap_err().to_string();
        assert_eq!(
            error(Ok(None)),
            "failed to get kube-public/cluster-info configmap: configmap \"cluster-info\" not found"
        );
        assert_eq!(error(Err("no".into())), "failed to get kube-public/cluster-info configmap: no");
        let other = BTreeMap::from([("other".to_owned(), String::new())]);
        for data in [None, Some(other)] {
            let config_map = Arc::new(ConfigMap { data, ..ConfigMap::default() });
            assert_eq!(error(Ok(Some(config_map))), format!("{PREFIX}missing \"kubeconfig\" key"));
        }
    }
}
