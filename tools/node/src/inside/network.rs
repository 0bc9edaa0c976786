//! The node's network: one link with the node's address, and no route out.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::{NODE_IP, SERVICE_RANGE};
use crate::prerequisites::PATH;

/// Creates the network. `marker` is the name of the other end of the node's link, which is unique
/// on the machine.
pub(super) fn set_up(marker: &str) -> anyhow::Result<()> {
    ip(&format!(
        "link set lo up\n\
         link add eth0 type veth peer name {marker}\n\
         addr add {NODE_IP}/24 dev eth0\n\
         link set eth0 up\n\
         link set {marker} up\n\
         route add {SERVICE_RANGE} dev eth0\n"
    ))?;
    // The route is for programs on the node itself: without it, connecting to a ClusterIP fails
    // before kube-proxy's rules apply. Every other address is unreachable and fails at once.
    for (key, value) in [("ipv4/ip_forward", "1"), ("bridge/bridge-nf-call-iptables", "1")] {
        let file = format!("/proc/sys/net/{key}");
        std::fs::write(&file, value).with_context(|| {
            format!("could not set {file}; the kernel needs IP forwarding and br_netfilter (`modprobe br_netfilter`)")
        })?;
    }
    Ok(())
}

fn ip(batch: &str) -> anyhow::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .env("PATH", PATH)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start `ip`")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes()).context("could not write to `ip`")?;
    }
    let output = child.wait_with_output().context("could not wait for `ip`")?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "could not set up the node's network: {}", text.trim());
    Ok(())
}
