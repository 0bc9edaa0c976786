//! `pinniped-prepared-world FOLDER`: starts a control plane for a test executable that starts
//! later. `cargo xtask world` runs it, in namespaces of its own, and reads its output: `ready`,
//! then `in use`.
#![forbid(unsafe_code)]

use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::guardian::alive;
use pinniped_test_support::pods::NODE_IP;
use pinniped_test_support::world::in_namespace;

/// The interval at which the test executable is checked.
const INTERVAL: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).context("usage: pinniped-prepared-world FOLDER")?);
    if let Err(why) = in_namespace() {
        anyhow::bail!("a control plane for a later test needs a network namespace of its own: {why}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let params = ControlPlaneParams { address: IpAddr::V4(NODE_IP), ..ControlPlaneParams::default() };
        let control_plane = ControlPlane::start(params).await?;
        control_plane.prepare()?;
        let ready = folder.join(format!("{}.ready", std::process::id()));
        let unfinished = ready.with_extension("unfinished");
        std::fs::write(&unfinished, control_plane.dir().as_os_str().as_encoded_bytes())
            .and_then(|()| std::fs::rename(&unfinished, &ready))
            .with_context(|| format!("could not write {}", ready.display()))?;
        println!("ready");
        let orphaned = watch_parent();
        let mut in_use = false;
        while !orphaned.load(Ordering::Relaxed) && is_needed(&folder, &ready) {
            if !in_use && !ready.exists() {
                in_use = true;
                println!("in use");
            }
            tokio::time::sleep(INTERVAL).await;
        }
        let _taken = std::fs::remove_file(&ready);
        anyhow::Ok(())
    })
}

/// Returns a flag that is set when the standard input closes, and thus when `cargo xtask world`
/// ends.
fn watch_parent() -> Arc<AtomicBool> {
    let closed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&closed);
    std::thread::spawn(move || {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    closed
}

/// Returns whether no test executable has claimed the control plane yet, or the one that has is
/// still running.
fn is_needed(folder: &Path, ready: &Path) -> bool {
    if ready.exists() {
        return true;
    }
    let prefix = format!("{}.claimed-", std::process::id());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let claims = entries.filter_map(|entry| {
        let name = entry.file_name();
        let test: u32 = name.to_str()?.strip_prefix(&prefix)?.parse().ok()?;
        if alive(test) {
            return Some(true);
        }
        let _ignored = std::fs::remove_file(entry.path());
        None
    });
    claims.count() > 0
}
