//! Labels, annotations and well-known names that several programs share.
//!
//! API groups are given with the default suffix; see
//! [`GroupSuffix::replace`](pinniped_kube_types::suffix::GroupSuffix::replace). The labels,
//! annotations and reserved keys in this module never follow the suffix. Names that an installation
//! chooses in its `pinniped.yaml` are not here, except for their fixed parts.

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
/// Further categories of the authenticators, in addition to [`CATEGORY`].
pub const CATEGORIES_AUTHENTICATOR: [&str; 2] = ["pinniped-authenticator", "pinniped-authenticators"];

/// Returns the name of the `APIService` for a group of the aggregated API; `group` is the group's
/// name in this installation.
pub fn api_service(group: &str) -> String {
    format!("{VERSION}.{group}")
}

/// Label of all objects of an installation; its value is the name of the installation.
pub const LABEL_APP: &str = "app";
/// Label of the Concierge's pods, which the Services select.
pub const LABEL_DEPLOYMENT: &str = "deployment.pinniped.dev";
/// Value of [`LABEL_DEPLOYMENT`].
pub const LABEL_DEPLOYMENT_CONCIERGE: &str = "concierge";
/// Label of the cert agent's pods.
pub const LABEL_KUBE_CERT_AGENT: &str = "kube-cert-agent.pinniped.dev";
/// Value of [`LABEL_KUBE_CERT_AGENT`]. The Concierge trusts the output of `print` of any pod with
/// it.
pub const LABEL_KUBE_CERT_AGENT_VALUE: &str = "v3";
/// Value of [`LABEL_KUBE_CERT_AGENT`] on pods of old versions, which the Concierge deletes.
pub const LABEL_KUBE_CERT_AGENT_LEGACY_VALUE: &str = "true";

/// Annotation on the proxy's Services: JSON array with the keys of the annotations that the
/// Concierge manages.
pub const ANNOTATION_BOOKKEEPING_ANNOTATIONS: &str = "credentialissuer.pinniped.dev/annotation-keys";
/// Annotation on the proxy's Services: JSON array with the keys of the labels that the Concierge
/// manages.
pub const ANNOTATION_BOOKKEEPING_LABELS: &str = "credentialissuer.pinniped.dev/label-keys";
/// Annotation on the Service of the `CredentialIssuer` in the manifests: idle timeout of
/// connections through an AWS load balancer, in seconds.
pub const ANNOTATION_AWS_IDLE_TIMEOUT: &str =
    "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout";
/// Annotation of the impersonation proxy's service account.
pub const ANNOTATION_ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Label of all objects that are made for an identity: the first half of the identity's digest.
pub const LABEL_IMPERSONATION_SUBJECT: &str = "concierge.pinniped.dev/impersonation-subject";
/// Type of the Secrets to which service account tokens are bound: deleting the Secret revokes the
/// token.
pub const SECRET_TYPE_BOUND_TOKEN: &str = "concierge.pinniped.dev/bound-token";
/// Annotation of such a Secret: expiration time of its token.
pub const ANNOTATION_EXPIRES_AT: &str = "concierge.pinniped.dev/expires-at";
/// Annotation of an identity's service account: approximate time of the last login.
pub const ANNOTATION_LAST_USED: &str = "concierge.pinniped.dev/last-used";
/// Annotation of an identity's service account: the username, if the configuration allows usernames
/// in objects.
pub const ANNOTATION_USERNAME: &str = "concierge.pinniped.dev/username";

/// Label of the `CertificateSigningRequest`s of logins. Its value is the namespace of the
/// Concierge.
pub const LABEL_CERTIFICATE_SIGNING_REQUEST: &str = "concierge.pinniped.dev/certificate-signing-request";

/// Labels that mark a control plane node, with any value.
pub const NODE_LABELS_CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Older label with the role of a node.
pub const NODE_LABEL_ROLE: &str = "kubernetes.io/node-role";
/// Values of [`NODE_LABEL_ROLE`] that mark a control plane node.
pub const NODE_ROLES_CONTROL_PLANE: [&str; 2] = ["control-plane", "master"];

/// The end of the impersonation proxy's denial messages, so that a user can identify the component
/// that denied the request.
pub const IMPERSONATION_PROXY_DECISION: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";
/// Suffix of the extra keys that are reserved for the impersonation proxy; a client may not send
/// them.
pub const RESERVED_EXTRA_SUFFIX: &str = ".impersonation-proxy.concierge.pinniped.dev";
/// Extra key that holds the original user of a client impersonation.
pub const EXTRA_ORIGINAL_USER_INFO: &str = "original-user-info.impersonation-proxy.concierge.pinniped.dev";
/// Extra key that identifies the credential of a request.
pub const EXTRA_CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Extra key with the node of a pod-bound service account token.
pub const EXTRA_NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Common name of the CA for the aggregated API's serving certificate.
pub const CA_AGGREGATION: &str = "Pinniped Aggregation CA";
/// Common name of the CA for the impersonation proxy's generated serving certificate.
pub const CA_IMPERSONATION_SERVING: &str = "Pinniped Impersonation Proxy Serving CA";
/// Common name of the CA for client certificates that the impersonation proxy accepts.
pub const CA_IMPERSONATION_SIGNER: &str = "Pinniped Impersonation Proxy Signer CA";
/// Common name of the CA for the local user authenticator's serving certificate.
pub const CA_LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator CA";

/// Name of the aggregated API's serving certificate in messages.
pub const STORE_API_SERVING: &str = "concierge-serving-cert";
/// Name of the impersonation proxy's serving certificate in messages.
pub const STORE_IMPERSONATION_SERVING: &str = "impersonation-proxy-serving-cert";
/// Name of the cluster's signing key in messages.
pub const STORE_KUBE_SIGNER: &str = "concierge-kube-signing-cert";
/// Name of the cluster's signer in messages.
pub const ISSUER_CERTIFICATE_SIGNING_REQUEST: &str = "kube-certificate-signing-request";
/// Name of the impersonation proxy's signing key in messages.
pub const STORE_IMPERSONATION_SIGNER: &str = "impersonation-proxy-signing-cert";

/// Secret key of a CA certificate.
pub const SECRET_CA_CERTIFICATE: &str = "caCertificate";
/// Secret key of a CA's private key.
pub const SECRET_CA_PRIVATE_KEY: &str = "caCertificatePrivateKey";
/// Secret key of a serving certificate.
pub const SECRET_TLS_CHAIN: &str = "tlsCertificateChain";
/// Secret key of the private key of a serving certificate.
pub const SECRET_TLS_PRIVATE_KEY: &str = "tlsPrivateKey";
/// Key of the certificate in a Kubernetes TLS Secret.
pub const SECRET_TLS_CRT: &str = "tls.crt";
/// Key of the private key in a Kubernetes TLS Secret.
pub const SECRET_TLS_KEY: &str = "tls.key";
/// Secret key of the certificate of a CA.
pub const SECRET_CA_CRT: &str = "ca.crt";
/// Secret key of the private key of a CA.
pub const SECRET_CA_KEY: &str = "ca.key";
/// Type of a Secret with a certificate and its private key.
pub const SECRET_TYPE_TLS: &str = "kubernetes.io/tls";
/// Type of a Secret with arbitrary data.
pub const SECRET_TYPE_OPAQUE: &str = "Opaque";
/// Type of a Secret with a service account token that does not expire.
pub const SECRET_TYPE_SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// Namespace of the cluster's own pods and configuration.
pub const NAMESPACE_KUBE_SYSTEM: &str = "kube-system";
/// Namespace that all users may read.
pub const NAMESPACE_KUBE_PUBLIC: &str = "kube-public";
/// Namespace of the Events about cluster-scoped objects.
pub const NAMESPACE_DEFAULT: &str = "default";
/// ConfigMap in [`NAMESPACE_KUBE_SYSTEM`] with the client CAs that the API server trusts.
pub const CONFIG_MAP_CLUSTER_AUTHENTICATION: &str = "extension-apiserver-authentication";
/// ConfigMap in [`NAMESPACE_KUBE_PUBLIC`] with the address of the API server.
pub const CONFIG_MAP_CLUSTER_INFO: &str = "cluster-info";
/// Key of the kubeconfig in [`CONFIG_MAP_CLUSTER_INFO`].
pub const CONFIG_MAP_CLUSTER_INFO_KEY: &str = "kubeconfig";

/// Name of the local user authenticator's namespace, Deployment, Service and service account.
pub const LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator";
/// Secret with the serving certificate of the local user authenticator.
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
