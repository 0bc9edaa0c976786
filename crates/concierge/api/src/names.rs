//! Every label, annotation and well-known name that more than one program must agree on, once.
//!
//! API groups are given for the default suffix; see [`GroupSuffix::replace`](pinniped_kube_types::suffix::GroupSuffix::replace).
//! Labels, annotations and reserved keys below never follow the suffix. Names that an installation may choose (those
//! of its `pinniped.yaml`) are not here, except for their parts.

/// API group of `TokenCredentialRequest`.
pub const GROUP_LOGIN: &str = "login.concierge.pinniped.dev";
/// API group of `WhoAmIRequest`.
pub const GROUP_IDENTITY: &str = "identity.concierge.pinniped.dev";
/// API group of the authenticators.
pub const GROUP_AUTHENTICATION: &str = "authentication.concierge.pinniped.dev";
/// API group of the `CredentialIssuer`.
pub const GROUP_CONFIG: &str = "config.concierge.pinniped.dev";
/// Version of all four groups.
pub const VERSION: &str = "v1alpha1";

/// Category of every kind, as in `kubectl get pinniped`.
pub const CATEGORY: &str = "pinniped";
/// Categories of the authenticators beside [`CATEGORY`].
pub const CATEGORIES_AUTHENTICATOR: [&str; 2] = ["pinniped-authenticator", "pinniped-authenticators"];

/// Name of the `APIService` for a group of the aggregated API; `group` is the installation's name of it.
pub fn api_service(group: &str) -> String {
    format!("{VERSION}.{group}")
}

/// Label of every object of an installation; its value is the installation's name.
pub const LABEL_APP: &str = "app";
/// Label of the Concierge's pods, by which the Services find them.
pub const LABEL_DEPLOYMENT: &str = "deployment.pinniped.dev";
/// Value of [`LABEL_DEPLOYMENT`].
pub const LABEL_DEPLOYMENT_CONCIERGE: &str = "concierge";
/// Label of the agent's pods.
pub const LABEL_KUBE_CERT_AGENT: &str = "kube-cert-agent.pinniped.dev";
/// Value of [`LABEL_KUBE_CERT_AGENT`]; any pod that has it is trusted to answer `print`.
pub const LABEL_KUBE_CERT_AGENT_VALUE: &str = "v3";
/// Value of [`LABEL_KUBE_CERT_AGENT`] on pods of long ago, which are removed.
pub const LABEL_KUBE_CERT_AGENT_LEGACY_VALUE: &str = "true";

/// Annotation on the proxy's Services: which annotations are ours, a JSON array of keys.
pub const ANNOTATION_BOOKKEEPING_ANNOTATIONS: &str = "credentialissuer.pinniped.dev/annotation-keys";
/// Annotation on the proxy's Services: which labels are ours, a JSON array of keys.
pub const ANNOTATION_BOOKKEEPING_LABELS: &str = "credentialissuer.pinniped.dev/label-keys";
/// Annotation of the shipped `CredentialIssuer`'s Service: how long AWS keeps an idle connection, in seconds.
pub const ANNOTATION_AWS_IDLE_TIMEOUT: &str =
    "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout";
/// Annotation of the impersonation proxy's service account.
pub const ANNOTATION_ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Label of everything that is made for an identity: the first half of its digest.
pub const LABEL_IMPERSONATION_SUBJECT: &str = "concierge.pinniped.dev/impersonation-subject";
/// Type of the Secrets that revoke a service account token by going away.
pub const SECRET_TYPE_BOUND_TOKEN: &str = "concierge.pinniped.dev/bound-token";
/// Annotation of such a Secret: when its token ends.
pub const ANNOTATION_EXPIRES_AT: &str = "concierge.pinniped.dev/expires-at";
/// Annotation of an identity's service account: about when it was last used to log in.
pub const ANNOTATION_LAST_USED: &str = "concierge.pinniped.dev/last-used";
/// Annotation of an identity's service account: who it is, where the configuration lets people be named.
pub const ANNOTATION_USERNAME: &str = "concierge.pinniped.dev/username";

/// Labels that mark a node of the control plane, whatever their value.
pub const NODE_LABELS_CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Older label that names a node's role.
pub const NODE_LABEL_ROLE: &str = "kubernetes.io/node-role";
/// Values of [`NODE_LABEL_ROLE`] that mark a node of the control plane.
pub const NODE_ROLES_CONTROL_PLANE: [&str; 2] = ["control-plane", "master"];

/// What the impersonation proxy's decisions end with, so that a user knows who refused.
pub const IMPERSONATION_PROXY_DECISION: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";
/// Extra keys that end in this are the impersonation proxy's own; nobody may bring them along.
pub const RESERVED_EXTRA_SUFFIX: &str = ".impersonation-proxy.concierge.pinniped.dev";
/// Extra key under which a nested impersonation keeps who really asked.
pub const EXTRA_ORIGINAL_USER_INFO: &str = "original-user-info.impersonation-proxy.concierge.pinniped.dev";
/// Extra key that tells which credential was used.
pub const EXTRA_CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Extra key for the node of a pod-bound service account token.
pub const EXTRA_NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Common name of the CA for the aggregated API's serving certificate.
pub const CA_AGGREGATION: &str = "Pinniped Aggregation CA";
/// Common name of the CA for the impersonation proxy's generated serving certificate.
pub const CA_IMPERSONATION_SERVING: &str = "Pinniped Impersonation Proxy Serving CA";
/// Common name of the CA for client certificates that the impersonation proxy accepts.
pub const CA_IMPERSONATION_SIGNER: &str = "Pinniped Impersonation Proxy Signer CA";
/// Common name of the CA for the local user authenticator's serving certificate.
pub const CA_LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator CA";

/// Holder of the aggregated API's serving certificate, as it is called in messages.
pub const HOLDER_SERVING: &str = "concierge-serving-cert";
/// Holder of the impersonation proxy's serving certificate.
pub const HOLDER_IMPERSONATION_SERVING: &str = "impersonation-proxy-serving-cert";
/// Holder of the cluster's signing key.
pub const HOLDER_KUBE_SIGNER: &str = "concierge-kube-signing-cert";
/// Holder of the impersonation proxy's signing key.
pub const HOLDER_IMPERSONATION_SIGNER: &str = "impersonation-proxy-signing-cert";

/// Secret key: a CA's certificate.
pub const SECRET_CA_CERTIFICATE: &str = "caCertificate";
/// Secret key: a CA's private key.
pub const SECRET_CA_PRIVATE_KEY: &str = "caCertificatePrivateKey";
/// Secret key: a serving certificate.
pub const SECRET_TLS_CHAIN: &str = "tlsCertificateChain";
/// Secret key: the private key of a serving certificate.
pub const SECRET_TLS_PRIVATE_KEY: &str = "tlsPrivateKey";
/// Key of a Kubernetes TLS Secret: the certificate.
pub const SECRET_TLS_CRT: &str = "tls.crt";
/// Key of a Kubernetes TLS Secret: the private key.
pub const SECRET_TLS_KEY: &str = "tls.key";
/// Key of a Secret: the certificate of a CA.
pub const SECRET_CA_CRT: &str = "ca.crt";
/// Key of a Secret: the private key of a CA.
pub const SECRET_CA_KEY: &str = "ca.key";
/// Type of a Secret with a certificate and its key.
pub const SECRET_TYPE_TLS: &str = "kubernetes.io/tls";
/// Type of a Secret with anything.
pub const SECRET_TYPE_OPAQUE: &str = "Opaque";
/// Type of a Secret with a service account's token without end.
pub const SECRET_TYPE_SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// Namespace with the cluster's own pods and configuration.
pub const NAMESPACE_KUBE_SYSTEM: &str = "kube-system";
/// Namespace that everybody may read.
pub const NAMESPACE_KUBE_PUBLIC: &str = "kube-public";
/// Namespace in which Events of cluster-scoped objects lie.
pub const NAMESPACE_DEFAULT: &str = "default";
/// ConfigMap in [`NAMESPACE_KUBE_SYSTEM`]: whom the API server trusts.
pub const CONFIG_MAP_CLUSTER_AUTHENTICATION: &str = "extension-apiserver-authentication";
/// ConfigMap in [`NAMESPACE_KUBE_PUBLIC`]: where the API server is.
pub const CONFIG_MAP_CLUSTER_INFO: &str = "cluster-info";
/// Its key.
pub const CONFIG_MAP_CLUSTER_INFO_KEY: &str = "kubeconfig";

/// Name of the local user authenticator: its namespace, Deployment, Service and service account.
pub const LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator";
/// Secret with its serving certificate.
pub const LOCAL_USER_AUTHENTICATOR_SERVING_SECRET: &str = "local-user-authenticator-tls-serving-certificate";

/// Default port of the aggregated API.
pub const PORT_AGGREGATED_API: u16 = 10250;
/// Default port of the impersonation proxy.
pub const PORT_IMPERSONATION_PROXY: u16 = 8444;
/// Port of the local user authenticator.
pub const PORT_LOCAL_USER_AUTHENTICATOR: u16 = 8443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_services_are_named_version_first() {
        assert_eq!(api_service(GROUP_LOGIN), "v1alpha1.login.concierge.pinniped.dev");
        assert!(EXTRA_ORIGINAL_USER_INFO.ends_with(RESERVED_EXTRA_SUFFIX));
    }
}
