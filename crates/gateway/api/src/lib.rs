//! The custom resources of the gateway: Contour's `HTTPProxy` and, from its early releases,
//! `IngressRoute`. (The related `TLSCertificateDelegation` is in `pinniped_delegation::api`.)
//!
//! The types contain the fields that the gateway implements. All other fields of a spec are stored
//! by name in [`Others`], because an ignored field may be one that restricts access: code that
//! reads these types must check it, too. (A few small types without such a map reject unknown
//! fields.) A spec with an invalid structure becomes [`Readable::Unreadable`] and does not affect
//! other objects of the same list.

pub mod http_proxy;
pub mod ingress_route;

pub use http_proxy::HttpProxy;
pub use ingress_route::IngressRoute;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// The fields of an object that its type does not define, by name.
pub type Others = BTreeMap<String, Value>;

/// A spec that may be invalid.
#[derive(Clone, Debug, PartialEq)]
pub enum Readable<T> {
    /// The parsed spec.
    Read(T),
    /// The spec does not match its type; contains the error.
    Unreadable(String),
}

impl<T> Readable<T> {
    /// Returns the spec if it is valid.
    pub fn read(&self) -> Option<&T> {
        match self {
            Self::Read(spec) => Some(spec),
            Self::Unreadable(_) => None,
        }
    }
}

impl<T: Default> Default for Readable<T> {
    fn default() -> Self {
        Self::Read(T::default())
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Readable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match serde_json::from_value(value) {
            Ok(spec) => Self::Read(spec),
            Err(error) => Self::Unreadable(error.to_string()),
        })
    }
}

/// Deserializes a status, or returns `None` if it does not match its type. An invalid status must
/// not affect other objects of the same list: with the definitions of old releases, a user with
/// write access to an object can write any value.
fn if_readable<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Returns whether a field has no effect: it is null or an empty list.
pub fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Implements [`kube_core::Resource`] for a namespaced kind with a fixed API group.
macro_rules! namespaced_resource {
    ($type:ty, group: $group:literal, version: $version:literal, kind: $kind:literal, plural: $plural:literal) => {
        impl $type {
            /// The API group.
            pub const GROUP: &'static str = $group;
            /// The version of the API group.
            pub const VERSION: &'static str = $version;
            /// The name of the kind.
            pub const KIND: &'static str = $kind;
            /// The name of the resource in paths and RBAC rules.
            pub const PLURAL: &'static str = $plural;
        }

        impl kube_core::Resource for $type {
            type DynamicType = ();
            type Scope = kube_core::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                Self::KIND.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                Self::GROUP.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                Self::VERSION.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                Self::PLURAL.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

use namespaced_resource;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_kinds_have_their_paths() {
        assert_eq!(
            <HttpProxy as kube_core::Resource>::url_path(&(), Some("ns")),
            "/apis/projectcontour.io/v1/namespaces/ns/httpproxies"
        );
        assert_eq!(
            <IngressRoute as kube_core::Resource>::url_path(&(), Some("ns")),
            "/apis/contour.heptio.com/v1beta1/namespaces/ns/ingressroutes"
        );
    }

    #[test]
    fn a_malformed_spec_does_not_affect_other_objects() {
        let list = json!([
            {"metadata": {"name": "bad"}, "spec": {"routes": "all of them"}},
            {"metadata": {"name": "good"}, "spec": {"routes": [{"services": [{"name": "s", "port": 80}]}]}},
            {"metadata": {"name": "none"}},
        ]);
        let read: Vec<HttpProxy> = serde_json::from_value(list).unwrap();
        assert!(matches!(&read[0].spec, Readable::Unreadable(why) if why.contains("all of them")));
        assert_eq!(read[1].spec.read().unwrap().routes[0].services[0].port, 80);
        assert_eq!(read[2].spec, Readable::default());
    }

    #[test]
    fn a_malformed_status_is_none() {
        let list = json!([
            {"metadata": {}, "status": 5}, {"metadata": {}, "status": {"currentStatus": []}},
            {"metadata": {}, "status": null}, {"metadata": {}}, {"metadata": {}, "status": {"currentStatus": "valid"}},
        ]);
        let proxies: Vec<HttpProxy> = serde_json::from_value(list.clone()).unwrap();
        let routes: Vec<IngressRoute> = serde_json::from_value(list).unwrap();
        assert!(proxies[..4].iter().all(|proxy| proxy.status.is_none()));
        assert!(routes[..4].iter().all(|route| route.status.is_none()));
        assert_eq!(proxies[4].status.as_ref().unwrap().current_status, "valid");
        assert_eq!(routes[4].status.as_ref().unwrap().current_status, "valid");
    }

    #[test]
    fn fields_without_a_type_are_kept_by_name() {
        let object = json!({"metadata": {}, "spec": {
            "virtualhost": {"fqdn": "h", "ipAllowPolicy": [{"cidr": "10.0.0.0/8", "source": "Peer"}]},
            "routes": [{"services": [{"name": "s", "port": 80, "novel": 1}], "retryPolicy": {}}],
        }});
        let read: HttpProxy = serde_json::from_value(object).unwrap();
        let spec = read.spec.read().unwrap();
        let names = |others: &Others| others.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&spec.virtualhost.as_ref().unwrap().others), ["ipAllowPolicy"]);
        assert_eq!(names(&spec.routes[0].others), ["retryPolicy"]);
        assert_eq!(names(&spec.routes[0].services[0].others), ["novel"]);
        assert!(spec.others.is_empty());
    }

    #[test]
    fn a_null_field_or_an_empty_list_is_void() {
        for (value, wanted) in
            [(json!(null), true), (json!([]), true), (json!({}), false), (json!(false), false)]
        {
            assert_eq!(is_void(&value), wanted, "{value}");
        }
    }
}
