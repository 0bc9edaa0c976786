//! What every controller needs to know: where it runs, under which names, and through which clients.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pinniped_kube_types::suffix::GroupSuffix;

use pinniped_controller::client::Writer;
use pinniped_controller::lease::Leadership;

/// The names of the objects that the Concierge makes, from its configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Secret with the aggregated API's serving certificate and its CA.
    pub serving_certificate_secret: String,
    /// The `CredentialIssuer`.
    pub credential_issuer: String,
    /// The Service in front of the aggregated API; its serving certificate is issued for this name.
    pub api_service: String,
    /// The impersonation proxy's Service of type `LoadBalancer`.
    pub impersonation_load_balancer_service: String,
    /// The impersonation proxy's Service of type `ClusterIP`.
    pub impersonation_cluster_ip_service: String,
    /// Secret with the impersonation proxy's generated serving certificate.
    pub impersonation_tls_certificate_secret: String,
    /// Secret with the CA of that certificate.
    pub impersonation_ca_certificate_secret: String,
    /// Secret with the CA that signs client certificates for the impersonation proxy.
    pub impersonation_signer_secret: String,
    /// Service-account token Secret of versions long past, deleted when found.
    pub impersonation_proxy_legacy_secret: String,
}

/// Shared by all controllers of one process.
#[derive(Clone)]
pub struct Context {
    /// Client for reads, and for the writes of [`Context::writer`].
    pub client: kube::Client,
    /// The namespace this pod runs in.
    pub namespace: String,
    /// The API group suffix of this installation.
    pub suffix: GroupSuffix,
    /// Put on every created object.
    pub labels: BTreeMap<String, String>,
    /// Object names from the configuration.
    pub names: Names,
    /// Owner of what is created in the namespace: the Concierge's Deployment.
    pub owner_deployment: OwnerReference,
    /// Owner of what is created cluster-wide: the login APIService.
    pub owner_api_service: OwnerReference,
    /// Who is leader.
    pub leadership: Leadership,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).field("suffix", &self.suffix).finish()
    }
}

impl Context {
    /// The gated writer.
    pub fn writer(&self) -> Writer {
        Writer::new(self.leadership.clone())
    }

    /// Metadata for a new object in the own namespace: labels, and the Deployment as owner.
    pub fn new_namespaced(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels.clone()).filter(|labels| !labels.is_empty()),
            owner_references: Some(vec![self.owner_deployment.clone()]),
            ..ObjectMeta::default()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A context whose client leads nowhere.
    pub(crate) fn context() -> Context {
        let nowhere = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("this client leads nowhere"))
        });
        let name = |name: &str| name.to_owned();
        Context {
            client: kube::Client::new(nowhere, "ns"),
            namespace: name("ns"),
            suffix: GroupSuffix::default(),
            labels: BTreeMap::from([(name("app"), name("concierge"))]),
            names: Names {
                serving_certificate_secret: name("serving"),
                credential_issuer: name("config"),
                api_service: name("api"),
                impersonation_load_balancer_service: name("lb"),
                impersonation_cluster_ip_service: name("cip"),
                impersonation_tls_certificate_secret: name("tls"),
                impersonation_ca_certificate_secret: name("ca"),
                impersonation_signer_secret: name("signer"),
                impersonation_proxy_legacy_secret: name("legacy"),
            },
            owner_deployment: OwnerReference::default(),
            owner_api_service: OwnerReference::default(),
            leadership: Leadership::fixed(true),
        }
    }
}
