//! The observation: one snapshot of everything that the decision depends on.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use pinniped_concierge_api::config::CredentialIssuerSpec;

use super::delegated::Delegated;
use crate::status_text::StatusText;
use crate::strategy::certificate_validation::CertificateDetails;
use pinniped_delegation::grants::SecretReference;

/// Settings that do not change during the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of all objects that these settings name.
    pub namespace: String,
    /// Labels of all objects; the one called `app` also selects the Concierge's pods.
    pub labels: BTreeMap<String, String>,
    /// Port on which the proxy listens.
    pub port: u16,
    /// Name of the `CredentialIssuer`.
    pub credential_issuer: String,
    /// API group of the `CredentialIssuer`, for messages.
    pub credential_issuer_group: String,
    /// Name of the Service of type `LoadBalancer`.
    pub load_balancer_service: String,
    /// Name of the Service of type `ClusterIP`.
    pub cluster_ip_service: String,
    /// Name of the Secret with the generated serving certificate.
    pub tls_secret: String,
    /// Name of the Secret with the CA of that certificate.
    pub ca_secret: String,
    /// Name of the Secret with the CA that signs client certificates.
    pub signer_secret: String,
}

/// Identifies one state of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Its UID.
    pub uid: String,
    /// Its resource version.
    pub resource_version: String,
}

/// The result of checking the nodes for a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Not listed; sufficient unless the mode is `auto`.
    Unknown,
    /// A node has a label of the control plane.
    ControlPlane,
    /// All nodes are worker nodes.
    WorkersOnly,
    /// The list failed or is empty.
    Failed(StatusText),
}

/// State of this process's proxy server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyState {
    /// Not running.
    Stopped,
    /// Running.
    Running,
    /// The proxy terminated without a request to stop, with or without an error.
    Terminated(Option<StatusText>),
}

/// The Secret of the generated CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaSecret {
    /// The Secret does not exist.
    Missing,
    /// The Secret does not contain a CA; the text is the reason, in Go's words.
    Broken(StatusText),
    /// The Secret contains a CA.
    Usable,
}

/// The Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingSecret {
    /// The Secret does not exist.
    Missing,
    /// The Secret exists.
    Present(ObjectId, ServingContent),
}

/// The content of the Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingContent {
    /// No PEM block.
    NotPem,
    /// A PEM block that is not a certificate.
    NotX509(String),
    /// No key, or the key of another certificate.
    BadKey(String),
    /// A certificate that does not verify with the observed CA.
    Untrusted(String),
    /// A usable certificate.
    Leaf {
        /// IP addresses of the certificate, in order.
        ips: Vec<IpAddr>,
        /// DNS names of the certificate, in order.
        dns_names: Vec<String>,
        /// Start of the certificate's validity.
        not_before: Timestamp,
        /// End of the certificate's validity.
        not_after: Timestamp,
    },
}

/// The Secret that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSecret {
    /// UID and resource version of the Secret.
    pub id: ObjectId,
    /// Content of `ca.crt`; empty if missing.
    pub ca_crt: Vec<u8>,
    /// The inspection of the certificate; `None` if the Secret has no readable certificate.
    pub certificate: Option<CertificateDetails>,
}

/// The Secrets whose content this process has loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The Secret of the serving certificate.
    pub serving: Option<ObjectId>,
    /// Reference to the Secret of the serving certificate, if it is in another namespace.
    pub delegated: Option<SecretReference>,
    /// The Secret of the signer.
    pub signer: Option<ObjectId>,
}

/// One snapshot of everything that the decision depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Settings that do not change during the life of the process.
    pub settings: Arc<Settings>,
    /// The `CredentialIssuer`: `None` if it does not exist, otherwise its spec.
    pub credential_issuer: Option<Option<CredentialIssuerSpec>>,
    /// The nodes, see `needs_nodes`.
    pub nodes: Nodes,
    /// This process's proxy.
    pub proxy: ProxyState,
    /// The Service of type `LoadBalancer`.
    pub load_balancer: Option<Arc<Service>>,
    /// The Service of type `ClusterIP`.
    pub cluster_ip: Option<Arc<Service>>,
    /// The generated CA.
    pub ca: CaSecret,
    /// The generated serving certificate.
    pub serving: ServingSecret,
    /// The Secret that the spec names, see [`external_reference`]; a delegated one only if it may
    /// be read.
    ///
    /// [`external_reference`]: super::external_reference
    pub external: Option<ExternalSecret>,
    /// Set if that Secret is in another namespace, or the name is malformed. Without a
    /// `CredentialIssuer`, the last known one.
    pub delegated: Option<Delegated>,
    /// The signer's Secret.
    pub signer: Option<ObjectId>,
    /// The loaded Secrets.
    pub loaded: Loaded,
}
