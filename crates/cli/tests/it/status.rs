//! `status`.

use serde_json::{Value, json};

use crate::oidc::browser::Desktop;
use crate::oidc::flows::token;
use crate::oidc::issuer::{Issuer, Settings};
use crate::support::{Home, ReceivedResponse, Run, Server, plugin_kubeconfig};

fn document(run: &Run) -> Value {
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn every_context_is_printed_without_a_request() {
    let certificate = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    let pem = pinniped_go_compat::base64::encode(certificate.cert.pem().as_bytes());
    let mut home = Home::new();
    let context = |name: &str, user: &str| json!({"name": name, "context": {"cluster": "c", "user": user}});
    let login = |args: &[&str]| {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "pinniped", "args": args}})
    };
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "b",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [context("a", "certificate"), context("b", "static"), context("c", "aws"), context("d", "token"),
            context("e", "nobody"), context("f", "variable")],
        "users": [{"name": "certificate", "user": {"client-certificate-data": pem, "client-key-data": "eA=="}},
            {"name": "static", "user": login(&["login", "static", "--token=t", "--enable-concierge",
                "--concierge-endpoint=https://c", "--concierge-authenticator-type=webhook",
                "--concierge-authenticator-name=w"])},
            {"name": "aws", "user": login(&["eks", "get-token"])},
            {"name": "token", "user": {"token": "hush"}},
            {"name": "variable", "user": login(&["login", "static", "--token-env=NO_SUCH_VARIABLE"])}]});
    let path = home.write("config", &config.to_string());
    home.set("KUBECONFIG", path.to_str().unwrap());
    let run = home.run(&["status"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let until = run.stdout.split(", until ").nth(1).unwrap().split('\n').next().unwrap();
    let expected = "a
  cluster:       c (https://127.0.0.1:1)
  user:          certificate
  login:         client certificate of the kubeconfig
  credential:    client certificate of rcgen self signed cert, until UNTIL

b (current)
  cluster:       c (https://127.0.0.1:1)
  user:          static
  login:         static token
  authenticator: w (webhook)
  credential:    none in the cache

c
  cluster:       c (https://127.0.0.1:1)
  user:          aws
  login:         another plugin
  credential:    not known

d
  cluster:       c (https://127.0.0.1:1)
  user:          token
  login:         token of the kubeconfig
  credential:    token

e
  cluster:       c (https://127.0.0.1:1)
  user:          nobody
  login:         none
  credential:    none
  problem:       the kubeconfig does not have the user

f
  cluster:       c (https://127.0.0.1:1)
  user:          variable
  login:         static token
  credential:    none in the cache
  problem:       --token-env variable \"NO_SUCH_VARIABLE\" is not set
";
    assert_eq!(run.stdout.replace(until, "UNTIL"), expected);
    let found = document(&home.run(&["status", "-o", "json", "--kubeconfig-context=b"]));
    assert_eq!(
        found,
        json!({"contexts": [{"name": "b", "current": true, "cluster": "c", "server": "https://127.0.0.1:1",
            "user": "static", "login": "static-token", "authenticator": {"type": "webhook", "name": "w"}}]})
    );
    let yaml = home.run(&["status", "-o", "yaml"]).stdout;
    assert!(yaml.starts_with("contexts:\n- cluster: c\n  credential:\n    expires: "), "{yaml}");
    home.run(&["status", "--kubeconfig-context=x"]).fails_with("no such context \"x\"");
    home.run(&["status", "-o", "xml"]).fails_with("could not write output: unknown output format: \"xml\"");
    Home::new().run(&["status"]).fails_with("no kubeconfig found: set KUBECONFIG or pass --kubeconfig");
}

#[test]
fn sessions_and_cached_credentials_are_printed_and_stay_unchanged() {
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let args = issuer.args(&[]);
    let config = plugin_kubeconfig("https://127.0.0.1:1", "", &args);
    let path = desktop.home.write("config", &config);
    let status = || {
        let path = path.to_str().unwrap();
        document(&desktop.home.run(&["status", "-o", "json", "--kubeconfig", path]))["contexts"][0].clone()
    };
    let before = status();
    assert_eq!(
        (&before["login"], &before["session"], &before["credential"]),
        (&json!("oidc"), &Value::Null, &Value::Null)
    );
    assert_eq!(before["issuer"], json!(issuer.server.url()));
    // The plugin as kubectl runs it, so that the credential is that of the context.
    let mut command = desktop.home.command(&args);
    command.env("KUBERNETES_EXEC_INFO", json!({"apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential", "spec": {"interactive": false, "cluster": {"server": "https://127.0.0.1:1"}}})
        .to_string());
    let running = desktop.spawn(command);
    let url = desktop.first_opened();
    crate::oidc::browser::visit(&url, &issuer.authorize(&url));
    token(&running.finish());
    let files = [".config/pinniped/sessions.yaml", ".config/pinniped/credentials.yaml"];
    let stored = files.map(|name| std::fs::read_to_string(desktop.file(name)).unwrap());
    let (requests, after) = (issuer.server.seen().len(), status());
    assert_eq!(after["session"]["refreshToken"], json!(true), "{after}");
    assert!(after["session"]["idTokenExpires"].is_string(), "{after}");
    assert_eq!(after["credential"]["type"], json!("token"), "{after}");
    assert_eq!(issuer.server.seen().len(), requests);
    assert_eq!(files.map(|name| std::fs::read_to_string(desktop.file(name)).unwrap()), stored);
}

#[test]
fn a_check_requests_the_user_of_each_cluster_and_opens_no_browser() {
    let server = Server::start(|request| {
        assert_eq!(request.path, "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests");
        if request.headers["authorization"] != "Bearer t" {
            return ReceivedResponse::json(&json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "reason": "Unauthorized", "message": "Unauthorized", "code": 401}))
            .with_status(401);
        }
        let user = json!({"username": "pinny", "groups": []});
        ReceivedResponse::json(&json!({"kind": "WhoAmIRequest",
            "apiVersion": "identity.concierge.pinniped.dev/v1alpha1", "metadata": {}, "spec": {},
            "status": {"kubernetesUserInfo": {"user": user}}}))
        .with_status(201)
    });
    let issuer = Issuer::start(Settings::default());
    let desktop = Desktop::new();
    let mut config: Value =
        serde_json::from_str(&plugin_kubeconfig(&server.url(), &server.ca_data(), &issuer.args(&[])))
            .unwrap();
    for (name, token) in [("good", "t"), ("wrong", "hush")] {
        let context = json!({"name": name, "context": {"cluster": "c", "user": name}});
        config["contexts"].as_array_mut().unwrap().push(context);
        let args = ["login", "static", &format!("--token={token}")].map(str::to_owned);
        let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "pinniped",
            "args": args}});
        config["users"].as_array_mut().unwrap().push(json!({"name": name, "user": user}));
    }
    let path = desktop.home.write("config", &config.to_string());
    let run = desktop.home.run(&["status", "--check", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    let checks: Vec<&str> =
        run.stdout.lines().filter_map(|line| line.strip_prefix("  check:         ")).collect();
    assert_eq!(
        checks,
        [
            "fails: could not complete Pinniped login: the session has ended: log in again",
            "logs in as pinny",
            "fails: could not complete WhoAmIRequest: Unauthorized",
        ],
        "{run:?}"
    );
    assert_eq!(desktop.opened(), [""; 0]);
}
