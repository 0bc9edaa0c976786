use pinniped_pki::tls::PresentedTls;

use super::super::fixtures::problems;
use super::super::observed_client::AuthenticatedUser;
use super::super::report::LoginFailed;
use super::*;
use crate::login::keyring::KeyringError;

const NOW: &str = "2026-11-21T10:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// Returns a server's certificate for `server.test` that is valid in 2026, and its CA as PEM.
fn server() -> (PresentedTls, Vec<u8>) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(ca, ca_key);
    let mut leaf = rcgen::CertificateParams::new(vec!["server.test".to_owned()]).unwrap();
    leaf.not_before = rcgen::date_time_ymd(2026, 1, 1);
    leaf.not_after = rcgen::date_time_ymd(2027, 1, 1);
    let leaf = leaf.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap();
    let shown = PresentedTls { chain: vec![leaf.der().clone()], requests_client_certificate: true };
    (shown, pem.into_bytes())
}

fn healthy() -> ObservedClient {
    let (shown, ca) = server();
    ObservedClient {
        file: "f".into(),
        context: "c".into(),
        user: "u".into(),
        server: "https://server.test".into(),
        ca: Some(Ok(ca)),
        server_name: "server.test".into(),
        proxy_variables: Vec::new(),
        proxied: Ok(false),
        plugin: Some(ObservedPlugin {
            command: "pinniped".into(),
            program: Some("/bin/pinniped".into()),
            version: Some(Ok("v1.2.3".into())),
            authenticator: None,
            concierge: Some("https://server.test".into()),
            issuer: Some("https://issuer.test".into()),
            keyring: None,
        }),
        issuer: None,
        addresses: None,
        probe: EndpointProbe::Connected { shown, system: None },
        login: LoginResult::LoggedIn { expires: None },
        clock_skew: Some(SignedDuration::ZERO),
        user_info: Some(Ok(AuthenticatedUser { name: "pinny".into(), groups: 2 })),
    }
}

#[test]
fn a_login_that_works_has_no_problem() {
    let findings = check(&healthy(), "v1.2.3", now());
    assert_eq!(problems(findings.clone()), [], "{findings:?}");
    let text = "context c of kubeconfig f logs in as pinny, with 2 groups";
    assert!(findings.contains(&(Check::WhoAmI, Finding::Fine(text.into()))), "{findings:?}");
    let plugin = "the plugin of user u of kubeconfig f is /bin/pinniped, v1.2.3";
    let other = check(&healthy(), "v1.2.4", now());
    let patch = format!("{plugin}; this program is v1.2.4");
    assert!(other.contains(&(Check::Plugin, Finding::Fine(patch))), "{other:?}");
    for own in ["v1.3.0", "v2.2.3"] {
        let other = check(&healthy(), own, now());
        let text = format!("{plugin}, but this program is {own}");
        let warned = other.iter().any(|(check, finding)| {
            *check == Check::Plugin && matches!(finding, Finding::Warning { what, .. } if *what == text)
        });
        assert!(warned, "{other:?}");
    }
    let mut client = healthy();
    client.plugin.as_mut().unwrap().keyring = Some(Ok(()));
    let with_keyring = check(&client, "v1.2.3", now());
    let text = "the plugin of user u of kubeconfig f stores refresh tokens in the keyring";
    assert!(with_keyring.contains(&(Check::Keyring, Finding::Fine(text.into()))), "{with_keyring:?}");
}

fn issuer(problem: IssuerProblem) -> ObservedIssuer {
    ObservedIssuer { url: "https://issuer.test".into(), problem: Some(problem) }
}

#[test]
fn a_proxy_that_does_not_respond_is_not_a_problem_of_the_cluster() {
    let why = "proxyconnect tcp: dial tcp 127.0.0.1:1: connect: connection refused";
    let client = ObservedClient { probe: EndpointProbe::Unreachable(why.into()), ..healthy() };
    let findings = check(&client, "v1.2.3", now());
    assert!(findings.iter().all(|(check, _)| *check != Check::Connection), "{findings:?}");
}

#[test]
fn the_place_of_a_failed_login_is_known_from_its_error_and_the_plugins_flags() {
    use LoginFailed::{AtCluster, AtConcierge, AtIssuer, OnThisMachine};
    let issuer = "could not complete Pinniped login: could not perform OIDC discovery";
    let concierge = "could not complete Concierge credential exchange: could not login: EOF";
    for (why, server, plugin_is_known, place) in [
        (issuer, "https://server.test", true, AtIssuer),
        (issuer, "https://issuer.test:6443", true, AtCluster),
        (issuer, "https://server.test", false, AtCluster),
        (concierge, "https://server.test:8443", true, AtCluster),
        (concierge, "https://other.test", true, AtConcierge),
        ("--token-env variable \"T\" is not set", "https://server.test", true, OnThisMachine),
        ("the plugin did not finish within 4s", "https://server.test", true, AtCluster),
    ] {
        let mut client =
            ObservedClient { login: LoginResult::Failed(why.into()), server: server.into(), ..healthy() };
        if !plugin_is_known {
            client.plugin.as_mut().unwrap().version = None;
        }
        assert_eq!(client.login_failed(), place, "{why} {server}");
    }
    assert_eq!(healthy().login_failed(), AtCluster);
}

#[test]
fn each_step_that_fails_is_a_problem_of_its_check() {
    type Change = fn(&mut ObservedClient);
    let cases: [(Change, Check, &str); 19] = [
        (
            |client| {
                client.proxied = Ok(true);
                client.probe = EndpointProbe::Unreachable("proxyconnect tcp: dial tcp: lookup p: x".into());
            },
            Check::ProxyEnvironment,
            "the proxy for https://server.test cannot be used: dial tcp: lookup p: x",
        ),
        (
            |client| client.issuer = Some(issuer(IssuerProblem::Name("unknown".into()))),
            Check::Issuer,
            "the name of the issuer https://issuer.test has no address: unknown",
        ),
        (
            |client| client.issuer = Some(issuer(IssuerProblem::Connection("refused".into()))),
            Check::Issuer,
            "no server responds at the issuer https://issuer.test from here: refused",
        ),
        (|client| client.proxied = Err("no URL".into()), Check::ProxyEnvironment, "cannot be used: no URL"),
        (
            |client| client.plugin.as_mut().unwrap().program = None,
            Check::Plugin,
            "the plugin pinniped of user u of kubeconfig f does not exist",
        ),
        (
            |client| client.plugin.as_mut().unwrap().version = Some(Err("exec format error".into())),
            Check::Plugin,
            "does not run: exec format error",
        ),
        (
            |client| client.plugin.as_mut().unwrap().keyring = Some(Err(KeyringError::Locked)),
            Check::Keyring,
            "cannot store refresh tokens in the keyring: the keyring is locked",
        ),
        (
            |client| {
                client.probe = EndpointProbe::Unreachable("no such host".into());
                client.addresses = Some(Err("unknown".into()));
            },
            Check::Name,
            "the name of https://server.test has no address: unknown",
        ),
        (
            |client| client.probe = EndpointProbe::Unreachable("refused".into()),
            Check::Connection,
            "no server responds at https://server.test from here: refused",
        ),
        (
            |client| client.probe = EndpointProbe::NoCertificate("eof".into()),
            Check::Connection,
            "presents no certificate: eof",
        ),
        (|client| client.ca = Some(Ok(server().1)), Check::Certificate, "does not trust the certificate"),
        (
            |client| client.server_name = "other.test".into(),
            Check::Certificate,
            "is for [server.test], not for",
        ),
        (
            |client| client.clock_skew = Some(SignedDuration::from_secs(300)),
            Check::Clock,
            "the clock of this machine is 300 seconds behind the clock of https://server.test",
        ),
        (
            |client| client.clock_skew = Some(SignedDuration::from_secs(-61)),
            Check::Clock,
            "61 seconds ahead of",
        ),
        (
            |client| client.login = LoginResult::Failed("login failed: authentication failed".into()),
            Check::Login,
            "the login with context c of kubeconfig f fails: login failed: authentication failed",
        ),
        (
            |client| client.login = LoginResult::LoggedIn { expires: Some(now()) },
            Check::Login,
            "is not valid any more",
        ),
        (
            |client| {
                client.user_info = Some(Ok(AuthenticatedUser { name: ANONYMOUS.into(), groups: 1 }));
            },
            Check::WhoAmI,
            "the user is system:anonymous",
        ),
        (
            |client| client.user_info = Some(Err(RefusedRequest::Other("Unauthorized".into()))),
            Check::WhoAmI,
            "the cluster does not accept requests with context c of kubeconfig f: Unauthorized",
        ),
        (
            |client| client.user_info = Some(Err(RefusedRequest::NotServed("not served".into()))),
            Check::WhoAmI,
            "not served",
        ),
    ];
    for (change, check_of, part) in cases {
        let mut client = healthy();
        change(&mut client);
        let findings = check(&client, "v1.2.3", now());
        let found = findings.iter().any(|(check, finding)| {
            *check == check_of && matches!(finding, Finding::Problem { what, .. } if what.contains(part))
        });
        assert!(found, "{part}: {findings:?}");
    }
}

#[test]
fn a_certificate_is_compared_with_the_time() {
    for (time, part) in
        [("2025-12-31T00:00:00Z", "is not valid before"), ("2027-01-02T00:00:00Z", "expired at")]
    {
        let found = problems(check(&healthy(), "v1.2.3", time.parse().unwrap()));
        assert!(found.len() == 1 && found[0].0.contains(part), "{time}: {found:?}");
        assert!(found[0].1.contains("clock of this machine"), "{found:?}");
    }
    let unverified = ObservedClient { ca: None, server_name: "other".into(), ..healthy() };
    assert_eq!(problems(check(&unverified, "v1.2.3", now())), []);
}

#[test]
fn a_kubeconfig_without_a_credential_is_not_logged_in_with() {
    let client =
        ObservedClient { login: LoginResult::NoCredential, user_info: None, plugin: None, ..healthy() };
    let findings = check(&client, "v1.2.3", now());
    assert_eq!(problems(findings.clone()), []);
    let skipped = findings.iter().any(|(check, finding)| {
        *check == Check::Login
            && matches!(finding, Finding::Unseen { why, .. } if why == "user u has no credential")
    });
    assert!(skipped, "{findings:?}");
}

#[test]
fn errors_of_logins_have_specific_remedies() {
    let general = advice("something else");
    for part in client_errors::OF_LOGINS.iter().flat_map(|row| row.texts) {
        assert_ne!(advice(&format!("could not log in: {part}")), general, "{part}");
    }
}
