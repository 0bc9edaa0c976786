//! The selection of a flow.

use std::collections::HashMap;

use super::*;
use crate::flags::parse::ParseResult;
use crate::flags::{parse, tree::ROOT};
use crate::printer::Level;
use crate::supervisor::{IdentityProvider, IdentityProviders};

fn options(flags: &[&str]) -> OidcOptions {
    let args: Vec<String> =
        ["login", "oidc", "--issuer=https://i"].iter().chain(flags).map(|word| (*word).to_owned()).collect();
    let ParseResult::Run(parsed) = parse(&ROOT, &args) else { panic!("{args:?}") };
    let variables = HashMap::from([("HOME".to_owned(), "/h".to_owned())]);
    OidcOptions::new(&parsed, &Environment::new(args, variables), Printer::new(Level::Warning)).unwrap()
}

fn providers(supported_types: &[&str]) -> IdentityProviders {
    let provider = |name: &str, type_: &str, flows: Option<&[&str]>| IdentityProvider {
        name: name.into(),
        type_: type_.into(),
        flows: flows.map(|flows| flows.iter().map(|flow| (*flow).to_owned()).collect()),
    };
    IdentityProviders {
        list: Some(vec![
            provider("some-ldap", "ldap", Some(&["cli_password", "browser_authcode"])),
            provider("some-oidc", "oidc", Some(&["browser_authcode"])),
            provider("old", "oidc", None),
        ]),
        raw: String::new(),
        supported_types: supported_types.iter().map(|type_| (*type_).to_owned()).collect(),
    }
}

fn select(flags: &[&str], found: Option<&IdentityProviders>) -> Result<Flow, String> {
    let options = options(flags);
    check_upstream_flow(&options)
        .and_then(|()| select_flow(&options, found))
        .map_err(|error| chain(&error).to_string())
}

#[test]
fn the_flow_is_that_of_the_request_or_of_the_identity_provider() {
    let name = |name| format!("--upstream-identity-provider-name={name}");
    let (ldap, oidc) = (name("some-ldap"), name("some-oidc"));
    let type_ldap = "--upstream-identity-provider-type=ldap";
    let flow = |flow| format!("--upstream-identity-provider-flow={flow}");
    let (password, browser) = (flow("cli_password"), flow("browser_authcode"));
    for (flags, supervisor, expected) in [
        (&[][..], false, Flow::Browser),
        (&["--flow=device"], false, Flow::Device),
        (&[password.as_str()], false, Flow::Password),
        (&[&ldap, type_ldap], true, Flow::Password),
        (&[&ldap, type_ldap, &browser], true, Flow::Browser),
        (&[&ldap, type_ldap, "--flow=device"], true, Flow::Device),
        (&[&oidc], true, Flow::Browser),
        (&["--upstream-identity-provider-type=other"], true, Flow::Browser),
    ] {
        let found = supervisor.then(|| providers(&[]));
        assert_eq!(select(flags, found.as_ref()), Ok(expected), "{flags:?}");
    }
}

#[test]
fn an_identity_provider_that_does_not_exist_is_an_error() {
    const FOUND: &str = r#"Found these providers: [{"name":"some-ldap","type":"ldap","flows":["cli_password","browser_authcode"]},{"name":"some-oidc","type":"oidc","flows":["browser_authcode"]},{"name":"old","type":"oidc"}]"#;
    for (flags, found, error) in [
        (
            &["--upstream-identity-provider-name=n"][..],
            None,
            "upstream identity provider name \"n\" was specified, but OIDC issuer \"https://i\" does not offer Pinniped-style IDP discovery, so it does not appear to be a Pinniped Supervisor; specifying an upstream identity provider name is only meant to be used with Pinniped Supervisors".to_owned(),
        ),
        (
            &["--upstream-identity-provider-name=n", "--upstream-identity-provider-type=github"],
            Some(providers(&["oidc", "ldap"])),
            "unable to find upstream identity provider with type \"github\", this Pinniped Supervisor supports IDP types [\"ldap\", \"oidc\"]".to_owned(),
        ),
        (
            &["--upstream-identity-provider-name=n"],
            Some(providers(&["oidc"])),
            format!("unable to find upstream identity provider with name \"n\" and type \"oidc\". {FOUND}"),
        ),
        (
            &["--upstream-identity-provider-name=some-oidc", "--upstream-identity-provider-flow=cli_password"],
            Some(providers(&[])),
            format!("unable to find upstream identity provider with name \"some-oidc\" and type \"oidc\" and flow \"cli_password\". {FOUND}"),
        ),
        (
            &["--upstream-identity-provider-name=n"],
            Some(IdentityProviders::default()),
            "unable to find upstream identity provider with name \"n\" and type \"oidc\". Found these providers: null".to_owned(),
        ),
        (
            &["--upstream-identity-provider-name=old"],
            Some(providers(&[])),
            "unable to infer flow for upstream identity provider with name \"old\" and type \"oidc\" because there were no flows discovered for that provider".to_owned(),
        ),
        (
            &["--upstream-identity-provider-flow=foo"],
            None,
            "WithLoginFlow error: loginFlow 'foo' from '--upstream-identity-provider-flow' must be 'cli_password' or 'browser_authcode'".to_owned(),
        ),
    ] {
        assert_eq!(select(flags, found.as_ref()), Err(error));
    }
}
