//! `cargo xtask tidy`: checks the rules of this repository that rustfmt and clippy do not know.
//!
//! | module | rule |
//! |---|---|
//! | [`layers`] | the crates use each other as `docs/architecture.md` says, and never against the layers |
//! | [`words`] | names use the terms of `docs/glossary.md` |
//! | [`base_words`] | crates below `crates/base` do not mention Kubernetes or Pinniped |
//! | [`platforms`] | in the crates that the command line links, only the module `platform` depends on the operating system |
//! | [`prose`] | comments and pages fit into 100 columns; headings and first sentences do not begin with "what" or "who" |
//! | [`messages`] | texts of the products that pages quote occur in the code; warnings, errors and audit events occur in the page about log lines, and conditions in theirs; messages of log lines are constant |
//! | [`commits`] | subjects of commits have the form `area: what changes` and at most 72 characters |
//!
//! [`sources`] separates code from its tests, which some rules leave out.

mod base_words;
mod commits;
mod layers;
mod messages;
mod platforms;
mod prose;
mod sources;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::cargo;

/// Flags of `tidy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check the commits after this revision instead of the last one only.
    #[arg(long, value_name = "REVISION")]
    since: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = cargo::root();
    let files = tracked_files(&root)?;
    let packages = layers::of_workspace(&root)?;
    let mut problems = layers::check(&root, &packages)?;
    problems.extend(platforms::check(&root, &files, &packages)?);
    problems.extend(words::check(&root, &files)?);
    problems.extend(base_words::check(&root, &files)?);
    problems.extend(prose::check(&root, &files)?);
    problems.extend(messages::check(&root, &files)?);
    problems.extend(commits::check(&root, args.since.as_deref())?);
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: {} problems; CONTRIBUTING.md has the rules", problems.len());
    Ok(ExitCode::FAILURE)
}

/// The files that git tracks and that are there, relative to `root`.
pub(crate) fn tracked_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = git(root, &["ls-files", "-z"])?;
    let files = listed.split('\0').filter(|file| !file.is_empty()).map(PathBuf::from);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

/// The output of a git command.
fn git(root: &Path, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").current_dir(root).args(args).output().context("could not start git")?;
    anyhow::ensure!(
        output.status.success(),
        "git {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("git printed something that is not UTF-8")
}

/// The text of a file below `root`.
fn read(root: &Path, file: &Path) -> anyhow::Result<String> {
    let path = root.join(file);
    std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
}
