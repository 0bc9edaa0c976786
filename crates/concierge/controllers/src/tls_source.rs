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
use pinniped_kube_types::condition::Wanted;
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

/// Resolves `spec.tls` to the condition and, if the condition is true, the roots to trust.
pub fn resolve(tls: Option<&TlsSpec>, objects: &impl CaObjects) -> (Wanted, Option<Trusted>) {
    match bundle(tls, objects) {
        Ok(None) => {
            let message = "spec.tls is valid: no TLS configuration provided: using default root CA bundle from \
                           container image";
            let trusted = Trusted { roots: Roots::System, fingerprint: "system".to_owned() };
            (Wanted::success(CONDITION, message), Some(trusted))
        }
        Ok(Some(bundle)) => {
            let fingerprint = bundle.sha256().iter().map(|byte| format!("{byte:02x}")).collect();
            let trusted = Trusted { roots: Roots::Bundle(bundle), fingerprint };
            (Wanted::success(CONDITION, "spec.tls is valid: using configured CA bundle"), Some(trusted))
        }
        Err(message) => (Wanted::failure(CONDITION, REASON_INVALID, message), None),
    }
}

fn bundle(tls: Option<&TlsSpec>, objects: &impl CaObjects) -> Result<Option<CaBundle>, String> {
    let Some(tls) = tls else { return Ok(None) };
    let inline = tls.certificate_authority_data.as_deref().unwrap_or_default();
    match &tls.certificate_authority_data_source {
        Some(_) if !inline.is_empty() => {
            Err("spec.tls is invalid: both tls.certificateAuthorityDataSource and \
                                              tls.certificateAuthorityData provided"
                .to_owned())
        }
        Some(source) => from_source(source, objects)
            .map(Some)
            .map_err(|problem| format!("spec.tls.certificateAuthorityDataSource is invalid: {problem}")),
        None if inline.is_empty() => Ok(None),
        None => from_inline(inline)
            .map(Some)
            .map_err(|problem| format!("spec.tls.certificateAuthorityData is invalid: {problem}")),
    }
}

fn from_inline(data: &str) -> Result<CaBundle, String> {
    let pem = pinniped_go_compat::base64::decode(data.as_bytes()).map_err(|error| error.to_string())?;
    let none = |_| format!("no base64-encoded PEM certificates found in {} bytes of data {HINT}", data.len());
    CaBundle::from_pem(&pem).map_err(none)
}

fn from_source(
    source: &CertificateAuthorityDataSource,
    objects: &impl CaObjects,
) -> Result<CaBundle, String> {
    let CertificateAuthorityDataSource { kind, name, key } = source;
    let resource = kind.to_lowercase();
    let full_name = format!("{}/{name}", objects.namespace());
    let missing = || format!("failed to get {resource} \"{full_name}\": {resource} \"{name}\" not found");
    let value = match kind.as_str() {
        "Secret" => {
            let secret = objects.secret(name).ok_or_else(missing)?;
            if !is_ca_secret(&secret) {
                let type_ = secret.type_.as_deref().unwrap_or_default();
                return Err(format!(
                    "secret \"{full_name}\" of type \"{type_}\" cannot be used as a certificate authority data source"
                ));
            }
            secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.clone())
        }
        "ConfigMap" => {
            let map = objects.config_map(name).ok_or_else(missing)?;
            map.data.as_ref().and_then(|data| data.get(key)).map(|value| value.clone().into_bytes())
        }
        other => return Err(format!("unsupported CA bundle source kind: {other}")),
    };
    let value = value.ok_or_else(|| format!("key \"{key}\" not found in {resource} \"{full_name}\""))?;
    if value.is_empty() {
        return Err(format!("key \"{key}\" has empty value in {resource} \"{full_name}\""));
    }
    CaBundle::from_pem(&value).map_err(|_| {
        let length = value.len();
        format!("key \"{key}\" with {length} bytes of data in {resource} \"{full_name}\" is not a PEM-encoded certificate {HINT}")
    })
}

#[cfg(test)]
mod tests;
