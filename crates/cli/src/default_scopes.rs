//! The default scopes of an OIDC login. An issuer may support only some of them.
//!
//! They are those of a Supervisor. Many other providers refuse the whole login for one scope that
//! they do not have (`invalid_scope`), so that only scopes that they list in their discovery
//! document are requested. `get kubeconfig` writes them into the kubeconfig; `login oidc` selects
//! them when it has no flag for the scopes.

/// The scope without which there is no ID token. Every issuer has it, listed or not.
const OPENID: &str = "openid";

/// Removes the default scopes that an issuer other than a Supervisor does not list, and returns
/// them.
///
/// `offline_access` is removed, too: issuers that do not list it refuse it (Google, GitLab), and
/// usually issue refresh tokens without it. An issuer that lists no scopes gets `openid` alone.
pub(crate) fn remove_unlisted(scopes: &mut Vec<String>, supported: &[String]) -> Vec<String> {
    scopes.extract_if(.., |scope| scope != OPENID && !supported.contains(scope)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::tree::DEFAULT_SCOPES;

    #[test]
    fn default_scopes_are_those_that_the_issuer_lists() {
        let list = |text: &[&str]| text.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
        for (supported, expected) in [
            // Keycloak, Microsoft Entra ID
            (&["openid", "acr", "profile", "email", "offline_access"][..], "offline_access,openid"),
            // Google, GitLab
            (&["openid", "email", "profile"], "openid"),
            // Okta, Dex
            (&["openid", "email", "profile", "groups", "offline_access"], "offline_access,openid,groups"),
            (&[], "openid"),
            (&["offline_access"], "offline_access,openid"),
            (&["OPENID", "Groups"], "openid"),
        ] {
            let mut scopes: Vec<String> = DEFAULT_SCOPES.split(',').map(str::to_owned).collect();
            let removed = remove_unlisted(&mut scopes, &list(supported));
            assert_eq!(scopes.join(","), expected, "{supported:?}");
            assert_eq!(scopes.len() + removed.len(), 5);
        }
    }
}
