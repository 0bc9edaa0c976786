//! A pod in which another program uses a port of the Concierge.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::installed::{self, Installed, TIME_LIMIT};

/// A script that listens on the port in its first argument, keeps the socket open, and executes the
/// program in the second argument, whose own arguments, from the name on, are the others.
const LISTENING_SCRIPT: &str = "#!/usr/bin/perl
use IO::Socket::INET;
$^F = 255;
my $port = shift;
my $taken = IO::Socket::INET->new(LocalAddr => '0.0.0.0', LocalPort => $port, Listen => 1) or die $!;
my $program = shift;
exec { $program } @ARGV;
";

/// Runs a third Concierge besides the installed two, in a pod where `port` is in use, until its log
/// contains `wanted`; returns the log and the number of container restarts.
async fn log_with_port_taken(installed: &Installed, port: u16, wanted: &str) -> (String, u32) {
    let name = format!("port-{port}-in-use");
    let taker: PathBuf = installed.world().dir().join(&name);
    std::fs::write(&taker, LISTENING_SCRIPT).unwrap();
    std::fs::set_permissions(&taker, std::fs::Permissions::from_mode(0o755)).unwrap();
    installed.pods().register(&name, taker);

    // The installed Deployment with other labels, so that no Service selects its pod.
    let kubectl = installed.world().kubectl();
    let args = ["get", "deployment", "-n", CONCIERGE, CONCIERGE, "-o", "json"];
    let mut deployment: Value = serde_json::from_str(&kubectl.output(&args).await.unwrap()).unwrap();
    deployment["metadata"] = json!({"name": name, "namespace": CONCIERGE});
    deployment["spec"]["replicas"] = json!(1);
    deployment["spec"]["selector"]["matchLabels"] = json!({"test": name});
    let pod = &mut deployment["spec"]["template"];
    pod["metadata"]["labels"] = json!({"test": name});
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "programs", "hostPath": {"path": tools::bin_dir().unwrap()}}));
    let container = &mut pod["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "programs", "mountPath": "/programs", "readOnly": true}));
    let command = container["command"].as_array_mut().unwrap();
    let program = format!("/programs/{}", tools::SERVER);
    command.splice(0..0, [json!(name), json!(port.to_string()), json!(program)]);
    kubectl.apply(&deployment.to_string()).await.unwrap();

    let own = || installed.pods().list(CONCIERGE).into_iter().find(|(pod, _)| pod.starts_with(&name));
    let found = wait::until_ok(TIME_LIMIT, format!("the log to say {wanted:?}"), async || {
        let (_, pod) = own().ok_or_else(|| anyhow::anyhow!("no pod"))?;
        let log = std::fs::read_to_string(&pod.log)?;
        anyhow::ensure!(log.contains(wanted), "{log}");
        Ok((log, pod.restarts))
    })
    .await;
    kubectl.output(&["delete", "deployment", "-n", CONCIERGE, &name]).await.unwrap();
    found.unwrap()
}

#[tokio::test]
async fn without_the_port_of_the_aggregated_api_the_concierge_terminates_and_logs_the_reason() {
    let Some(installed) = installed::shared("the aggregated API's port is in use").await else { return };
    let (log, _) = log_with_port_taken(&installed, 10250, "container ended: exit status: 1").await;
    assert!(log.contains("failed to listen on 0.0.0.0:10250"), "{log}");
    assert!(log.contains("Address already in use"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn without_the_port_of_the_proxy_the_concierge_reports_it_and_keeps_the_rest_going() {
    let Some(installed) = installed::shared("the proxy's port is in use").await else { return };
    let (log, restarts) = log_with_port_taken(&installed, 8444, "Address already in use").await;
    assert!(log.contains("8444"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(restarts, 0, "{log}");
}
