//! The objects that kubeadm applies to a new cluster: cluster DNS, and the public information about
//! the cluster.

use anyhow::Context as _;

use super::{DNS_IP, pki};
use crate::images;

/// Returns all objects for one `kubectl apply`. `ca` is the CA's certificate in base64.
pub(super) fn manifests(ca: &str) -> anyhow::Result<String> {
    Ok(format!("{}---\n{}", cluster_info(ca)?, dns()))
}

/// `kube-public/cluster-info` with a kubeconfig without user or context, readable by every client
/// (`cmd/kubeadm/app/phases/bootstraptoken/clusterinfo`).
fn cluster_info(ca: &str) -> anyhow::Result<String> {
    let kubeconfig = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
        pki::server_url()
    );
    // JSON is valid YAML, and independent of indentation.
    let kubeconfig = serde_json::to_string(&kubeconfig).context("could not write JSON")?;
    Ok(format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: cluster-info, namespace: kube-public}}
data: {{kubeconfig: {kubeconfig}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: 'kubeadm:bootstrap-signer-clusterinfo', namespace: kube-public}}
rules:
- {{apiGroups: [''], resources: [configmaps], resourceNames: [cluster-info], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: 'kubeadm:bootstrap-signer-clusterinfo', namespace: kube-public}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: 'kubeadm:bootstrap-signer-clusterinfo'}}
subjects:
- {{apiGroup: rbac.authorization.k8s.io, kind: User, name: 'system:anonymous'}}
"
    ))
}

/// CoreDNS as kubeadm deploys it, but with one replica, more frequent probes, and no forwarding:
/// there is no upstream server, so names outside the cluster do not exist.
fn dns() -> String {
    let image = images::COREDNS;
    format!(
        "apiVersion: v1
kind: ServiceAccount
metadata: {{name: coredns, namespace: kube-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: 'system:coredns'}}
rules:
- {{apiGroups: [''], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}}
- {{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: 'system:coredns'}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:coredns'}}
subjects:
- {{kind: ServiceAccount, name: coredns, namespace: kube-system}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: coredns, namespace: kube-system}}
data:
  Corefile: |
    .:53 {{
        errors
        health {{
           lameduck 5s
        }}
        ready
        hosts {{
           # Names of your own: ADDRESS NAME
           fallthrough
        }}
        kubernetes cluster.local in-addr.arpa ip6.arpa {{
           pods insecure
           fallthrough in-addr.arpa ip6.arpa
           ttl 5
        }}
        prometheus :9153
        template ANY ANY {{
           rcode NXDOMAIN
        }}
        reload 2s 1s
        loadbalance
    }}
---
apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {{k8s-app: kube-dns, kubernetes.io/cluster-service: 'true', kubernetes.io/name: CoreDNS}}
spec:
  clusterIP: {DNS_IP}
  selector: {{k8s-app: kube-dns}}
  ports:
  - {{name: dns, port: 53, protocol: UDP, targetPort: 53}}
  - {{name: dns-tcp, port: 53, protocol: TCP, targetPort: 53}}
  - {{name: metrics, port: 9153, protocol: TCP, targetPort: 9153}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  replicas: 1
  strategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: 1}}}}
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      priorityClassName: system-cluster-critical
      serviceAccountName: coredns
      tolerations:
      - {{key: CriticalAddonsOnly, operator: Exists}}
      - {{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}}
      nodeSelector: {{kubernetes.io/os: linux}}
      containers:
      - name: coredns
        image: {image}
        imagePullPolicy: IfNotPresent
        args: [-conf, /etc/coredns/Corefile]
        resources: {{limits: {{memory: 170Mi}}, requests: {{cpu: 100m, memory: 70Mi}}}}
        ports:
        - {{containerPort: 53, name: dns, protocol: UDP}}
        - {{containerPort: 53, name: dns-tcp, protocol: TCP}}
        - {{containerPort: 9153, name: metrics, protocol: TCP}}
        livenessProbe: {{httpGet: {{path: /health, port: 8080}}, initialDelaySeconds: 60, timeoutSeconds: 5}}
        readinessProbe: {{httpGet: {{path: /ready, port: 8181}}, periodSeconds: 1}}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {{add: [NET_BIND_SERVICE], drop: [ALL]}}
          readOnlyRootFilesystem: true
        volumeMounts:
        - {{name: config-volume, mountPath: /etc/coredns, readOnly: true}}
      dnsPolicy: Default
      volumes:
      - name: config-volume
        configMap: {{name: coredns, items: [{{key: Corefile, path: Corefile}}]}}
"
    )
}
