//! k3s runs kube-controller-manager in its own process, so there is no pod to copy. Its servers are
//! identified by their nodes, and the location of its files is fixed.
//!
//! Upstream does not support such clusters. Here a pod is constructed as RKE2, a related
//! distribution, would create it, and the agent runs beside it. k3s does not create
//! `kube-public/cluster-info` either; its node and the cluster's CA provide the same information.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use pinniped_concierge_api::config::TokenCredentialRequestApiInfo;
use pinniped_go_compat::base64 as gobase64;
use pinniped_kube_types::partial::{Node, Pod};
use serde_json::json;

use super::key_layout::{K3S_CERTIFICATE, K3S_DATA_DIRECTORY, K3S_KEY, K3S_TLS_FOLDER};

/// Label selector of the nodes on which k3s servers run.
pub const SERVER_SELECTOR: &str = "node-role.kubernetes.io/control-plane";

/// Name of the ConfigMap with the cluster's CA, which is in every namespace, and its key.
pub const ROOT_CA: (&str, &str) = ("kube-root-ca.crt", "ca.crt");

/// Annotation in which k3s records its arguments.
const ARGUMENTS: &str = "k3s.io/node-args";

/// Default port of the API server.
const DEFAULT_PORT: u16 = 6443;

/// Information about a cluster that k3s runs.
#[derive(Clone, Debug, PartialEq)]
pub struct K3s {
    /// The constructed pod of kube-controller-manager.
    pub controller_manager: Pod,
    /// Address and CA for clients if there is no `cluster-info`; `None` if the node has no address
    /// or the CA is missing.
    pub info: Option<TokenCredentialRequestApiInfo>,
}

/// Returns the node of a server, preferring one that is not cordoned.
pub fn server(nodes: &[Node]) -> Option<&Node> {
    let of_k3s = |node: &&Node| {
        let version =
            node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|info| &info.kubelet_version);
        version.is_some_and(|version| version.contains("+k3s")) && !name(node).is_empty()
    };
    let cordoned = |node: &Node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    nodes.iter().filter(of_k3s).min_by_key(|node| (cordoned(node), name(node)))
}

/// Derives the information from the server's node and the cluster's CA.
pub fn known(node: &Node, root_ca: Option<&ConfigMap>) -> K3s {
    let arguments = Arguments::of(node);
    // A node's annotation ends up in a pod and in kubeconfigs, so only an absolute path and a port
    // number are accepted.
    let folder = arguments.value(&["data-dir", "d"]).filter(|folder| folder.starts_with('/'));
    let tls = format!("{}/{K3S_TLS_FOLDER}", folder.unwrap_or(K3S_DATA_DIRECTORY));
    let files = [K3S_CERTIFICATE, K3S_KEY];
    let mounts = files
        .map(|file| json!({"name": volume(file), "mountPath": format!("{tls}/{file}"), "readOnly": true}));
    let volumes = files.map(
        |file| json!({"name": volume(file), "hostPath": {"path": format!("{tls}/{file}"), "type": "File"}}),
    );
    let pod = json!({
        "spec": {
            "nodeName": name(node),
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "kube-controller-manager",
                "command": [
                    "kube-controller-manager",
                    format!("--cluster-signing-kube-apiserver-client-cert-file={tls}/{K3S_CERTIFICATE}"),
                    format!("--cluster-signing-kube-apiserver-client-key-file={tls}/{K3S_KEY}"),
                ],
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    });
    let port =
        arguments.value(&["https-listen-port"]).and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
    let ca = root_ca.and_then(|map| map.data.as_ref()?.get(ROOT_CA.1));
    let info = address(node).zip(ca).map(|(address, ca)| TokenCredentialRequestApiInfo {
        server: format!("https://{address}:{port}"),
        certificate_authority_data: gobase64::encode(ca.as_bytes()),
    });
    K3s {
        controller_manager: serde_json::from_value(pod)
            .expect("only texts vary in it, so it is always a pod"),
        info,
    }
}

/// Returns a volume name, which must be a DNS label.
fn volume(file: &str) -> String {
    file.replace('.', "-")
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the node's address in URL notation.
fn address(node: &Node) -> Option<String> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    let ip: std::net::IpAddr = internal.address.parse().ok()?;
    Some(match ip {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    })
}

/// The arguments of k3s; empty if they cannot be parsed.
struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn of(node: &Node) -> Self {
        let text = node.metadata.annotations.as_ref().and_then(|all| all.get(ARGUMENTS));
        let words: Vec<String> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut values = BTreeMap::new();
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix('-') else { continue };
            let flag = flag.strip_prefix('-').unwrap_or(flag);
            match flag.split_once('=') {
                Some((name, value)) => values.insert(name.to_owned(), value.to_owned()),
                // A flag may have no value, so the next word may be another flag.
                None => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => values.insert(flag.to_owned(), value),
                    None => None,
                },
            };
        }
        Self(values)
    }

    fn value(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.0.get(*name)).map(String::as_str).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, version: &str, cordoned: bool, arguments: &str, address: &str) -> Node {
        let value = json!({
            "metadata": {"name": name, "annotations": {ARGUMENTS: arguments}},
            "spec": {"unschedulable": cordoned},
            "status": {
                "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
                "nodeInfo": {
                    "kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "",
                },
            },
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_server_is_identified_by_its_version_and_an_uncordoned_one_is_preferred() {
        let one = |name, version, cordoned| node(name, version, cordoned, "[]", "10.0.0.1");
        let cases = [
            (vec![], None),
            (vec![one("a", "v1.36.3", false)], None),
            (vec![one("a", "v1.36.3+rke2r1", false)], None),
            (vec![one("", "v1.36.3+k3s1", false)], None),
            (vec![one("a", "v1.36.3+k3s1", true)], Some("a")),
            (vec![one("b", "v1.36.3+k3s1", false), one("a", "v1.36.3+k3s1", false)], Some("a")),
            (vec![one("b", "v1.36.3+k3s1", false), one("a", "v1.36.3+k3s1", true)], Some("b")),
        ];
        for (nodes, wanted) in cases {
            assert_eq!(server(&nodes).map(name), wanted, "{nodes:?}");
        }
    }

    #[test]
    fn files_port_and_address_follow_the_arguments() {
        let default = ("/var/lib/rancher/k3s/server/tls", "https://10.0.0.1:6443");
        let cases = [
            ("[]", "10.0.0.1", default),
            ("garbage", "10.0.0.1", default),
            (r#"["server","--https-listen-port","7443"]"#, "10.0.0.1", (default.0, "https://10.0.0.1:7443")),
            (r#"["server","--https-listen-port=7443"]"#, "fd00::1", (default.0, "https://[fd00::1]:7443")),
            (r#"["server","--data-dir","/data"]"#, "10.0.0.1", ("/data/server/tls", default.1)),
            (r#"["server","-d","/data"]"#, "10.0.0.1", ("/data/server/tls", default.1)),
            (r#"["server","--data-dir","--debug"]"#, "10.0.0.1", default),
            (r#"["server","--data-dir","data"]"#, "10.0.0.1", default),
            (r#"["server","--https-listen-port=1@evil.example"]"#, "10.0.0.1", default),
        ];
        let ca = ConfigMap {
            data: Some(BTreeMap::from([("ca.crt".to_owned(), "some CA".to_owned())])),
            ..ConfigMap::default()
        };
        for (arguments, ip, (tls, url)) in cases {
            let k3s = known(&node("n", "v1.36.3+k3s1", false, arguments, ip), Some(&ca));
            let spec = k3s.controller_manager.spec.unwrap();
            let volumes = spec.volumes.unwrap();
            let paths = [0, 1].map(|index| volumes[index]["hostPath"]["path"].as_str().unwrap());
            assert_eq!(paths, [format!("{tls}/client-ca.nochain.crt"), format!("{tls}/client-ca.key")]);
            let info = k3s.info.unwrap();
            assert_eq!(info.server, url, "{arguments}");
            assert_eq!(info.certificate_authority_data, "c29tZSBDQQ==");
        }
    }

    #[test]
    fn clients_get_no_information_without_an_address_or_a_ca() {
        let ca = ConfigMap::default();
        let server = node("n", "v1.36.3+k3s1", false, "[]", "10.0.0.1");
        assert_eq!(known(&server, None).info, None);
        assert_eq!(known(&server, Some(&ca)).info, None);
        let nameless = node("n", "v1.36.3+k3s1", false, "[]", "no-address");
        assert_eq!(known(&nameless, None).info, None);
    }
}
