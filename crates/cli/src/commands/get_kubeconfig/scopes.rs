//! The scopes of the OIDC login, which depend on the scopes that the issuer lists in its discovery
//! document.
//!
//! Many providers refuse the whole login for one scope that they do not have (`invalid_scope`). The
//! default scopes are those of a Supervisor, so that most of them are removed for other issuers.

use serde_json::json;

use super::options::OidcOptions;
use crate::printer::Printer;

/// The scope without which there is no ID token. Every issuer has it, listed or not.
const OPENID: &str = "openid";
/// The scopes of a Supervisor that its older versions do not have.
const NEWER_SUPERVISORS: [&str; 2] = ["username", "groups"];

/// Removes the scopes that a Supervisor does not have, as upstream does: also if the user requested
/// them.
pub(super) fn of_supervisor(oidc: &mut OidcOptions, supported: &[String], printer: Printer) {
    if NEWER_SUPERVISORS.iter().all(|scope| supported.iter().any(|supported| supported == scope)) {
        return;
    }
    for scope in NEWER_SUPERVISORS {
        if oidc.scopes.iter().any(|requested| requested == scope) {
            printer.info(
                "removed scope from --oidc-scopes list because it is not supported by this Supervisor",
                &[("scope", json!(scope))],
            );
        }
    }
    oidc.scopes.retain(|requested| !NEWER_SUPERVISORS.contains(&requested.as_str()));
}

/// Removes the default scopes that another issuer does not list. Requested scopes stay.
///
/// `offline_access` is removed, too: issuers that do not list it refuse it (Google, GitLab), and
/// usually issue refresh tokens without it. An issuer that lists no scopes gets `openid` alone.
pub(super) fn of_other_issuer(oidc: &mut OidcOptions, supported: &[String], printer: Printer) {
    if !oidc.has_default_scopes {
        return;
    }
    let (kept, removed) = oidc.scopes.drain(..).partition::<Vec<_>, _>(|scope| {
        scope == OPENID || supported.iter().any(|supported| supported == scope)
    });
    oidc.scopes = kept;
    if !removed.is_empty() {
        printer.info(
            "removed default scopes of --oidc-scopes because the issuer does not list them",
            &[("scopes", json!(removed))],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;
    use crate::flags::parse::ParseResult;
    use crate::flags::{parse, tree::ROOT};
    use crate::printer::Level;

    fn scopes(
        flags: &[&str],
        decide: fn(&mut OidcOptions, &[String], Printer),
        supported: &[&str],
    ) -> String {
        let args: Vec<String> =
            ["get", "kubeconfig"].iter().chain(flags).map(|word| (*word).to_owned()).collect();
        let ParseResult::Run(parsed) = parse(&ROOT, &args) else { panic!("{args:?}") };
        let mut oidc = Options::new(&parsed).oidc;
        let supported: Vec<String> = supported.iter().map(|scope| (*scope).to_owned()).collect();
        decide(&mut oidc, &supported, Printer::new(Level::Warning));
        oidc.scopes.join(",")
    }

    #[test]
    fn default_scopes_are_those_that_the_issuer_lists() {
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
            assert_eq!(scopes(&[], of_other_issuer, supported), expected, "{supported:?}");
        }
    }

    #[test]
    fn requested_scopes_are_unchanged() {
        for (flags, expected) in [
            (&["--oidc-scopes=z,openid,offline_access"][..], "z,openid,offline_access"),
            (&["--oidc-scopes=groups,openid,groups"], "groups,openid,groups"),
            // Equal to the default, but requested.
            (
                &["--oidc-scopes=offline_access,openid,pinniped:request-audience,username,groups"],
                "offline_access,openid,pinniped:request-audience,username,groups",
            ),
        ] {
            assert_eq!(scopes(flags, of_other_issuer, &["openid"]), expected);
        }
    }

    #[test]
    fn an_older_supervisor_gets_neither_username_nor_groups() {
        let all = "offline_access,openid,pinniped:request-audience,username,groups";
        let fewer = "offline_access,openid,pinniped:request-audience";
        for (supported, expected) in
            [(&["username", "groups"][..], all), (&["username", "openid"], fewer), (&[], fewer)]
        {
            assert_eq!(scopes(&[], of_supervisor, supported), expected, "{supported:?}");
        }
        assert_eq!(scopes(&["--oidc-scopes=groups,openid"], of_supervisor, &["username"]), "openid");
    }
}
