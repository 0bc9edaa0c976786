//! The real kubectl with the program as its plugin `kubectl pinniped`, and with the program as its
//! credential plugin under the conditions of programs such as k9s and Lens, which use the same
//! client library.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pinniped_test_support::kubectl::{Kubectl, run};
use pinniped_test_support::tools;
use serde_json::Value;

use crate::cli::{AUTHENTICATOR, Home, create_user, forbidden};
use crate::installed;

/// The `PATH` of a program that is not started by a shell, on macOS.
const SHORT_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";
/// The calls that a program makes at once when it opens a cluster.
const CALLS: usize = 40;

/// Installs the plugin in the layout of krew: the program in a directory of its version, and links
/// in a directory of `PATH`. Returns the latter.
fn install(dir: &Path) -> PathBuf {
    let store = dir.join("store/pinniped/v1.2.3");
    let bin = dir.join("bin");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::create_dir(&bin).unwrap();
    let program = store.join("pinniped");
    std::fs::copy(tools::binary("pinniped").unwrap(), &program).unwrap();
    for name in ["kubectl-pinniped", "kubectl_complete-pinniped"] {
        symlink(&program, bin.join(name)).unwrap();
    }
    bin
}

#[tokio::test]
async fn kubectl_runs_the_program_as_its_plugin() {
    let dir = tempfile::tempdir().unwrap();
    let bin = install(dir.path());
    let program = tools::control_plane().unwrap().join("kubectl");
    let kubectl = Kubectl::new(&program, &dir.path().join("kubeconfig")).with_path(&bin);

    let listed = kubectl.output(&["plugin", "list"]).await.unwrap();
    assert!(listed.contains(bin.join("kubectl-pinniped").to_str().unwrap()), "{listed}");
    let version = kubectl.output(&["pinniped", "version", "-o", "json"]).await.unwrap();
    let version: Value = serde_json::from_str(&version).unwrap();
    assert!(version["gitVersion"].as_str().unwrap().starts_with('v'), "{version}");

    let help = kubectl.output(&["pinniped", "get", "kubeconfig", "--help"]).await.unwrap();
    assert!(help.contains("\nUsage:\n  kubectl pinniped get kubeconfig [flags]\n"), "{help}");
    assert!(help.contains("\n  kubectl pinniped get kubeconfig --output team.yaml\n"), "{help}");
    let unknown = kubectl.run(&["pinniped", "whoam"]).await.unwrap();
    assert_eq!(unknown.code, 1);
    assert!(
        unknown.stderr.starts_with("Error: unknown command \"whoam\" for \"kubectl pinniped\"\n"),
        "{unknown:?}"
    );
    assert!(unknown.stderr.ends_with("\nRun 'kubectl pinniped --help' for usage.\n"), "{unknown:?}");

    // kubectl completes the arguments of a plugin with another program.
    let candidates = kubectl.output(&["__complete", "pinniped", "login", ""]).await.unwrap();
    assert!(candidates.starts_with("oidc\tLog in using an OpenID Connect provider\n"), "{candidates}");
}

#[tokio::test]
async fn a_kubeconfig_of_the_plugin_survives_its_upgrade() {
    let Some(installed) = installed::shared("a kubeconfig of kubectl pinniped").await else { return };
    let world = installed.world();
    create_user(&installed, "olga").await;
    let dir = tempfile::tempdir().unwrap();
    let bin = install(dir.path());
    let home = Home::new();
    let kubectl = world.kubectl().with_path(&bin);
    let more = ["pinniped", "get", "kubeconfig", "--static-token", "olga:password123"];
    let kubeconfig = kubectl.output(&[&more[..], &AUTHENTICATOR].concat()).await.unwrap();
    std::fs::write(home.kubeconfig(), kubeconfig).unwrap();
    // krew replaces the directory of the version, and the links.
    std::fs::rename(dir.path().join("store/pinniped/v1.2.3"), dir.path().join("store/pinniped/v1.2.4"))
        .unwrap();
    let link = bin.join("kubectl-pinniped");
    std::fs::remove_file(&link).unwrap();
    symlink(dir.path().join("store/pinniped/v1.2.4/pinniped"), &link).unwrap();
    let output = home.kubectl(world, &["get", "secrets", "-n", "default"], &[]).await;
    assert_eq!((output.code, output.stderr), (1, forbidden("olga")));
}

#[tokio::test]
async fn forty_clients_without_a_terminal_log_in_at_once() {
    let Some(installed) = installed::shared("logins of desktop programs").await else { return };
    let world = installed.world();
    create_user(&installed, "nora").await;
    for mode in ["IfAvailable", "Never"] {
        let home = Home::new();
        let more = ["--static-token", "nora:password123"];
        home.get_kubeconfig(world, &[&AUTHENTICATOR[..], &more].concat()).await;
        home.edit(
            "provideClusterInfo: true\n",
            &format!("provideClusterInfo: true\n      interactiveMode: {mode}\n"),
        );
        let calls = (0..CALLS).map(|_| {
            let kubectl = world.kubectl().command(&["get", "secrets", "-n", "default"]);
            let mut command = std::process::Command::new("/usr/bin/setsid");
            command.arg("--wait").arg(kubectl.get_program()).args(kubectl.get_args());
            command
                .env_clear()
                .env("PATH", SHORT_PATH)
                .env("KUBECACHEDIR", home.kubeconfig().with_file_name("cache"));
            home.settle(&mut command);
            command.arg("--kubeconfig").arg(home.kubeconfig());
            tokio::spawn(run(command, None))
        });
        for call in calls.collect::<Vec<_>>() {
            let output = call.await.unwrap().unwrap();
            assert_eq!((output.code, output.stderr), (1, forbidden("nora")), "{mode}");
        }
    }
}
