//! The chart and the manifests.

use std::process::Command;

use anyhow::Context as _;

use super::{Dist, read};
use crate::cargo;
use crate::control_plane::helm;
use crate::revision::{EPOCH_ENV, Revision, VERSION};

/// Adds the archive of the chart and the manifests of `deploy/`.
pub(super) fn add(dist: &mut Dist, revision: &Revision, offline: bool) -> anyhow::Result<()> {
    let deploy = cargo::root().join("deploy");
    let mut names = Vec::new();
    let listed = std::fs::read_dir(&deploy);
    for entry in listed.with_context(|| format!("could not list {}", deploy.display()))? {
        names.extend(entry?.file_name().into_string().ok().filter(|name| name.ends_with(".yaml")));
    }
    names.sort();
    for name in names {
        dist.write(&name, &read(&deploy.join(&name))?)?;
    }
    let work = tempfile::tempdir().context("could not create a folder for the chart")?;
    let mut package = Command::new(helm::find_or_build(offline)?);
    package.arg("package").arg(deploy.join("chart")).arg("--destination").arg(work.path());
    package.env(EPOCH_ENV, revision.epoch.to_string());
    cargo::output(&mut package).context("could not package the chart")?;
    // Helm names the archive after the chart, which is named like the command line.
    let bytes = read(&work.path().join(format!("pinniped-{VERSION}.tgz")))?;
    dist.write(&format!("pinniped-chart-{VERSION}.tgz"), &bytes)
}
