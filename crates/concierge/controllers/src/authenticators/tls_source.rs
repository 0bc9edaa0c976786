//! Resolves an authenticator's `spec.tls`: a CA bundle in the object itself, in a Secret or in a
//! ConfigMap.
//!
//! Both kinds of authenticators use this module, and the condition `TLSConfigurationValid` with the
//! texts of upstream's `internal/controller/tlsconfigutil`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::Store;
use pinniped_concierge_api::authentication::{CertificateAuthorityDataSource, TlsSpec};
use pinniped_concierge_api::names::{SECRET_TYPE_OPAQUE, SECRET_TYPE_TLS};
use pinniped_go_compat::base64::{self, CorruptInput};
use pinniped_kube_types::condition::DesiredCondition;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::Roots;

use pinniped_controller::watch::get_named;

/// Type of the condition.
pub const CONDITION: &str = "TLSConfigurationValid";

/// Reason of the condition when it is false.
pub const REASON_INVALID: &str = "InvalidTLSConfig";

/// The hint about the format of a bundle.
const HINT: &str = r#"(PEM certificates must begin with "-----BEGIN CERTIFICATE-----")"#;

/// Returns whether a Secret of this type can hold a CA bundle. Changes of other Secrets need no
/// pass.
pub fn is_ca_secret(secret: &Secret) -> bool {
    // The API server sets the type Opaque if none is given.
    matches!(secret.type_.as_deref(), None | Some(SECRET_TYPE_OPAQUE | SECRET_TYPE_TLS))
}

/// Access to the objects with CA bundles.
pub trait CaObjects {
    /// Returns the namespace of the objects: the Concierge's.
    fn namespace(&self) -> &str;
    /// Returns the Secret with this name.
    fn secret(&self, name: &str) -> Option<Arc<Secret>>;
    /// Returns the ConfigMap with this name.
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>>;
}

/// The Secrets and ConfigMaps of the Concierge's namespace, from watch caches.
#[derive(Clone)]
pub struct WatchedCaObjects {
    /// The Concierge's namespace.
    pub namespace: String,
    /// Its Secrets.
    pub secrets: Store<Secret>,
    /// Its ConfigMaps.
    pub config_maps: Store<ConfigMap>,
}

impl CaObjects for WatchedCaObjects {
    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        get_named(&self.secrets, (), Some(&self.namespace), name)
    }

    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        get_named(&self.config_maps, (), Some(&self.namespace), name)
    }
}

/// The roots to trust.
#[derive(Clone, Debug)]
pub struct Trusted {
    /// The roots.
    pub roots: Roots,
    /// Identifies the roots: different roots have different fingerprints.
    pub fingerprint: String,
}

/// Reasons why `spec.tls` is not valid, with upstream's texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsSpecError {
    /// The bundle is given twice.
    #[error(
        "spec.tls is invalid: both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided"
    )]
    Ambiguous,
    /// The bundle in the object is not valid.
    #[error("spec.tls.certificateAuthorityData is invalid: {0}")]
    Inline(#[from] InlineError),
    /// The bundle in a Secret or ConfigMap is not valid.
    #[error("spec.tls.certificateAuthorityDataSource is invalid: {0}")]
    Source(#[from] SourceError),
}

/// Reasons why the bundle in the object is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InlineError {
    /// The field is not base64.
    #[error(transparent)]
    Base64(#[from] CorruptInput),
    /// The decoded data has no certificate.
    #[error("no base64-encoded PEM certificates found in {bytes} bytes of data {HINT}")]
    NoCertificate {
        /// Length of the field.
        bytes: usize,
    },
}

/// Reasons why the bundle in a Secret or ConfigMap is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The kind is neither `Secret` nor `ConfigMap`.
    #[error("unsupported CA bundle source kind: {0}")]
    Kind(String),
    /// The object does not exist.
    #[error("failed to get {0}: {resource} \"{name}\" not found", resource = .0.resource, name = .0.name)]
    NotFound(SourceObject),
    /// The Secret has a type that holds no CA bundle.
    #[error("{0} of type \"{1}\" cannot be used as a certificate authority data source")]
    SecretType(SourceObject, String),
    /// The object does not have the key.
    #[error("key \"{1}\" not found in {0}")]
    NoKey(SourceObject, String),
    /// The value is empty.
    #[error("key \"{1}\" has empty value in {0}")]
    Empty(SourceObject, String),
    /// The value has no certificate.
    #[error("key \"{key}\" with {bytes} bytes of data in {object} is not a PEM-encoded certificate {HINT}")]
    NoCertificate {
        /// The object.
        object: SourceObject,
        /// The key.
        key: String,
        /// Length of the value.
        bytes: usize,
    },
}

/// The object with a bundle, as `resource "namespace/name"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceObject {
    /// The kind in lower case.
    resource: String,
    namespace: String,
    name: String,
}

impl std::fmt::Display for SourceObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} \"{}/{}\"", self.resource, self.namespace, self.name)
    }
}

/// Resolves `spec.tls` to the condition and, if the condition is true, the roots to trust.
pub fn resolve(tls: Option<&TlsSpec>, objects: &impl CaObjects) -> (DesiredCondition, Option<Trusted>) {
    match bundle(tls, objects) {
        Ok(None) => {
            let message = "spec.tls is valid: no TLS configuration provided: using default root CA bundle from \
                           container image";
            let trusted = Trusted { roots: Roots::System, fingerprint: "system".to_owned() };
            (DesiredCondition::success(CONDITION, message), Some(trusted))
        }
        Ok(Some(bundle)) => {
            let fingerprint = bundle.sha256_hex();
            let trusted = Trusted { roots: Roots::Bundle(bundle), fingerprint };
            (
                DesiredCondition::success(CONDITION, "spec.tls is valid: using configured CA bundle"),
                Some(trusted),
            )
        }
        Err(error) => (DesiredCondition::failure(CONDITION, REASON_INVALID, error.to_string()), None),
    }
}

fn bundle(tls: Option<&TlsSpec>, objects: &impl CaObjects) -> Result<Option<CaBundle>, TlsSpecError> {
    let Some(tls) = tls else { return Ok(None) };
    let inline = tls.certificate_authority_data.as_deref().unwrap_or_default();
    match &tls.certificate_authority_data_source {
        Some(_) if !inline.is_empty() => Err(TlsSpecError::Ambiguous),
        Some(source) => Ok(Some(from_source(source, objects)?)),
        None if inline.is_empty() => Ok(None),
        None => Ok(Some(from_inline(inline)?)),
    }
}

fn from_inline(data: &str) -> Result<CaBundle, InlineError> {
    let pem = base64::decode(data.as_bytes())?;
    CaBundle::from_pem(&pem).map_err(|_| InlineError::NoCertificate { bytes: data.len() })
}

fn from_source(
    source: &CertificateAuthorityDataSource,
    objects: &impl CaObjects,
) -> Result<CaBundle, SourceError> {
    let CertificateAuthorityDataSource { kind, name, key } = source;
    let object = SourceObject {
        resource: kind.to_lowercase(),
        namespace: objects.namespace().to_owned(),
        name: name.clone(),
    };
    let value = match kind.as_str() {
        "Secret" => {
            let Some(secret) = objects.secret(name) else { return Err(SourceError::NotFound(object)) };
            if !is_ca_secret(&secret) {
                let type_ = secret.type_.clone().unwrap_or_default();
                return Err(SourceError::SecretType(object, type_));
            }
            secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.clone())
        }
        "ConfigMap" => {
            let Some(map) = objects.config_map(name) else { return Err(SourceError::NotFound(object)) };
            map.data.as_ref().and_then(|data| data.get(key)).map(|value| value.clone().into_bytes())
        }
        other => return Err(SourceError::Kind(other.to_owned())),
    };
    let Some(value) = value else { return Err(SourceError::NoKey(object, key.clone())) };
    if value.is_empty() {
        return Err(SourceError::Empty(object, key.clone()));
    }
    CaBundle::from_pem(&value).map_err(|_| SourceError::NoCertificate {
        object,
        key: key.clone(),
        bytes: value.len(),
    })
}

#[cfg(test)]
mod tests;
