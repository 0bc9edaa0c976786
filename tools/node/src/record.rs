//! The record of a started node, which identifies its processes and no others.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::process::Identity;

/// Written before any process of the node runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The process that executed unshare(1): the parent of the node's process 1.
    pub(crate) supervisor: Identity,
    /// Name of a network link that exists only in the node's network.
    pub(crate) marker: String,
    /// The folder of the programs.
    pub(crate) tools: std::path::PathBuf,
    /// Whether `up` has finished.
    pub(crate) ready: bool,
}

impl Record {
    /// Returns a name for the link that marks the network: `node-` and eight random digits.
    pub(crate) fn new_marker() -> String {
        let rng = uuid::Uuid::new_v4().simple().to_string();
        format!("node-{}", &rng[..8])
    }

    pub(crate) fn read(layout: &Layout) -> anyhow::Result<Option<Self>> {
        read(&layout.record())
    }

    pub(crate) fn write(&self, layout: &Layout) -> anyhow::Result<()> {
        write(&layout.record(), self)
    }
}

/// Reads a JSON file; returns `None` when it does not exist.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(file: &Path) -> anyhow::Result<Option<T>> {
    match std::fs::read(file) {
        Ok(bytes) => {
            let read = serde_json::from_slice(&bytes);
            Ok(Some(read.with_context(|| format!("{} is not what this program writes", file.display()))?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("could not read {}", file.display())),
    }
}

/// Writes a JSON file atomically.
pub(crate) fn write<T: Serialize>(file: &Path, value: &T) -> anyhow::Result<()> {
    let fresh = file.with_extension("new");
    let bytes = serde_json::to_vec_pretty(value).context("could not write JSON")?;
    std::fs::write(&fresh, bytes)
        .and_then(|()| std::fs::rename(&fresh, file))
        .with_context(|| format!("could not write {}", file.display()))
}
