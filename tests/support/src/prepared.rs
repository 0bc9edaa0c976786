//! A control plane that was started in advance, for a test executable that starts later.
//!
//! `cargo xtask world` keeps one ready, so that a developer's tests do not wait for it. Each
//! belongs to one test executable, so tests never find objects of an earlier run.
//!
//! ```text
//! pinniped-prepared-world FOLDER    in its own namespaces; FOLDER/PID.ready contains the folder
//!   tools/test-runner.sh            renames it to PID.claimed-TEST, and enters the namespaces
//!     the test executable           World::shared or ControlPlane::start finds TAKE_ENV
//! pinniped-prepared-world           terminates when the process TEST no longer exists
//! ```

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use serde_json::{Value, json};

/// Environment variable with the folder of the control plane, which `tools/test-runner.sh` sets.
const TAKE_ENV: &str = "PINNIPED_PREPARED_WORLD";
/// The file in the folder of the control plane.
const FILE: &str = "prepared.json";

/// The data of a control plane that is not in the files that its programs read.
pub(crate) struct Prepared {
    pub(crate) port: u16,
    pub(crate) etcd_port: u16,
    pub(crate) tools: PathBuf,
}

impl Prepared {
    pub(crate) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let data = json!({"port": self.port, "etcdPort": self.etcd_port, "tools": self.tools});
        std::fs::write(dir.join(FILE), data.to_string())
            .context("could not write the data of a control plane")
    }

    pub(crate) fn read(dir: &Path) -> anyhow::Result<Self> {
        let file = dir.join(FILE);
        let text = std::fs::read(&file).with_context(|| format!("could not read {}", file.display()))?;
        let data: Value = serde_json::from_slice(&text).context(FILE)?;
        let port =
            |name: &str| data[name].as_u64().and_then(|port| u16::try_from(port).ok()).context("no port");
        let tools = data["tools"].as_str().context("no folder of programs")?.into();
        Ok(Self { port: port("port")?, etcd_port: port("etcdPort")?, tools })
    }
}

/// Returns the folder of the control plane of this process, to the first caller.
pub(crate) fn take() -> Option<PathBuf> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let dir = std::env::var_os(TAKE_ENV)?;
    (!TAKEN.swap(true, Ordering::SeqCst)).then(|| dir.into())
}
