//! `pinniped kubectl` with the real kubectl.

use std::path::Path;
use std::process::{Command, Stdio};

use pinniped_test_support::kubectl::{CommandOutput, run};
use pinniped_test_support::{tools, wait};
use serde_json::json;

use super::environment::{Tokens, shared};
use super::kubeconfig::{forbidden, kubeconfig};
use super::webhook::token_of;
use crate::cli::Home;
use crate::installed::TIME_LIMIT;

const REFUSED: &str =
    "Error: this cluster requires impersonation headers, which this kubectl does not support; ";

/// Returns the command `pinniped kubectl -- ARGS`; temporary files are written to `dir`.
fn wrapped(tokens: &Tokens, home: &Home, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(tools::binary("pinniped").unwrap());
    home.settle(&mut command);
    command.arg("kubectl").arg("--kubectl-path").arg(tokens.own.world.kubectl().program());
    command.arg("--").args(args);
    command.env("KUBECONFIG", home.kubeconfig()).env("TMPDIR", dir).env_remove("XDG_RUNTIME_DIR");
    command
}

fn left_in(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("pinniped-kubectl-")).count()
}

async fn environment(tokens: &Tokens, name: &str, delivery: &str) -> (Home, tempfile::TempDir) {
    let home = Home::new();
    let token = token_of(&json!({"username": name, "uid": "u", "groups": ["wrapper-testers"]}));
    let flags = [&format!("--static-token={token}"), &format!("--impersonation-delivery={delivery}")];
    kubeconfig(tokens, &home, &flags.map(String::as_str)).await;
    (home, tempfile::tempdir().unwrap())
}

#[tokio::test]
async fn kubectl_is_authenticated_through_the_wrapper_only() {
    let Some(tokens) = shared().await else { return };
    let (home, dir) = environment(&tokens, "wrapper-pinny", "wrapper").await;
    let before = std::fs::read_to_string(home.kubeconfig()).unwrap();
    let get = ["get", "pods", "--all-namespaces"];
    let output = run(wrapped(&tokens, &home, dir.path(), &get), None).await.unwrap();
    assert_eq!((output.code, output.stderr), (1, forbidden("wrapper-pinny")));
    let whoami = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}"];
    let output = run(wrapped(&tokens, &home, dir.path(), &whoami), None).await.unwrap().success().unwrap();
    assert_eq!(output.stdout, "wrapper-pinny [\"wrapper-testers\",\"system:authenticated\"]");
    assert_eq!(left_in(dir.path()), 0);
    assert_eq!(std::fs::read_to_string(home.kubeconfig()).unwrap(), before);

    let plain = home.kubectl(tokens.own.world, &get, &[]).await;
    let way = "run `pinniped kubectl -- ARGS` instead of `kubectl ARGS`";
    assert!(plain.code != 0 && plain.stderr.starts_with(&format!("{REFUSED}{way}\n")), "{}", plain.stderr);
    assert!(!plain.stderr.contains("system:serviceaccount"), "{}", plain.stderr);
}

#[tokio::test]
async fn a_signal_to_the_wrapper_terminates_the_watch() {
    let Some(tokens) = shared().await else { return };
    let (home, dir) = environment(&tokens, "wrapper-watcher", "wrapper").await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "wrapper-testers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "wrapper-watcher"}]});
    tokens.own.world.kubectl().apply(&binding.to_string()).await.unwrap();
    let list = ["get", "configmaps", "--namespace=default", "-o", "name"];
    let listed = wait::until_ok(TIME_LIMIT, "the user's rights", async || {
        run(wrapped(&tokens, &home, dir.path(), &list), None).await?.success().map(drop)
    });
    listed.await.unwrap();

    let output = dir.path().join("output");
    let mut command = wrapped(&tokens, &home, dir.path(), &[&list[..], &["--watch"]].concat());
    command.stdout(std::fs::File::create(&output).unwrap()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    let seen = async |name: &str| {
        let line = format!("configmap/{name}\n");
        let seen = wait::until(TIME_LIMIT, "an object in the watch", async || {
            std::fs::read_to_string(&output).unwrap().contains(&line).then_some(())
        });
        seen.await.unwrap();
    };
    seen("kube-root-ca.crt").await;
    // kubectl installs its signal handler for watches a moment after it has listed.
    let admin = tokens.own.world.kubectl();
    admin.output(&["create", "configmap", "wrapper-seen", "--namespace=default"]).await.unwrap();
    seen("wrapper-seen").await;
    admin.output(&["delete", "configmap", "wrapper-seen", "--namespace=default"]).await.unwrap();
    assert_eq!(left_in(dir.path()), 1);
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let ended = wait::until(TIME_LIMIT, "the wrapper's end", async || child.try_wait().unwrap());
    // kubectl exits with this code when a signal interrupts a watch.
    assert_eq!(ended.await.unwrap().code(), Some(1));
    assert_eq!(left_in(dir.path()), 0);
}

#[tokio::test]
async fn an_old_kubectl_works_or_fails_and_never_sends_the_token_without_headers() {
    let Some(tokens) = shared().await else { return };
    // Debian's kubectl of 2021; `cargo xtask test` sets the variable.
    let Some(debian) = std::env::var_os("PINNIPED_DEBIAN_TOOLS") else {
        let why = "Debian's kubectl 1.20 is not there: `cargo xtask test` fetches it where it can";
        tools::skip("an old kubectl works or fails, and never sends the token alone", why);
        return;
    };
    let old = Path::new(&debian).join("kubectl");
    let run_kubectl = async |home: &Home| -> CommandOutput {
        let mut command = Command::new(&old);
        home.settle(&mut command);
        command.args(["get", "pods", "--all-namespaces", "--kubeconfig"]).arg(home.kubeconfig());
        run(command, None).await.unwrap()
    };
    let (home, _dir) = environment(&tokens, "wrapper-old", "kubeconfig").await;
    assert_eq!(run_kubectl(&home).await.stderr, forbidden("wrapper-old"));
    for delivery in ["wrapper", "proxy", "exec-headers"] {
        let (home, _dir) = environment(&tokens, "wrapper-old", delivery).await;
        let output = run_kubectl(&home).await;
        assert!(output.code != 0 && output.stderr.contains(REFUSED), "{delivery}: {}", output.stderr);
        assert!(!output.stderr.contains("system:serviceaccount"), "{delivery}: {}", output.stderr);
    }
}
