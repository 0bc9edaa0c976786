//! Configuration files of kubelet, kube-proxy and CoreDNS, and their flags.

use super::{CONTAINERD_SOCKET, DNS_IP, KUBERNETES, NODE_IP, POD_RANGE, RUN};

/// The folder of kubelet's static pods.
pub(super) const MANIFESTS: &str = "/etc/kubernetes/manifests";

pub(super) fn kubelet_args(node_name: &str) -> Vec<String> {
    vec![
        format!("--config={RUN}/kubelet.yaml"),
        format!("--kubeconfig={KUBERNETES}/kubelet.conf"),
        format!("--hostname-override={node_name}"),
        format!("--node-ip={NODE_IP}"),
        "--v=2".to_owned(),
    ]
}

/// `cgroup` is the node's own cgroup below the machine's, so that pods of several nodes are
/// separate.
pub(super) fn kubelet(cgroup: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true, cacheTTL: 10s}}
  x509: {{clientCAFile: {KUBERNETES}/pki/ca.crt}}
authorization: {{mode: Webhook}}
tlsCertFile: {KUBERNETES}/pki/kubelet.crt
tlsPrivateKeyFile: {KUBERNETES}/pki/kubelet.key
containerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
# Lower than the supervisor's would need CAP_SYS_RESOURCE, which not every root has.
oomScoreAdj: 0
staticPodPath: {MANIFESTS}
clusterDNS: [{DNS_IP}]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
# The machine's disk is not the node's to judge.
evictionHard: {{memory.available: 50Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}}
imageGCHighThresholdPercent: 100
"
    )
}

pub(super) fn kube_proxy(node_name: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: {POD_RANGE}
hostnameOverride: {node_name}
oomScoreAdj: 0
clientConnection: {{kubeconfig: {KUBERNETES}/kube-proxy.conf}}
metricsBindAddress: 127.0.0.1:10249
# These belong to the machine, not to the network namespace.
conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"
    )
}
