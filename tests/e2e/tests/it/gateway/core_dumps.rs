//! The gateway writes no core dumps, so the private keys of hosts do not reach the disk.

use super::environment;
use crate::core_dumps::assert_disabled;

#[tokio::test]
async fn the_gateway_writes_no_core_dumps() {
    let Some(environment) = environment::shared("core-dumps").await else { return };
    // A program that is still starting may not have set the limit yet.
    let ready: Vec<_> = environment.running().into_iter().filter(|(_, pod)| pod.ready).collect();
    assert!(!ready.is_empty(), "no pod is ready");
    for (name, pod) in ready {
        assert_disabled(pod.pid.unwrap(), &name);
    }
}
