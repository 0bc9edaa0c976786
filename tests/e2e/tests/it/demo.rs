//! The demo program as a process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pinniped_e2e::cert_manager::CERT_MANAGER_ENV;
use pinniped_e2e::contour::{CONTOUR_ENV, ENVOY_ENV};
use pinniped_e2e::walkthrough::YQ_ENV;
use pinniped_test_support::guardian::alive;
use pinniped_test_support::{tools, wait};

/// Returns the processes that have `dir` as their working folder: the control plane of one demo.
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
async fn ctrl_c_terminates_the_demo_and_every_process_that_it_started() {
    if let Err(why) = pinniped_test_support::world::in_namespace() {
        tools::skip("ctrl-c ends the demo", &why);
        return;
    }
    let folders = tempfile::tempdir().unwrap();
    // The demo gets its own world below ours, because the shared one uses the ClusterIPs here.
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

/// Runs the demo with flags in its own world below ours, because the shared one uses the ClusterIPs
/// here, and returns its output. Returns `None` and records a skip where this machine cannot run
/// it.
pub(crate) async fn run_demo(test: &str, flags: &[&str]) -> Option<String> {
    if let Err(why) = pinniped_test_support::world::pods_reach_pods() {
        tools::skip(test, &why);
        return None;
    }
    let folders = tempfile::tempdir().unwrap();
    let mut demo = Command::new("sh");
    demo.arg(tools::repository().join("tools/test-runner.sh"))
        .args(["--world".as_ref(), tools::binary("pinniped-demo").unwrap().as_os_str()])
        .args(flags)
        .env_remove("PINNIPED_WORLD")
        .env("PINNIPED_CONTROL_PLANE", tools::control_plane().unwrap())
        .env("TMPDIR", folders.path())
        .stdin(Stdio::null());
    let output = tokio::process::Command::from(demo).kill_on_drop(true).output().await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(printed)
}

/// Runs the demo of the whole release post. Returns `None` and records a skip where this machine
/// cannot run it.
async fn whole_demo(test: &str, flag: &str) -> Option<String> {
    for name in [CERT_MANAGER_ENV, YQ_ENV, CONTOUR_ENV, ENVOY_ENV] {
        if std::env::var_os(name).is_none() {
            tools::skip(test, &format!("{name} is set by `cargo xtask test`"));
            return None;
        }
    }
    run_demo(test, &["--with-cert-manager", flag]).await
}

/// Checks that steps are in the output, in this order.
pub(crate) fn has_in_order(printed: &str, steps: &[&str]) {
    let mut rest = printed;
    for step in steps {
        let Some((_, after)) = rest.split_once(step) else {
            panic!("{step:?} is not where it should be: {printed}")
        };
        rest = after;
    }
}

/// Checks the order of the post's steps, including those that it warns of.
fn is_the_release_post(printed: &str) {
    let steps = [
        "customresourcedefinition.apiextensions.k8s.io/credentialissuers.config.concierge.pinniped.dev created",
        "certificate.cert-manager.io/impersonation-serving-cert condition met",
        "ImpersonationProxy: Success/Listening",
        "httpproxy.projectcontour.io/impersonation-proxy created",
        "validated connection to the cluster",
        "User \"pinny\" cannot list resource \"pods\"",
        "clusterrolebinding.rbac.authorization.k8s.io/mtls-admins created",
        "Username: pinny\nGroups: group-for-mtls, system:authenticated",
        "(the three are the same, byte for byte)",
        "User \"system:anonymous\" cannot list resource \"pods\"",
        "== Back to TLS passthrough",
        "== Done in",
    ];
    has_in_order(printed, &steps);
}

#[tokio::test]
async fn the_demo_with_the_gateway_follows_the_release_post() {
    let Some(printed) = whole_demo("the demo with the gateway", "--with-gateway").await else { return };
    assert!(printed.contains("\n$ kubectl apply -f deploy/install-pinniped-gateway.yaml\n"), "{printed}");
    is_the_release_post(&printed);
}

#[tokio::test]
async fn the_demo_with_contour_instead_of_the_gateway_follows_the_release_post() {
    let Some(printed) = whole_demo("the demo with Contour", "--with-contour").await else { return };
    assert!(!printed.contains("pinniped-gateway"), "{printed}");
    is_the_release_post(&printed);
}
