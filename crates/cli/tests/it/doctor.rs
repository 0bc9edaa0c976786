//! `doctor` against a scripted cluster: output, exit status, and missing permissions.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::cluster::{home_for, issuer, webhook};
use crate::oidc::browser::{Desktop, callback, visit};
use crate::oidc::issuer::{Issuer, Settings, query};
use crate::support::{Home, ReceivedResponse, Request, Server, admin_kubeconfig, plugin_kubeconfig};

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

const WHO_AM_I: &str = "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests";

fn pinny() -> ReceivedResponse {
    let user = json!({"username": "pinny", "groups": ["system:authenticated"]});
    let response = json!({"kind": "WhoAmIRequest", "apiVersion": "identity.concierge.pinniped.dev/v1alpha1",
        "metadata": {}, "spec": {}, "status": {"kubernetesUserInfo": {"user": user}}});
    ReceivedResponse::json(&response).with_status(201)
}

fn unauthorized() -> ReceivedResponse {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "Unauthorized", "message": "Unauthorized", "code": 401});
    ReceivedResponse::json(&status).with_status(401)
}

/// Returns a cluster with these strategies of the proxy, for a user with or without all
/// permissions.
fn cluster(strategies: Vec<Value>, all_rights: bool) -> Server {
    Server::start(respond(strategies, all_rights, Vec::new(), SignedDuration::ZERO))
}

/// Returns the responses of a cluster with these pods and a clock that is ahead by `skew`.
fn respond(
    strategies: Vec<Value>,
    all_rights: bool,
    pods: Vec<Value>,
    skew: SignedDuration,
) -> impl Fn(&Request) -> ReceivedResponse + Send + Sync + 'static {
    let path = |request: &Request| request.path.split('?').next().unwrap_or_default().to_owned();
    move |request| {
        let path = path(request);
        if request.headers.get("authorization").is_some_and(|value| value == "Bearer hush") {
            return unauthorized();
        }
        match path.as_str() {
            CONFIG => {
                let mut issuer = issuer("x", &strategies);
                issuer["spec"] = json!({"impersonationProxy": {"mode": "auto"}});
                return ReceivedResponse::list(&[issuer]);
            }
            WHO_AM_I => return pinny(),
            "/version" => {
                return ReceivedResponse::json(&json!({})).with_date(skew);
            }
            _ if !all_rights => return forbidden(path.rsplit('/').next().unwrap_or_default()),
            _ => {}
        }
        match path.as_str() {
            API_SERVICE => ReceivedResponse::json(&json!({
                "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "x"},
                "spec": {"service": {"namespace": "here", "name": "api"}},
                "status": {"conditions": [{"type": "Available", "status": "True", "message": "fine"}]},
            })),
            "/api/v1/namespaces/here/services" => ReceivedResponse::list(&[]),
            "/api/v1/namespaces/here/pods" => ReceivedResponse::list(&pods),
            path if path.ends_with("/webhookauthenticators") => ReceivedResponse::list(&[webhook("w")]),
            path if path.ends_with("/jwtauthenticators") => ReceivedResponse::list(&[]),
            path => panic!("unexpected request for {path}"),
        }
    }
}

/// Removes the parts of a line that differ in each run.
fn shape(server: &Server, text: &str) -> String {
    let text = text.replace(&server.url(), "SERVER");
    let lines = text.lines().map(|line| line.split(", until ").next().unwrap_or_default());
    lines.map(|line| format!("{line}\n")).collect()
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
        shape(&server, &run.stdout),
        "ok       SERVER presents a certificate that the kubeconfig trusts\n\
         ok       the clocks of this machine and of SERVER agree\n\
         ok       context kind-context of kubeconfig in use logs in as pinny, with 1 groups\n\
         ok       the API for logins (APIService v1alpha1.login.concierge) is available\n\
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
    // Both strategies fail, and there is no Service although the proxy should run. The finding that
    // no strategy works is a consequence.
    assert!(
        run.stdout.contains(
            "problem  no strategy works, so users cannot log in\n         (a consequence of: strategy KubeCluster"
        ),
        "{run:?}"
    );
    assert_eq!(run.stderr, "Error: found 3 problems\n");
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
        let line = run.stdout.lines().find(|line| line.starts_with(&format!("skipped  {what}")));
        assert!(line.is_some_and(|line| line.ends_with(why)), "{what}: {run:?}");
    }
}

/// Returns a cluster whose CredentialIssuers are `issuers`.
fn cluster_with(issuers: impl Fn() -> ReceivedResponse + Send + Sync + 'static) -> Server {
    Server::start(move |request| match request.path.split('?').next().unwrap_or_default() {
        WHO_AM_I => pinny(),
        CONFIG => issuers(),
        _ => ReceivedResponse::text(404, "404 page not found"),
    })
}

#[test]
fn a_missing_concierge_is_a_problem_and_a_missing_permission_is_not() {
    let server = cluster_with(|| ReceivedResponse::text(404, "404 page not found"));
    let run = home_for(&server).run(&["doctor"]);
    let missing = "problem  this cluster does not serve credentialissuers.config.concierge.pinniped.dev\n         \
                   -> install the Concierge, or name its API groups with --concierge-api-group-suffix\n";
    assert!(run.code == 1 && run.stdout.starts_with(missing), "{run:?}");
    let server = Server::start(|request| match request.path.split('?').next().unwrap_or_default() {
        WHO_AM_I => pinny(),
        path => forbidden(path.rsplit('/').next().unwrap_or_default()),
    });
    let run = home_for(&server).run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    for skipped in [
        "skipped  the CredentialIssuer: credentialissuers is forbidden: no\n",
        "skipped  the Concierge's pods and their version: pods is forbidden: no\n",
    ] {
        assert!(run.stdout.contains(skipped), "{skipped}: {run:?}");
    }
    let server = cluster_with(|| ReceivedResponse::list(&[issuer("a", &[]), issuer("b", &[])]));
    let run = home_for(&server).run(&["doctor"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (
            2,
            "Error: could not read the CredentialIssuer: there are several CredentialIssuers: choose one of a, b with \
             --concierge-credential-issuer\n"
        )
    );
    let server = cluster_with(|| ReceivedResponse::list(&[]));
    let run = home_for(&server).run(&["doctor"]);
    assert!(run.code == 1 && run.stdout.contains("problem  this cluster has no CredentialIssuer"), "{run:?}");
}

#[test]
fn without_the_credential_issuer_the_other_objects_are_checked() {
    let answer = respond(healthy(), true, vec![pod("b", false)], SignedDuration::ZERO);
    let server = Server::start(move |request| match request.path.split('?').next().unwrap_or_default() {
        CONFIG => forbidden("credentialissuers"),
        API_SERVICE => ReceivedResponse::json(&json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "x"},
            "spec": {"service": {"namespace": "here", "name": "api"}},
            "status": {"conditions": [{"type": "Available", "status": "False", "message": "no endpoints"}]},
        })),
        _ => answer(request),
    });
    let run = home_for(&server).run(&["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = problems(&report);
    let [(pod, false), (api, true)] = found[..] else { panic!("{found:?}") };
    assert_eq!(pod, "pod b is not ready");
    assert!(api.ends_with("is not available: no endpoints"), "{api}");
    let hidden = report["findings"].as_array().unwrap().iter().find(|found| found["result"] == "skipped");
    assert_eq!(hidden.unwrap()["message"], "the CredentialIssuer", "{report}");
}

#[test]
fn a_dead_proxy_is_not_reported_as_a_dead_cluster() {
    let mut home = Home::new();
    let path = home.write("config", &admin_kubeconfig("https://cluster.test", ""));
    home.set("KUBECONFIG", path.to_str().unwrap()).set("HTTPS_PROXY", "http://127.0.0.1:1");
    let run = home.run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (1, "Error: found 1 problem\n"), "{run:?}");
    let wanted = "problem  the proxy for https://cluster.test cannot be used: dial tcp 127.0.0.1:1: connect: \
                  connection refused\n         -> see whether the proxy runs";
    assert!(run.stdout.starts_with(wanted) && run.stdout.contains("correct HTTPS_PROXY\n"), "{run:?}");
    assert!(!run.stdout.contains("no server responds at"), "{run:?}");
}

#[test]
fn a_dead_issuer_is_no_consequence_of_a_dead_cluster() {
    let server = cluster(healthy(), true);
    let args = ["login", "oidc", "--issuer=https://localhost:1", "--credential-cache="].map(str::to_owned);
    let config = plugin_kubeconfig(&server.url(), &server.ca_data(), &args);
    drop(server);
    let mut home = Home::new();
    let path = home.write("config", &config);
    home.set("KUBECONFIG", path.to_str().unwrap());
    let run = home.run(&["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = problems(&report);
    let [(cluster, false), (issuer, false), (login, true)] = found[..] else { panic!("{found:?}") };
    assert!(cluster.starts_with("no server responds at https://127.0.0.1:"), "{cluster}");
    assert!(
        issuer.starts_with("no server responds at the issuer https://localhost:1 from here: "),
        "{issuer}"
    );
    assert!(login.contains("could not perform OIDC discovery"), "{login}");
    let login = report["findings"].as_array().unwrap().iter().find(|found| found["check"] == "login");
    assert_eq!(login.unwrap()["consequenceOf"], issuer);
}

/// Returns the strategies of a healthy installation.
fn healthy() -> Vec<Value> {
    vec![
        strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "k"),
        strategy("ImpersonationProxy", "Error", "Disabled", "switched off"),
    ]
}

#[test]
fn a_wrong_token_is_the_only_problem() {
    let server = cluster(healthy(), true);
    let home = home_for(&server);
    let config = std::fs::read_to_string(home.path().join("config")).unwrap();
    let user = home.write("user", &config.replace("admin-token", "hush"));
    let run = home.run(&["doctor", "--check-kubeconfig", user.to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.as_str()), (1, "Error: found 1 problem\n"), "{run:?}");
    let wanted = format!(
        "problem  the cluster does not accept requests with context kind-context of kubeconfig {}: \
         could not complete WhoAmIRequest: Unauthorized\n",
        user.display()
    );
    assert!(run.stdout.starts_with(&wanted), "{run:?}");
    assert!(!run.stdout.contains("hush"), "{run:?}");
}

#[test]
fn a_missing_plugin_is_the_cause_of_the_failed_login() {
    let server = cluster(healthy(), true);
    let home = home_for(&server);
    let config = plugin_kubeconfig(&server.url(), &server.ca_data(), &["login".into(), "static".into()])
        .replace(env!("CARGO_BIN_EXE_pinniped"), "/no/such/pinniped");
    let user = home.write("user", &config);
    let run = home.run(&["doctor", "-o", "json", "--check-kubeconfig", user.to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.as_str()), (1, "Error: found 1 problem\n"), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["healthy"], &report["problems"]), (&json!(false), &json!(1)));
    let (plugin, login) = (&report["findings"][0], &report["findings"][1]);
    assert_eq!((&plugin["check"], &plugin["result"]), (&json!("plugin"), &json!("problem")));
    assert!(plugin["message"].as_str().unwrap().starts_with("the plugin /no/such/pinniped of user u"));
    assert_eq!((&login["check"], &login["consequenceOf"]), (&json!("login"), &plugin["message"]));
    let run = home.run(&["doctor", "-o", "yaml"]);
    assert!(run.code == 0 && run.stdout.starts_with("findings:\n- check: "), "{run:?}");
}

#[test]
fn the_reason_of_a_failed_login_is_that_of_the_plugin() {
    let server = cluster(healthy(), true);
    let home = home_for(&server);
    let args = ["login", "static", "--token-env=NO_SUCH_VARIABLE", "--credential-cache="].map(str::to_owned);
    let user = home.write("user", &plugin_kubeconfig(&server.url(), &server.ca_data(), &args));
    let run = home.run(&["doctor", "--check-kubeconfig", user.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
    let first = run.stdout.lines().next().unwrap();
    assert!(first.ends_with("fails: --token-env variable \"NO_SUCH_VARIABLE\" is not set"), "{run:?}");
}

#[test]
fn a_server_that_does_not_respond_is_the_cause_of_all_other_problems() {
    let server = cluster(healthy(), true);
    let home = home_for(&server);
    let url = server.url();
    drop(server);
    let run = home.run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (1, "Error: found 1 problem\n"), "{run:?}");
    let wanted = format!("problem  no server responds at {url} from here: ");
    assert!(run.stdout.starts_with(&wanted), "{run:?}");
    assert!(run.stdout.contains("(a consequence of: no server responds"), "{run:?}");
    let run = home.run(&["doctor", "-o", "xml"]);
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (
            2,
            "Error: could not write output: unknown output format: \"xml\"\ntry: --output text, json or yaml\n"
        )
    );
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
    let with_login = seen.iter().filter(|request| request.path != "/version");
    let tokens: Vec<&String> = with_login.map(|request| &request.headers["authorization"]).collect();
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
    assert_eq!((run.code, doctor), (1, "Error: found 1 problem"), "{run:?}");
    let first = run.stdout.lines().next().unwrap();
    assert!(first.ends_with("login failed with code \"access_denied\""), "{run:?}");
    // The time of the server is read before the login.
    assert_eq!((server.seen_lines(), desktop.opened().len()), (vec!["GET /version".to_owned()], 1));
}

fn pod(name: &str, ready: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": []},
        "status": {"containerStatuses": [{"name": "c", "ready": ready, "restartCount": 0, "image": "i",
            "imageID": ""}]}})
}

/// Returns the problems of a report, and whether each is marked as a consequence.
fn problems(report: &Value) -> Vec<(&str, bool)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let problems = findings.filter(|finding| finding["result"] == "problem");
    problems
        .map(|finding| (finding["message"].as_str().unwrap(), !finding["consequenceOf"].is_null()))
        .collect()
}

#[test]
fn one_unready_pod_of_two_does_not_explain_a_refused_token() {
    let pods = vec![pod("a", true), pod("b", false)];
    let server = Server::start(respond(healthy(), true, pods, SignedDuration::ZERO));
    let home = home_for(&server);
    let config = std::fs::read_to_string(home.path().join("config")).unwrap();
    let user = home.write("user", &config.replace("admin-token", "hush"));
    let run = home.run(&["doctor", "-o", "json", "--check-kubeconfig", user.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let found = problems(&report);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().any(|(text, marked)| text.contains("does not accept requests") && !marked));
    assert!(found.contains(&("pod b is not ready", false)), "{found:?}");
    assert_eq!((run.code, &report["problems"]), (1, &json!(2)));
}

/// Writes a kubeconfig whose plugin is a shell script.
fn user_with_script(home: &Home, server: &Server, script: &str) -> String {
    let config = plugin_kubeconfig(&server.url(), &server.ca_data(), &["-c".to_owned(), script.to_owned()]);
    let config = config.replace(env!("CARGO_BIN_EXE_pinniped"), "/bin/sh");
    home.write("user", &config).to_str().unwrap().to_owned()
}

#[test]
fn a_skewed_clock_explains_a_login_that_fails() {
    for (skew, direction) in [(400, "behind"), (-400, "ahead of")] {
        let server = Server::start(respond(healthy(), true, Vec::new(), SignedDuration::from_secs(skew)));
        let home = home_for(&server);
        let script = "echo 'Error: could not complete Concierge credential exchange: login failed: \
                      authentication failed' >&2; exit 1";
        let user = user_with_script(&home, &server, script);
        let run = home.run(&["doctor", "-o", "json", "--check-kubeconfig", &user]);
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        let found = problems(&report);
        let [(clock, false), (login, true)] = found[..] else { panic!("{found:?}") };
        assert!(clock.starts_with("the clock of this machine is ") && clock.contains(direction), "{clock}");
        assert!(login.contains("authentication failed"), "{login}");
        // The time was read without a credential.
        let seen = server.seen();
        let version = seen.iter().find(|request| request.path == "/version").unwrap();
        assert!(!version.headers.contains_key("authorization"), "{version:?}");
    }
}

#[test]
fn a_plugin_that_does_not_finish_is_reported_with_the_other_findings() {
    let server = cluster(healthy(), true);
    let home = home_for(&server);
    let user = user_with_script(&home, &server, "sleep 100");
    let started = Instant::now();
    let run = home.run(&["doctor", "--timeout", "2s", "-o", "json", "--check-kubeconfig", &user]);
    assert!(started.elapsed() < Duration::from_secs(90), "it waited for the plugin");
    let report: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"));
    let found = problems(&report);
    let [(login, false)] = found[..] else { panic!("{found:?}") };
    assert!(login.ends_with("fails: the plugin did not finish within 2s"), "{login}");
    let messages: Vec<&str> =
        report["findings"].as_array().unwrap().iter().filter_map(|found| found["message"].as_str()).collect();
    for part in ["presents a certificate that the kubeconfig trusts", "the API for logins"] {
        assert!(messages.iter().any(|message| message.contains(part)), "{part}: {messages:?}");
    }
    assert_eq!((run.code, run.stderr.as_str()), (1, "Error: found 1 problem\n"));
}

#[test]
fn a_self_signed_certificate_in_the_kubeconfig_is_no_problem() {
    let server = Server::start_self_signed(respond(healthy(), true, Vec::new(), SignedDuration::ZERO));
    let home = home_for(&server);
    let run = home.run(&["doctor"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
}
