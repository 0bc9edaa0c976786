//! Which kinds are mirrored, and how much of each.
//!
//! What is not read here is cut away as soon as an object arrives: managed fields, foreign annotations, and whatever a
//! Secret holds that no route could ever use.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Secret, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pinniped_delegation::api::TlsCertificateDelegation;
use pinniped_gateway_api::{HttpProxy, IngressRoute};
use pinniped_gateway_routing::Name;
use serde::de::DeserializeOwned;

use super::changes::Touched;

/// The types of Secrets that routes can use.
const SECRET_TYPES: [&str; 2] = ["kubernetes.io/tls", "Opaque"];

/// The keys of a Secret that routes can use.
const SECRET_KEYS: [&str; 4] = ["tls.crt", "tls.key", "ca.crt", "crl.pem"];

/// The label by which a slice belongs to a Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The annotations that say something about routes start with one of these.
const ANNOTATIONS: [&str; 4] =
    ["projectcontour.io/", "contour.heptio.com/", "kubernetes.io/ingress.", "ingress.kubernetes.io/"];

/// A kind of which a mirror is kept.
pub(super) trait Mirrored:
    kube::Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    /// Whether its objects are forgotten when the right to see them stays away: they are permissions, and may have
    /// been taken back.
    const PERMISSION: bool = false;

    /// Cuts away what nobody here reads.
    fn slim(&mut self);

    /// Whether a table would be the same with the other one.
    fn means_the_same(&self, other: &Self) -> bool;

    /// What has to be looked at again when it changes.
    fn touched(&self) -> Touched {
        Touched::Routing
    }
}

/// Keeps names, and the annotations that count.
fn slim_metadata(metadata: &mut ObjectMeta) {
    let annotations: BTreeMap<String, String> = metadata
        .annotations
        .take()
        .into_iter()
        .flatten()
        .filter(|(name, _)| ANNOTATIONS.iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    *metadata = ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        annotations: (!annotations.is_empty()).then_some(annotations),
        generation: metadata.generation,
        resource_version: metadata.resource_version.take(),
        creation_timestamp: metadata.creation_timestamp.take(),
        ..ObjectMeta::default()
    };
}

/// Keeps names alone: nobody writes to it, and nothing else about it counts.
fn slim_to_name(metadata: &mut ObjectMeta) {
    *metadata = ObjectMeta {
        name: metadata.name.take(),
        namespace: metadata.namespace.take(),
        ..ObjectMeta::default()
    };
}

impl Mirrored for HttpProxy {
    fn slim(&mut self) {
        slim_metadata(&mut self.metadata);
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.metadata.generation == other.metadata.generation
            && self.metadata.annotations == other.metadata.annotations
            && self.metadata.creation_timestamp == other.metadata.creation_timestamp
    }
}

impl Mirrored for IngressRoute {
    fn slim(&mut self) {
        slim_metadata(&mut self.metadata);
    }

    fn means_the_same(&self, other: &Self) -> bool {
        // Not its generation: without a status subresource that counts statuses, too.
        self.spec == other.spec
            && self.metadata.annotations == other.metadata.annotations
            && self.metadata.creation_timestamp == other.metadata.creation_timestamp
    }
}

impl Mirrored for Ingress {
    fn slim(&mut self) {
        // Events about it name it.
        let uid = self.metadata.uid.take();
        slim_metadata(&mut self.metadata);
        self.metadata.uid = uid;
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.metadata.annotations == other.metadata.annotations
            && self.metadata.creation_timestamp == other.metadata.creation_timestamp
    }
}

impl Mirrored for TlsCertificateDelegation {
    const PERMISSION: bool = true;

    fn slim(&mut self) {
        slim_to_name(&mut self.metadata);
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Mirrored for Secret {
    const PERMISSION: bool = true;

    fn slim(&mut self) {
        slim_to_name(&mut self.metadata);
        let usable = self.type_.as_deref().is_some_and(|type_| SECRET_TYPES.contains(&type_));
        // One of another type is kept without anything in it: a reference to it has another fault than one to nothing.
        self.data = self.data.take().filter(|_| usable).map(|mut data| {
            data.retain(|key, _| SECRET_KEYS.contains(&key.as_str()));
            data
        });
        self.string_data = None;
        self.immutable = None;
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.type_ == other.type_ && self.data == other.data
    }

    fn touched(&self) -> Touched {
        Touched::Secret(Name::of(&self.metadata))
    }
}

impl Mirrored for Service {
    fn slim(&mut self) {
        slim_metadata(&mut self.metadata);
        (self.metadata.resource_version, self.metadata.creation_timestamp) = (None, None);
        self.metadata.generation = None;
        self.status = None;
        self.spec = self.spec.take().map(|spec| ServiceSpec {
            ports: spec.ports,
            type_: spec.type_,
            ..ServiceSpec::default()
        });
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.spec == other.spec && self.metadata.annotations == other.metadata.annotations
    }

    fn touched(&self) -> Touched {
        Touched::Service(Name::of(&self.metadata))
    }
}

impl Mirrored for EndpointSlice {
    fn slim(&mut self) {
        let labels = self.metadata.labels.take();
        slim_to_name(&mut self.metadata);
        self.metadata.labels = labels
            .and_then(|mut labels| labels.remove_entry(SERVICE_NAME))
            .map(|(label, service)| BTreeMap::from([(label, service)]));
        for endpoint in self.endpoints.iter_mut().flatten() {
            // The first address is the one that is used.
            endpoint.addresses.truncate(1);
            if let Some(conditions) = &mut endpoint.conditions {
                (conditions.serving, conditions.terminating) = (None, None);
            }
            endpoint.deprecated_topology = None;
            endpoint.hints = None;
            endpoint.hostname = None;
            endpoint.node_name = None;
            endpoint.target_ref = None;
            endpoint.zone = None;
        }
    }

    fn means_the_same(&self, other: &Self) -> bool {
        self.metadata.labels == other.metadata.labels
            && self.endpoints == other.endpoints
            && self.ports == other.ports
    }

    fn touched(&self) -> Touched {
        let service = self.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        Touched::Service(Name {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: service.cloned().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slimmed<K: Mirrored>(object: Value) -> K {
        let mut object: K = serde_json::from_value(object).unwrap();
        object.slim();
        object
    }

    fn metadata(annotations: &Value) -> Value {
        json!({
            "namespace": "ns", "name": "n", "resourceVersion": "7", "uid": "u", "generation": 2,
            "labels": {"a": "b"}, "annotations": annotations,
            "managedFields": [{"manager": "m", "operation": "Update"}],
        })
    }

    fn secret(type_: &str, data: &Value) -> Secret {
        slimmed(json!({"metadata": metadata(&json!({"x": "y"})), "type": type_, "data": data}))
    }

    #[test]
    fn of_a_secret_only_what_routes_can_use_is_kept() {
        let data = json!({
            "tls.crt": "AAAA", "tls.key": "AAAA", "ca.crt": "AAAA", "crl.pem": "AAAA", "password": "AAAA",
        });
        for type_ in SECRET_TYPES {
            let kept = secret(type_, &data).data.unwrap();
            assert_eq!(kept.into_keys().collect::<Vec<_>>(), ["ca.crt", "crl.pem", "tls.crt", "tls.key"]);
        }
        let other = secret("kubernetes.io/dockerconfigjson", &data);
        assert_eq!(
            (other.data.as_ref(), other.type_.as_deref()),
            (None, Some("kubernetes.io/dockerconfigjson"))
        );
        assert_eq!(serde_json::to_value(&other.metadata).unwrap(), json!({"namespace": "ns", "name": "n"}));
        assert!(!secret("Opaque", &json!({"ca.crt": "AAAA"})).means_the_same(&secret("Opaque", &json!({}))));
        // A password that changes is nothing to us.
        let one = secret("Opaque", &json!({"password": "AAAA"}));
        assert!(one.means_the_same(&secret("Opaque", &json!({"password": "BBBB"}))));
    }

    #[test]
    fn annotations_that_say_nothing_about_routes_are_dropped() {
        let annotations = json!({
            "projectcontour.io/ingress.class": "a", "kubernetes.io/ingress.allow-http": "false",
            "contour.heptio.com/request-timeout": "1s", "ingress.kubernetes.io/force-ssl-redirect": "true",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        });
        let proxy: HttpProxy = slimmed(json!({"metadata": metadata(&annotations), "spec": {}}));
        assert_eq!(proxy.metadata.annotations.as_ref().unwrap().len(), 4);
        assert_eq!(proxy.metadata.managed_fields, None);
        assert_eq!(
            (proxy.metadata.generation, proxy.metadata.resource_version.as_deref()),
            (Some(2), Some("7"))
        );
        let other: HttpProxy = slimmed(json!({"metadata": metadata(&json!({"a": "b"})), "spec": {}}));
        assert!(!proxy.means_the_same(&other));
    }

    #[test]
    fn an_object_that_was_made_anew_is_another_one() {
        let made =
            |at: &str| json!({"namespace": "ns", "name": "n", "generation": 1, "creationTimestamp": at});
        let [old, new] = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"].map(made);
        let proxy = |metadata: &Value| -> HttpProxy { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!proxy(&old).means_the_same(&proxy(&new)));
        let route = |metadata: &Value| -> IngressRoute { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!route(&old).means_the_same(&route(&new)));
        let ingress = |metadata: &Value| -> Ingress { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!ingress(&old).means_the_same(&ingress(&new)));
    }

    #[test]
    fn a_status_or_a_label_of_a_service_means_nothing() {
        let service = |label: &str, port: u16| -> Service {
            let mut metadata = metadata(&json!({"projectcontour.io/upstream-protocol.tls": "443"}));
            metadata["labels"] = json!({"x": label});
            let spec = json!({"clusterIP": "10.0.0.1", "selector": {"a": label}, "ports": [{"port": port}]});
            slimmed(json!({"metadata": metadata, "spec": spec, "status": {"conditions": []}}))
        };
        assert_eq!(service("a", 80), service("b", 80));
        assert!(service("a", 80).means_the_same(&service("b", 80)));
        assert!(!service("a", 80).means_the_same(&service("a", 81)));
        assert!(service("a", 80).metadata.annotations.is_some());
    }

    #[test]
    fn of_an_endpoint_its_address_and_readiness_are_kept() {
        let slice = |ready: bool, node: &str| -> EndpointSlice {
            slimmed(json!({
                "metadata": {
                    "namespace": "ns", "name": "web-x",
                    "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "c"},
                },
                "addressType": "IPv4", "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
                "endpoints": [{
                    "addresses": ["10.1.0.1"], "nodeName": node, "zone": "z",
                    "conditions": {"ready": ready, "serving": true, "terminating": false},
                    "targetRef": {"kind": "Pod", "name": "p"},
                }],
            }))
        };
        assert_eq!(slice(true, "a"), slice(true, "b"));
        assert!(!slice(true, "a").means_the_same(&slice(false, "a")));
        let name = Name { namespace: "ns".to_owned(), name: "web".to_owned() };
        assert_eq!(slice(true, "a").touched(), Touched::Service(name));
        assert_eq!(slice(true, "a").metadata.labels.unwrap().len(), 1);
    }
}
