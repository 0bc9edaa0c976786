//! etcd, kube-apiserver and kube-scheduler as programs of the node, kube-controller-manager as a
//! static pod.
//!
//! Flags are kubeadm's (`cmd/kubeadm/app/phases/controlplane`) unless a comment gives a reason for
//! a difference.

use pinniped_test_support::control_plane::AUDIT_POLICY;

use super::{API_PORT, KUBERNETES, LOGS, NODE_IP, POD_RANGE, RUN, SERVICE_RANGE};
use crate::images;

const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEER: &str = "http://127.0.0.1:2380";

pub(super) fn etcd_args() -> Vec<String> {
    vec![
        "--data-dir=/var/lib/etcd".to_owned(),
        // Plain HTTP: only the node's own programs can reach this loopback interface.
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        format!("--listen-peer-urls={ETCD_PEER}"),
        format!("--initial-advertise-peer-urls={ETCD_PEER}"),
        format!("--initial-cluster=default={ETCD_PEER}"),
        // The data is deleted with the node.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

/// Returns the path of the audit policy and its content.
pub(super) fn audit_policy() -> (String, &'static str) {
    (format!("{RUN}/audit-policy.yaml"), AUDIT_POLICY)
}

pub(super) fn apiserver_args() -> Vec<String> {
    let pki = format!("{KUBERNETES}/pki");
    vec![
        format!("--advertise-address={NODE_IP}"),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!("--client-ca-file={pki}/ca.crt"),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--enable-bootstrap-token-auth=true".to_owned(),
        format!("--etcd-servers={ETCD}"),
        format!("--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt"),
        format!("--kubelet-client-key={pki}/apiserver-kubelet-client.key"),
        "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname".to_owned(),
        format!("--proxy-client-cert-file={pki}/front-proxy-client.crt"),
        format!("--proxy-client-key-file={pki}/front-proxy-client.key"),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        format!("--requestheader-client-ca-file={pki}/front-proxy-ca.crt"),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        format!("--secure-port={API_PORT}"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        format!("--service-account-key-file={pki}/sa.pub"),
        format!("--service-account-signing-key-file={pki}/sa.key"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        format!("--tls-cert-file={pki}/apiserver.crt"),
        format!("--tls-private-key-file={pki}/apiserver.key"),
        // Not in kubeadm: the audit log, for tests and users.
        format!("--audit-policy-file={}", audit_policy().0),
        format!("--audit-log-path={LOGS}/audit.log"),
        "--audit-log-format=json".to_owned(),
        "--audit-log-maxsize=1000".to_owned(),
    ]
}

pub(super) fn scheduler_args() -> Vec<String> {
    let config = format!("{KUBERNETES}/scheduler.conf");
    vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        "--bind-address=127.0.0.1".to_owned(),
        // There is one scheduler, which starts before the API server responds: an election would
        // only cost seconds.
        "--leader-elect=false".to_owned(),
    ]
}

/// Returns the static pod. kube-cert-agents need its labels and the files that it mounts. Without
/// an election, it does not restart when a busy machine renews the lease too late.
pub(super) fn controller_manager_pod() -> String {
    let image = images::CONTROLLER_MANAGER;
    let probe = "{host: 127.0.0.1, path: /healthz, port: probe-port, scheme: HTTPS}";
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: kube-controller-manager
  namespace: kube-system
  labels: {{component: kube-controller-manager, tier: control-plane}}
spec:
  hostNetwork: true
  priority: 2000001000
  priorityClassName: system-node-critical
  securityContext: {{seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: kube-controller-manager
    image: {image}
    imagePullPolicy: IfNotPresent
    command:
    - kube-controller-manager
    - --allocate-node-cidrs=true
    - --authentication-kubeconfig=/etc/kubernetes/controller-manager.conf
    - --authorization-kubeconfig=/etc/kubernetes/controller-manager.conf
    - --bind-address=127.0.0.1
    - --client-ca-file=/etc/kubernetes/pki/ca.crt
    - --cluster-cidr={POD_RANGE}
    - --cluster-name=kubernetes
    - --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt
    - --cluster-signing-key-file=/etc/kubernetes/pki/ca.key
    - --controllers=*,bootstrapsigner,tokencleaner
    - --kubeconfig=/etc/kubernetes/controller-manager.conf
    - --leader-elect=false
    - --requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt
    - --root-ca-file=/etc/kubernetes/pki/ca.crt
    - --service-account-private-key-file=/etc/kubernetes/pki/sa.key
    - --service-cluster-ip-range={SERVICE_RANGE}
    - --use-service-account-credentials=true
    - --kube-api-qps=500
    - --kube-api-burst=1000
    ports: [{{name: probe-port, containerPort: 10257, protocol: TCP}}]
    livenessProbe: {{httpGet: {probe}, failureThreshold: 8, initialDelaySeconds: 10, periodSeconds: 10, timeoutSeconds: 15}}
    startupProbe: {{httpGet: {probe}, failureThreshold: 240, periodSeconds: 1, timeoutSeconds: 15}}
    resources: {{requests: {{cpu: 200m}}}}
    volumeMounts:
    - {{name: ca-certs, mountPath: /etc/ssl/certs, readOnly: true}}
    - {{name: flexvolume-dir, mountPath: /usr/libexec/kubernetes/kubelet-plugins/volume/exec}}
    - {{name: k8s-certs, mountPath: /etc/kubernetes/pki, readOnly: true}}
    - {{name: kubeconfig, mountPath: /etc/kubernetes/controller-manager.conf, readOnly: true}}
  volumes:
  - {{name: ca-certs, hostPath: {{path: /etc/ssl/certs, type: DirectoryOrCreate}}}}
  - {{name: flexvolume-dir, hostPath: {{path: /usr/libexec/kubernetes/kubelet-plugins/volume/exec, type: DirectoryOrCreate}}}}
  - {{name: k8s-certs, hostPath: {{path: /etc/kubernetes/pki, type: DirectoryOrCreate}}}}
  - {{name: kubeconfig, hostPath: {{path: /etc/kubernetes/controller-manager.conf, type: FileOrCreate}}}}
"
    )
}
