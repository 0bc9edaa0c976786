//! Names of the test world: a private `/etc/hosts`.
//!
//! Inside a mount namespace of our own, a file of the world is mounted over `/etc/hosts`, so that every program
//! of the world, ours and foreign, resolves Service names with its ordinary resolver.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::Context as _;

/// The private hosts file.
#[derive(Debug)]
pub struct Hosts {
    file: PathBuf,
    base: String,
    names: Mutex<BTreeMap<String, IpAddr>>,
}

impl Hosts {
    /// Makes `file` from the machine's hosts file and mounts it over `/etc/hosts`. Only to be called inside a
    /// mount namespace of our own.
    ///
    /// # Errors
    /// When the file cannot be written or mounted.
    pub fn mount(file: &Path) -> anyhow::Result<Self> {
        // Loopback names only: what else the machine's file says is no part of the world.
        let base = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        std::fs::write(file, &base).context("could not write the private hosts file")?;
        let output = Command::new("mount").arg("--bind").arg(file).arg("/etc/hosts").output();
        let output = output.context("could not run `mount`")?;
        anyhow::ensure!(
            output.status.success(),
            "could not mount the private hosts file: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self { file: file.to_owned(), base, names: Mutex::new(BTreeMap::new()) })
    }

    /// The file, for mounting it into pods.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Lets `name` resolve to `ip`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        self.change(|names| {
            names.insert(name.to_owned(), ip);
        })
    }

    /// Changes many names in one write.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn change(&self, edit: impl FnOnce(&mut BTreeMap<String, IpAddr>)) -> anyhow::Result<()> {
        let mut names = self.names.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = names.clone();
        edit(&mut names);
        if *names == before {
            return Ok(());
        }
        let mut text = self.base.clone();
        for (name, ip) in &*names {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{ip} {name}");
        }
        // The file is mounted in several places, so it cannot be replaced; one write in place, then the new
        // length, never shows a reader an empty file.
        let file =
            std::fs::File::options().write(true).open(&self.file).context("could not open the hosts file")?;
        file.write_all_at(text.as_bytes(), 0).context("could not write the hosts file")?;
        file.set_len(text.len() as u64).context("could not cut the hosts file")
    }
}
