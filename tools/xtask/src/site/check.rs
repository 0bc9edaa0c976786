//! Checks the rendered site: every link leads to a page and a heading that exist, and no page loads
//! scripts, styles, fonts or pictures from another server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use html5gum::{StartTag, Token, Tokenizer};

use super::resolved;

/// A rendered page.
#[derive(Debug, Default)]
struct Page {
    /// The fragments that lead to a place of the page.
    ids: BTreeSet<String>,
    /// The addresses of links.
    links: Vec<String>,
    /// The addresses from which a browser loads scripts, styles and pictures.
    resources: Vec<String>,
}

/// Checks all files below `site`. Returns the problems.
pub(super) fn check(site: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    collect(site, Path::new(""), &mut files)?;
    let mut pages = BTreeMap::new();
    let mut problems = Vec::new();
    for file in &files {
        let end = file.extension().and_then(|end| end.to_str()).unwrap_or_default();
        if end != "html" && end != "css" {
            continue;
        }
        let path = site.join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
        if end == "html" {
            pages.insert(file.clone(), page(&text));
        } else {
            problems.extend(
                loaded_by_style(&text)
                    .map(|address| format!("{}: loads {address} from another server", file.display())),
            );
        }
    }
    let files: BTreeSet<PathBuf> = files.into_iter().collect();
    for (name, page) in &pages {
        problems.extend(problems_of(name, page, &pages, &files));
    }
    Ok(problems)
}

/// Adds all files of a folder to `found`, relative to `site`.
fn collect(site: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let path = site.join(folder);
    let entries = std::fs::read_dir(&path).with_context(|| format!("could not read {}", path.display()))?;
    for entry in entries {
        let entry = entry.context("could not read a folder")?;
        let name = folder.join(entry.file_name());
        if entry.path().is_dir() {
            collect(site, &name, found)?;
        } else {
            found.push(name);
        }
    }
    Ok(())
}

/// Reads a page.
fn page(html: &str) -> Page {
    let mut page = Page::default();
    for Ok(token) in Tokenizer::new(html) {
        let Token::StartTag(tag) = token else { continue };
        page.ids.extend(attribute(&tag, "id"));
        let loads = match &*tag.name.to_vec() {
            b"a" => {
                page.links.extend(attribute(&tag, "href"));
                None
            }
            b"link" => attribute(&tag, "href"),
            b"source" => attribute(&tag, "srcset"),
            b"script" | b"img" | b"iframe" | b"video" | b"audio" | b"embed" => attribute(&tag, "src"),
            b"object" => attribute(&tag, "data"),
            _ => None,
        };
        page.resources.extend(loads);
    }
    page
}

fn attribute(tag: &StartTag<()>, name: &str) -> Option<String> {
    tag.attributes.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
}

/// Returns the addresses of other servers that a style sheet loads.
fn loaded_by_style(css: &str) -> impl Iterator<Item = &str> {
    let after = |mark: &'static str| css.split(mark).skip(1);
    let addresses = after("url(").chain(after("@import"));
    addresses
        .map(|rest| {
            let rest = rest.trim_start_matches(['"', '\'', ' ']);
            &rest[..rest.find(['"', '\'', ')', ';']).unwrap_or(rest.len())]
        })
        .filter(|address| is_external(address))
}

/// Reports whether an address leads to another server.
fn is_external(address: &str) -> bool {
    address.contains("://") || address.starts_with("//") || address.starts_with("mailto:")
}

fn problems_of(
    name: &Path,
    page: &Page,
    pages: &BTreeMap<PathBuf, Page>,
    files: &BTreeSet<PathBuf>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut report = |problem: String| problems.push(format!("{}: {problem}", name.display()));
    for address in &page.resources {
        if is_external(address) {
            report(format!("loads {address} from another server"));
        }
    }
    for address in page.links.iter().chain(&page.resources) {
        if is_external(address) || address.starts_with("data:") {
            continue;
        }
        let (path, fragment) = address.split_once('#').unwrap_or((address, ""));
        let target = if path.is_empty() { Some(name.to_owned()) } else { resolved(name, path) };
        let Some(target) = target.filter(|target| files.contains(target)) else {
            report(format!("the link {address} leads nowhere"));
            continue;
        };
        let has_place = |page: &Page| fragment.is_empty() || page.ids.contains(fragment);
        if !pages.get(&target).is_none_or(has_place) {
            report(format!("the link {address} leads to a page without #{fragment}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a site of two pages.
    fn problems(html: &str) -> Vec<String> {
        let site = tempfile::tempdir().unwrap();
        std::fs::create_dir(site.path().join("docs")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(site.path().join(name), text).unwrap();
        write("docs/page.html", html);
        write("index.html", "<h1 id=top>Start</h1>");
        write("style.css", "a { background: url('picture.svg') }");
        check(site.path()).unwrap()
    }

    #[test]
    fn links_to_pages_and_headings_that_exist_are_no_problem() {
        let html = "<link rel=stylesheet href=../style.css><h2 id=here><a href='#here'>H</a></h2>\
                    <a href='../index.html#top'>a</a><a href='https://example.com/'>b</a>";
        assert_eq!(problems(html), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_problems() {
        for (html, problem) in [
            ("<a href='gone.html'>a</a>", "the link gone.html leads nowhere"),
            ("<a href='../../index.html'>a</a>", "the link ../../index.html leads nowhere"),
            ("<img src='gone.svg'>", "the link gone.svg leads nowhere"),
            ("<a href='#gone'>a</a>", "the link #gone leads to a page without #gone"),
            ("<a href='../index.html#end'>a</a>", "the link ../index.html#end leads to a page without #end"),
        ] {
            assert_eq!(problems(html), [format!("docs/page.html: {problem}")]);
        }
    }

    #[test]
    fn resources_of_other_servers_are_problems() {
        for html in [
            "<script src='https://cdn.example.com/a.js'></script>",
            "<link rel=stylesheet href='//cdn.example.com/a.css'>",
            "<img src='http://example.com/a.png'>",
            "<source srcset='https://example.com/a.svg'>",
        ] {
            let found = problems(html);
            assert!(found.len() == 1 && found[0].contains(" from another server"), "{html}: {found:?}");
        }
        let styles =
            "@import \"https://a.example\"; b { src: url(https://b.example/f.woff2) } c { src: url(f) }";
        let loaded: Vec<_> = loaded_by_style(styles).collect();
        assert_eq!(loaded, ["https://b.example/f.woff2", "https://a.example"]);
    }
}
