//! Host names of the test world: a private `/etc/hosts`.
//!
//! In a private mount namespace, a file of the world is mounted over `/etc/hosts`, so that every
//! program of the world, the product's and others, resolves Service names with its usual resolver.

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
    /// Creates `file` and mounts it over `/etc/hosts`. Call this only inside a private mount
    /// namespace.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written or mounted.
    pub fn mount(file: &Path) -> anyhow::Result<Self> {
        // Only loopback names: the other entries of the machine's file are not part of the world.
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

    /// The path of the file, for mounting it into pods.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Makes `name` resolve to `ip`.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written.
    pub fn set(&self, name: &str, ip: IpAddr) -> anyhow::Result<()> {
        self.change(|names| {
            names.insert(name.to_owned(), ip);
        })
    }

    /// Changes any number of names in one write.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written.
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
        // The file is mounted in several places, so it cannot be replaced by renaming. It is
        // overwritten in place and then truncated, so that no reader sees an empty file.
        let file =
            std::fs::File::options().write(true).open(&self.file).context("could not open the hosts file")?;
        file.write_all_at(text.as_bytes(), 0).context("could not write the hosts file")?;
        file.set_len(text.len() as u64).context("could not cut the hosts file")
    }
}
