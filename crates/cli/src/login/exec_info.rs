//! The cluster information that kubectl passes to an exec plugin.

use pinniped_kube_types::client_auth::{API_VERSION, Cluster, ExecCredential, KIND};

/// Returns the cluster in a `KUBERNETES_EXEC_INFO` value.
///
/// Only v1beta1 is supported; other or invalid values are ignored. The result is only used for
/// cache keys, so an ignored value costs at most one exchange.
pub fn cluster(info: Option<&str>) -> Option<Cluster> {
    let credential: ExecCredential = serde_json::from_str(info?).ok()?;
    if credential.kind != KIND || credential.api_version != API_VERSION {
        return None;
    }
    credential.spec.cluster
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_v1beta1_with_a_cluster_adds_cluster_information() {
        let info = |version: &str, spec: &str| {
            format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/{version}","spec":{spec}}}"#
            )
        };
        let with_cluster = r#"{"interactive":false,"cluster":{"server":"https://x"}}"#;
        assert_eq!(cluster(Some(&info("v1beta1", with_cluster))).unwrap().server, "https://x");
        for bad in [
            Some(info("v1", with_cluster)),
            Some(info("v1beta1", "{}")),
            Some(String::new()),
            Some("{".into()),
            None,
        ] {
            assert!(cluster(bad.as_deref()).is_none(), "{bad:?}");
        }
    }
}
