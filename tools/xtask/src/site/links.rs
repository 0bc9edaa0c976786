//! The links of a page: to other pages of the site, and to files that only the repository has.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};

use super::resolved;

/// The address of files on the main branch of the repository.
const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main");
/// The address of folders on the main branch of the repository.
const FOLDERS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/tree/main");

/// The files of the repository, relative to its root.
pub(super) struct Tree {
    /// All files.
    pub(super) files: BTreeSet<PathBuf>,
    /// The files that are copied to the site.
    pub(super) in_site: BTreeSet<PathBuf>,
}

/// Returns the place of a file of the repository in the site. A page README.md is the index of its
/// folder.
pub(super) fn place(file: &Path) -> PathBuf {
    if file.ends_with("README.md") { file.with_file_name("index.md") } else { file.to_owned() }
}

/// Returns the text of the page `from` for the place `to` in the site: relative links lead from
/// there to the same pages, and links to files that the site does not have lead to the repository.
/// A link that leads nowhere stays as it is, and the check of the site reports it.
pub(super) fn moved(text: &str, from: &Path, to: &Path, tree: &Tree) -> String {
    let mut result = String::with_capacity(text.len());
    let mut end = 0;
    for (range, link) in links(text) {
        let (path, fragment) = split(link);
        let Some(target) = target(from, path) else { continue };
        let new = if tree.in_site.contains(&target) {
            relative(to, &place(&target))
        } else if tree.files.contains(&target) {
            format!("{FILES}/{}", target.display())
        } else if tree.files.range(target.clone()..).next().is_some_and(|file| file.starts_with(&target)) {
            format!("{FOLDERS}/{}", target.display())
        } else {
            continue;
        };
        result.push_str(&text[end..range.start]);
        result.push_str(&new);
        result.push_str(fragment);
        end = range.end;
    }
    result.push_str(&text[end..]);
    result
}

/// Returns the files to which a page links.
pub(super) fn targets(text: &str, page: &Path) -> BTreeSet<PathBuf> {
    links(text).into_iter().filter_map(|(_, link)| target(page, split(link).0)).collect()
}

/// Returns the addresses of the links and pictures of a page, with their places in its text.
fn links(text: &str) -> Vec<(Range<usize>, &str)> {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES);
    let mut found = Vec::new();
    for (event, range) in parser.into_offset_iter() {
        let (Event::Start(Tag::Link { link_type: LinkType::Inline, dest_url, .. })
        | Event::Start(Tag::Image { link_type: LinkType::Inline, dest_url, .. })) = event
        else {
            continue;
        };
        // The address is the last part of a link. A picture inside a link comes after its link, but
        // has its place before the address of the link.
        let whole = &text[range.clone()];
        if let Some(offset) = whole.rfind(&*dest_url) {
            let start = range.start + offset;
            found.push((start..start + dest_url.len(), &text[start..start + dest_url.len()]));
        }
    }
    found.sort_by_key(|(range, _)| range.start);
    found
}

/// Splits a link into its path and its fragment, which begins with `#`.
fn split(link: &str) -> (&str, &str) {
    link.split_at(link.find('#').unwrap_or(link.len()))
}

/// Returns the file of the repository that a relative link names; none for other links.
fn target(page: &Path, link: &str) -> Option<PathBuf> {
    let is_relative = !link.is_empty() && !link.contains(':') && !link.starts_with('/');
    is_relative.then(|| resolved(page, link)).flatten()
}

/// Returns the relative link from a page to a file.
fn relative(page: &Path, target: &Path) -> String {
    let folder: Vec<_> = page.parent().into_iter().flat_map(Path::components).collect();
    let parts: Vec<_> = target.components().collect();
    let common = folder.iter().zip(&parts).take_while(|(a, b)| a == b).count();
    let up = folder[common..].iter().map(|_| "..".to_owned());
    let down = parts[common..].iter().map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let in_site = ["README.md", "docs/howto/a.md", "docs/reference/b.md", "docs/picture.svg"];
        let all = [&in_site[..], &["crates/x/src/lib.rs"]].concat();
        Tree { files: paths(&all), in_site: paths(&in_site) }
    }

    fn in_place(text: &str, page: &str) -> String {
        moved(text, Path::new(page), &place(Path::new(page)), &tree())
    }

    #[test]
    fn links_between_pages_of_the_site_stay_as_they_are() {
        for text in [
            "[a](../reference/b.md#part) and [picture](../picture.svg)\n",
            "[part](#part), [site](https://example.com/a.md), <https://example.com>\n",
            "`[a](../../crates/x/src/lib.rs)`\n\n```text\n[a](../../crates/x/src/lib.rs)\n```\n",
            "[nowhere](missing.md)\n",
        ] {
            assert_eq!(in_place(text, "docs/howto/a.md"), text);
        }
    }

    #[test]
    fn files_and_folders_that_only_the_repository_has_are_linked_there() {
        assert_eq!(
            in_place("[lib](../../crates/x/src/lib.rs#L1) [x](../../crates/x)\n", "docs/howto/a.md"),
            format!("[lib]({FILES}/crates/x/src/lib.rs#L1) [x]({FOLDERS}/crates/x)\n")
        );
    }

    #[test]
    fn the_links_of_a_page_that_moves_are_adapted() {
        let summary = "- [A](howto/a.md)\n- [R](../README.md)\n";
        let at = moved(summary, Path::new("docs/SUMMARY.md"), Path::new("SUMMARY.md"), &tree());
        assert_eq!(at, "- [A](docs/howto/a.md)\n- [R](index.md)\n");
        let targets = targets(summary, Path::new("docs/SUMMARY.md"));
        assert_eq!(targets, [PathBuf::from("README.md"), PathBuf::from("docs/howto/a.md")].into());
    }

    #[test]
    fn a_readme_is_the_index_of_its_folder() {
        assert_eq!(
            in_place("[R](../../README.md#try-it)\n", "docs/howto/a.md"),
            "[R](../../index.md#try-it)\n"
        );
        assert_eq!(in_place("[A](docs/howto/a.md)\n", "README.md"), "[A](docs/howto/a.md)\n");
    }

    #[test]
    fn a_picture_in_a_link_and_a_link_in_a_table_are_found() {
        let text = "[![a](../picture.svg)](../../crates/x)\n\n| a |\n|---|\n| [x](../../crates/x) |\n";
        assert_eq!(
            in_place(text, "docs/howto/a.md"),
            format!(
                "[![a](../picture.svg)]({FOLDERS}/crates/x)\n\n| a |\n|---|\n| [x]({FOLDERS}/crates/x) |\n"
            )
        );
    }
}
