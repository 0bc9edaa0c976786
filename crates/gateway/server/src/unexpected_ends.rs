//! Tests that the program terminates when one of its tasks terminates unexpectedly, with an error
//! that names the task.

use std::time::Duration;

use clap::Parser as _;
use pinniped_program::downward_api::PodInfo;
use pinniped_program::in_cluster::InCluster;
use pinniped_program::stop::Shutdown;
use pinniped_program::test_util::error_of;
use pinniped_tasks::TaskMonitor;

fn at_once() -> Shutdown {
    Shutdown { delay: Duration::ZERO, grace: Duration::ZERO }
}

fn a_gateway(
    pod: PodInfo,
    surroundings: InCluster,
    monitor: TaskMonitor,
) -> impl Future<Output = anyhow::Result<()>> {
    let words = ["--envoy-service-http-port=0", "--envoy-service-https-port=0", "--http-port=0"];
    let flags = crate::Flags::try_parse_from([&["pinniped-gateway"], &words[..]].concat());
    let mut options = flags.expect("flags").resolve().expect("options");
    options.shutdown = at_once();
    crate::run(options, pod, || Ok(surroundings), monitor)
}

const RETURNED: &str = "task \"watch of secrets\" ended unexpectedly";
const PANICKED: &str = "task \"watch of secrets\" panicked: no";

#[tokio::test]
async fn a_gateway_with_a_task_that_ended_fails_and_names_it() {
    assert_eq!(error_of(|_| None, a_gateway, "/secrets", async {}).await, RETURNED);
}

#[tokio::test]
async fn a_gateway_with_a_task_that_panicked_fails_and_names_it() {
    assert_eq!(error_of(|_| None, a_gateway, "/secrets", async { panic!("no") }).await, PANICKED);
}
