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
        "command": env!("CARGO_BIN_EXE_pinniped"), "args": args}})
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
fn names_of_a_kubeconfig_stay_on_their_line() {
    let mut config: Value = serde_json::from_str(&plugin_kubeconfig("https://c", "", &[])).unwrap();
    config["contexts"][0]["name"] = json!("a\n  check:         logs in as root");
    let mut home = Home::new();
    let path = home.write("config", &config.to_string());
    home.set("KUBECONFIG", path.to_str().unwrap());
    let run = home.run(&["status"]);
    assert!(run.code == 0 && !run.stdout.contains("\n  check:"), "{run:?}");
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

/// Returns the response of a cluster that authenticates a user.
fn pinny() -> ReceivedResponse {
    let user = json!({"username": "pinny", "groups": []});
    ReceivedResponse::json(&json!({"kind": "WhoAmIRequest",
        "apiVersion": "identity.concierge.pinniped.dev/v1alpha1", "metadata": {}, "spec": {},
        "status": {"kubernetesUserInfo": {"user": user}}}))
    .with_status(201)
}

/// Returns a kubeconfig with a context of the server for each user, with the name of the user.
fn with_users(server: &Server, users: &[(String, Value)]) -> String {
    let contexts: Vec<Value> = users
        .iter()
        .map(|(name, _)| json!({"name": name, "context": {"cluster": "c", "user": name}}))
        .collect();
    let users: Vec<Value> = users.iter().map(|(name, user)| json!({"name": name, "user": user})).collect();
    let cluster = json!({"server": server.url(), "certificate-authority-data": server.ca_data()});
    json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": contexts, "users": users})
    .to_string()
}

fn checks(run: &Run) -> Vec<&str> {
    run.stdout.lines().filter_map(|line| line.strip_prefix("  check:         ")).collect()
}

#[test]
fn eight_contexts_are_checked_at_the_same_time() {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;
    // The requests that wait, and the largest number of them.
    let waiting = Mutex::new((0, 0));
    let seven_more = Condvar::new();
    let server = Server::start(move |_| {
        let mut counts = waiting.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
        assert!(counts.0 <= 8, "{counts:?}");
        seven_more.notify_all();
        let limit = Duration::from_secs(20);
        let (mut counts, late) = seven_more.wait_timeout_while(counts, limit, |(_, most)| *most < 8).unwrap();
        counts.0 -= 1;
        if late.timed_out() { ReceivedResponse::text(500, "alone") } else { pinny() }
    });
    let users: Vec<(String, Value)> = (0..12).map(|n| (format!("u{n}"), json!({"token": "t"}))).collect();
    let home = Home::new();
    let path = home.write("config", &with_users(&server, &users));
    let run = home.run(&["status", "--check", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!((run.code, checks(&run)), (0, vec!["logs in as pinny"; 12]), "{run:?}");
    let names: Vec<String> =
        run.stdout.lines().filter(|line| line.starts_with('u')).map(str::to_owned).collect();
    assert_eq!(names, users.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
}

#[cfg(unix)]
#[test]
fn a_check_involves_no_user_and_does_not_wait_for_a_plugin_that_does() {
    let server = Server::start(|_| pinny());
    let plugin = |script: &str| {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/bin/sh",
            "args": ["-c", script]}})
    };
    let token = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential",
        "status": {"token": "t"}});
    let mut needs_user = plugin("exit 1");
    needs_user["exec"]["interactiveMode"] = json!("Always");
    let quiet = format!(
        r#"case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) echo 'Password:' >&2; echo '{token}';; *) exit 9;; esac"#
    );
    // Our plugin is a part of this program, but kubectl needs the file.
    let gone = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "/no/such/pinniped", "args": ["login", "static", "--token=t"]}});
    let users = [
        ("waits", plugin("exec sleep 600")),
        ("needs-user", needs_user),
        ("quiet", plugin(&quiet)),
        ("gone", gone),
    ];
    let home = Home::new();
    let config = with_users(&server, &users.map(|(name, user)| (name.to_owned(), user)));
    let path = home.write("config", &config);
    let run = home.run(&["status", "--check", "--timeout=10s", "--kubeconfig", path.to_str().unwrap()]);
    let expected = [
        "fails: no response in time",
        "fails: getting credentials: exec plugin cannot support interactive mode: the command involves no user",
        "logs in as pinny",
        "fails: there is no program /no/such/pinniped",
    ];
    assert_eq!(checks(&run), expected, "{run:?}");
    // The question of a plugin is not printed.
    assert_eq!((run.code, run.stderr.lines().next()), (1, Some("Error: 3 of 4 checks failed")), "{run:?}");
    assert!(!run.stderr.contains("Password"), "{run:?}");
}

/// Creates a pipe.
#[cfg(unix)]
fn pipe(home: &Home) -> std::path::PathBuf {
    let pipe = home.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe
}

#[cfg(unix)]
#[test]
fn a_kubeconfig_is_read_from_a_pipe_but_not_from_a_device() {
    let home = Home::new();
    let pipe = pipe(&home);
    let config = plugin_kubeconfig("https://c", "", &["get-token".to_owned()]);
    let writing = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, config)
    });
    let run = home.run(&["status", "--kubeconfig", pipe.to_str().unwrap()]);
    assert!(run.code == 0 && run.stdout.contains("another plugin"), "{run:?}");
    writing.join().unwrap().unwrap();
    home.run(&["status", "--kubeconfig=/dev/zero"]).fails_with("open /dev/zero: not a regular file");
}

#[cfg(unix)]
#[test]
fn files_that_a_kubeconfig_names_do_not_block_a_command() {
    let home = Home::new();
    let pipe = pipe(&home);
    let pipe = pipe.to_str().unwrap();
    let login = |flag: &str| {
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": env!("CARGO_BIN_EXE_pinniped"),
            "args": ["login", "token", "--from=file", format!("--{flag}={pipe}")]}})
    };
    let oidc = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": env!("CARGO_BIN_EXE_pinniped"),
        "args": ["login", "oidc", "--issuer=https://i", format!("--ca-bundle={pipe}")]}});
    let not_regular = format!("open {pipe}: not a regular file");
    for (cluster, user, expected) in [
        (json!({"certificate-authority": pipe}), json!({"token": "t"}), "certificate-authority"),
        (json!({}), json!({"client-certificate": pipe, "client-key": pipe}), "client-cert"),
        (json!({}), json!({"tokenFile": pipe}), "failed to read token file"),
        (json!({}), login("token-file"), "could not read the token"),
        (json!({}), oidc, "could not read --ca-bundle"),
    ] {
        let mut cluster = cluster;
        cluster["server"] = json!("https://127.0.0.1:1");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]});
        let path = home.write("config", &config.to_string());
        let run = home.run(&["status", "--check", "--kubeconfig", path.to_str().unwrap()]);
        let line = run.stdout.lines().find(|line| line.contains(&not_regular));
        assert!(line.is_some_and(|line| line.contains(expected)), "{expected}: {run:?}");
    }
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
        pinny()
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
        let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": env!("CARGO_BIN_EXE_pinniped"),
            "args": args}});
        config["users"].as_array_mut().unwrap().push(json!({"name": name, "user": user}));
    }
    let path = desktop.home.write("config", &config.to_string());
    let run = desktop.home.run(&["status", "--check", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("2 of 3 checks failed"), "{run:?}");
    assert_eq!(
        checks(&run),
        [
            "fails: could not complete Pinniped login: the session has ended: log in again",
            "logs in as pinny",
            "fails: could not complete WhoAmIRequest: Unauthorized",
        ],
        "{run:?}"
    );
    assert_eq!(desktop.opened(), [""; 0]);
}

#[test]
fn contexts_with_one_session_are_checked_one_after_the_other() {
    let server = Server::start(|_| pinny());
    let issuer = Issuer::start(Settings { id_lifetime: 300, ..Settings::default() });
    let desktop = Desktop::new();
    let login = |name: &str| {
        let args = issuer.args(&[&format!("--credential-cache={name}")]);
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "command": env!("CARGO_BIN_EXE_pinniped"), "args": args});
        (name.to_owned(), json!({"exec": exec}))
    };
    token(&desktop.log_in(&issuer, &issuer.args(&[])));
    let users: Vec<(String, Value)> = (0..4).map(|n| login(&format!("u{n}"))).collect();
    let path = desktop.home.write("config", &with_users(&server, &users));
    let run = desktop.home.run(&["status", "--check", "--kubeconfig", path.to_str().unwrap()]);
    assert_eq!(checks(&run), ["logs in as pinny"; 4], "{run:?}");
    assert_eq!(desktop.opened().len(), 1);
    // No refresh token is used twice.
    assert!(issuer.granted()[1..].iter().all(|grant| grant == "refresh_token"), "{:?}", issuer.granted());
}

#[cfg(unix)]
#[test]
fn the_null_device_is_an_empty_kubeconfig() {
    let mut home = Home::new();
    let expected = "the kubeconfig has no context\n";
    assert_eq!(home.run(&["status", "--kubeconfig=/dev/null"]).stdout, expected);
    home.set("KUBECONFIG", "/dev/null");
    assert_eq!(home.run(&["status"]).stdout, expected);
    home.run(&["logout", "--kubeconfig-context=x"]).fails_with("no such context \"x\"");
}
