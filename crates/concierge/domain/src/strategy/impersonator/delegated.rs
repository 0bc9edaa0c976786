//! A certificate that lies in another namespace: what its owner says, and what may be served meanwhile.
//!
//! A pair of one's own namespace keeps serving while something is wrong with its Secret. A delegated one does not: it
//! is served as long as the spec names it, its owner permits it and it can be read, and no longer. While the spec names
//! one that may not be used, nothing else takes its place either.

use pinniped_concierge_api::config::CredentialIssuerSpec;
use pinniped_go_compat::json::quote;

use super::EXTERNAL_FAILED;
use super::plan::Step;
use super::world::Observed;
use pinniped_delegation::grants::SecretReference;

/// The Secret of another namespace that the spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// Which one.
    pub secret: SecretReference,
    /// Whether it may be used.
    pub permission: Permission,
}

/// Whether a Secret of another namespace may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// No Secret can have this name.
    Malformed,
    /// The grants could not be read yet; why.
    Unknown(String),
    /// Its owner does not permit it. Whether it exists was not looked at.
    Denied,
    /// Its owner permits it, but it cannot be read; why.
    Unreadable(String),
    /// It may be used, if it exists.
    Granted,
}

impl Delegated {
    /// Why it cannot be used, for the status.
    pub(super) fn obstacle(&self) -> Option<String> {
        let secret = quote(&self.secret.to_string());
        let cause = match &self.permission {
            Permission::Granted => return None,
            Permission::Malformed => {
                format!("malformed secretName {secret} (expected \"name\" or \"namespace/name\")")
            }
            Permission::Unknown(cause) => {
                format!("could not find out whether Secret {secret} is delegated: {cause}")
            }
            Permission::Denied => format!("certificate delegation not permitted for Secret {secret}"),
            Permission::Unreadable(cause) => format!("could not read Secret {secret}: {cause}"),
        };
        Some(format!("{EXTERNAL_FAILED}: {cause}"))
    }
}

/// The Secret that this spec names, unless the proxy is switched off, when it is of no interest.
pub fn external_reference(spec: Option<&CredentialIssuerSpec>, namespace: &str) -> Option<SecretReference> {
    let proxy = spec?.impersonation_proxy.as_ref().filter(|proxy| proxy.mode != "disabled")?;
    let written = proxy.tls.as_ref()?.secret_name.as_deref().filter(|name| !name.is_empty())?;
    Some(SecretReference::parse(written, namespace))
}

/// Whether what is served now must not be served any longer, given the steps that are to be taken.
pub(super) fn must_refuse(observed: &Observed, steps: &[Step]) -> bool {
    if observed.loaded.serving.is_none() {
        return false;
    }
    let held = observed.loaded.delegated.as_ref();
    let allowed = match &observed.delegated {
        None => held.is_none(),
        Some(Delegated { secret, permission }) => match permission {
            Permission::Malformed | Permission::Denied | Permission::Unreadable(_) => false,
            Permission::Unknown(_) => held == Some(secret),
            // What was served before serves on until the delegated pair is loaded, in this very pass.
            Permission::Granted => match held {
                Some(held) => held == secret && observed.external.is_some(),
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
    fn a_reference_is_of_interest_unless_the_proxy_is_switched_off() {
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
