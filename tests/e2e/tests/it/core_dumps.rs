//! The servers write no core dumps, so their memory does not reach the disk.
//!
//! `gateway/core_dumps.rs` has the test of the gateway.

use pinniped_e2e::walkthrough::{CONCIERGE, LOCAL_USER_AUTHENTICATOR};

use crate::installed;

#[tokio::test]
async fn the_servers_write_no_core_dumps() {
    let Some(installed) = installed::shared("the servers write no core dumps").await else { return };
    let mut servers = 0;
    for namespace in [CONCIERGE, LOCAL_USER_AUTHENTICATOR] {
        for (name, pod) in installed.pods().list(namespace) {
            // The agent is not a server, and exists only while a test has a control plane with a
            // key.
            let Some(pid) = pod.pid.filter(|_| !name.contains("kube-cert-agent")) else { continue };
            assert_disabled(pid, &format!("{namespace}/{name}"));
            servers += 1;
        }
    }
    assert!(servers >= 2, "{servers} servers run");
}

/// Asserts that the process of a pod writes no core dump, and cannot enable it again.
pub(crate) fn assert_disabled(pid: u32, pod: &str) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    // The soft limit and the hard limit.
    let limit: Vec<&str> = limit.split_whitespace().collect();
    assert_eq!(limit[..2], ["0", "0"], "{pod}");
}
