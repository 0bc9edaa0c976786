//! Implementations of `kube::Resource` for kinds whose API group depends on the installation.

/// Implements `kube::Resource` for a cluster-scoped kind of version `v1alpha1`, with the group
/// suffix as the dynamic part, and a constructor that sets `kind` and `apiVersion`.
///
/// kube's derive macro fixes the group at compile time, which does not work with a configurable
/// suffix.
#[macro_export]
macro_rules! cluster_resource {
    ($type:ty, group: $group:expr, kind: $kind:literal, plural: $plural:literal) => {
        impl $type {
            /// The API group of an installation with the default suffix.
            pub const GROUP: &'static str = $group;
            /// The version of the API group.
            pub const VERSION: &'static str = "v1alpha1";
            /// The name of the kind.
            pub const KIND: &'static str = $kind;
            /// The name of the resource in paths and RBAC rules.
            pub const PLURAL: &'static str = $plural;

            /// Returns `group/version` for an installation with this suffix.
            pub fn group_version(suffix: &$crate::suffix::GroupSuffix) -> String {
                format!("{}/{}", suffix.replace(Self::GROUP), Self::VERSION)
            }
        }

        impl $crate::kube_core::Resource for $type {
            type DynamicType = $crate::suffix::GroupSuffix;
            type Scope = $crate::kube_core::ClusterResourceScope;

            fn kind(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                Self::KIND.into()
            }

            fn group(suffix: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                suffix.replace(Self::GROUP).into()
            }

            fn version(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                Self::VERSION.into()
            }

            fn plural(_: &Self::DynamicType) -> std::borrow::Cow<'_, str> {
                Self::PLURAL.into()
            }

            fn meta(&self) -> &$crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(
                &mut self,
            ) -> &mut $crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// Defines an enum of wire strings that preserves unknown values, so that an object written by a
/// newer version is not changed by a read and a write of this version.
#[macro_export]
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $text)] $variant,)+
            /// A value that is unknown to this version, preserved unmodified.
            #[serde(untagged)]
            Other(String),
        }

        impl $name {
            /// Every value that this version defines, in the order of the schema.
            pub const KNOWN: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the string on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(text) => text,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }
    };
}

pub use crate::{cluster_resource, open_enum};

/// Deserializes `null`, which Go writes for an empty list, as the default value.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    <Option<T> as serde::Deserialize>::deserialize(deserializer).map(Option::unwrap_or_default)
}
