//! Caches, refresh, and many processes at once.

use serde_json::{Value, json};

use super::browser::{Desktop, Running, visit, wait_for};
use super::flows::token;
use super::issuer::{Issuer, Settings};
use crate::support::{ReceivedResponse, Server};

/// Only the session cache.
const NO_CREDENTIAL_CACHE: &str = "--credential-cache=";
const SESSIONS: &str = ".config/pinniped/sessions.yaml";
const CREDENTIALS: &str = ".config/pinniped/credentials.yaml";

#[test]
fn a_session_is_used_until_it_is_about_to_end_and_then_refreshed() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&[NO_CREDENTIAL_CACHE]);
    let first = desktop.log_in(&issuer, &args);
    let requests = issuer.server.seen().len();
    let second = desktop.home.run(&args);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), (first.stdout.as_str(), ""));
    assert_eq!(issuer.server.seen().len(), requests, "the session needs no request");

    // Without ID and access token, the session is refreshed.
    let text = std::fs::read_to_string(desktop.file(SESSIONS)).unwrap();
    let (head, tail) = (text.find("    access:").unwrap(), text.find("    refresh:").unwrap());
    std::fs::write(desktop.file(SESSIONS), format!("{}{}", &text[..head], &text[tail..])).unwrap();
    let third = desktop.home.run(&args);
    assert_ne!(token(&third), token(&first));
    assert_eq!(issuer.granted(), ["authorization_code", "refresh_token"]);
    assert_eq!(desktop.opened().len(), 1);
    let text = std::fs::read_to_string(desktop.file(SESSIONS)).unwrap();
    assert!(text.contains("token: refresh-2\n"), "{text}");
}

#[test]
fn log_lines_are_those_of_upstream() {
    let issuer = Issuer::start(Settings::default());
    let mut desktop = Desktop::new();
    token(&desktop.log_in(&issuer, &issuer.args(&[])));
    std::fs::remove_file(desktop.file(CREDENTIALS)).unwrap();
    desktop.home.set("PINNIPED_DEBUG", "true");
    let run = desktop.home.run(&issuer.args(&[]));
    token(&run);
    assert_eq!(
        run.log(),
        [
            format!(
                "Performing OIDC login  {{\"issuer\": \"{}\", \"client id\": \"pinniped-cli\"}}",
                issuer.server.url()
            ),
            "Pinniped: Found unexpired cached token.  {\"type\": \"id_token\"}".to_owned(),
            "No concierge configured, skipping token credential exchange".to_owned(),
            "caching cluster credential for future use.".to_owned(),
        ]
    );
    assert_eq!(desktop.home.run(&issuer.args(&[])).log(), ["using cached cluster credential."]);
}

#[test]
fn a_refused_refresh_leads_to_a_login() {
    let issuer = Issuer::start(Settings { id_lifetime: 300, ..Settings::default() });
    let desktop = Desktop::new();
    let args = issuer.args(&[NO_CREDENTIAL_CACHE]);
    token(&desktop.log_in(&issuer, &args));
    issuer.change(|settings| settings.refresh_error = Some("invalid_grant"));
    token(&desktop.log_in(&issuer, &args));
    assert_eq!(issuer.granted(), ["authorization_code", "authorization_code"]);
    // An invalid token after a successful refresh is fatal.
    issuer.change(|settings| {
        settings.refresh_error = None;
        settings.claims = json!({"aud": "other"});
    });
    desktop.home.run(&args).fails_with(
        "could not complete Pinniped login: received invalid ID token: oidc: expected audience \"pinniped-cli\" got [\"other\"]",
    );
}

#[test]
fn the_token_of_another_audience_is_exchanged_each_time() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&[NO_CREDENTIAL_CACHE, "--request-audience=some-cluster"]);
    let first = token(&desktop.log_in(&issuer, &args));
    let second = token(&desktop.home.run(&args));
    assert_ne!(first, second);
    assert_eq!(issuer.granted(), ["authorization_code", "token-exchange", "token-exchange"]);
    let text = std::fs::read_to_string(desktop.file(SESSIONS)).unwrap();
    assert!(!text.contains(&first) && !text.contains(&second), "{text}");
    // Tokens that already have the audience need no exchange.
    for audience in [json!("pinniped-cli"), json!(["pinniped-cli", "some-cluster"])] {
        let audience_of = if audience.is_array() { "some-cluster" } else { "pinniped-cli" };
        let issuer = Issuer::start(Settings { audience, ..Settings::default() });
        let args = issuer.args(&[NO_CREDENTIAL_CACHE, &format!("--request-audience={audience_of}")]);
        token(&Desktop::new().log_in(&issuer, &args));
        assert_eq!(issuer.granted(), ["authorization_code"]);
    }
}

#[test]
fn forty_processes_make_one_login_in_one_tab() {
    // Shorter than what a cached token needs, as Keycloak's are.
    let issuer = Issuer::start(Settings { id_lifetime: 300, access_lifetime: 300, ..Settings::default() });
    let desktop = Desktop::new();
    let args = issuer.args(&[NO_CREDENTIAL_CACHE]);
    let all: Vec<Running> = (0..40).map(|_| desktop.start(&args)).collect();
    let url = desktop.first_opened();
    // A process that starts after the login refreshes the token, so all of them have to wait for
    // it.
    for running in &all {
        wait_for("each process", || {
            let messages = running.messages();
            let waits = ["Log in by visiting this link", "Waiting for the login"];
            waits.iter().any(|text| messages.contains(text)).then_some(())
        });
    }
    visit(&url, &issuer.authorize(&url));
    let runs: Vec<_> = all.into_iter().map(Running::finish).collect();
    let first = token(&runs[0]);
    assert!(runs.iter().all(|run| token(run) == first));
    assert_eq!((issuer.granted(), desktop.opened().len()), (vec!["authorization_code".to_owned()], 1));

    // The next forty need a refresh, whose token can be used once.
    let all: Vec<Running> = (0..40).map(|_| desktop.start(&args)).collect();
    let runs: Vec<_> = all.into_iter().map(Running::finish).collect();
    assert!(runs.iter().all(|run| run.code == 0), "{runs:?}");
    assert_eq!(desktop.opened().len(), 1);
    assert!(issuer.granted()[1..].iter().all(|grant| grant == "refresh_token"));
}

#[test]
fn a_killed_process_releases_its_lock_and_a_failure_is_shared() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&[NO_CREDENTIAL_CACHE]);
    let first = desktop.start(&args);
    desktop.first_opened();
    let second = desktop.start(&args);
    second.wait_for("Waiting for the login");
    first.kill();
    let url = desktop.opened_after(1);
    let third = desktop.start(&args);
    third.wait_for("Waiting for the login");
    let response = super::browser::callback(&url, "state=wrong");
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    const ERROR: &str =
        "could not complete Pinniped login: error handling callback: missing or invalid state parameter";
    second.finish().fails_with(ERROR);
    let third = third.finish();
    assert_eq!(third.code, 1);
    assert!(third.stderr.contains(ERROR), "{third:?}");
    assert_eq!(desktop.opened().len(), 2, "the third process opened no tab");
}

#[test]
fn caches_that_cannot_be_used_degrade_to_a_login_with_a_warning() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&[]);
    std::fs::create_dir_all(desktop.file(".config/pinniped")).unwrap();
    for name in [SESSIONS, CREDENTIALS] {
        std::fs::write(desktop.file(name), "garbage: [").unwrap();
    }
    let run = desktop.log_in(&issuer, &args);
    token(&run);
    assert!(
        run.stderr.contains("The login cannot be remembered: ") && run.stderr.contains("has been replaced"),
        "{run:?}"
    );
    assert_eq!(desktop.home.run(&args).stdout, run.stdout, "the caches work again");

    // A directory in the place of the files: nothing can be stored, not even by root.
    for name in [SESSIONS, CREDENTIALS] {
        std::fs::remove_file(desktop.file(name)).unwrap();
        std::fs::create_dir(desktop.file(name)).unwrap();
    }
    let run = desktop.log_in(&issuer, &args);
    token(&run);
    assert!(run.stderr.contains("The login cannot be remembered: could not open "), "{run:?}");
    let run = desktop.log_in(&issuer, &issuer.args(&["--debug-session-cache"]));
    assert!(run.stderr.contains("  error during session cache operation  {\"error\": "), "{run:?}");
}

#[test]
fn the_credential_of_the_concierge_is_renewed_in_the_background() {
    let issuer = Issuer::start(Settings { id_lifetime: 300, ..Settings::default() });
    let concierge = Server::start(|request| {
        let request: Value = serde_json::from_str(&request.body).unwrap();
        let expiry = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 30).unwrap();
        ReceivedResponse::json(&json!({
            "kind": "TokenCredentialRequest", "apiVersion": "login.concierge.pinniped.dev/v1alpha1",
            "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}},
            "status": {"credential": {
                "expirationTimestamp": expiry.to_string(),
                "clientCertificateData": request["spec"]["token"], "clientKeyData": "key",
            }},
        }))
    });
    let args = issuer.args(&[
        "--enable-concierge",
        "--concierge-authenticator-name=a",
        "--concierge-authenticator-type=jwt",
        &format!("--concierge-endpoint={}", concierge.url()),
        &format!("--concierge-ca-bundle-data={}", concierge.ca_data()),
    ]);
    let desktop = Desktop::new();
    let first = desktop.log_in(&issuer, &args);
    assert_eq!(first.code, 0, "{first:?}");
    let second = desktop.home.run(&args);
    assert_eq!(second.stdout, first.stdout, "the cached credential is printed immediately");
    let renewed = wait_for("the renewed credential", || {
        // A process in the background replaces the file in one step.
        let text = std::fs::read_to_string(desktop.file(CREDENTIALS)).ok()?;
        let certificate = text.split("clientCertificateData: ").nth(1)?.lines().next()?.to_owned();
        (!first.stdout.contains(&certificate)).then_some(certificate)
    });
    assert!(desktop.home.run(&args).stdout.contains(&renewed));
    assert_eq!(desktop.opened().len(), 1);
    assert_eq!(issuer.granted()[..2], ["authorization_code", "refresh_token"]);

    // Without a session, the process in the background does not involve the user.
    issuer.change(|settings| settings.refresh_error = Some("invalid_grant"));
    let before = desktop.opened().len();
    let messages = wait_for("the end of other renewals", || {
        let mut renewal = desktop.home.command(&args);
        let output = renewal.env("PINNIPED_RENEW_IN_BACKGROUND", "true").output().unwrap();
        Some(String::from_utf8(output.stderr).unwrap()).filter(|messages| !messages.is_empty())
    });
    assert_eq!(messages, "Error: could not complete Pinniped login: the session has ended: log in again\n");
    assert_eq!(desktop.opened().len(), before);
}
