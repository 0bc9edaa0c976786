//! The demo program as a process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pinniped_test_support::guardian::alive;
use pinniped_test_support::{tools, wait};

/// Processes that have `dir` as their working folder: the control plane of one demo.
fn processes_in(dir: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir) && alive(*pid)
        })
        .collect()
}

#[tokio::test]
async fn ctrl_c_ends_the_demo_and_everything_that_it_started() {
    if let Err(why) = pinniped_test_support::world::in_namespace() {
        tools::skip("ctrl-c ends the demo", &why);
        return;
    }
    let folders = tempfile::tempdir().unwrap();
    // A world of its own below ours: the shared one has the ClusterIPs here.
    let mut demo = Command::new("sh")
        .arg(tools::repository().join("tools/test-runner.sh"))
        .args(["--world".as_ref(), tools::binary("pinniped-demo").unwrap().as_os_str()])
        .env_remove("PINNIPED_WORLD")
        .env("PINNIPED_CONTROL_PLANE", tools::control_plane().unwrap())
        .env("TMPDIR", folders.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready ("))).unwrap().unwrap();
    let world = std::fs::read_dir(folders.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(processes_in(&world).len(), 3);
    let pid = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = tokio::task::spawn_blocking(move || demo.wait().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(130));
    wait::until(Duration::from_secs(5), "nothing to be left", async || {
        (processes_in(&world).is_empty() && !world.exists()).then_some(())
    })
    .await
    .unwrap();
}
