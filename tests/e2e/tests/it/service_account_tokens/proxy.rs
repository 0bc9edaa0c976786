//! `pinniped proxy` between real kubectls and the real API server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::identity_digest::IdentityDigest;
use pinniped_test_support::kubectl::{CommandOutput, Kubectl, run};
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use super::environment::{Tokens, shared};
use super::webhook::token_of;
use crate::installed::TIME_LIMIT;

/// A running proxy with its user's home.
struct Proxy {
    home: tempfile::TempDir,
    _child: Child,
}

impl Proxy {
    /// Creates a kubeconfig for `user` and starts a proxy with it.
    async fn start(tokens: &Tokens, user: &Value) -> Self {
        let home = tempfile::tempdir().unwrap();
        let token = token_of(user);
        let args = [
            "get",
            "kubeconfig",
            "--concierge-api-group-suffix",
            &tokens.own.suffix,
            "--concierge-authenticator-type",
            "webhook",
            "--concierge-authenticator-name",
            "anybody",
            "--concierge-mode",
            "ServiceAccountToken",
            "--impersonation-delivery",
            "proxy",
            "--static-token",
            &token,
        ];
        let admin = tokens.own.world.admin_kubeconfig();
        let written = run(pinniped(home.path(), &args, &admin), None).await.unwrap().success().unwrap();
        let kubeconfig = home.path().join("kubeconfig.yaml");
        std::fs::write(&kubeconfig, written.stdout).unwrap();

        let file = file(home.path());
        let mut command = pinniped(home.path(), &["proxy", "--output", file.to_str().unwrap()], &kubeconfig);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        wait::until(TIME_LIMIT, "the proxy's kubeconfig", async || file.exists().then_some(()))
            .await
            .unwrap();
        Self { home, _child: child }
    }

    /// Returns an ordinary kubectl that uses the proxy.
    fn kubectl(&self, tokens: &Tokens) -> Kubectl {
        tokens.own.world.kubectl().with_kubeconfig(&file(self.home.path()))
    }
}

fn file(home: &Path) -> PathBuf {
    home.join("proxy.yaml")
}

fn pinniped(home: &Path, args: &[&str], kubeconfig: &Path) -> Command {
    let mut command = Command::new(tools::binary("pinniped").unwrap());
    command.args(args).arg("--kubeconfig").arg(kubeconfig);
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME");
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(name);
    }
    command
}

/// Creates a namespace with this name in which the user with this name has all permissions.
async fn prepare(tokens: &Tokens, name: &str) {
    let kubectl = tokens.own.world.kubectl();
    kubectl.output(&["create", "namespace", name]).await.unwrap();
    let user = format!("--user={name}");
    kubectl.output(&["create", "rolebinding", name, "-n", name, "--clusterrole=admin", &user]).await.unwrap();
}

#[tokio::test]
async fn kubectl_reads_writes_and_watches_as_the_user_and_the_audit_log_has_both() {
    const NAME: &str = "local-proxy-user";
    let Some(tokens) = shared().await else { return };
    prepare(&tokens, NAME).await;
    let user = json!({"username": NAME, "uid": "uid-9", "groups": ["sea", "land"],
        "extra": {"acme.io/k": ["x", "y"]}});
    let proxy = Proxy::start(&tokens, &user).await;
    let kubectl = proxy.kubectl(&tokens);

    let me: Value =
        serde_json::from_str(&kubectl.output(&["auth", "whoami", "-o", "json"]).await.unwrap()).unwrap();
    let me = &me["status"]["userInfo"];
    assert_eq!((&me["username"], &me["uid"]), (&json!(NAME), &json!("uid-9")));
    assert_eq!(me["groups"], json!(["land", "sea", "system:authenticated"]));
    assert_eq!(me["extra"]["acme.io/k"], json!(["x", "y"]));

    let watch = kubectl.command(&["get", "configmaps", "-n", NAME, "-o", "name", "--watch-only"]);
    let mut watching =
        tokio::process::Command::from(watch).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let apply = |color: usize| {
        let map = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: applied, namespace: {NAME}}}\ndata: {{color: '{color}'}}\n"
        );
        let command = kubectl.command(&["apply", "--server-side", "-f", "-"]);
        async move { run(command, Some(&map)).await.unwrap().success().unwrap() }
    };
    // kubectl may start to watch only after the first write, so the test repeats writes until
    // kubectl prints one.
    let mut seen = false;
    for round in 0..100 {
        apply(round).await;
        if let Ok(line) = tokio::time::timeout(Duration::from_millis(300), lines.next_line()).await {
            assert_eq!(line.unwrap().as_deref(), Some("configmap/applied"));
            seen = true;
            break;
        }
    }
    assert!(seen, "kubectl saw none of 100 changes");
    watching.kill().await.unwrap();

    let event = tokens
        .own
        .world
        .control_plane()
        .await_audit_event("the user's change", NAME, |event| {
            event["verb"] == "patch" && event["objectRef"]["namespace"] == NAME
        })
        .await
        .unwrap();
    let account = event["user"]["username"].as_str().unwrap();
    let prefix = format!("system:serviceaccount:{}:pinniped-user-", tokens.users());
    assert!(account.starts_with(&prefix), "{account}");
    assert_eq!(event["impersonatedUser"]["username"], NAME);
    assert_eq!(event["impersonatedUser"]["uid"], "uid-9");
    assert_eq!(event["impersonatedUser"]["extra"], json!({"acme.io/k": ["x", "y"]}));
    assert!(event["userAgent"].as_str().unwrap().starts_with("kubectl/"), "the client's own: {event}");
}

#[tokio::test]
async fn a_request_without_permission_gets_the_api_servers_own_refusal() {
    const NAME: &str = "local-proxy-nobody";
    let Some(tokens) = shared().await else { return };
    let proxy = Proxy::start(&tokens, &json!({"username": NAME, "groups": []})).await;
    let kubectl = proxy.kubectl(&tokens);
    let refused = |output: &CommandOutput| {
        let wanted = format!(
            "Error from server (Forbidden): secrets is forbidden: User \"{NAME}\" cannot list resource \"secrets\" in API \
             group \"\" in the namespace \"default\"\n"
        );
        assert_eq!(output.code, 1);
        assert!(output.stderr.ends_with(&wanted), "{}", output.stderr);
    };
    let list = ["get", "secrets", "-n", "default"];
    let output = kubectl.run(&list).await.unwrap();
    refused(&output);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    // Impersonation headers of the client have no effect, and are reported.
    let output =
        kubectl.run(&[&list[..], &["--as", "admin", "--as-group", "system:masters"]].concat()).await.unwrap();
    refused(&output);
    let warning = "Warning: pinniped proxy ignores impersonation (such as --as): every request is made as the user who logged in";
    assert!(output.stderr.contains(warning), "{}", output.stderr);
}

#[tokio::test]
async fn a_login_that_was_revoked_is_replaced_by_the_next_one() {
    const NAME: &str = "local-proxy-revoked";
    let Some(tokens) = shared().await else { return };
    let proxy = Proxy::start(&tokens, &json!({"username": NAME, "groups": ["g"]})).await;
    let kubectl = proxy.kubectl(&tokens);
    let whoami = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    assert_eq!(kubectl.output(&whoami).await.unwrap(), NAME);

    let identity = ImpersonatedUser {
        username: NAME.to_owned(),
        groups: vec!["g".to_owned()],
        ..ImpersonatedUser::default()
    };
    let digest = IdentityDigest::of(&identity).short();
    let label = format!("{}={digest}", super::environment::SUBJECT);
    let users = tokens.users();
    let admin = tokens.own.world.kubectl();
    let listing = ["get", "secrets", "-n", &users, "-l", &label, "-o", "name"];
    let first = admin.output(&listing).await.unwrap();
    assert_eq!(first.lines().count(), 1, "{first}");
    admin.output(&["delete", "-n", &users, first.trim()]).await.unwrap();

    // The API server caches a token for ten seconds before it rejects it; the user can continue.
    let replaced = wait::until_ok(TIME_LIMIT, "another login", async || {
        let response = kubectl.run(&whoami).await?;
        let now = admin.output(&listing).await?;
        anyhow::ensure!(!now.is_empty() && now != first, "{} {}", response.stdout, response.stderr);
        Ok(())
    });
    tokens.own.check(replaced.await);
    assert_eq!(kubectl.output(&whoami).await.unwrap(), NAME);
}
