//! Steps and status while the spec names a Secret of another namespace.

use super::*;
use pinniped_delegation::grants::SecretReference;

const PREFIX: &str = "could not load the externally provided TLS secret for the impersonation proxy";

fn spec(secret_name: &str) -> Value {
    with_tls(enabled("None", "example.com"), json!({"secretName": secret_name}))
}

impl Observed {
    /// Sets the owner's permission for the Secret that the spec names.
    fn delegated(mut self, permission: Permission) -> Self {
        let spec = self.credential_issuer.clone().unwrap();
        let secret = external_reference(spec.as_ref(), "ns").unwrap();
        self.delegated = Some(Delegated { secret, permission });
        self
    }

    /// Marks the proxy as serving with this version of this Secret of another namespace.
    fn serving_delegated(mut self, version: &str, secret: &str) -> Self {
        self = self.serving(Some(version));
        self.loaded.delegated = Some(SecretReference::parse(secret, "ns"));
        self
    }
}

#[test]
fn a_delegated_certificate_is_served_while_permitted() {
    let denied = failed(&format!(r#"{PREFIX}: certificate delegation not permitted for Secret "certs/w""#));
    let granted = || observed(spec("certs/w")).delegated(Permission::Granted);
    let ready = |bundle: &str| listening_with("https://example.com", bundle);
    let rows: Vec<(&str, Observed, &[&str], ExpectedStatus)> = vec![
        (
            "not permitted from the start",
            observed(spec("certs/w")).delegated(Permission::Denied),
            &["start proxy"],
            denied.clone(),
        ),
        (
            "not permitted, over a generated certificate: neither deleted nor served",
            observed(spec("certs/w"))
                .delegated(Permission::Denied)
                .ca()
                .tls(&["example.com"])
                .serving(Some("t1")),
            &["refuse TLS"],
            denied.clone(),
        ),
        (
            "permitted",
            granted().external(PEM),
            &["start proxy", "load external TLS", "load signer"],
            ready(PEM),
        ),
        (
            "permitted, over a generated certificate: deleted last",
            granted().external(PEM).ca().tls(&["example.com"]).serving(Some("t1")),
            &["load external TLS", "delete TLS"],
            ready(PEM),
        ),
        ("served", granted().external("").serving_delegated("e1", "certs/w"), &[], ready("")),
        (
            "renewed",
            granted().external("").serving_delegated("e0", "certs/w"),
            &["load external TLS"],
            ready(""),
        ),
        (
            "revoked while served",
            observed(spec("certs/w")).delegated(Permission::Denied).serving_delegated("e1", "certs/w"),
            &["refuse TLS"],
            denied,
        ),
        (
            "deleted while served",
            granted().serving_delegated("e1", "certs/w"),
            &["refuse TLS"],
            failed(&format!(r#"{PREFIX}: secret "w" not found"#)),
        ),
        (
            "may not be read any more",
            observed(spec("certs/w"))
                .delegated(Permission::Unreadable("forbidden".into()))
                .serving_delegated("e1", "certs/w"),
            &["refuse TLS"],
            failed(&format!(r#"{PREFIX}: could not read Secret "certs/w": forbidden"#)),
        ),
        (
            "no response: a certificate that was permitted before stays",
            observed(spec("certs/w"))
                .delegated(Permission::Unknown("timeout".into()))
                .serving_delegated("e1", "certs/w"),
            &[],
            failed(&format!(
                r#"{PREFIX}: could not find out whether Secret "certs/w" is delegated: timeout"#
            )),
        ),
        (
            "no response, and another certificate was served",
            observed(spec("certs/w")).delegated(Permission::Unknown("timeout".into())).serving(Some("t1")),
            &["refuse TLS"],
            failed(&format!(
                r#"{PREFIX}: could not find out whether Secret "certs/w" is delegated: timeout"#
            )),
        ),
        (
            "another Secret of that owner",
            granted().external("").serving_delegated("e0", "certs/old"),
            &["refuse TLS", "load external TLS"],
            ready(""),
        ),
        (
            "a Secret of the own namespace that does not exist: the delegated one does not stay",
            observed(spec("mine")).serving_delegated("e1", "certs/w"),
            &["refuse TLS"],
            failed(&format!(r#"{PREFIX}: secret "mine" not found"#)),
        ),
        (
            "a name that cannot be",
            observed(spec("certs/a/b")).delegated(Permission::Malformed).serving_delegated("e1", "certs/w"),
            &["refuse TLS"],
            failed(&format!(
                r#"{PREFIX}: malformed secretName "certs/a/b" (expected "name" or "namespace/name")"#
            )),
        ),
        (
            "permitted, but the pass ends before it is loaded: the generated one does not serve on",
            observed(with_tls(enabled("None", "[invalid"), json!({"secretName": "certs/w"})))
                .delegated(Permission::Granted)
                .external(PEM)
                .serving(Some("t1")),
            &["refuse TLS"],
            failed(
                "could not load CredentialIssuer spec.impersonationProxy: invalid ExternalEndpoint \"[invalid\": \
                 address [invalid:443: missing ']' in address",
            ),
        ),
        (
            "back to generated",
            observed(enabled("None", "example.com")).ca().serving_delegated("e1", "certs/w"),
            &["refuse TLS", "create TLS for example.com"],
            listening("https://example.com"),
        ),
        (
            "switched off",
            observed(with_tls(disabled(), json!({"secretName": "certs/w"})))
                .serving_delegated("e1", "certs/w"),
            &["refuse TLS", "stop proxy", "clear signer"],
            ExpectedStatus::Disabled(strategies::DISABLED),
        ),
    ];
    check(rows);
}

#[test]
fn a_revoked_certificate_is_refused_even_if_the_pass_fails() {
    let revoked =
        |observed: Observed| observed.delegated(Permission::Denied).serving_delegated("e1", "certs/w");
    let mut ended = revoked(observed(spec("certs/w")));
    ended.proxy = ProxyState::Terminated(None);
    let mut missing = revoked(observed(spec("certs/w")));
    missing.credential_issuer = None;
    let mut invalid = spec("certs/w");
    invalid["externalEndpoint"] = "[invalid".into();
    let mut no_service = spec("certs/w");
    no_service["service"]["type"] = "LoadBalancer".into();
    for (case, observed) in [
        ("the proxy ended", ended),
        ("there is no CredentialIssuer", missing),
        ("the spec cannot be followed", revoked(observed(invalid))),
        ("a Service has to be made", revoked(observed(no_service))),
    ] {
        assert_eq!(decide(&observed, now()).steps.first(), Some(&Step::RefuseServing), "{case}");
    }
}

#[test]
fn a_permitted_certificate_is_served_without_a_credential_issuer() {
    let mut observed = observed(spec("certs/w"))
        .delegated(Permission::Granted)
        .external("")
        .serving_delegated("e1", "certs/w");
    observed.credential_issuer = None;
    assert_eq!(decide(&observed, now()).summary(), [""; 0]);
}
