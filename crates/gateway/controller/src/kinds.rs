//! The mirrored kinds, and the parts of their objects that the mirrors store.
//!
//! Unused parts are removed as soon as an object arrives: managed fields, foreign annotations, and
//! all content of a Secret that no route can use.

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

use super::changes::ChangedObject;

/// The types of Secrets that routes can use.
const SECRET_TYPES: [&str; 2] = ["kubernetes.io/tls", "Opaque"];

/// The keys of a Secret that routes can use.
const SECRET_KEYS: [&str; 4] = ["tls.crt", "tls.key", "ca.crt", "crl.pem"];

/// The label that associates an EndpointSlice with a Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The prefixes of annotations that affect routes.
const ANNOTATIONS: [&str; 4] =
    ["projectcontour.io/", "contour.heptio.com/", "kubernetes.io/ingress.", "ingress.kubernetes.io/"];

/// A mirrored kind.
pub(super) trait Mirrored:
    kube::Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    /// Whether the objects are removed from the mirror when the permission to read them is missing
    /// for some time: they grant permissions, which may have been revoked.
    const PERMISSION: bool = false;

    /// Removes all parts that the gateway does not use.
    fn slim(&mut self);

    /// Returns whether a table would be the same with the other object.
    fn is_equivalent(&self, other: &Self) -> bool;

    /// Returns the change that a new version of the object represents.
    fn changed_object(&self) -> ChangedObject {
        ChangedObject::Routing
    }
}

/// Keeps names and the relevant annotations.
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

/// Keeps names only: the gateway does not write to the object, and no other metadata is relevant.
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

    fn is_equivalent(&self, other: &Self) -> bool {
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

    fn is_equivalent(&self, other: &Self) -> bool {
        // The generation is not compared: without a status subresource, it also counts status
        // changes.
        self.spec == other.spec
            && self.metadata.annotations == other.metadata.annotations
            && self.metadata.creation_timestamp == other.metadata.creation_timestamp
    }
}

impl Mirrored for Ingress {
    fn slim(&mut self) {
        // Events about the object refer to its UID.
        let uid = self.metadata.uid.take();
        slim_metadata(&mut self.metadata);
        self.metadata.uid = uid;
    }

    fn is_equivalent(&self, other: &Self) -> bool {
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

    fn is_equivalent(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Mirrored for Secret {
    const PERMISSION: bool = true;

    fn slim(&mut self) {
        slim_to_name(&mut self.metadata);
        let usable = self.type_.as_deref().is_some_and(|type_| SECRET_TYPES.contains(&type_));
        // A Secret of another type is kept without its content, because a reference to it causes a
        // different error than a reference to a missing Secret.
        self.data = self.data.take().filter(|_| usable).map(|mut data| {
            data.retain(|key, _| SECRET_KEYS.contains(&key.as_str()));
            data
        });
        self.string_data = None;
        self.immutable = None;
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        self.type_ == other.type_ && self.data == other.data
    }

    fn changed_object(&self) -> ChangedObject {
        ChangedObject::Secret(Name::of(&self.metadata))
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

    fn is_equivalent(&self, other: &Self) -> bool {
        self.spec == other.spec && self.metadata.annotations == other.metadata.annotations
    }

    fn changed_object(&self) -> ChangedObject {
        ChangedObject::Service(Name::of(&self.metadata))
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
            // Only the first address is used.
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

    fn is_equivalent(&self, other: &Self) -> bool {
        self.metadata.labels == other.metadata.labels
            && self.endpoints == other.endpoints
            && self.ports == other.ports
    }

    fn changed_object(&self) -> ChangedObject {
        let service = self.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        ChangedObject::Service(Name {
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
    fn only_the_usable_content_of_a_secret_is_kept() {
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
        assert!(!secret("Opaque", &json!({"ca.crt": "AAAA"})).is_equivalent(&secret("Opaque", &json!({}))));
        // A change of an unused key does not count.
        let one = secret("Opaque", &json!({"password": "AAAA"}));
        assert!(one.is_equivalent(&secret("Opaque", &json!({"password": "BBBB"}))));
    }

    #[test]
    fn irrelevant_annotations_are_removed() {
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
        assert!(!proxy.is_equivalent(&other));
    }

    #[test]
    fn a_recreated_object_is_a_different_object() {
        let made =
            |at: &str| json!({"namespace": "ns", "name": "n", "generation": 1, "creationTimestamp": at});
        let [old, new] = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"].map(made);
        let proxy = |metadata: &Value| -> HttpProxy { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!proxy(&old).is_equivalent(&proxy(&new)));
        let route = |metadata: &Value| -> IngressRoute { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!route(&old).is_equivalent(&route(&new)));
        let ingress = |metadata: &Value| -> Ingress { slimmed(json!({"metadata": metadata, "spec": {}})) };
        assert!(!ingress(&old).is_equivalent(&ingress(&new)));
    }

    #[test]
    fn the_status_and_labels_of_a_service_are_irrelevant() {
        let service = |label: &str, port: u16| -> Service {
            let mut metadata = metadata(&json!({"projectcontour.io/upstream-protocol.tls": "443"}));
            metadata["labels"] = json!({"x": label});
            let spec = json!({"clusterIP": "10.0.0.1", "selector": {"a": label}, "ports": [{"port": port}]});
            slimmed(json!({"metadata": metadata, "spec": spec, "status": {"conditions": []}}))
        };
        assert_eq!(service("a", 80), service("b", 80));
        assert!(service("a", 80).is_equivalent(&service("b", 80)));
        assert!(!service("a", 80).is_equivalent(&service("a", 81)));
        assert!(service("a", 80).metadata.annotations.is_some());
    }

    #[test]
    fn the_address_and_readiness_of_an_endpoint_are_kept() {
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
        assert!(!slice(true, "a").is_equivalent(&slice(false, "a")));
        let name = Name { namespace: "ns".to_owned(), name: "web".to_owned() };
        assert_eq!(slice(true, "a").changed_object(), ChangedObject::Service(name));
        assert_eq!(slice(true, "a").metadata.labels.unwrap().len(), 1);
    }
}
