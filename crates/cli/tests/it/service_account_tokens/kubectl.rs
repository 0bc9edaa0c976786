//! `pinniped kubectl`, with a script in place of kubectl.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{World, certificate, pinny, token, token_for};
use crate::support::Home;

/// A kubectl that prints its arguments and environment.
const SHOW: &str = "#!/bin/sh
echo \"args: $*\"
echo \"mode: $(stat -c %a \"$KUBECONFIG\")\"
cat \"$KUBECONFIG\"
exit 7
";

fn program(home: &Home, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = home.write("kubectl.sh", text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("--kubectl-path={}", path.display())
}

fn temporary_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("pinniped-kubectl-")).count()
}

fn prepared(world: &World, more: &[&str]) -> (Home, std::path::PathBuf) {
    let (mut home, path) = world.home(more);
    let dir = home.path().to_str().unwrap().to_owned();
    home.set("TMPDIR", &dir).set("PATH", "/usr/bin:/bin");
    (home, path)
}

#[test]
fn kubectl_gets_a_private_kubeconfig_with_the_identity() {
    let world = World::start();
    world.responds_with(token_for(&json!({"username": "pinny", "uid": "u1", "groups": ["a"]})));
    let (home, path) = prepared(&world, &["--impersonation-delivery=wrapper"]);
    let before = std::fs::read_to_string(&path).unwrap();
    let kubectl = program(&home, SHOW);
    let run = home.run(&["kubectl", &kubectl, "--", "get", "pods", "-n", "x", "-o=wide"]);
    assert_eq!((run.code, run.stderr.as_str()), (7, ""), "{run:?}");
    let (head, config) = run.stdout.split_once("mode: 600\n").unwrap();
    assert_eq!(head, "args: get pods -n x -o=wide\n");
    let document: Value = serde_saphyr::from_str(config).unwrap();
    let user = &document["users"][0]["user"];
    assert_eq!(
        (&user["as"], &user["as-uid"], &user["as-groups"]),
        (&json!("pinny"), &json!("u1"), &json!(["a"]))
    );
    assert_eq!(temporary_files(home.path()), 0);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);

    // The plugin in it prints the token without another login, but not after the identity has
    // changed.
    let args: Vec<String> = serde_json::from_value(user["exec"]["args"].clone()).unwrap();
    let info = json!({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "spec": {
        "interactive": false,
        "cluster": {"server": world.server.url(), "certificate-authority-data": world.server.ca_data(), "config": null},
    }});
    let mut with_info = Home::new();
    with_info
        .set("XDG_CONFIG_HOME", home.path().join(".config").to_str().unwrap())
        .set("KUBERNETES_EXEC_INFO", &info.to_string());
    assert_eq!(token(&with_info.run(&args)), Ok("sa-token".into()));
    assert_eq!(world.logins(), 1);
    world.responds_with(token_for(&pinny(&["b"])));
    std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
    assert_eq!(
        token(&with_info.run(&args)),
        Err("your identity or group membership changed, please re-run the command".into())
    );
}

#[test]
fn the_kubeconfig_of_the_arguments_takes_precedence() {
    let world = World::start();
    let (mut home, path) = prepared(&world, &["--impersonation-delivery=kubeconfig"]);
    home.set("KUBECONFIG", "/no/such/file");
    let kubectl =
        program(&home, "#!/bin/sh\necho \"$*\"; echo \"$KUBECONFIG\"; grep -c expected-identity \"$2\"\n");
    let run = home.run(&["kubectl", &kubectl, "--", "--kubeconfig", path.to_str().unwrap(), "get"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].starts_with("--kubeconfig /") && lines[0].ends_with(".yaml get"), "{run:?}");
    assert!(lines[0].contains(lines[1]), "{run:?}");
    assert_eq!(lines[2], "1");
}

#[test]
fn without_required_headers_kubectl_runs_unchanged() {
    let world = World::start();
    let (home, path) = prepared(&world, &["--impersonation-delivery=wrapper"]);
    let kubectl = program(&home, "#!/bin/sh\necho \"$KUBECONFIG $*\"\nexit 3\n");
    let plain = format!("{} config view\n", path.display());
    let run = home.run(&["kubectl", &kubectl, "--", "config", "view"]);
    assert_eq!((run.code, run.stdout), (3, plain));
    assert_eq!(world.logins(), 0);

    world.responds_with(certificate());
    let run = home.run(&["kubectl", &kubectl, "get", "pods"]);
    assert_eq!((run.code, run.stdout), (3, format!("{} get pods\n", path.display())));

    for config in ["users: []\n", "garbage: ["] {
        home.write("config", config);
        let run = home.run(&["kubectl", &kubectl, "--", "get"]);
        assert_eq!((run.code, run.stdout), (3, format!("{} get\n", path.display())), "{config}");
    }
}

#[test]
fn a_failed_login_does_not_run_kubectl() {
    let world = World::start();
    let (home, _) = prepared(&world, &["--impersonation-delivery=wrapper"]);
    world.responds_with(json!({"message": "authentication failed"}));
    let run = home.run(&["kubectl", &program(&home, SHOW), "--", "get"]);
    assert!(run.last_error().unwrap().contains("retry in a few seconds"), "{run:?}");
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
}

#[test]
fn a_recursive_call_of_this_program_is_reported() {
    let world = World::start();
    let (home, _) = prepared(&world, &["--impersonation-delivery=wrapper"]);
    let this = env!("CARGO_BIN_EXE_pinniped");
    let kubectl =
        program(&home, &format!("#!/bin/sh\nexec {this} kubectl --kubectl-path=\"$0\" -- \"$@\"\n"));
    let run = home.run(&["kubectl", &kubectl, "--", "get"]);
    assert!(run.last_error().unwrap().ends_with("name the real kubectl with --kubectl-path"), "{run:?}");
}

#[test]
fn signals_reach_kubectl_and_the_file_is_always_removed() {
    let world = World::start();
    let (home, _) = prepared(&world, &["--impersonation-delivery=wrapper"]);
    // One script handles the signal, the other is terminated by it.
    for (name, script, code) in [
        ("TERM", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done", 5),
        ("INT", "trap 'echo told; exit 6' INT; echo ready; while :; do sleep 0.05; done", 6),
        ("HUP", "echo ready; exec sleep 600", 128 + 1),
    ] {
        let kubectl = program(&home, &format!("#!/bin/sh\n{script}\n"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinniped"));
        let kubeconfig = home.path().join("config");
        command
            .args(["kubectl", &kubectl, "--", "get", "-w"])
            .env_clear()
            .envs([("HOME", home.path()), ("TMPDIR", home.path()), ("KUBECONFIG", &kubeconfig)])
            .env("PATH", "/usr/bin:/bin")
            // Not the terminal's process group, to which terminal signals are sent.
            .process_group(0)
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        assert_eq!(temporary_files(home.path()), 1);
        let signalled = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
        assert!(signalled.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{name}");
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, if code < 128 { "told\n" } else { "" });
        assert_eq!(temporary_files(home.path()), 0, "{name}");
    }
}
