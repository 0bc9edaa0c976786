//! Nodes start and terminate in every possible way, and leave the machine unchanged.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use pinniped_node::{Health, Layout, Node, Status, UpOptions, fixture};
use pinniped_test_support::{guardian, tools, wait};

/// Only one node besides the shared one at a time, because the machine is small.
static ONE: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs an async test on its own runtime, while no other such test runs.
fn alone(test: impl AsyncFnOnce()) {
    let _one = one_at_a_time();
    tokio::runtime::Runtime::new().unwrap().block_on(test());
}

fn named(purpose: &str) -> (UpOptions, Layout) {
    let options = UpOptions { name: fixture::name(purpose), ..UpOptions::default() };
    let layout = Layout::new(&options.name, None).unwrap();
    (options, layout)
}

fn start(verb: &str, name: &str) -> Child {
    Command::new(tools::binary("pinniped-node").unwrap())
        .args([verb, "--name", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn progress(layout: &Layout, line: &str) {
    let file = layout.dir().join("progress");
    wait::until(Duration::from_secs(120), format!("the step `{line}`"), async || {
        std::fs::read_to_string(&file).ok()?.contains(line).then_some(())
    })
    .await
    .unwrap();
}

async fn gone(layout: &Layout) {
    wait::until(Duration::from_secs(60), "the node's folder to be gone", async || {
        (!layout.dir().exists()).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(cgroups(layout), Vec::<std::path::PathBuf>::new());
}

fn cgroups(layout: &Layout) -> Vec<std::path::PathBuf> {
    let below = |dir: &str| std::path::Path::new(dir).join("pinniped-node").join(layout.name());
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let all = hierarchies.map(|entry| below(entry.path().to_str().unwrap()));
    all.chain([below("/sys/fs/cgroup")]).filter(|dir| dir.exists()).collect()
}

#[test]
fn two_nodes_run_concurrently_on_a_machine_whose_ports_are_in_use() {
    let Some(first) = fixture::shared("two nodes run side by side").unwrap() else { return };
    alone(async || {
        // This test or another process holds the ports; both satisfy the test's condition.
        let ports = [2379, 6443, 10248, 10249, 10250, 10256, 10257, 10259];
        let _taken: Vec<_> = ports.map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).into();
        let (options, layout) = named("second");
        let second = Node::up(options).await.unwrap();
        assert!(!cgroups(&layout).is_empty());
        for node in [first, &second] {
            assert_eq!(node.status().health, Health::Running);
            let mut kubectl = node.enter("kubectl").unwrap().into_std();
            kubectl.args(["get", "nodes", "-o", "name"]);
            let names = pinniped_test_support::kubectl::run(kubectl, None).await.unwrap().success().unwrap();
            assert_eq!(names.stdout.trim(), format!("node/{}", node.layout().node_name()));
        }
        // A process that entered the node's network terminates with it.
        let mut entered = second.enter("sleep").unwrap().arg("1000").spawn().unwrap();
        second.down().await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(5), entered.wait()).await;
        assert!(!ended.unwrap().unwrap().success());
        gone(&layout).await;
        assert_eq!(first.status().health, Health::Running);
    });
}

#[test]
fn up_repairs_an_interrupted_start_and_reuses_a_running_node() {
    if !fixture::possible("up repairs what a killed up left") {
        return;
    }
    alone(async || {
        let (options, layout) = named("killed");
        let mut up = start("up", layout.name());
        progress(&layout, "containerd answers").await;
        up.kill().unwrap();
        up.wait().unwrap();
        assert!(matches!(Status::of(&layout).health, Health::Starting | Health::Broken(_)));

        let node = Node::up(options.clone()).await.unwrap();
        let init = node.status().init;
        let again = Node::up(options).await.unwrap();
        assert_eq!((again.status().health, again.status().init), (Health::Running, init));

        // The failure of a node's program terminates the node, and the error names the program.
        let etcd = wait::until(Duration::from_secs(5), "etcd", async || etcd_of(&layout)).await.unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(etcd).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        let why = wait::until(Duration::from_secs(20), "the node to end", async || {
            match Status::of(&layout).health {
                Health::Broken(why) => Some(why),
                _ => None,
            }
        })
        .await
        .unwrap();
        assert!(why.contains("etcd ended (signal: 9 (SIGKILL))"), "{why}");
        assert!(Node::attach(layout.name()).is_err());
        node.down().await.unwrap();
        gone(&layout).await;
    });
}

/// Returns the process of the node's etcd, as seen from the machine.
fn etcd_of(layout: &Layout) -> Option<i32> {
    let own = format!("pinniped-node/{}/node", layout.name());
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        (name.trim() == "etcd" && cgroup.contains(&own)).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

#[test]
fn ctrl_c_during_up_leaves_nothing_behind() {
    if !fixture::possible("Ctrl-C during up leaves nothing") {
        return;
    }
    alone(async || {
        let (_, layout) = named("interrupted");
        let mut up = start("up", layout.name());
        progress(&layout, "root file system").await;
        let supervisor = supervisor_of(&layout);
        rustix::process::kill_process(rustix::process::Pid::from_child(&up), rustix::process::Signal::INT)
            .unwrap();
        assert_eq!(up.wait().unwrap().code(), Some(1));
        gone(&layout).await;
        assert!(!guardian::alive(supervisor));
    });
}

fn supervisor_of(layout: &Layout) -> u32 {
    let record = std::fs::read(layout.dir().join("record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    u32::try_from(record["supervisor"]["pid"].as_u64().unwrap()).unwrap()
}

#[test]
fn a_held_node_terminates_with_its_owner_even_during_startup() {
    if !fixture::possible("a held node ends with its holder") {
        return;
    }
    alone(async || {
        let (_, layout) = named("held");
        let mut hold = start("hold", layout.name());
        progress(&layout, "certificates").await;
        // As the kernel does when the test executable is killed; the output is not read either.
        drop(hold.stdin.take());
        drop(hold.stdout.take());
        assert_eq!(hold.wait().unwrap().code(), Some(1));
        gone(&layout).await;
    });
}
