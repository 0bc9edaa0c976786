//! Tests of the agent as a program.

#![expect(clippy::unwrap_used, reason = "a failed step of a test should end it")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pinniped_test_support::{process_status, tools};
use rustix::process::{Pid, Signal, kill_process};

const AGENT: &str = env!("CARGO_BIN_EXE_pinniped-concierge-kube-cert-agent");

/// Time within which a program must start or exit on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn agent(arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(AGENT);
    command.args(arguments).env_clear();
    for (name, value) in environment {
        command.env(name, value);
    }
    command.output().unwrap()
}

/// Returns exit code, standard output and standard error.
fn result_of(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_missing_or_wrong_subcommand_is_fatal() {
    assert_eq!(result_of(&agent(&[], &[])), (1, "", "missing subcommand\n"));
    assert_eq!(result_of(&agent(&["tuna"], &[])), (1, "", "invalid subcommand \"tuna\"\n"));
    assert_eq!(result_of(&agent(&["", "sleep"], &[])), (1, "", "invalid subcommand \"\"\n"));
}

#[test]
fn print_writes_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("ca.crt"), folder.path().join("ca.key"));
    std::fs::write(&certificate, "certificate").unwrap();
    std::fs::write(&key, "key").unwrap();
    let output = agent(&["print", "ignored"], &[("CERT_PATH", &certificate), ("KEY_PATH", &key)]);
    assert_eq!(result_of(&output), (0, "{\"tls.crt\":\"Y2VydGlmaWNhdGU=\",\"tls.key\":\"a2V5\"}\n", ""));
}

#[test]
fn print_names_the_unreadable_file() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    std::fs::write(&there, "x").unwrap();
    let gone = Path::new("/does/not/exist");
    let cases: [(&[(&str, &Path)], String); 4] = [
        (&[], "could not read CERT_PATH: open : no such file or directory\n".to_owned()),
        (
            &[("CERT_PATH", gone), ("KEY_PATH", &there)],
            "could not read CERT_PATH: open /does/not/exist: no such file or directory\n".to_owned(),
        ),
        (
            &[("CERT_PATH", &there), ("KEY_PATH", gone)],
            "could not read KEY_PATH: open /does/not/exist: no such file or directory\n".to_owned(),
        ),
        (
            &[("CERT_PATH", &there), ("KEY_PATH", folder.path())],
            format!("could not read KEY_PATH: read {}: is a directory\n", folder.path().display()),
        ),
    ];
    for (environment, wanted) in cases {
        assert_eq!(result_of(&agent(&["print"], environment)), (1, "", wanted.as_str()));
    }
}

#[test]
fn a_closed_output_is_an_error_without_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::write(&large, vec![b'x'; 200 << 10]).unwrap();
    let mut child = Command::new(AGENT)
        .arg("print")
        .env("CERT_PATH", &large)
        .env("KEY_PATH", &large)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The child still has more to write than a pipe holds when the other end closes.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("could not write output: Broken pipe"), "{error}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn sleep_exits_immediately_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = Command::new(AGENT).arg("sleep").spawn().unwrap();
        wait_for_handlers(child.id());
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(ended(&mut child).success(), "{signal:?}");
    }
}

/// The kernel delivers a signal to process 1 only if the process has a handler for it.
#[test]
fn sleep_exits_immediately_as_process_1_of_a_container() {
    let unshare = |program: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).args(program);
        command
    };
    match unshare(&["true"]).output() {
        Ok(output) if output.status.success() => {}
        refused => {
            return tools::skip("the agent as process 1 of a process namespace", &format!("{refused:?}"));
        }
    }
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = unshare(&[AGENT, "sleep"]).spawn().unwrap();
        let agent = child_of(child.id());
        wait_for_handlers(agent);
        kill_process(Pid::from_raw(i32::try_from(agent).unwrap()).unwrap(), signal).unwrap();
        assert!(ended(&mut child).success(), "{signal:?}");
    }
}

#[test]
fn sleep_needs_little_memory() {
    let mut child = Command::new(AGENT).arg("sleep").spawn().unwrap();
    wait_for_handlers(child.id());
    let resident = process_status::resident_memory(child.id()).unwrap();
    assert!(resident < 8 << 20, "{resident} bytes of the pod's 32 MiB");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    ended(&mut child);
}

/// Waits until the process is the agent and has handlers for SIGTERM (15) and SIGINT (2).
fn wait_for_handlers(pid: u32) {
    let mask = (1 << 14) | (1 << 1);
    eventually("the agent to catch signals", || {
        let caught = u64::from_str_radix(&process_status::field(pid, "SigCgt").ok()?, 16).ok()?;
        let name = process_status::field(pid, "Name").ok()?;
        (caught & mask == mask && name.starts_with("pinniped-concie")).then_some(())
    });
}

fn child_of(pid: u32) -> u32 {
    eventually("unshare to fork", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

fn ended(child: &mut Child) -> std::process::ExitStatus {
    eventually("the agent to end", || child.try_wait().unwrap())
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::yield_now();
    }
}
