//! The context that all controllers share: namespace, names, labels, clients and leadership.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use pinniped_kube_types::suffix::GroupSuffix;

use pinniped_controller::client::Writer;
use pinniped_controller::event::EventRecorder;
use pinniped_controller::lease::Leadership;

/// Names of the objects that the Concierge creates, from its configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Secret with the aggregated API's serving certificate and its CA.
    pub serving_certificate_secret: String,
    /// Name of the `CredentialIssuer`.
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
    /// Service account token Secret of old versions, deleted if it exists.
    pub impersonation_proxy_legacy_secret: String,
}

/// The context that all controllers of a process share.
#[derive(Clone)]
pub struct Context {
    /// Client for reads. Writes go through [`Context::writer`].
    pub client: kube::Client,
    /// The namespace of this pod.
    pub namespace: String,
    /// The API group suffix of this installation.
    pub suffix: GroupSuffix,
    /// Labels of every created object.
    pub labels: BTreeMap<String, String>,
    /// Object names from the configuration.
    pub names: Names,
    /// Owner of the objects in the namespace: the Deployment of the Concierge.
    pub owner_deployment: OwnerReference,
    /// Owner of the cluster-scoped objects: the APIService of the login API.
    pub owner_api_service: OwnerReference,
    /// The result of the leader election.
    pub leadership: Leadership,
    /// Writes Events in the background.
    pub events: EventRecorder,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).field("suffix", &self.suffix).finish()
    }
}

impl Context {
    /// Returns a writer that refuses while this process is not the leader.
    pub fn writer(&self) -> Writer {
        Writer::new(self.leadership.clone())
    }

    /// Returns the metadata of a new object in the Concierge's namespace: labels, and the
    /// Deployment as owner.
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
    use pinniped_kube_types::event::Reporter;

    use super::*;

    /// Returns a context whose client fails every request, and whose Events are discarded.
    pub(crate) fn context() -> Context {
        let nowhere = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("this client leads nowhere"))
        });
        let name = |name: &str| name.to_owned();
        let client = kube::Client::new(nowhere, "ns");
        let leadership = Leadership::fixed(true);
        let reporter = Reporter { controller: "concierge", instance: name("pod") };
        let (events, _discarded) =
            EventRecorder::new(client.clone(), Writer::new(leadership.clone()), reporter);
        Context {
            client,
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
            leadership,
            events,
        }
    }
}
