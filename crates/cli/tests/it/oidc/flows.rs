//! The flows, and their failures.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use super::browser::{Desktop, callback, interrupt, visit};
use super::issuer::{Issuer, Settings, query};
use crate::support::{ReceivedResponse, Request, Run, Server};

const PREFIX: &str = "could not complete Pinniped login: ";

/// Returns the token of a successful run.
#[track_caller]
pub(crate) fn token(run: &Run) -> String {
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(run.stdout.lines().count(), 1, "{run:?}");
    let credential: Value = serde_json::from_str(&run.stdout).unwrap();
    credential["status"]["token"].as_str().unwrap().to_owned()
}

/// Returns the claims of a token.
fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    let payload = data_encoding::BASE64URL_NOPAD.decode(payload.as_bytes()).unwrap();
    serde_json::from_slice(&payload).unwrap()
}

#[test]
fn the_browser_brings_a_code_that_becomes_a_token() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let running = desktop.start(&issuer.args(&[]));
    let url = desktop.first_opened();
    assert_eq!(running.printed_address(), url);
    let response = visit(&url, &issuer.authorize(&url));
    assert!(response.contains("content-type: text/html"), "{response}");
    assert!(response.contains("pinny") && response.contains("You are signed in"), "{response}");
    let run = running.finish();
    assert_eq!(claims(&token(&run))["preferred_username"], "pinny");
    let credential: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(credential["status"]["expirationTimestamp"].is_string(), "{run:?}");
    // The output of the browser does not reach kubectl.
    assert_eq!(run.stderr, format!("noise\nLog in by visiting this link:\n\n    {url}\n\n"));
    assert_eq!(issuer.granted(), ["authorization_code"]);
    let parameters = query(url.split_once('?').unwrap().1);
    // Those of the default scopes that the issuer lists.
    assert_eq!(parameters["scope"], "groups openid username");
    assert_eq!(parameters["access_type"], "offline");
    assert!(!parameters.contains_key("response_mode") && !parameters.contains_key("pinniped_idp_name"));
}

#[test]
fn the_client_authenticates_as_the_provider_expects() {
    for basic_only in [false, true] {
        let issuer = Issuer::start(Settings { basic_only, ..Settings::default() });
        let run = Desktop::new().log_in(&issuer, &issuer.args(&[]));
        assert_eq!(run.code, 0, "{run:?}");
        let attempts = issuer.server.seen_lines().iter().filter(|line| *line == "POST /token").count();
        assert_eq!(attempts, if basic_only { 1 } else { 2 });
    }
}

#[test]
fn a_supervisor_gets_a_form_and_returns_the_text_of_upstream() {
    let providers = json!([{"name": "some-idp", "type": "oidc", "flows": ["browser_authcode"]}]);
    let issuer = Issuer::start(Settings {
        identity_providers: Some(providers),
        form_post: true,
        ..Settings::default()
    });
    let desktop = Desktop::new();
    let running = desktop.start(&issuer.args(&["--upstream-identity-provider-name=some-idp"]));
    let url = desktop.first_opened();
    let parameters = query(url.split_once('?').unwrap().1);
    assert_eq!(parameters["response_mode"], "form_post");
    assert_eq!(
        (parameters["pinniped_idp_name"].as_str(), parameters["pinniped_idp_type"].as_str()),
        ("some-idp", "oidc")
    );
    let response = visit(&url, &issuer.authorize(&url));
    assert!(response.ends_with("\r\n\r\nyou have been logged in and may now close this tab"), "{response}");
    token(&running.finish());
    let sessions = std::fs::read_to_string(desktop.file(".config/pinniped/sessions.yaml")).unwrap();
    assert!(sessions.contains("    upstream_provider_name: some-idp\n"), "{sessions}");
    assert!(sessions.contains("    redirect_uri: http://localhost:0/callback\n"), "{sessions}");
}

#[test]
fn scopes_are_those_of_the_flag_or_default_scopes_that_the_issuer_has() {
    const ALL: &str = "groups offline_access openid pinniped:request-audience username";
    let providers = json!([{"name": "some-idp", "type": "oidc", "flows": ["browser_authcode"]}]);
    for (identity_providers, flag, expected) in [
        (None, None, "groups openid username"),
        (None, Some("--scopes=username,groups,offline_access,openid,pinniped:request-audience"), ALL),
        (None, Some("--scopes=openid,email"), "email openid"),
        // A Supervisor gets what upstream sends, also scopes that it does not list.
        (Some(providers), None, ALL),
    ] {
        let issuer = Issuer::start(Settings { identity_providers, ..Settings::default() });
        let desktop = Desktop::new();
        let args = issuer.args(flag.as_slice());
        let running = desktop.start(&args);
        let url = desktop.first_opened();
        assert_eq!(query(url.split_once('?').unwrap().1)["scope"], expected, "{flag:?}");
        visit(&url, &issuer.authorize(&url));
        token(&running.finish());
        // The session is found by the scopes of the flag or its default, as upstream finds it.
        let sessions = std::fs::read_to_string(desktop.file(".config/pinniped/sessions.yaml")).unwrap();
        let key = if expected.contains("email") { expected } else { ALL };
        let list = key.split(' ').map(|scope| format!("    - {scope}\n")).collect::<String>();
        assert!(sessions.contains(&format!("    scopes:\n{list}")), "{sessions}");
        let requests = issuer.server.seen().len();
        std::fs::remove_file(desktop.file(".config/pinniped/credentials.yaml")).unwrap();
        token(&desktop.home.run(&args));
        assert_eq!(issuer.server.seen().len(), requests);
    }
    // The device flow.
    let issuer = Issuer::start(Settings { device: Some(Vec::new()), ..Settings::default() });
    token(&Desktop::new().home.run(&issuer.args(&["--flow=device"])));
    let seen = issuer.server.seen();
    let form = query(&seen.iter().find(|request| request.path == "/device").unwrap().body);
    assert_eq!(form["scope"], "groups openid username");
}

#[test]
fn an_address_without_a_browser_is_printed() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::with_browser("#!/bin/sh\nexit 3\n");
    for flags in [&[][..], &["--skip-browser"]] {
        let args = issuer.args(&[flags, &["--session-cache=", "--credential-cache="]].concat());
        let running = desktop.start(&args);
        let url = running.printed_address();
        visit(&url, &issuer.authorize(&url));
        token(&running.finish());
    }
}

#[test]
fn the_address_need_not_be_printed_if_a_browser_was_opened() {
    let issuer = Issuer::start(Settings::default());
    let mut desktop = Desktop::new();
    desktop.home.set("PINNIPED_SKIP_PRINT_LOGIN_URL", "true");
    let run = desktop.log_in(&issuer, &issuer.args(&[]));
    token(&run);
    assert!(!run.stderr.contains("visiting this link"), "{run:?}");
}

#[test]
fn a_wrong_state_or_a_refusal_ends_the_login() {
    for (parameters, error) in [
        ("code=c&state=wrong", "error handling callback: missing or invalid state parameter"),
        (
            "error=access_denied&error_description=not+you&state=STATE",
            "error handling callback: login failed with code \"access_denied\": not you",
        ),
        (
            "code=unknown&state=STATE",
            "error handling callback: could not complete authorization code exchange: oauth2: \"invalid_grant\"",
        ),
    ] {
        let issuer = Issuer::start(Settings::default());
        let desktop = Desktop::new();
        let running = desktop.start(&issuer.args(&[]));
        let url = desktop.first_opened();
        let state = query(url.split_once('?').unwrap().1)["state"].clone();
        let response = callback(&url, &parameters.replace("STATE", &state));
        assert!(response.contains("The login failed"), "{response}");
        running.finish().fails_with(&format!("{PREFIX}{error}"));
        assert!(!desktop.file(".config/pinniped/sessions.yaml").exists());
    }
}

#[test]
fn a_replayed_code_is_refused() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&["--session-cache=", "--credential-cache="]);
    let running = desktop.start(&args);
    let url = desktop.first_opened();
    let code = issuer.authorize(&url);
    visit(&url, &code);
    token(&running.finish());

    let running = desktop.start(&args);
    let response = visit(&desktop.opened_after(1), &code);
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    running.finish().fails_with(&format!(
        "{PREFIX}error handling callback: could not complete authorization code exchange: oauth2: \"invalid_grant\""
    ));
}

#[test]
fn a_code_of_another_login_is_refused() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&["--session-cache=", "--credential-cache="]);
    let (first, victim) = (desktop.start(&args), desktop.first_opened());
    let second = desktop.start(&args);
    let other = desktop.opened_after(1);
    // The code belongs to the challenge of the other login.
    let response = visit(&victim, &issuer.authorize(&other));
    assert!(response.contains("invalid_grant"), "{response}");
    assert_eq!(first.finish().code, 1);
    second.kill();
}

#[test]
fn tokens_that_do_not_belong_to_this_login_are_refused() {
    const INVALID: &str =
        "error handling callback: could not complete authorization code exchange: received ";
    for (claims, error) in [
        (json!({"nonce": "other"}), "ID token with invalid nonce: invalid nonce (expected "),
        (
            json!({"aud": "other"}),
            "invalid ID token: oidc: expected audience \"pinniped-cli\" got [\"other\"]",
        ),
        (
            json!({"iss": "https://other"}),
            "invalid ID token: oidc: id token issued by a different provider, expected ",
        ),
        (json!({"exp": 1}), "invalid ID token: oidc: token is expired (Token Expiry: "),
        (json!({"at_hash": "AAAA"}), "invalid ID token: access token hash does not match value in ID token"),
    ] {
        let issuer = Issuer::start(Settings { claims, ..Settings::default() });
        let desktop = Desktop::new();
        let running = desktop.start(&issuer.args(&[]));
        let url = desktop.first_opened();
        visit(&url, &issuer.authorize(&url));
        let run = running.finish();
        let last = run.last_error().unwrap_or_default();
        assert!(last.starts_with(&format!("{PREFIX}{INVALID}{error}")), "{run:?}");
    }
}

#[test]
fn userinfo_completes_the_claims_of_the_same_user() {
    let issuer = Issuer::start(Settings {
        userinfo: Some(json!({"sub": "some-subject", "groups": ["a", "b"], "iss": "ignored"})),
        ..Settings::default()
    });
    let desktop = Desktop::new();
    token(&desktop.log_in(&issuer, &issuer.args(&[])));
    let sessions = std::fs::read_to_string(desktop.file(".config/pinniped/sessions.yaml")).unwrap();
    assert!(sessions.contains("        groups:\n        - a\n        - b\n"), "{sessions}");
    assert!(!sessions.contains("ignored"), "{sessions}");

    issuer.change(|settings| settings.userinfo = Some(json!({"sub": "other"})));
    let running = desktop.start(&issuer.args(&["--session-cache=", "--credential-cache="]));
    let url = desktop.opened_after(1);
    visit(&url, &issuer.authorize(&url));
    running.finish().fails_with(&format!(
        "{PREFIX}error handling callback: could not complete authorization code exchange: could not fetch user info claims: userinfo 'sub' claim (other) did not match id_token 'sub' claim (some-subject)"
    ));
}

#[test]
fn a_port_in_use_is_reported() {
    let issuer = Issuer::start(Settings::default());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let run = Desktop::new().home.run(&issuer.args(&[&format!("--listen-port={port}")]));
    run.fails_with(&format!(
        "{PREFIX}login failed: must have either a localhost listener or stdin must be a TTY"
    ));
    assert!(run.stderr.contains(&format!("Could not listen on port {port}")), "{run:?}");
    let run = Desktop::new().home.run(&issuer.args(&["--skip-listen"]));
    run.fails_with(&format!(
        "{PREFIX}login failed: must have either a localhost listener or stdin must be a TTY"
    ));
}

#[test]
fn a_browser_that_is_closed_does_not_end_the_login() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let running = desktop.start(&issuer.args(&[]));
    let url = desktop.first_opened();
    let redirect = query(url.split_once('?').unwrap().1)["redirect_uri"].clone();
    let host = redirect.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/callback")).unwrap();
    // It had connected, and had sent a part of a request.
    drop(TcpStream::connect(host).unwrap());
    TcpStream::connect(host).unwrap().write_all(b"GET /callback?co").unwrap();
    // The user opens the printed address again.
    let url = running.printed_address();
    visit(&url, &issuer.authorize(&url));
    token(&running.finish());
    assert_eq!(desktop.opened().len(), 1);
}

#[test]
fn ctrl_c_cancels_the_login() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let running = desktop.start(&issuer.args(&[]));
    desktop.first_opened();
    interrupt(running.id());
    let run = running.finish();
    assert_ne!(run.code, 0, "{run:?}");
    // Nothing prevents the next login.
    let before = desktop.opened().len();
    let running = desktop.start(&issuer.args(&[]));
    let url = desktop.opened_after(before);
    visit(&url, &issuer.authorize(&url));
    token(&running.finish());
}

#[test]
fn a_supervisor_takes_a_password_without_a_browser() {
    let providers =
        json!([{"name": "some-ldap", "type": "ldap", "flows": ["cli_password", "browser_authcode"]}]);
    let issuer = Issuer::start(Settings { identity_providers: Some(providers), ..Settings::default() });
    let args = issuer
        .args(&["--upstream-identity-provider-name=some-ldap", "--upstream-identity-provider-type=ldap"]);
    let mut desktop = Desktop::new();
    desktop
        .home
        .run(&args)
        .fails_with(&format!("{PREFIX}error prompting for username: stdin is not connected to a terminal"));
    desktop.home.set("PINNIPED_USERNAME", "pinny").set("PINNIPED_PASSWORD", "wrong");
    desktop.home.run(&args).fails_with(&format!(
        "{PREFIX}login failed with code \"access_denied\": Username/Password not accepted"
    ));
    desktop.home.set("PINNIPED_PASSWORD", "sécret");
    let run = desktop.home.run(&args);
    token(&run);
    assert_eq!(run.stderr, "\nLog in to some-ldap\n\n");
    assert!(desktop.opened().is_empty());

    desktop.home.set("PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW", "foo");
    let args = issuer.args(&["--session-cache=", "--credential-cache="]);
    desktop.home.run(&args).fails_with(&format!(
        "{PREFIX}WithLoginFlow error: loginFlow 'foo' from 'PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW' must be 'cli_password' or 'browser_authcode'"
    ));
}

#[test]
fn a_password_is_sent_only_to_a_supervisor_at_its_own_address() {
    const FLOW: &str = "--upstream-identity-provider-flow=cli_password";
    let elsewhere = Server::start(|_| ReceivedResponse::text(200, ""));
    let issuer = Issuer::start(Settings::default());
    let mut desktop = Desktop::new();
    desktop.home.set("PINNIPED_USERNAME", "pinny").set("PINNIPED_PASSWORD", "sécret");
    let passwords = |server: &Server| {
        let has_password = |request: &Request| request.headers.contains_key("pinniped-password");
        server.seen().iter().filter(|request| has_password(request)).count()
    };

    // An issuer that is not a Supervisor.
    let not_a_supervisor = |source: &str| {
        format!(
            "{PREFIX}the flow 'cli_password' from '{source}' sends username and password to the issuer, but OIDC issuer \"{}\" does not offer Pinniped-style IDP discovery, so it does not appear to be a Pinniped Supervisor",
            issuer.server.url()
        )
    };
    desktop
        .home
        .run(&issuer.args(&[FLOW]))
        .fails_with(&not_a_supervisor("--upstream-identity-provider-flow"));
    let mut by_variable = desktop.home.command(&issuer.args(&[]));
    by_variable.env("PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW", "cli_password");
    desktop
        .spawn(by_variable)
        .finish()
        .fails_with(&not_a_supervisor("PINNIPED_UPSTREAM_IDENTITY_PROVIDER_FLOW"));
    assert_eq!(passwords(&issuer.server), 0);

    // A Supervisor with the authorization endpoint of another server.
    issuer.change(|settings| {
        settings.identity_providers =
            Some(json!([{"name": "some-ldap", "type": "ldap", "flows": ["cli_password"]}]));
        settings.authorization_endpoint = Some(format!("{}/authorize", elsewhere.url()));
    });
    desktop.home.run(&issuer.args(&[FLOW])).fails_with(&format!(
        "{PREFIX}the flow 'cli_password' sends username and password to the issuer only, but the authorization endpoint \"{}/authorize\" of OIDC issuer \"{}\" is at another address",
        elsewhere.url(),
        issuer.server.url()
    ));

    // A Supervisor that redirects to another server.
    let redirect = format!("{}/callback?code=c", elsewhere.url());
    issuer.change(|settings| {
        settings.authorization_endpoint = None;
        settings.password_redirect = Some(redirect.clone());
    });
    desktop.home.run(&issuer.args(&[FLOW])).fails_with(&format!(
        "{PREFIX}error getting authorization: redirected to the wrong location: {redirect}"
    ));
    assert_eq!((passwords(&issuer.server), elsewhere.seen().len()), (1, 0));
    assert!(desktop.opened().is_empty());

    // Its own callback.
    issuer.change(|settings| settings.password_redirect = None);
    token(&desktop.home.run(&issuer.args(&[FLOW])));
    assert_eq!((passwords(&issuer.server), elsewhere.seen().len()), (2, 0));
}

#[test]
fn the_device_flow_needs_no_browser_here() {
    let issuer = Issuer::start(Settings {
        device: Some(vec!["authorization_pending", "slow_down"]),
        ..Settings::default()
    });
    let desktop = Desktop::new();
    // One poll has to be enough for a test.
    issuer.change(|settings| settings.device = Some(vec!["authorization_pending"]));
    let run = desktop.home.run(&issuer.args(&["--flow=device"]));
    token(&run);
    assert!(run.stderr.contains(&format!("\n    {}/activate\n", issuer.server.url())), "{run:?}");
    assert!(run.stderr.contains("\n    ABCD-EFGH\n"), "{run:?}");
    assert!(desktop.opened().is_empty());
    assert_eq!(issuer.granted(), ["device_code"]);

    let args = issuer.args(&["--flow=device", "--session-cache=", "--credential-cache="]);
    for (response, error) in [
        (
            "access_denied",
            "login failed with code \"access_denied\": the login was refused on the other device",
        ),
        (
            "expired_token",
            "login failed with code \"expired_token\": no login used this code in time; run your command again for another one",
        ),
        ("invalid_client", "could not complete device code exchange: oauth2: \"invalid_client\""),
    ] {
        issuer.change(|settings| settings.device = Some(vec![response]));
        desktop.home.run(&args).fails_with(&format!("{PREFIX}{error}"));
    }
    issuer.change(|settings| settings.device = None);
    desktop.home.run(&args).fails_with(&format!(
        "{PREFIX}the OIDC issuer \"{}\" does not offer the device authorization grant (RFC 8628): use --flow browser, or ask your administrator to enable it for this client",
        issuer.server.url()
    ));
}

#[test]
fn an_ssh_session_suggests_the_device_flow() {
    let issuer = Issuer::start(Settings { device: Some(Vec::new()), ..Settings::default() });
    let mut desktop = Desktop::new();
    desktop.home.set("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22");
    let running = desktop.start(&issuer.args(&[]));
    running.wait_for("--flow=device");
    running.kill();
    assert!(desktop.opened().is_empty());
}

#[test]
fn an_issuer_that_cannot_be_used_is_reported() {
    let run = |issuer: &str, ca: &str| {
        let (issuer, ca) = (format!("--issuer={issuer}"), format!("--ca-bundle-data={ca}"));
        Desktop::new().home.run(&["login", "oidc", &issuer, &ca])
    };
    run("http://issuer", "")
        .fails_with(&format!("{PREFIX}issuer must be an https URL, but had scheme \"http\" instead"));
    let broken = Server::start(|_| ReceivedResponse::text(502, "oops"));
    run(&broken.url(), &broken.ca_data()).fails_with(&format!(
        "{PREFIX}could not perform OIDC discovery for \"{}\": 502 Bad Gateway: oops",
        broken.url()
    ));
    let insecure = Server::start(|request| {
        let address = format!("https://{}", request.headers["host"]);
        ReceivedResponse::json(&json!({
            "issuer": address, "authorization_endpoint": "http://a", "token_endpoint": "https://t", "jwks_uri": "https://k",
        }))
    });
    run(&insecure.url(), &insecure.ca_data()).fails_with(&format!(
        "{PREFIX}discovered authorize URL from issuer must be an https URL, but had scheme \"http\" instead"
    ));
    // The second address begins with that of the issuer: ADDRESS:PORT and ADDRESS:PORT@elsewhere.
    for endpoint in ["https://elsewhere/idps", "ISSUER@elsewhere/idps"] {
        let foreign = Server::start(move |request| {
            let address = format!("https://{}", request.headers["host"]);
            let endpoint = endpoint.replace("ISSUER", &address);
            ReceivedResponse::json(&json!({
                "issuer": address, "authorization_endpoint": "https://a", "token_endpoint": "https://t", "jwks_uri": "https://k",
                "discovery.supervisor.pinniped.dev/v1alpha1": {"pinniped_identity_providers_endpoint": endpoint},
            }))
        });
        run(&foreign.url(), &foreign.ca_data()).fails_with(&format!(
            "{PREFIX}the Pinniped IDP discovery document must always be hosted by the issuer: \"{}\"",
            foreign.url()
        ));
    }
    let other = Server::start(|_| ReceivedResponse::text(404, ""));
    let ca = Server::start(|_| ReceivedResponse::text(404, "")).ca_data();
    let error = run(&other.url(), &ca).last_error().unwrap().to_owned();
    assert!(
        error.ends_with("tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        "{error}"
    );
}
