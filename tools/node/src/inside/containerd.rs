//! containerd: its configuration, the pods' network, images.

use std::path::Path;

use anyhow::Context as _;

use super::{CONTAINERD_SOCKET, POD_SUBNET, RUN, component};
use crate::images;

/// `cni` is the folder of the plugins; `overlay` is whether the state folder supports overlays.
pub(super) fn configuration(cni: &Path, overlay: bool) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Root may be without CAP_SYS_RESOURCE; runc then fails with "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{RUN}/cni"
"#,
        pause = images::PAUSE,
        snapshotter = if overlay { "overlayfs" } else { "native" },
        cni = cni.display(),
    )
}

/// One bridge for all pods.
pub(super) fn network() -> String {
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam":
    {{"type": "host-local", "ranges": [[{{"subnet": "{POD_SUBNET}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}], "dataDir": "{RUN}/cni-data"}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
    )
}

/// Whether containerd responds.
pub(super) async fn is_ready() -> bool {
    let mut command = component::command("ctr");
    let status = command.arg("version").stdout(std::process::Stdio::null());
    status.stderr(std::process::Stdio::null()).status().await.is_ok_and(|status| status.success())
}

/// Imports an archive.
pub(super) async fn import(archive: &Path) -> anyhow::Result<()> {
    let mut command = component::command("ctr");
    command.args(["-n", "k8s.io", "images", "import"]).arg(archive);
    let output = command.output().await.context("could not run ctr")?;
    anyhow::ensure!(
        output.status.success(),
        "could not import the image {}: {}",
        archive.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
