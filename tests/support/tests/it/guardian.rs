//! The guardian terminates started processes, however their owner exits.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use pinniped_test_support::guardian::{Ending, Guardian, alive};
use pinniped_test_support::{control_plane, wait};

/// When set, this executable acts as the runner program that a test kills.
const RUNNER_ENV: &str = "PINNIPED_GUARDIAN_RUNNER";

/// Not a test of its own: the body of the runner program, which the tests below start in a process
/// of its own.
#[test]
fn runner_program() {
    let Some(mode) = std::env::var_os(RUNNER_ENV) else { return };
    let dir = tempfile::Builder::new().prefix("pinniped-guardian-").tempdir().unwrap().keep();
    let guardian = Guardian::start(Some(&dir)).unwrap();
    let mut pids = Vec::new();
    // One child that exits on SIGTERM, and one that ignores it and has a child of its own.
    for script in ["exec sleep 1000", "trap '' TERM; sleep 1000 & wait; sleep 1000"] {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        pids.push(guardian.spawn(&command, Ending::Gentle, &dir.join("log")).unwrap());
    }
    let pids: Vec<String> = pids.iter().map(|p| p.id().to_string()).collect();
    println!("\nRUNNER {} {}", dir.display(), pids.join(" "));
    if mode == "panic" {
        panic!("on purpose");
    }
    loop {
        std::thread::park();
    }
}

struct Runner {
    child: std::process::Child,
    dir: std::path::PathBuf,
    pids: Vec<u32>,
}

fn start_runner(mode: &str) -> Runner {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["guardian::runner_program", "--exact", "--nocapture"])
        .env(RUNNER_ENV, mode)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|line| line.starts_with("RUNNER ")).unwrap();
    let mut words = line.split(' ').skip(1);
    let dir = words.next().unwrap().into();
    Runner { child, dir, pids: words.map(|pid| pid.parse().unwrap()).collect() }
}

async fn assert_all_gone(runner: &Runner) {
    wait::until(Duration::from_secs(5), "all children and the folder to be gone", async || {
        let left = runner.pids.iter().any(|pid| alive(*pid)) || runner.dir.exists();
        (!left).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn killing_the_runner_with_sigkill_leaves_no_child_after_five_seconds() {
    let mut runner = start_runner("park");
    assert!(runner.pids.iter().all(|pid| alive(*pid)));
    runner.child.kill().unwrap();
    runner.child.wait().unwrap();
    assert_all_gone(&runner).await;
}

#[tokio::test]
async fn a_panic_of_the_runner_leaves_no_child() {
    let mut runner = start_runner("panic");
    runner.child.wait().unwrap();
    assert_all_gone(&runner).await;
}

#[tokio::test]
async fn ctrl_c_leaves_no_child() {
    let mut runner = start_runner("park");
    let pid = rustix::process::Pid::from_child(&runner.child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    runner.child.wait().unwrap();
    assert_all_gone(&runner).await;
}

#[tokio::test]
async fn a_dropped_control_plane_leaves_no_process_and_no_folder() {
    let plane =
        control_plane::ControlPlane::start(control_plane::ControlPlaneParams::default()).await.unwrap();
    let (pids, dir) = (plane.process_ids(), plane.dir().to_owned());
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| alive(*pid)));
    drop(plane);
    assert!(!pids.iter().any(|pid| alive(*pid)));
    assert!(!dir.exists());
}
