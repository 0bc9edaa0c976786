//! The pages of Prometheus, which show graphs. The Go module has only their sources; the package
//! manager that these need is `tools/third-party/prometheus-ui`.
//!
//! A Prometheus without built-in pages serves those below its working folder, if the name of that
//! folder is `ui`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::build::source_dir;
use super::module::Module;
use super::{cache, nodejs};

/// Environment variable with the folder in which a Prometheus finds its pages, for tests and demo.
pub(crate) const ENV: &str = "PINNIPED_PROMETHEUS_UI";
/// The name of the working folder.
const FOLDER: &str = "ui";
/// The folder of the pages below the working folder.
const PAGES: &str = "static/mantine-ui";
/// The parts of the sources that the pages consist of, in the order in which they are built.
const PARTS: [&str; 3] =
    ["@prometheus-io/lezer-promql", "@prometheus-io/codemirror-promql", "@prometheus-io/mantine-ui"];

/// Returns the working folder for Prometheus.
///
/// # Errors
/// Returns an error with the reason when the pages are neither cached nor can be built.
pub(crate) fn find_or_build(offline: bool) -> anyhow::Result<PathBuf> {
    nodejs::check("the build of Prometheus' pages")?;
    let module = Module::prometheus()?;
    let packages = nodejs::Packages::read("prometheus-ui")?;
    let key = format!("{}-{:016x}", module.version, packages.hash());
    let dir = cache::fetched("prometheus-ui", &key, |work| {
        anyhow::ensure!(
            !offline,
            "offline, and the pages of Prometheus {} are not in the cache yet; run the same command once with network",
            module.version
        );
        eprintln!("building the pages of Prometheus {} once (about a minute) ...", module.version);
        packages.install(work)?;
        let source = work.join("source");
        let module_dir = source_dir(&module, Module::PROMETHEUS, offline)?;
        copy(&module_dir.join("web/ui"), &source)?;
        let programs = work.join("node_modules/.bin");
        let parts = PARTS.map(|part| format!("--filter={part}"));
        // The lock file of the sources has the sums. No package runs a script of its own.
        let install = ["install", "--frozen-lockfile", "--ignore-scripts", "--reporter=silent"];
        run(&programs, &source, &[&install[..], &parts.each_ref().map(String::as_str)].concat())?;
        for part in &parts {
            run(&programs, &source, &[part.as_str(), "run", "build"])?;
        }
        let built = source.join("mantine-ui/dist");
        anyhow::ensure!(built.join("index.html").is_file(), "the build created no index.html");
        let fresh = work.join("fresh");
        let pages = fresh.join(FOLDER).join(PAGES);
        std::fs::create_dir_all(&pages).context("could not create a folder for the pages")?;
        std::fs::rename(&built, &pages).context("could not move the pages")?;
        Ok(fresh)
    })?;
    Ok(dir.join(FOLDER))
}

/// Runs pnpm, which is in `programs`, in a folder.
fn run(programs: &Path, dir: &Path, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(programs.join("pnpm"));
    // The scripts of the sources run pnpm, too.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)));
    command.env("PATH", path.context("the path of the cache has a colon")?);
    // Outside of a terminal of a person, pnpm asks no questions.
    command.args(args).current_dir(dir).env("CI", "true").stdin(Stdio::null());
    super::succeed(&mut command, &format!("pnpm {}", args.join(" ")))
}

/// Copies a folder. The files of Go's cache are read-only; the copies are not.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(to).with_context(|| format!("could not create {}", to.display()))?;
    let entries = std::fs::read_dir(from).with_context(|| format!("could not read {}", from.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("could not read {}", from.display()))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            let bytes = std::fs::read(&source);
            let bytes = bytes.with_context(|| format!("could not read {}", source.display()))?;
            std::fs::write(&target, bytes)
                .with_context(|| format!("could not write {}", target.display()))?;
        }
    }
    Ok(())
}
