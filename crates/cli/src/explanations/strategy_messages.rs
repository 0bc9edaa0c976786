//! The messages of strategies. `pinniped doctor` prints the remedy of the first row with a text
//! that is part of the message.

use super::{Explanation, Kind};

const fn message(
    topic: &'static str,
    texts: &'static [&'static str],
    meaning: &'static str,
    remedy: &'static str,
) -> Explanation {
    Explanation { topic, kind: Kind::StrategyMessage, meaning, remedy, texts }
}

/// The rows, more specific texts first.
pub const ALL: &[Explanation] = &[
    message(
        "unsigned-certificate-signing-request",
        &["did not sign a CertificateSigningRequest"],
        "The cluster's signer did not sign a CertificateSigningRequest of the Concierge in time.",
        "the cluster has no such signer: enable the impersonation proxy (spec.impersonationProxy.mode: enabled) or \
         service account tokens, and set spec.certificateSigningRequests.mode to disabled",
    ),
    message(
        "certificate-lifetime-ignored",
        &["ignores the requested lifetime"],
        "The cluster's signer issues certificates with another lifetime than the requested one.",
        "certificates of this signer would be valid for too long: enable the impersonation proxy \
         (spec.impersonationProxy.mode: enabled) or service account tokens, and set \
         spec.certificateSigningRequests.mode to disabled",
    ),
    message(
        "certificate-signing-request-denied",
        &["the CertificateSigningRequest was denied"],
        "An approver denied a CertificateSigningRequest of the Concierge.",
        "let the approver that denies requests ignore those that the Concierge's service account creates",
    ),
    message(
        "certificate-signing-requests-mode",
        &["could not load CredentialIssuer spec.certificateSigningRequests"],
        "spec.certificateSigningRequests of the CredentialIssuer is not valid.",
        "set spec.certificateSigningRequests.mode to auto, enabled or disabled",
    ),
    message(
        "api-server-address",
        &["set discovery.url in the Concierge's configuration"],
        "The Concierge does not know the address of the API server that clients can use.",
        "follow the message; the Concierge reads the new address without a restart, within about two minutes",
    ),
    message(
        "no-pod-with-the-key",
        &["could not find a healthy"],
        "The Concierge found no pod from which it can read the cluster's signing key. On a managed control plane, no \
         pod of it is visible; elsewhere, the pod of the kube-cert-agent does not run.",
        "use the impersonation proxy (spec.impersonationProxy.mode: enabled) if the control plane is not accessible; \
         otherwise see the pods of the kube-cert-agent in the Concierge's namespace",
    ),
    message(
        "exec-into-the-agent",
        &["could not exec into"],
        "The Concierge could not run a program in the pod that reads the cluster's signing key.",
        "let the Concierge's service account create pods/exec: apply the resources of the installation again",
    ),
    message(
        "cluster-info",
        &["configmap \"cluster-info\" not found"],
        "The cluster does not publish its address in the ConfigMap cluster-info of the namespace kube-public. Only \
         kubeadm creates it.",
        "set discovery.url in the Concierge's configuration",
    ),
    message(
        "signing-key-pair",
        &["failed to set signing cert/key content"],
        "The certificate and the key of the cluster's signer do not belong together.",
        "correct --cluster-signing-cert-file and --cluster-signing-key-file of kube-controller-manager",
    ),
    message(
        "certificate-delegation",
        &["certificate delegation not permitted"],
        "The Secret of another namespace is not delegated to the Concierge.",
        "the owner of the Secret has to permit it with a TLSCertificateDelegation in the Secret's namespace",
    ),
    message(
        "secret-not-readable",
        &["could not read Secret"],
        "The Concierge may not read the Secret of another namespace.",
        "the owner of the Secret has to let the Concierge's service account get, list and watch it: a Role with \
         resourceNames, and a RoleBinding",
    ),
    message(
        "malformed-secret-name",
        &["malformed secretName"],
        "spec.impersonationProxy.tls.secretName is not the name of a Secret.",
        "write spec.impersonationProxy.tls.secretName as name or namespace/name",
    ),
    message(
        "missing-secret-name",
        &["must provide impersonationSpec.TLS.secretName"],
        "spec.impersonationProxy.tls names no Secret.",
        "name a Secret in spec.impersonationProxy.tls.secretName, or remove the tls block",
    ),
    message(
        "generated-secret-name",
        &["must not be the name of the Secret managed by this controller"],
        "spec.impersonationProxy.tls.secretName is the Secret that the Concierge generates itself.",
        "put your certificate into a Secret with a name of its own",
    ),
    message(
        "ca-as-serving-certificate",
        &["unexpected IsCA="],
        "The certificate of the Secret is that of a CA, which clients refuse as a server's.",
        "put a server certificate into tls.crt of the Secret, not a CA's",
    ),
    message(
        "secret-without-pair",
        &["could not parse TLS cert PEM data from Secret"],
        "The Secret has no certificate with its key.",
        "put the certificate chain into tls.crt of the Secret and its key into tls.key, both as PEM",
    ),
    message(
        "malformed-ca-crt",
        &["unable to read provided ca.crt"],
        "The key ca.crt of the Secret has no PEM bundle.",
        "put a PEM bundle into ca.crt of the Secret, or remove that key",
    ),
    message(
        "malformed-certificate-authority-data",
        &["could not decode impersonationSpec.TLS.certificateAuthorityData"],
        "spec.impersonationProxy.tls.certificateAuthorityData is not the base64 of a PEM bundle.",
        "write the base64 of a PEM bundle into spec.impersonationProxy.tls.certificateAuthorityData, as printed by base64 -w0",
    ),
    message(
        "external-certificate-invalid",
        &["could not validate the externally provided TLS secret"],
        "Clients cannot use the certificate of the Secret, and spec.impersonationProxy.tls.validation is Enforce.",
        "issue a certificate that clients can use, or set spec.impersonationProxy.tls.validation to Warn",
    ),
    message(
        "external-certificate-missing",
        &["could not load the externally provided TLS secret"],
        "The Secret with the external certificate could not be read.",
        "create the Secret, or correct spec.impersonationProxy.tls.secretName",
    ),
    message(
        "empty-ca-bundle",
        &["does not allow an empty certificateAuthorityData"],
        "The installed CustomResourceDefinition requires a CA bundle, and there is none.",
        "follow the message",
    ),
    message(
        "load-balancer-pending",
        &["waiting for load balancer Service"],
        "The load balancer Service of the impersonation proxy has no address yet.",
        "wait for the Service's address; a cluster without load balancers requires spec.impersonationProxy.service.type \
         ClusterIP or None, and an externalEndpoint",
    ),
    message(
        "load-balancer-address",
        &["could not find valid IP addresses or hostnames"],
        "The status of the load balancer Service has no usable address.",
        "correct the status of the load balancer Service, or set spec.impersonationProxy.externalEndpoint",
    ),
    message(
        "invalid-external-endpoint",
        &["invalid ExternalEndpoint"],
        "spec.impersonationProxy.externalEndpoint is not a host or a host with a port.",
        "write spec.impersonationProxy.externalEndpoint as host or host:port, without https://",
    ),
    message(
        "missing-external-endpoint",
        &["externalEndpoint must be set"],
        "A Service of this type has no address for clients, and spec.impersonationProxy.externalEndpoint is not set.",
        "set spec.impersonationProxy.externalEndpoint",
    ),
    message(
        "invalid-load-balancer-ip",
        &["invalid LoadBalancerIP"],
        "spec.impersonationProxy.service.loadBalancerIP is not an IP address.",
        "write an IP address into spec.impersonationProxy.service.loadBalancerIP",
    ),
    message(
        "missing-manifest",
        &["apply install-pinniped-concierge-"],
        "A manifest of the Concierge is not applied.",
        "follow the message, with kubectl apply -f",
    ),
    message(
        "missing-impersonation-proxy-spec",
        &["spec.impersonationProxy is nil"],
        "The CredentialIssuer has no spec.impersonationProxy.",
        "add spec.impersonationProxy with a mode",
    ),
    message(
        "ca-secret-malformed",
        &["could not load CA"],
        "The Secret with the generated CA of the impersonation proxy cannot be used.",
        "delete the Secret whose name ends in -impersonation-proxy-ca-certificate: a new CA is made, and kubeconfigs \
         must be distributed again",
    ),
    message(
        "signer-secret-missing",
        &["could not load the impersonator's credential signing secret"],
        "The Secret with the CA for client certificates does not exist yet.",
        "wait a moment: the Concierge makes the Secret itself",
    ),
];
