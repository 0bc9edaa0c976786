//! Invalid input is rejected with the reason and the remedy, and leaves nothing behind.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use pinniped_node::{Layout, Node, UpOptions, fixture};
use pinniped_test_support::tools;

/// Runs `pinniped-node`, which must fail, and returns its standard error.
fn refused(change: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(tools::binary("pinniped-node").unwrap());
    change(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

#[test]
fn without_root_the_error_names_the_reason() {
    if !fixture::possible("without root the reason is told") {
        return;
    }
    // The user `nobody` may have no access to cargo's target folder.
    let dir = tempfile::Builder::new().prefix("pinniped-node-").tempdir().unwrap();
    let program = dir.path().join("pinniped-node");
    std::fs::copy(tools::binary("pinniped-node").unwrap(), &program).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for verb in ["up", "down", "check"] {
        let output =
            Command::new(&program).arg(verb).uid(65534).gid(65534).current_dir("/").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("a node needs root"), "{verb}: {text}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_user_namespace_is_not_enough() {
    if !fixture::possible("a user namespace is not enough") {
        return;
    }
    let program = tools::binary("pinniped-node").unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(program)
        .arg("check")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("not that of a user namespace"), "{text}");
}

#[tokio::test]
async fn a_missing_image_archive_is_reported_before_any_process_starts() {
    if !fixture::possible("a missing image archive is named") {
        return;
    }
    let options = UpOptions {
        name: fixture::name("image"),
        images: vec!["/nowhere/image.tar".into()],
        ..UpOptions::default()
    };
    let layout = Layout::new(&options.name, None).unwrap();
    let error = Node::up(options).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no image archive /nowhere/image.tar");
    assert!(!layout.dir().exists());
}

#[test]
fn an_unwritable_state_folder_is_reported_with_the_remedy() {
    if !fixture::possible("an unwritable state folder is named") {
        return;
    }
    let text = refused(|command| {
        command.args(["up", "--state", "/proc/pinniped"]);
    });
    assert!(text.contains("could not write to the state folder /proc/pinniped"), "{text}");
    assert!(text.contains("PINNIPED_NODE_STATE"), "{text}");
}

#[test]
fn missing_programs_of_the_node_are_reported() {
    if !fixture::possible("missing programs of the node are named") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("etcd"), "").unwrap();
    let text = refused(|command| {
        command.arg("up").arg("--tools").arg(dir.path());
    });
    assert!(text.contains("has no kube-apiserver, kube-controller-manager, "), "{text}");
    let text = refused(|command| {
        command.arg("up").env_remove("PINNIPED_NODE_TOOLS");
    });
    assert!(text.contains("use `cargo xtask node up`"), "{text}");
}

#[test]
fn a_missing_node_is_reported_as_missing() {
    if !fixture::possible("a node that is not there is said to be so") {
        return;
    }
    let name = fixture::name("absent");
    let text = refused(|command| {
        command.args(["exec", "--name", &name, "--", "true"]);
    });
    assert!(text.contains(&format!("start it with `cargo xtask node up --name {name}`")), "{text}");
    // Removing a node that does not exist is not an error.
    assert!(!Node::remove(&Layout::new(&name, None).unwrap()).unwrap());
}
