//! A certificate in another namespace: whether its owner permits its use, and what is served
//! meanwhile.
//!
//! A certificate from the Concierge's namespace is served even while its Secret is invalid. A
//! delegated certificate is not: it is served only as long as the spec names it, its owner permits
//! it and it can be read. While the spec names a Secret that may not be used, no other certificate
//! replaces it.

use pinniped_concierge_api::config::CredentialIssuerSpec;
use pinniped_delegation::grants::SecretReference;

use super::error::ExternalError;
use super::observed::Observed;
use super::plan::Step;
use crate::status_text::StatusText;

/// The Secret of another namespace that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// Namespace and name of the Secret.
    pub secret: SecretReference,
    /// Whether the Concierge may use it.
    pub permission: Permission,
}

/// Whether the Concierge may use a Secret of another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The name is not a valid reference.
    Malformed,
    /// The grants could not be read yet; the text is the reason.
    Unknown(StatusText),
    /// The owner does not permit the use. Whether the Secret exists was not checked.
    Denied,
    /// The owner permits the use, but the Secret cannot be read; the text is the reason.
    Unreadable(StatusText),
    /// The Secret may be used if it exists.
    Granted,
}

impl Delegated {
    /// Returns the reason why the Secret cannot be used.
    pub(super) fn obstacle(&self) -> Option<ExternalError> {
        let secret = self.secret.clone();
        match &self.permission {
            Permission::Granted => None,
            Permission::Malformed => Some(ExternalError::Malformed(secret)),
            Permission::Unknown(cause) => {
                Some(ExternalError::UnknownPermission { secret, cause: cause.clone() })
            }
            Permission::Denied => Some(ExternalError::Denied(secret)),
            Permission::Unreadable(cause) => Some(ExternalError::Unreadable { secret, cause: cause.clone() }),
        }
    }
}

/// Returns the Secret that the spec names; `None` if the proxy is disabled and does not need it.
pub fn external_reference(spec: Option<&CredentialIssuerSpec>, namespace: &str) -> Option<SecretReference> {
    let proxy = spec?.impersonation_proxy.as_ref().filter(|proxy| proxy.mode != "disabled")?;
    let written = proxy.tls.as_ref()?.secret_name.as_deref().filter(|name| !name.is_empty())?;
    Some(SecretReference::parse(written, namespace))
}

/// Returns whether the loaded certificate must not be served any longer, given the steps of the
/// pass.
pub(super) fn must_refuse(observed: &Observed, steps: &[Step]) -> bool {
    if observed.loaded.serving.is_none() {
        return false;
    }
    let loaded = observed.loaded.delegated.as_ref();
    let allowed = match &observed.delegated {
        None => loaded.is_none(),
        Some(Delegated { secret, permission }) => match permission {
            Permission::Malformed | Permission::Denied | Permission::Unreadable(_) => false,
            Permission::Unknown(_) => loaded == Some(secret),
            // The previous certificate is served until this pass loads the delegated one.
            Permission::Granted => match loaded {
                Some(loaded) => loaded == secret && observed.external.is_some(),
                None => steps.iter().any(|step| matches!(step, Step::LoadExternal | Step::RefuseServing)),
            },
        },
    };
    !allowed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_is_returned_unless_the_proxy_is_disabled() {
        for (mode, secret_name, wanted) in [
            ("enabled", json!("cert"), Some("own/cert")),
            ("auto", json!("ns/cert"), Some("ns/cert")),
            ("auto", json!("/cert"), Some("own/cert")),
            ("auto", json!("ns/"), Some("ns/")),
            ("disabled", json!("ns/cert"), None),
            ("enabled", json!(""), None),
            ("enabled", json!(null), None),
        ] {
            let proxy = json!({"mode": mode, "tls": {"secretName": secret_name}});
            let spec = serde_json::from_value(json!({"impersonationProxy": proxy})).unwrap();
            let found = external_reference(Some(&spec), "own").map(|secret| secret.to_string());
            assert_eq!(found.as_deref(), wanted, "{mode} {secret_name}");
        }
        assert_eq!(external_reference(None, "own"), None);
        assert_eq!(external_reference(Some(&CredentialIssuerSpec::default()), "own"), None);
    }
}
