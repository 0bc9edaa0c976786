//! `TLSCertificateDelegation`: the owner of a Secret allows other namespaces to serve it as a
//! certificate.
//!
//! The kind comes from Contour (its design document "TLS Certificate Delegation"). It has existed
//! in three API groups with the same schema, so the [`DelegationGroup`] is the dynamic part of its
//! type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

/// The API group of a delegation object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DelegationGroup {
    /// `projectcontour.io/v1`, the current group.
    ProjectContour,
    /// `contour.heptio.com/v1beta1`, up to Contour 1.5.
    Heptio,
    /// `contour.vmware.com/v1`, from the design document; no release of Contour served it.
    Vmware,
}

impl DelegationGroup {
    /// All groups; the grants of all groups are combined.
    pub const ALL: [Self; 3] = [Self::ProjectContour, Self::Heptio, Self::Vmware];

    /// Returns the name of the API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::ProjectContour => "projectcontour.io",
            Self::Heptio => "contour.heptio.com",
            Self::Vmware => "contour.vmware.com",
        }
    }

    /// Returns the version in that group.
    pub fn version(self) -> &'static str {
        match self {
            Self::ProjectContour | Self::Vmware => "v1",
            Self::Heptio => "v1beta1",
        }
    }
}

/// The Secrets that a namespace delegates to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsCertificateDelegation {
    /// Standard metadata; the namespace is the one that owns the Secrets.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The delegations.
    #[serde(default)]
    pub spec: TlsCertificateDelegationSpec,
}

/// The spec of a `TLSCertificateDelegation`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsCertificateDelegationSpec {
    /// One entry for each Secret. An entry that does not match the schema grants nothing and does
    /// not affect other entries: the CRDs of old releases validate little, and an error in one
    /// namespace must not remove the grants of other namespaces.
    #[serde(default, deserialize_with = "well_formed")]
    pub delegations: Vec<CertificateDelegation>,
}

/// The delegation of one Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateDelegation {
    /// The name of the Secret, in the namespace of the object.
    pub secret_name: String,
    /// The namespaces that may refer to the Secret; `["*"]` means all namespaces.
    pub target_namespaces: Vec<String>,
}

fn well_formed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CertificateDelegation>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let entries = value.as_array().into_iter().flatten();
    Ok(entries.filter_map(|entry| CertificateDelegation::deserialize(entry).ok()).collect())
}

impl TlsCertificateDelegation {
    /// The name of the kind.
    pub const KIND: &'static str = "TLSCertificateDelegation";
    /// The name of the resource in paths and RBAC rules.
    pub const PLURAL: &'static str = "tlscertificatedelegations";
}

impl kube_core::Resource for TlsCertificateDelegation {
    type DynamicType = DelegationGroup;
    // The kind is namespaced, but for types with a dynamic part kube supports namespaces only with
    // this scope.
    type Scope = kube_core::DynamicResourceScope;

    fn kind(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        Self::KIND.into()
    }

    fn group(group: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        group.group().into()
    }

    fn version(group: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        group.version().into()
    }

    fn plural(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
        Self::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_group_has_its_own_path() {
        let paths = DelegationGroup::ALL
            .map(|group| <TlsCertificateDelegation as kube_core::Resource>::url_path(&group, Some("ns")));
        assert_eq!(
            paths,
            [
                "/apis/projectcontour.io/v1/namespaces/ns/tlscertificatedelegations",
                "/apis/contour.heptio.com/v1beta1/namespaces/ns/tlscertificatedelegations",
                "/apis/contour.vmware.com/v1/namespaces/ns/tlscertificatedelegations",
            ]
        );
    }

    #[test]
    fn an_invalid_entry_grants_nothing_and_does_not_affect_other_entries() {
        let good = json!({"secretName": "s", "targetNamespaces": ["a"]});
        let entry = CertificateDelegation { secret_name: "s".into(), target_namespaces: vec!["a".into()] };
        for (delegations, wanted) in [
            (json!([good]), vec![entry.clone()]),
            (json!([{"secretName": "s", "targetNamespaces": "a"}, good, "x", null]), vec![entry]),
            (json!([{"secretName": "s"}, {"targetNamespaces": ["a"]}]), vec![]),
            (json!("all of them"), vec![]),
            (json!(null), vec![]),
        ] {
            let object = json!({"metadata": {"name": "d"}, "spec": {"delegations": delegations}});
            let read: TlsCertificateDelegation = serde_json::from_value(object).unwrap();
            assert_eq!(read.spec.delegations, wanted, "{delegations}");
        }
        let empty: TlsCertificateDelegation = serde_json::from_value(json!({"metadata": {}})).unwrap();
        assert!(empty.spec.delegations.is_empty());
    }
}
