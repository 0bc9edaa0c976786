//! The scopes of the OIDC login, which depend on the scopes that the issuer lists in its discovery
//! document.

use serde_json::json;

use super::options::OidcOptions;
use crate::default_scopes;
use crate::printer::Printer;

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
pub(super) fn of_other_issuer(oidc: &mut OidcOptions, supported: &[String], printer: Printer) {
    if !oidc.has_default_scopes {
        return;
    }
    let removed = default_scopes::remove_unlisted(&mut oidc.scopes, supported);
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
        let mut oidc = Options::new(&parsed).unwrap().oidc;
        let supported: Vec<String> = supported.iter().map(|scope| (*scope).to_owned()).collect();
        decide(&mut oidc, &supported, Printer::new(Level::Warning));
        oidc.scopes.join(",")
    }

    #[test]
    fn requested_scopes_are_unchanged() {
        assert_eq!(scopes(&[], of_other_issuer, &["groups"]), "openid,groups");
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
