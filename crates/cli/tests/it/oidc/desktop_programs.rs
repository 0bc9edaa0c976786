//! The conditions under which programs with a user interface of their own, such as k9s and Lens,
//! run the plugin: no terminal, a short `PATH`, many calls at once. The programs themselves do not
//! run in this test.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::browser::{Desktop, visit};
use super::flows::token;
use super::issuer::{Issuer, Settings};
use crate::login_static::{args, concierge};
use crate::support::Home;

/// The `PATH` of a program that is not started by a shell, on macOS.
const SHORT_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// The calls that a program makes at once when it opens a cluster.
const CALLS: usize = 40;
/// A session without a controlling terminal.
const WITHOUT_TERMINAL: [&str; 2] = ["/usr/bin/setsid", "--wait"];

/// Returns the information that client-go passes with `interactiveMode: IfAvailable` in a terminal
/// (`true`), or with `Never`, or without a terminal.
fn exec_info(interactive: bool) -> String {
    json!({
        "apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential",
        "spec": {"interactive": interactive},
    })
    .to_string()
}

fn start(mut command: Command, interactive: bool) -> Child {
    command.env("KUBERNETES_EXEC_INFO", exec_info(interactive));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the key of the credential that a call printed.
fn key(call: Child) -> String {
    let output = call.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    let credential: Value = serde_json::from_slice(&output.stdout).unwrap();
    credential["status"]["clientKeyData"].as_str().unwrap().to_owned()
}

#[test]
fn forty_calls_without_a_terminal_get_a_credential_and_leave_a_usable_cache() {
    let server = concierge(300);
    let mut home = Home::new();
    home.set("PATH", SHORT_PATH);
    let args = args(&server, "--token=t");
    let call = |interactive| start(home.program(&WITHOUT_TERMINAL, &args), interactive);
    let calls: Vec<Child> = (0..CALLS).map(|number| call(number % 2 == 0)).collect();
    for call in calls {
        assert!(key(call).starts_with("key "));
    }
    // Any later call, of any kind, uses the credential in the cache.
    let requests = server.seen().len();
    assert!(requests <= CALLS, "{requests}");
    let first = key(call(false));
    assert_eq!(key(call(true)), first);
    assert_eq!(server.seen().len(), requests);
    let cache = std::fs::read_to_string(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
    assert_eq!(cache.matches("expirationTimestamp:").count(), 1, "{cache}");
}

#[test]
fn a_login_in_the_browser_needs_no_terminal_and_later_calls_no_browser() {
    let issuer = Issuer::start(Settings::default());
    for interactive in [false, true] {
        let desktop = Desktop::new();
        let args = issuer.args(&[]);
        let call = || {
            let mut command = desktop.home.program(&WITHOUT_TERMINAL, &args);
            command.env("KUBERNETES_EXEC_INFO", exec_info(interactive));
            desktop.spawn(command)
        };
        let running = call();
        let url = desktop.first_opened();
        visit(&url, &issuer.authorize(&url));
        let run = running.finish();
        let first = token(&run);
        // Only a terminal gets a prompt for the code.
        assert!(!run.stderr.contains("paste"), "{run:?}");
        let calls: Vec<_> = (0..CALLS).map(|_| call()).collect();
        for call in calls {
            assert_eq!(token(&call.finish()), first);
        }
        assert_eq!(desktop.opened().len(), 1);
    }
}
