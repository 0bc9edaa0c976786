//! `whoami` against a scripted API server.

use serde_json::json;

use crate::support::{Home, ReceivedResponse, Request, Server, admin_kubeconfig, plugin_kubeconfig};

fn pinny() -> Server {
    Server::start(respond)
}

fn respond(_: &Request) -> ReceivedResponse {
    ReceivedResponse::json(&json!({
        "kind": "WhoAmIRequest",
        "apiVersion": "identity.concierge.pinniped.dev/v1alpha1",
        "metadata": {},
        "spec": {},
        "status": {"kubernetesUserInfo": {"user": {
            "username": "pinny", "uid": "u1", "groups": ["group-for-mtls", "system:authenticated"],
            "extra": {"k": ["v"]},
        }}},
    }))
    .with_status(201)
}

fn home_for(server: &Server) -> Home {
    let mut home = Home::new();
    let extra = format!("    certificate-authority-data: {}", server.ca_data());
    let path = home.write("config", &admin_kubeconfig(&server.url(), &extra));
    home.set("KUBECONFIG", path.to_str().unwrap());
    home
}

#[test]
fn the_user_is_printed_in_three_formats() {
    let server = pinny();
    let home = home_for(&server);
    let run = home.run(&["whoami"]);
    assert_eq!(
        run.stdout,
        format!(
            "Current cluster info:\n\nName: kind-cluster\nURL: {}\n\nCurrent user info:\n\nUsername: pinny\nGroups: group-for-mtls, system:authenticated\n",
            server.url()
        ),
        "{run:?}"
    );
    let run_text = run.stdout;
    let seen = &server.seen()[0];
    assert_eq!(seen.path, "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests");
    assert_eq!(seen.headers["authorization"], "Bearer admin-token");
    assert!(seen.headers["user-agent"].starts_with("pinniped/v"), "{seen:?}");

    let run = home.run(&["whoami", "-o", "json", "--api-group-suffix", "tuna.io"]);
    assert_eq!(
        run.stdout,
        r#"{
  "kind": "WhoAmIRequest",
  "apiVersion": "identity.concierge.tuna.io/v1alpha1",
  "metadata": {},
  "spec": {},
  "status": {
    "kubernetesUserInfo": {
      "user": {
        "username": "pinny",
        "uid": "u1",
        "groups": [
          "group-for-mtls",
          "system:authenticated"
        ],
        "extra": {
          "k": [
            "v"
          ]
        }
      }
    }
  }
}"#
    );
    assert_eq!(server.seen()[1].path, "/apis/identity.concierge.tuna.io/v1alpha1/whoamirequests");
    assert_eq!(
        home.run(&["whoami", "--output=yaml"]).stdout,
        "apiVersion: identity.concierge.pinniped.dev/v1alpha1\nkind: WhoAmIRequest\nmetadata: {}\nspec: {}\nstatus:\n  kubernetesUserInfo:\n    user:\n      extra:\n        k:\n        - v\n      groups:\n      - group-for-mtls\n      - system:authenticated\n      uid: u1\n      username: pinny\n"
    );
    let wide = home.run(&["whoami", "-o", "wide"]).stdout;
    assert_eq!(wide.strip_prefix(&run_text).unwrap(), "UID: u1\nExtra k: v\n");
    let on_a_terminal = home.run(&["whoami", "--color=always"]).stdout;
    assert_eq!(on_a_terminal, wide);
    home.run(&["whoami", "-o", "xml"]).fails_with("could not write output: unknown output format: \"xml\"");
}

#[test]
fn a_list_of_kubeconfigs_is_merged() {
    let server = pinny();
    let mut home = Home::new();
    let users = home.write("users", "users: [{name: kind-user, user: {token: from-the-first}}]");
    let extra = format!("    certificate-authority-data: {}", server.ca_data());
    let rest = home.write("rest", &admin_kubeconfig(&server.url(), &extra));
    let list = std::env::join_paths([&users, &home.path().join("missing"), &rest]).unwrap();
    home.set("KUBECONFIG", list.to_str().unwrap());
    let run = home.run(&["whoami"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(server.seen()[0].headers["authorization"], "Bearer from-the-first");
}

#[test]
fn configuration_errors_are_reported() {
    const PREFIX: &str = "could not configure Kubernetes client: ";
    const NOTHING: &str = "invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable";
    let server = pinny();
    let home = home_for(&server);
    let none = "no kubeconfig found: set KUBECONFIG or pass --kubeconfig";
    for command in ["whoami", "doctor"] {
        let run = Home::new().run(&[command]);
        let code = if command == "doctor" { 2 } else { 1 };
        assert_eq!((run.code, run.stderr), (code, format!("Error: {none}\n")), "{command}");
    }
    let empty = home.write("empty", "");
    home.run(&["whoami", "--kubeconfig", empty.to_str().unwrap()]).fails_with(&format!("{PREFIX}{NOTHING}"));
    home.run(&["whoami", "--kubeconfig", "/nope"])
        .fails_with(&format!("{PREFIX}stat /nope: no such file or directory"));
    home.run(&["whoami", "--kubeconfig-context", "x"])
        .fails_with(&format!("{PREFIX}context \"x\" does not exist"));
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn failures_of_the_api_have_different_errors() {
    let server = Server::start(|request| match request.headers["authorization"].as_str() {
        "Bearer 404" => ReceivedResponse::text(404, "404 page not found"),
        _ => ReceivedResponse::json(&json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "some message", "reason": "Forbidden", "code": 403,
        }))
        .with_status(403),
    });
    let home = home_for(&server);
    home.run(&["whoami"]).fails_with("could not complete WhoAmIRequest: some message");
    let config = std::fs::read_to_string(home.path().join("config")).unwrap().replace("admin-token", "'404'");
    let path = home.write("config404", &config);
    home.run(&["whoami", "--kubeconfig", path.to_str().unwrap()]).fails_with(
        "could not complete WhoAmIRequest (is the Pinniped WhoAmI API running and healthy?): the server could not find the requested resource (post whoamirequests.identity.concierge.pinniped.dev)",
    );
}

#[test]
fn requests_are_not_sent_to_an_untrusted_server() {
    let server = pinny();
    let other = pinny();
    let home = Home::new();
    let extra = format!("    certificate-authority-data: {}", other.ca_data());
    let path = home.write("config", &admin_kubeconfig(&server.url(), &extra));
    home.run(&["whoami", "--kubeconfig", path.to_str().unwrap()]).fails_with(&format!(
        "could not complete WhoAmIRequest: Post \"{}/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
        server.url()
    ));
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn the_end_of_the_plugins_credential_is_printed_for_people() {
    let server = pinny();
    let mut home = Home::new();
    let credential = json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
        "status": {"token": "t", "expirationTimestamp": "2099-01-02T03:04:05Z"}});
    let script = format!("echo '{credential}'");
    let config = plugin_kubeconfig(&server.url(), &server.ca_data(), &["-c".to_owned(), script])
        .replace(env!("CARGO_BIN_EXE_pinniped"), "/bin/sh");
    let path = home.write("config", &config);
    home.set("KUBECONFIG", path.to_str().unwrap());
    let line = "Credential expires: 2099-01-02T03:04:05Z\n";
    for args in [&["whoami", "-o", "wide"][..], &["whoami", "--color=always"]] {
        let run = home.run(args);
        assert!(run.code == 0 && run.stdout.ends_with(line), "{args:?}: {run:?}");
    }
    // Upstream's output has no such line.
    for args in [&["whoami"][..], &["whoami", "-o", "json"]] {
        assert!(!home.run(args).stdout.contains("expires"), "{args:?}");
    }
}

#[test]
fn a_self_signed_server_certificate_in_the_kubeconfig_is_trusted_as_by_kubectl() {
    let server = Server::start_self_signed(respond);
    let run = home_for(&server).run(&["whoami"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert!(run.stdout.contains("\nUsername: pinny\n"), "{run:?}");
    // Another certificate of the same name is not.
    let other = Server::start_self_signed(respond);
    let home = home_for(&server);
    let config = std::fs::read_to_string(home.path().join("config")).unwrap();
    let other = home.write("other", &config.replace(&server.url(), &other.url()));
    let run = home.run(&["whoami", "--kubeconfig", other.to_str().unwrap()]);
    let error = run.last_error().unwrap_or_default();
    assert!(run.code == 1 && error.contains("tls: failed to verify certificate: x509: "), "{run:?}");
}
