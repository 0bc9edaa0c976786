//! `TLSCertificateDelegation`: the owner of a Secret lets other namespaces serve with it.
//!
//! The kind is Contour's (its design document "TLS Certificate Delegation"). It has lived in three API groups, all with
//! the same schema, so the [`DelegationGroup`] is the dynamic part of its type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

/// Where the kind is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DelegationGroup {
    /// `projectcontour.io/v1`, the present one.
    ProjectContour,
    /// `contour.heptio.com/v1beta1`, up to Contour 1.5.
    Heptio,
    /// `contour.vmware.com/v1`, of the design document; no release of Contour served it.
    Vmware,
}

impl DelegationGroup {
    /// Each of them; their grants are pooled.
    pub const ALL: [Self; 3] = [Self::ProjectContour, Self::Heptio, Self::Vmware];

    /// The API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::ProjectContour => "projectcontour.io",
            Self::Heptio => "contour.heptio.com",
            Self::Vmware => "contour.vmware.com",
        }
    }

    /// The version in that group.
    pub fn version(self) -> &'static str {
        match self {
            Self::ProjectContour | Self::Vmware => "v1",
            Self::Heptio => "v1beta1",
        }
    }
}

/// What the namespace of this object delegates to others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsCertificateDelegation {
    /// Standard metadata; the namespace is the one that owns the Secrets.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is delegated.
    #[serde(default)]
    pub spec: TlsCertificateDelegationSpec,
}

/// What is delegated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsCertificateDelegationSpec {
    /// One entry a Secret. An entry that is not as the schema says grants nothing and spoils no other: the definitions
    /// of old releases check little, and one namespace's mistake must not take away the grants of all others.
    #[serde(default, deserialize_with = "well_formed")]
    pub delegations: Vec<CertificateDelegation>,
}

/// To whom one Secret is delegated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateDelegation {
    /// The Secret's name in the namespace of the object.
    pub secret_name: String,
    /// The namespaces that may refer to it; `["*"]` is every one.
    pub target_namespaces: Vec<String>,
}

fn well_formed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CertificateDelegation>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    let entries = value.as_array().into_iter().flatten();
    Ok(entries.filter_map(|entry| CertificateDelegation::deserialize(entry).ok()).collect())
}

impl TlsCertificateDelegation {
    /// The kind's name.
    pub const KIND: &'static str = "TLSCertificateDelegation";
    /// The resource's name in paths and rules.
    pub const PLURAL: &'static str = "tlscertificatedelegations";
}

impl kube_core::Resource for TlsCertificateDelegation {
    type DynamicType = DelegationGroup;
    // Namespaced, but kube names namespaces for types with a dynamic part only in this scope.
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
    fn each_group_has_its_path() {
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
    fn an_entry_that_is_not_as_it_should_be_grants_nothing_and_spoils_nothing() {
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
