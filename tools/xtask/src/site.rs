//! `cargo xtask site`: builds the documentation site with mdBook, and checks it.
//!
//! | module | purpose |
//! |---|---|
//! | [`links`] | adapts the links of a page to its place in the site |
//! | [`check`] | checks the rendered pages: links, fragments, and that no page loads anything from another server |
//! | [`programs`] | finds or installs mdBook and its preprocessor for diagrams |
//!
//! mdBook renders a copy of the pages, because it copies every file of its source folder to the
//! site, and refuses links that leave that folder. The copy has the layout of the repository:
//! `docs/`, and the pages of the top folder. `docs/SUMMARY.md` is the table of contents, and
//! `docs/book.toml` the configuration.

mod check;
mod links;
mod programs;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::{cargo, control_plane, tidy};

/// Flags of `site`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do not access the network, and report missing programs.
    #[arg(long)]
    offline: bool,
}

/// Environment variable with the folder of the programs that build the site, for tests.
pub(crate) const ENV: &str = "PINNIPED_SITE_PROGRAMS";

/// The table of contents, from the root of the repository.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The size of the largest picture.
const MAX_PICTURE_BYTES: u64 = 60_000;
/// The configuration of mdBook and the style sheet that it names, in `docs/`.
const CONFIGURATION: [&str; 2] = ["book.toml", "site.css"];

/// Finds or installs the programs that build the site, and returns their folder.
pub(crate) fn install(offline: bool) -> anyhow::Result<PathBuf> {
    programs::find_or_install(offline).map(|programs| programs.folder().to_owned())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let programs = programs::find_or_install(args.offline)?;
    let root = cargo::root();
    let site = cargo::target_dir()?.join("site");
    let (source, html) = (site.join("source"), site.join("html"));
    for dir in [&source, &html] {
        if dir.exists() {
            std::fs::remove_dir_all(dir).with_context(|| format!("could not remove {}", dir.display()))?;
        }
    }
    let files = tidy::tracked_files(&root)?;
    let mut problems = copy_pages(&root, &files, &source)?;
    // Writes the script that draws the diagrams into the folder.
    let mut install = programs.command("mdbook-mermaid");
    control_plane::succeed(install.arg("install").arg(&source), "mdbook-mermaid install")?;
    let mut build = programs.command("mdbook");
    build.arg("build").arg("--dest-dir").arg(&html).arg(&source);
    control_plane::succeed(&mut build, "mdbook build")?;
    problems.extend(check::check(&html)?);
    for problem in &problems {
        println!("{problem}");
    }
    anyhow::ensure!(problems.is_empty(), "the site has {} problems", problems.len());
    println!("{}", html.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Copies the pages and their pictures, with links for the site. Returns pages that the table of
/// contents does not have, and pictures that are too large.
fn copy_pages(root: &Path, files: &[PathBuf], source: &Path) -> anyhow::Result<Vec<String>> {
    let pages: BTreeSet<PathBuf> = files.iter().filter(|file| is_in_site(file)).cloned().collect();
    let tree = links::Tree { files: files.iter().cloned().collect(), in_site: pages.clone() };
    let read = |file: &Path| {
        let path = root.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))
    };
    let summary = read(Path::new(SUMMARY))?;
    write(
        &source.join("src/SUMMARY.md"),
        &links::moved(&summary, Path::new(SUMMARY), Path::new("SUMMARY.md"), &tree),
    )?;
    for name in CONFIGURATION {
        write(&source.join(name), &read(&Path::new("docs").join(name))?)?;
    }
    let listed = links::targets(&summary, Path::new(SUMMARY));
    let mut problems = Vec::new();
    for file in &pages {
        let place = links::place(file);
        let to = source.join("src").join(&place);
        if file.extension().is_some_and(|end| end == "md") {
            write(&to, &links::moved(&read(file)?, file, &place, &tree))?;
            if !listed.contains(file) {
                problems.push(format!("{}: {SUMMARY} does not list this page", file.display()));
            }
        } else {
            create_parent(&to)?;
            let size = std::fs::copy(root.join(file), &to)
                .with_context(|| format!("could not copy {}", file.display()))?;
            if size > MAX_PICTURE_BYTES {
                problems.push(format!(
                    "{}: {size} bytes, more than {MAX_PICTURE_BYTES}: compress it, see CONTRIBUTING.md",
                    file.display()
                ));
            }
        }
    }
    Ok(problems)
}

/// Reports whether a file of the repository is a page or a picture of the site.
fn is_in_site(file: &Path) -> bool {
    let is_page = file.extension().is_some_and(|end| end == "md");
    let is_at_top = file.components().count() == 1;
    let is_picture = file.extension().is_some_and(|end| end == "svg" || end == "png");
    file != Path::new(SUMMARY)
        && ((is_page && is_at_top) || (file.starts_with("docs") && (is_page || is_picture)))
}

/// Returns the file to which a relative link of a page leads, relative to the root of the page's
/// path.
fn resolved(page: &Path, link: &str) -> Option<PathBuf> {
    let mut target = page.parent()?.to_owned();
    for component in Path::new(link).components() {
        match component {
            Component::ParentDir if target.pop() => {}
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(target)
}

fn write(to: &Path, text: &str) -> anyhow::Result<()> {
    create_parent(to)?;
    std::fs::write(to, text).with_context(|| format!("could not write {}", to.display()))
}

fn create_parent(file: &Path) -> anyhow::Result<()> {
    let parent = file.parent().context("a file has no folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("could not create {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_has_the_pages_of_the_top_folder_and_of_docs() {
        for (file, expected) in [
            ("README.md", true),
            ("docs/howto/oidc.md", true),
            ("docs/pictures/overview.svg", true),
            ("docs/pictures/keycloak-login.png", true),
            ("docs/SUMMARY.md", false),
            ("docs/book.toml", false),
            ("deploy/chart/README.md", false),
            ("Cargo.toml", false),
        ] {
            assert_eq!(is_in_site(Path::new(file)), expected, "{file}");
        }
    }
}
