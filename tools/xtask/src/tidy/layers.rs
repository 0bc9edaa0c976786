//! The layers: a crate's folder says what it may use, and `docs/architecture.md` what it does use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::read;
use crate::cargo;

/// The page with the table of crates.
const PAGE: &str = "docs/architecture.md";

/// The prefix of all packages, which the page leaves out.
const PREFIX: &str = "pinniped-";

/// The folders of the layers, and for each the folders whose crates its crates may use.
const LAYERS: [(&str, &[&str]); 9] = [
    ("crates/base", &["crates/base"]),
    ("crates/kubernetes", &["crates/kubernetes", "crates/base"]),
    ("crates/delegation", &["crates/kubernetes", "crates/base"]),
    ("crates/concierge", &["crates/concierge", "crates/delegation", "crates/kubernetes", "crates/base"]),
    ("crates/gateway", &["crates/gateway", "crates/delegation", "crates/kubernetes", "crates/base"]),
    ("crates/pinniped-server", &["crates/concierge", "crates/gateway"]),
    ("crates/cli", &["crates/concierge", "crates/delegation", "crates/kubernetes", "crates/base"]),
    ("tests", &["tests", "tools", "crates"]),
    ("tools", &["tests", "tools", "crates"]),
];

/// Dependencies that make a crate a crate about Kubernetes.
const KUBERNETES: [&str; 4] = ["k8s-openapi", "kube", "kube-core", "kube-client"];

/// A package of the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Package {
    /// Its folder, relative to the workspace.
    pub(super) folder: String,
    /// All its normal dependencies by package name.
    pub(super) uses: BTreeSet<String>,
}

/// Packages by name.
pub(super) type Packages = BTreeMap<String, Package>;

/// Compares the dependencies with the layers and with the page.
pub(super) fn check(root: &Path, packages: &Packages) -> anyhow::Result<Vec<String>> {
    let mut problems = against_layers(packages);
    problems.extend(against_page(packages, &read(root, Path::new(PAGE))?));
    Ok(problems)
}

/// Returns the packages of the workspace.
pub(super) fn of_workspace(root: &Path) -> anyhow::Result<Packages> {
    let mut metadata = cargo::cargo(true);
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
    let output = metadata.output().context("could not start cargo")?;
    anyhow::ensure!(output.status.success(), "cargo metadata failed");
    Ok(packages(root, &serde_json::from_slice(&output.stdout)?))
}

fn packages(root: &Path, metadata: &Value) -> Packages {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().unwrap_or(Path::new(""));
        let folder = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
        // Development and build dependencies have a kind.
        let normal = |dependency: &Value| dependency["kind"].is_null() && dependency["optional"] != true;
        let uses = list(&package["dependencies"]);
        let uses = uses.iter().filter(|used| normal(used)).map(|used| text(&used["name"])).collect();
        (text(&package["name"]), Package { folder, uses })
    };
    list(&metadata["packages"]).iter().map(package).collect()
}

fn layer(folder: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    LAYERS.iter().find(|(layer, _)| is_below(folder, layer))
}

fn is_below(folder: &str, layer: &str) -> bool {
    Path::new(folder).starts_with(layer)
}

/// Edges that point the wrong way.
fn against_layers(packages: &Packages) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, package) in packages {
        let Some((folder, may_use)) = layer(&package.folder) else {
            problems.push(format!("{name}: its folder {} belongs to no layer", package.folder));
            continue;
        };
        for used in &package.uses {
            if *folder == "crates/base" && KUBERNETES.contains(&used.as_str()) {
                problems.push(format!("{name}: {folder} must not use {used}"));
            }
            let Some(target) = packages.get(used) else { continue };
            if !may_use.iter().any(|layer| is_below(&target.folder, layer)) {
                problems.push(format!("{name}: {folder} must not use {used} of {}", target.folder));
            }
        }
    }
    problems
}

/// Rows of the page's table that differ from the manifests.
fn against_page(packages: &Packages, page: &str) -> Vec<String> {
    let written = rows(page);
    let mut problems = Vec::new();
    let is_ours =
        |name: &String| packages.get(name).is_some_and(|package| is_below(&package.folder, "crates"));
    for (name, package) in packages.iter().filter(|(name, _)| is_ours(name)) {
        let uses: BTreeSet<String> = package.uses.iter().filter(|used| is_ours(used)).cloned().collect();
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        match written.get(name) {
            None => problems.push(format!("{PAGE}: the table has no row for `{short}`")),
            Some(written) if *written != uses => {
                let names: Vec<&str> = uses.iter().map(|name| name.trim_start_matches(PREFIX)).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                problems.push(format!("{PAGE}: `{short}` uses: {names}"));
            }
            Some(_) => {}
        }
    }
    let unknown = written.keys().filter(|name| !is_ours(name));
    problems.extend(unknown.map(|name| format!("{PAGE}: there is no package {name}")));
    problems
}

/// The rows of tables whose last column is the list of crates that a crate uses.
fn rows(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut rows = BTreeMap::new();
    let mut in_table = false;
    for line in page.lines() {
        let Some(cells) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
            in_table = false;
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let (Some(first), Some(last)) = (cells.first(), cells.last()) else { continue };
        if *last == "Uses" {
            in_table = true;
        } else if in_table && let Some(name) = first.strip_prefix('`').and_then(|name| name.strip_suffix('`'))
        {
            let full = |name: &str| format!("{PREFIX}{}", name.trim().trim_matches('`'));
            let uses = last.split(',').filter(|name| !matches!(name.trim(), "" | "none")).map(full);
            rows.insert(full(name), uses.collect());
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, uses: &[&str]) -> Package {
        Package { folder: folder.to_owned(), uses: uses.iter().map(|name| (*name).to_owned()).collect() }
    }

    #[test]
    fn the_crates_of_this_repository_keep_to_the_layers_and_to_the_page() {
        let root = cargo::root();
        assert_eq!(check(&root, &of_workspace(&root).unwrap()).unwrap(), [""; 0]);
    }

    #[test]
    fn an_edge_that_points_upwards_or_across_is_a_problem() {
        let packages: Packages = [
            ("pinniped-cache".to_owned(), package("crates/base/cache", &["pinniped-kube-types", "kube"])),
            (
                "pinniped-kube-types".to_owned(),
                package("crates/kubernetes/types", &["pinniped-cache", "kube"]),
            ),
            ("pinniped-gateway".to_owned(), package("crates/gateway/server", &["pinniped-concierge"])),
            ("pinniped-concierge".to_owned(), package("crates/concierge/server", &["pinniped-kube-types"])),
            ("other".to_owned(), package("elsewhere", &[])),
        ]
        .into();
        let problems = against_layers(&packages);
        assert_eq!(problems.len(), 4, "{problems:#?}");
        assert!(problems.iter().any(|problem| problem.starts_with("other: its folder")), "{problems:#?}");
    }

    #[test]
    fn a_row_that_differs_from_the_manifest_is_a_problem() {
        let packages: Packages = [
            ("pinniped-cache".to_owned(), package("crates/base/cache", &["quick_cache"])),
            ("pinniped-http-server".to_owned(), package("crates/base/http-server", &["pinniped-cache"])),
        ]
        .into();
        let table = |cache: &str, server: &str| {
            format!("| Crate | Uses |\n|---|---|\n| `cache` | {cache} |\n| `http-server` | {server} |\n")
        };
        assert_eq!(against_page(&packages, &table("none", "cache")), [""; 0]);
        assert_eq!(against_page(&packages, &table("none", "`cache`, pki")).len(), 1);
        assert_eq!(against_page(&packages, "").len(), 2);
        assert_eq!(against_page(&packages, &(table("none", "cache") + "| `gone` | none |\n")).len(), 1);
    }
}
