//! Decides the wanted Services of the proxy and the patch of an existing one.
//!
//! Other clients set annotations and labels on a Service. To remove only its own keys, the
//! Concierge records them in annotations of the Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pinniped_go_compat::json::quote;
use serde_json::{Map, Value, json};

use super::spec::{ProxyConfig, ServiceFields};
use crate::endpoint::HTTPS_PORT;

/// Annotation with the keys of the annotations from the spec; independent of the API group suffix.
pub const ANNOTATION_KEYS: &str = "credentialissuer.pinniped.dev/annotation-keys";

/// Annotation with the keys of the labels from the configuration.
pub const LABEL_KEYS: &str = "credentialissuer.pinniped.dev/label-keys";

/// Annotation with the fields of `spec` that come from the `CredentialIssuer`, see
/// [`ServiceFields`]. Absent if there are none.
pub const FIELD_KEYS: &str = "credentialissuer.pinniped.dev/service-fields";

/// The label that selects only the Concierge's pods, unlike the other configured labels.
const APP_LABEL: &str = "app";

// Names of the fields of `spec` that are copied from the `CredentialIssuer`.
const EXTERNAL_TRAFFIC_POLICY: &str = "externalTrafficPolicy";
const IP_FAMILY_POLICY: &str = "ipFamilyPolicy";
const LOAD_BALANCER_CLASS: &str = "loadBalancerClass";
const SOURCE_RANGES: &str = "loadBalancerSourceRanges";

/// The two Services that can exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Type `LoadBalancer`.
    LoadBalancer,
    /// Type `ClusterIP`.
    ClusterIp,
}

/// Reasons why an existing Service cannot be changed to the wanted one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The load balancer class would change, which is immutable.
    #[error(
        "could not change the loadBalancerClass of service {}, which is fixed once it was created: delete the Service \
         to have it created anew", quote(.0)
    )]
    LoadBalancerClass(String),
}

impl ServiceType {
    /// Returns the value of `spec.type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LoadBalancer => "LoadBalancer",
            Self::ClusterIp => "ClusterIP",
        }
    }
}

/// Returns the wanted Service, without an owner.
pub fn desired(
    kind: ServiceType,
    name: &str,
    namespace: &str,
    labels: &BTreeMap<String, String>,
    port: u16,
    config: &ProxyConfig,
) -> Service {
    let mut annotations = config.annotations.clone();
    record_keys(&mut annotations, ANNOTATION_KEYS, config.annotations.keys());
    record_keys(&mut annotations, LABEL_KEYS, labels.keys());
    let fields = fields_for(kind, &config.fields);
    let set: Vec<String> = fields.iter().map(|(name, _)| (*name).to_owned()).collect();
    record_keys(&mut annotations, FIELD_KEYS, set.iter());
    let app = labels.get(APP_LABEL).cloned().unwrap_or_default();
    Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.clone()).filter(|labels| !labels.is_empty()),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(kind.as_str().to_owned()),
            ports: Some(vec![ServicePort {
                port: HTTPS_PORT.into(),
                target_port: Some(IntOrString::Int(port.into())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            selector: Some(BTreeMap::from([(APP_LABEL.to_owned(), app)])),
            load_balancer_ip: config.load_balancer_ip.clone().filter(|_| kind == ServiceType::LoadBalancer),
            ..with_fields(fields)
        }),
        status: None,
    }
}

/// Returns names and values of the configured fields that this kind of Service supports.
fn fields_for(kind: ServiceType, fields: &ServiceFields) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    if kind == ServiceType::LoadBalancer {
        found.extend(
            fields.external_traffic_policy.as_ref().map(|value| (EXTERNAL_TRAFFIC_POLICY, json!(value))),
        );
    }
    found.extend(fields.ip_family_policy.as_ref().map(|value| (IP_FAMILY_POLICY, json!(value))));
    if kind == ServiceType::LoadBalancer {
        found.extend(fields.load_balancer_class.as_ref().map(|value| (LOAD_BALANCER_CLASS, json!(value))));
        let ranges = &fields.load_balancer_source_ranges;
        found.extend((!ranges.is_empty()).then(|| (SOURCE_RANGES, json!(ranges))));
    }
    found
}

/// Returns the API server's default of a field, for a field that is no longer configured.
fn default_of(field: &str) -> Option<Value> {
    match field {
        EXTERNAL_TRAFFIC_POLICY => Some(json!("Cluster")),
        IP_FAMILY_POLICY => Some(json!("SingleStack")),
        SOURCE_RANGES => Some(Value::Null),
        _ => None,
    }
}

fn with_fields(fields: Vec<(&'static str, Value)>) -> ServiceSpec {
    let fields: Map<String, Value> =
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    // The fields are strings and a list of strings, and the names are those of the type.
    serde_json::from_value(Value::Object(fields)).unwrap_or_default()
}

/// Returns the patch of the copied fields: configured fields that differ, and the defaults of
/// fields that are no longer configured.
///
/// # Errors
///
/// Returns [`ServiceError`] if the load balancer class would change.
fn fields_patch(
    existing: &Service,
    desired: &Service,
    managed: &[String],
) -> Result<Vec<(String, Value)>, ServiceError> {
    let fields = |service: &Service| match serde_json::to_value(&service.spec) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (old, new) = (fields(existing), fields(desired));
    let gone = |field: &str| managed.iter().any(|managed| managed == field) && !new.contains_key(field);
    if new.get(LOAD_BALANCER_CLASS).is_some_and(|class| old.get(LOAD_BALANCER_CLASS) != Some(class))
        || gone(LOAD_BALANCER_CLASS) && old.contains_key(LOAD_BALANCER_CLASS)
    {
        let name = existing.metadata.name.clone().unwrap_or_default();
        return Err(ServiceError::LoadBalancerClass(name));
    }
    let mut patch = Vec::new();
    for field in [EXTERNAL_TRAFFIC_POLICY, IP_FAMILY_POLICY, SOURCE_RANGES] {
        let wanted = match new.get(field) {
            Some(wanted) => wanted.clone(),
            None if gone(field) => default_of(field).unwrap_or_default(),
            None => continue,
        };
        if old.get(field).unwrap_or(&Value::Null) != &wanted {
            patch.push((field.to_owned(), wanted));
        }
    }
    Ok(patch)
}

fn record_keys<'a>(
    annotations: &mut BTreeMap<String, String>,
    bookkeeping: &str,
    keys: impl Iterator<Item = &'a String>,
) {
    let keys: Vec<&String> = keys.collect();
    if !keys.is_empty() {
        annotations.insert(bookkeeping.to_owned(), json!(keys).to_string());
    }
}

/// Returns the JSON merge patch from `existing` to `desired`, or `None` if there is no difference.
/// The patch changes nothing but type, load balancer address, selector, configured fields, and the
/// annotations and labels of the Concierge.
///
/// # Errors
///
/// Returns [`ServiceError`] if the load balancer class would change.
pub fn patch(existing: &Service, desired: &Service) -> Result<Option<Value>, ServiceError> {
    let mut metadata = Map::new();
    let old_annotations = existing.metadata.annotations.clone().unwrap_or_default();
    let new_annotations = desired.metadata.annotations.clone().unwrap_or_default();
    let annotations = map_patch(
        &old_annotations,
        &merge(&old_annotations, &new_annotations, &managed(&old_annotations, ANNOTATION_KEYS), true),
    );
    let old_labels = existing.metadata.labels.clone().unwrap_or_default();
    let labels = map_patch(
        &old_labels,
        &merge(
            &old_labels,
            desired.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()),
            &managed(&old_annotations, LABEL_KEYS),
            false,
        ),
    );
    metadata.extend(annotations.map(|patch| ("annotations".to_owned(), patch)));
    metadata.extend(labels.map(|patch| ("labels".to_owned(), patch)));

    let empty = ServiceSpec::default();
    let (old, new) = (existing.spec.as_ref().unwrap_or(&empty), desired.spec.as_ref().unwrap_or(&empty));
    let mut spec = Map::new();
    if old.type_ != new.type_ {
        spec.insert("type".to_owned(), json!(new.type_));
    }
    let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if filled(&old.load_balancer_ip) != filled(&new.load_balancer_ip) {
        spec.insert("loadBalancerIP".to_owned(), json!(new.load_balancer_ip));
    }
    let selectors = (old.selector.clone().unwrap_or_default(), new.selector.clone().unwrap_or_default());
    spec.extend(map_patch(&selectors.0, &selectors.1).map(|patch| ("selector".to_owned(), patch)));

    spec.extend(fields_patch(existing, desired, &managed(&old_annotations, FIELD_KEYS))?);

    if metadata.is_empty() && spec.is_empty() {
        return Ok(None);
    }
    // The precondition turns a change that is not in the cache yet into a conflict instead of
    // overwriting it.
    metadata.insert("uid".to_owned(), json!(existing.metadata.uid));
    metadata.insert("resourceVersion".to_owned(), json!(existing.metadata.resource_version));
    let mut patch = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
    if !spec.is_empty() {
        patch.insert("spec".to_owned(), Value::Object(spec));
    }
    Ok(Some(Value::Object(patch)))
}

/// Returns the recorded keys; an unreadable record counts as empty.
fn managed(annotations: &BTreeMap<String, String>, bookkeeping: &str) -> Vec<String> {
    annotations.get(bookkeeping).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn merge(
    existing: &BTreeMap<String, String>,
    desired: &BTreeMap<String, String>,
    managed: &[String],
    bookkeeping: bool,
) -> BTreeMap<String, String> {
    let mut merged = existing.clone();
    merged.extend(desired.iter().map(|(key, value)| (key.clone(), value.clone())));
    let books = [ANNOTATION_KEYS, LABEL_KEYS, FIELD_KEYS];
    let gone = managed.iter().map(String::as_str).chain(books.into_iter().filter(|_| bookkeeping));
    for key in gone {
        if !desired.contains_key(key) {
            merged.remove(key);
        }
    }
    merged
}

fn map_patch(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Option<Value> {
    let mut patch = Map::new();
    for (key, value) in new {
        if old.get(key) != Some(value) {
            patch.insert(key.clone(), json!(value));
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests;
