//! Programs that call their plugin again after a failed login, as kubectl does.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use super::browser::{Desktop, Running, callback, interrupt_group, visit};
use super::flows::token;
use super::issuer::{Issuer, Settings, query};
use crate::support::Run;

/// Calls its arguments as a plugin, twice. Like kubectl, it waits for the plugin after Ctrl-C.
const CALLER: &str = "#!/bin/sh\ntrap : INT\n\"$@\"\n\"$@\"\nexit $?\n";
const REFUSED: &str =
    "could not complete Pinniped login: error handling callback: login failed with code \"access_denied\"";
const ONCE: &str = " (this command has already begun a login: run it again to start over)";

fn desktop() -> Desktop {
    let mut desktop = Desktop::new();
    desktop.home.set("KUBERNETES_EXEC_INFO", "{}");
    desktop.home.write("caller", CALLER);
    desktop
}

fn start_caller(desktop: &Desktop, args: &[String]) -> Running {
    let script = desktop.file("caller");
    let mut command = desktop.home.program(&["/bin/sh", script.to_str().unwrap()], args);
    command.process_group(0);
    desktop.spawn(command)
}

/// Refuses the login at the page of this address.
fn refuse(url: &str) {
    let state = &query(url.split_once('?').unwrap().1)["state"];
    let response = callback(url, &format!("error=access_denied&state={state}"));
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
}

fn errors(run: &Run) -> Vec<&str> {
    run.stderr.lines().filter_map(|line| line.strip_prefix("Error: ")).collect()
}

/// Returns the file that belongs to the session.
fn login_lock_file(desktop: &Desktop) -> PathBuf {
    let entries = std::fs::read_dir(desktop.file(".config/pinniped")).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    paths
        .find(|path| !path.ends_with("sessions.yaml.lock") && path.to_str().unwrap().ends_with(".lock"))
        .unwrap()
}

#[test]
fn a_command_whose_login_failed_opens_no_second_tab() {
    let issuer = Issuer::start(Settings::default());
    let desktop = desktop();
    let args = issuer.args(&[]);
    let running = start_caller(&desktop, &args);
    let url = desktop.first_opened();
    refuse(&url);
    let run = running.finish();
    assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{run:?}");
    assert_eq!(errors(&run), [REFUSED.to_owned(), format!("{REFUSED}{ONCE}")], "{run:?}");
    assert_eq!(desktop.opened().len(), 1);
    // The file has the reason and the caller, and nothing of the login itself.
    let content = std::fs::read_to_string(login_lock_file(&desktop)).unwrap();
    assert!(content.ends_with("login failed with code \"access_denied\""), "{content}");
    for name in ["state", "nonce", "code_challenge"] {
        assert!(!content.contains(&query(url.split_once('?').unwrap().1)[name]), "{content}");
    }

    // The next command begins a login at once.
    let running = start_caller(&desktop, &args);
    let url = desktop.opened_after(1);
    visit(&url, &issuer.authorize(&url));
    let run = running.finish();
    assert_eq!((run.code, run.stdout.lines().count()), (0, 2), "{run:?}");
    assert_eq!(desktop.opened().len(), 2);
}

#[test]
fn a_command_whose_login_was_cancelled_with_ctrl_c_opens_no_second_tab() {
    let issuer = Issuer::start(Settings::default());
    let desktop = desktop();
    let args = issuer.args(&[]);
    let running = start_caller(&desktop, &args);
    running.wait_for("visiting this link");
    interrupt_group(running.id());
    let run = running.finish();
    let repeated = format!("could not complete Pinniped login: interrupted{ONCE}");
    assert_eq!(errors(&run), ["interrupted", &repeated], "{run:?}");
    assert_eq!(desktop.opened().len(), 1);
    // A user who runs the program again is not affected.
    let mut by_hand = desktop.home.command(&args);
    by_hand.env_remove("KUBERNETES_EXEC_INFO");
    let running = desktop.spawn(by_hand);
    let url = desktop.opened_after(1);
    visit(&url, &issuer.authorize(&url));
    token(&running.finish());
}

#[test]
fn a_record_that_is_not_usable_does_not_prevent_a_login() {
    let issuer = Issuer::start(Settings::default());
    let desktop = desktop();
    let args = issuer.args(&["--credential-cache="]);
    let running = start_caller(&desktop, &args);
    refuse(&desktop.first_opened());
    running.finish();
    let file = login_lock_file(&desktop);
    let future = "2999-01-01T00:00:00Z\n1\nrefused";
    for content in [Some("garbage"), Some(future), None] {
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => {
                std::fs::remove_file(&file).unwrap();
                std::fs::create_dir(&file).unwrap();
            }
        }
        let before = desktop.opened().len();
        let running = start_caller(&desktop, &args);
        refuse(&desktop.opened_after(before));
        if content.is_none() {
            // Without a place for the reason, the second call begins a login, too.
            refuse(&desktop.opened_after(before + 1));
        }
        let run = running.finish();
        assert_eq!((run.code, errors(&run).len()), (1, 2), "{run:?}");
    }
    assert_eq!(desktop.opened().len(), 5);
}
