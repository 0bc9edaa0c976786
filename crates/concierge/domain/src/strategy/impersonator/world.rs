//! One snapshot of the world: everything that the decision looks at.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use pinniped_concierge_api::config::CredentialIssuerSpec;

use super::delegated::Delegated;
use crate::strategy::validation::Facts;
use pinniped_delegation::grants::SecretReference;

/// What stays the same for the life of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The namespace of all objects named here.
    pub namespace: String,
    /// Put on every object; the one called `app` also selects the Concierge's pods.
    pub labels: BTreeMap<String, String>,
    /// The port the proxy listens on.
    pub port: u16,
    /// The `CredentialIssuer`.
    pub credential_issuer: String,
    /// Group of the `CredentialIssuer`, for messages.
    pub credential_issuer_group: String,
    /// The Service of type `LoadBalancer`.
    pub load_balancer_service: String,
    /// The Service of type `ClusterIP`.
    pub cluster_ip_service: String,
    /// The Secret of the generated serving certificate.
    pub tls_secret: String,
    /// The Secret of its CA.
    pub ca_secret: String,
    /// The Secret of the CA that signs client certificates.
    pub signer_secret: String,
}

/// A certain state of a certain object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Its UID.
    pub uid: String,
    /// Its resource version.
    pub resource_version: String,
}

/// What the nodes say about the kind of cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Not asked for; enough unless the mode is `auto`.
    Unknown,
    /// A node carries a label of the control plane.
    ControlPlane,
    /// There are only workers.
    WorkersOnly,
    /// They could not be listed, or there are none.
    Failed(String),
}

/// This process's proxy server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyState {
    /// Not running.
    Stopped,
    /// Running.
    Running,
    /// It ended without being asked to, with or without an error.
    Ended(Option<String>),
}

/// The Secret of the generated CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaSecret {
    /// There is none.
    Missing,
    /// It does not hold a CA; why, in Go's words.
    Broken(String),
    /// It holds a CA.
    Usable,
}

/// The Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServingSecret {
    /// There is none.
    Missing,
    /// There is one.
    Present(ObjectId, Finding),
}

/// What is in the Secret of the generated serving certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// No PEM block.
    NotPem,
    /// A PEM block that is no certificate.
    NotX509(String),
    /// No key, or one of another certificate.
    BadKey(String),
    /// A certificate that does not verify with the CA that was observed.
    Untrusted(String),
    /// A usable certificate.
    Leaf {
        /// Its addresses, in order.
        ips: Vec<IpAddr>,
        /// Its DNS names, in order.
        dns_names: Vec<String>,
        /// The beginning of its life.
        not_before: Timestamp,
        /// The end of its life.
        not_after: Timestamp,
    },
}

/// The Secret that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSecret {
    /// Its state.
    pub id: ObjectId,
    /// Its `ca.crt`; empty when missing.
    pub ca_crt: Vec<u8>,
    /// What was found out about its certificate, unless it has none that can be read.
    pub facts: Option<Facts>,
}

/// What this process has taken from Secrets into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The Secret of the serving certificate.
    pub serving: Option<ObjectId>,
    /// Which one that is, if it lies in another namespace.
    pub delegated: Option<SecretReference>,
    /// The Secret of the signer.
    pub signer: Option<ObjectId>,
}

/// One snapshot of the world.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Names and such.
    pub settings: Arc<Settings>,
    /// The `CredentialIssuer`: `None` when it does not exist, else its spec.
    pub credential_issuer: Option<Option<CredentialIssuerSpec>>,
    /// The nodes, see [`needs_nodes`].
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
    /// The Secret named by the spec, see [`external_reference`]; a delegated one only if it may be read.
    ///
    /// [`external_reference`]: super::external_reference
    pub external: Option<ExternalSecret>,
    /// Set when that Secret lies in another namespace, or nowhere. Without a `CredentialIssuer` it is the last one known.
    pub delegated: Option<Delegated>,
    /// The signer's Secret.
    pub signer: Option<ObjectId>,
    /// What is in memory.
    pub loaded: Loaded,
}
