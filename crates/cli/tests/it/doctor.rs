//! `doctor` against a scripted cluster: output, exit status, and missing permissions.

use serde_json::{Value, json};

use crate::cluster::{home_for, issuer, webhook};
use crate::oidc::browser::{Desktop, callback, visit};
use crate::oidc::issuer::{Issuer, Settings, query};
use crate::support::{ReceivedResponse, Request, Server, plugin_kubeconfig};

const CONFIG: &str = "/apis/config.concierge.pinniped.dev/v1alpha1/credentialissuers";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.login.concierge.pinniped.dev";

fn forbidden(what: &str) -> ReceivedResponse {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "Forbidden", "message": format!("{what} is forbidden: no"), "code": 403});
    ReceivedResponse::json(&status).with_status(403)
}

fn strategy(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastUpdateTime": "2026-11-21T10:00:00Z"})
}

/// Returns a cluster with these strategies of the proxy, for a user with or without all
/// permissions.
fn cluster(strategies: Vec<Value>, all_rights: bool) -> Server {
    let path = |request: &Request| request.path.split('?').next().unwrap_or_default().to_owned();
    Server::start(move |request| {
        let path = path(request);
        if path == CONFIG {
            let mut issuer = issuer("x", &strategies);
            issuer["spec"] = json!({"impersonationProxy": {"mode": "auto"}});
            return ReceivedResponse::list(&[issuer]);
        }
        if !all_rights {
            return forbidden(path.rsplit('/').next().unwrap_or_default());
        }
        match path.as_str() {
            API_SERVICE => ReceivedResponse::json(&json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "x"},
                "spec": {"service": {"namespace": "here", "name": "api"}},
                "status": {"conditions": [{"type": "Available", "status": "True", "message": "fine"}]},
            })),
            "/api/v1/namespaces/here/services" => ReceivedResponse::list(&[]),
            path if path.ends_with("/webhookauthenticators") => ReceivedResponse::list(&[webhook("w")]),
            path if path.ends_with("/jwtauthenticators") => ReceivedResponse::list(&[]),
            path => panic!("unexpected request for {path}"),
        }
    })
}

#[test]
fn an_installation_in_order_exits_with_zero() {
    let strategies = vec![
        strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "key was fetched successfully"),
        strategy("ImpersonationProxy", "Error", "Disabled", "switched off"),
    ];
    let server = cluster(strategies, true);
    let run = home_for(&server).run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert_eq!(
        run.stdout,
        "ok       the API for logins (APIService v1alpha1.login.concierge) is available\n\
         ok       authenticators: 1, all of them ready\n\
         ok       strategy KubeClusterSigningCertificate works: key was fetched successfully\n\
         ok       strategy ImpersonationProxy is disabled: switched off\n"
    );
}

#[test]
fn problems_are_printed_with_remedies_and_exit_with_one() {
    let strategies = vec![
        strategy("KubeClusterSigningCertificate", "Error", "CouldNotFetchKey", "no pods"),
        strategy("ImpersonationProxy", "Error", "ErrorDuringSetup", "spec.impersonationProxy is nil"),
    ];
    let server = cluster(strategies, true);
    let run = home_for(&server).run(&["doctor"]);
    assert_eq!(run.code, 1);
    assert!(
        run.stdout.contains(
            "problem  strategy ImpersonationProxy fails: spec.impersonationProxy is nil\n         \
             -> add spec.impersonationProxy with a mode\n"
        ),
        "{run:?}"
    );
    // Both strategies, no working authenticator, and no Service although the proxy should run.
    assert_eq!(run.stderr, "Error: found 4 problems\n");
}

#[test]
fn missing_permissions_are_reported_and_are_not_problems() {
    let strategies = vec![
        strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "k"),
        strategy("ImpersonationProxy", "Success", "Listening", "ready"),
    ];
    let server = cluster(strategies, false);
    let run = home_for(&server).run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    for (what, why) in [
        ("the API for logins", "v1alpha1.login.concierge.pinniped.dev is forbidden: no"),
        ("authenticators", "webhookauthenticators is forbidden: no"),
        ("the proxy's Service of type LoadBalancer", "services is forbidden: no"),
    ] {
        let line = run.stdout.lines().find(|line| line.starts_with(&format!("unseen   {what}")));
        assert!(line.is_some_and(|line| line.ends_with(why)), "{what}: {run:?}");
    }
}

#[test]
fn a_missing_concierge_and_a_missing_permission_have_different_errors() {
    let server = Server::start(|_| ReceivedResponse::text(404, "404 page not found"));
    home_for(&server).run(&["doctor"]).fails_with(
        "could not read the CredentialIssuer: this cluster does not serve \
         credentialissuers.config.concierge.pinniped.dev: install the Concierge, or name its API groups with \
         --concierge-api-group-suffix",
    );
    let server = Server::start(|_| forbidden("credentialissuers"));
    home_for(&server)
        .run(&["doctor"])
        .fails_with("could not read the CredentialIssuer: credentialissuers is forbidden: no");
    let server = Server::start(|_| ReceivedResponse::list(&[issuer("a", &[]), issuer("b", &[])]));
    home_for(&server).run(&["doctor"]).fails_with(
        "could not read the CredentialIssuer: there are several CredentialIssuers: choose one of a, b with \
         --concierge-credential-issuer",
    );
    let server = Server::start(|_| ReceivedResponse::list(&[]));
    let run = home_for(&server).run(&["doctor"]);
    assert!(run.stderr.contains("this cluster has no CredentialIssuer"), "{run:?}");
}

/// Returns a desktop with a kubeconfig for `server` whose user logs in at `issuer`.
fn desktop_for(server: &Server, issuer: &Issuer) -> Desktop {
    let mut desktop = Desktop::with_browser("#!/bin/sh\necho \"$1\" >> \"$OPENED\"\n");
    let config = plugin_kubeconfig(&server.url(), &server.ca_data(), &issuer.args(&[]));
    let path = desktop.home.write("config", &config);
    desktop.home.set("KUBECONFIG", path.to_str().unwrap());
    desktop
}

#[test]
fn a_user_who_logs_in_at_an_issuer_is_checked_with_one_login() {
    let strategies = vec![
        strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "k"),
        strategy("ImpersonationProxy", "Error", "Disabled", "switched off"),
    ];
    let (issuer, server) = (Issuer::start(Settings::default()), cluster(strategies, true));
    let desktop = desktop_for(&server, &issuer);
    let command = ["doctor".to_owned()];
    let running = desktop.start(&command);
    let url = desktop.first_opened();
    visit(&url, &issuer.authorize(&url));
    let run = running.finish();
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.lines().all(|line| line.starts_with("ok ")), "{run:?}");
    let seen = server.seen();
    let tokens: Vec<&String> = seen.iter().map(|request| &request.headers["authorization"]).collect();
    assert!(
        tokens[0].starts_with("Bearer ey") && tokens.iter().all(|token| *token == tokens[0]),
        "{tokens:?}"
    );
    // The next run needs no login, and its output has no token.
    let next = desktop.home.run(&command);
    assert_eq!((next.stdout.as_str(), next.stderr.as_str()), (run.stdout.as_str(), ""));
    assert_eq!((issuer.granted().len(), desktop.opened().len()), (1, 1));
}

#[test]
fn a_login_that_is_refused_is_reported_once() {
    let (issuer, server) = (Issuer::start(Settings::default()), cluster(Vec::new(), true));
    let desktop = desktop_for(&server, &issuer);
    let running = desktop.start(&["doctor".to_owned()]);
    let url = desktop.first_opened();
    let state = query(url.split_once('?').unwrap().1)["state"].clone();
    callback(&url, &format!("error=access_denied&state={state}"));
    let run = running.finish();
    let errors: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("Error: ")).collect();
    let [plugin, doctor] = errors[..] else { panic!("{run:?}") };
    assert!(plugin.ends_with("login failed with code \"access_denied\""), "{plugin}");
    assert!(doctor.contains("getting credentials: exec: executable "), "{doctor}");
    assert!(doctor.ends_with(" failed with exit code 1"), "{doctor}");
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert_eq!((server.seen().len(), desktop.opened().len()), (0, 1));
}
