//! The documentation site in a real browser: on a phone and on a large screen, light and dark.
//!
//! Screenshots of some pages are in `screenshots/` of the target folder.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::browser::{Browser, Programs};
use pinniped_test_support::{tools, wait};

use crate::support;

/// Environment variable with the programs that build the site; `cargo xtask test` sets it.
const PROGRAMS: &str = "PINNIPED_SITE_PROGRAMS";

/// The sizes of a page, in CSS pixels.
const SIZES: [(u32, u32); 2] = [(375, 740), (1280, 800)];

/// Pages of which screenshots are saved, from the folder of the site.
const PICTURED: [&str; 3] = ["index.html", "docs/explanation/logins.html", "docs/howto/oidc.html"];

/// The elements that end beyond the page, but for those in an element that scrolls or in a drawing.
const TOO_WIDE: &str = "[...document.querySelectorAll('main *, #mdbook-menu-bar *')].filter(e => { \
    if (e.getBoundingClientRect().right <= innerWidth + 1 || e.closest('svg *')) return false; \
    for (let p = e.parentElement; p && p.tagName !== 'MAIN'; p = p.parentElement) { \
        if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) return false; \
    } \
    return true; \
    }).slice(0, 5).map(e => e.tagName + ' ' + (e.textContent || '').trim().slice(0, 60))";

/// The number of diagrams that have not been drawn. The script draws them after the page is loaded.
const NOT_DRAWN: &str = "[...document.querySelectorAll('.mermaid')] \
    .filter(e => !e.querySelector('svg') || e.textContent.includes('Syntax error')).length";

/// Whether the text of the page is lighter than its background, as in the dark theme.
const IS_DARK: &str = "(() => { \
    const light = color => color.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + +part, 0); \
    const style = getComputedStyle(document.documentElement); \
    return light(style.backgroundColor) < light(style.color); \
    })()";

/// Time limit of a script of the site on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The folder of the built site.
static SITE: OnceLock<PathBuf> = OnceLock::new();

/// The built site and a browser.
struct Reader {
    site: PathBuf,
    browser: Browser,
}

impl Reader {
    /// Builds the site and starts a browser. Returns `None` and records a skip where this machine
    /// cannot do it.
    async fn start(test: &str) -> Option<Self> {
        let programs = Programs::for_test(test)?;
        if std::env::var_os(PROGRAMS).is_none() {
            tools::skip(test, "mdBook is installed by `cargo xtask test`");
            return None;
        }
        // Once for all tests, which would overwrite the pages of each other.
        let site = SITE.get_or_init(|| {
            let printed = support::text(&support::xtask(&["site"]), "cargo xtask site");
            Path::new(printed.lines().last().unwrap()).parent().unwrap().to_owned()
        });
        Some(Self { site: site.clone(), browser: Browser::start(&programs).await.unwrap() })
    }

    /// Returns the pages, from the folder of the site.
    fn pages(&self) -> Vec<PathBuf> {
        let mut pages = Vec::new();
        let mut folders = vec![self.site.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "html") {
                    pages.push(path.strip_prefix(&self.site).unwrap().to_owned());
                }
            }
        }
        // The table of contents, which pages show in a frame where there are no scripts.
        pages.retain(|page| page != Path::new("toc.html"));
        pages.sort();
        pages
    }

    async fn open(&self, page: &Path) -> anyhow::Result<()> {
        self.browser.open(&format!("file://{}", self.site.join(page).display())).await
    }

    /// Waits until the current page has the colors of a scheme.
    async fn has_scheme(&self, dark: bool) -> anyhow::Result<()> {
        let shown = wait::until(TIME_LIMIT, "the colors of the scheme", async || {
            self.browser.evaluate(IS_DARK).await.ok().filter(|is_dark| is_dark == dark)
        });
        shown.await.map(drop)
    }

    /// Returns the problems of the current page, and the number of its diagrams.
    async fn problems(&self, was_opened: bool) -> anyhow::Result<(Vec<String>, u64)> {
        let own: &str = &format!("file://{}/", self.site.display());
        let drawn = wait::until(TIME_LIMIT, "the diagrams", async || {
            self.browser.evaluate(NOT_DRAWN).await.ok().filter(|missing| missing == 0)
        });
        let mut problems = Vec::new();
        if drawn.await.is_err() {
            problems.push("a diagram is not drawn".to_owned());
        }
        let too_wide = self.browser.evaluate(TOO_WIDE).await?;
        let too_wide = too_wide.as_array().context("the script returns no list")?;
        problems.extend(too_wide.iter().map(|element| format!("{element} is too wide")));
        let requested = self.browser.requested().await?;
        // `chrome:` is the first page of the browser itself.
        let is_own =
            |address: &&String| [own, "data:", "chrome:"].iter().any(|start| address.starts_with(*start));
        let loads_style = requested.iter().any(|address| address.ends_with(".css"));
        anyhow::ensure!(loads_style || !was_opened, "{requested:?}");
        problems.extend(
            requested.iter().filter(|one| !is_own(one)).map(|one| format!("{one} is loaded from elsewhere")),
        );
        let diagrams = self.browser.evaluate("document.querySelectorAll('.mermaid svg').length").await?;
        Ok((problems, diagrams.as_u64().unwrap_or_default()))
    }
}

#[tokio::test]
async fn every_page_fits_the_screen_draws_its_diagrams_and_loads_nothing_from_elsewhere() {
    let Some(reader) = Reader::start("the pages of the documentation site").await else { return };
    let pages = reader.pages();
    assert!(pages.len() > 50, "{pages:?}");
    let (mut problems, mut diagrams) = (Vec::new(), 0);
    for (width, height) in SIZES {
        reader.browser.resize(width, height).await.unwrap();
        for page in &pages {
            let mut has_diagrams = false;
            for (scheme, dark) in [("light", false), ("dark", true)] {
                reader.browser.prefer_dark(dark).await.unwrap();
                // An open page changes its colors with the scheme, but draws no diagram again.
                let is_opened = !dark || has_diagrams;
                if is_opened {
                    reader.open(page).await.unwrap();
                }
                reader.has_scheme(dark).await.unwrap();
                let (found, drawn) = reader.problems(is_opened).await.unwrap();
                let form = format!("{} ({width} px, {scheme})", page.display());
                problems.extend(found.into_iter().map(|problem| format!("{form}: {problem}")));
                diagrams += drawn;
                has_diagrams = drawn > 0;
                if PICTURED.iter().any(|pictured| page == Path::new(pictured)) {
                    let name = page.with_extension("").display().to_string().replace('/', "-");
                    reader.browser.screenshot(&format!("site-{name}-{width}-{scheme}")).await.unwrap();
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // The pages have diagrams, so a site that shows their text instead cannot pass.
    assert!(diagrams >= 12, "{diagrams} diagrams in all forms");
}

#[tokio::test]
async fn the_search_finds_a_page() {
    let Some(reader) = Reader::start("the search of the documentation site").await else { return };
    let browser = &reader.browser;
    browser.resize(1280, 800).await.unwrap();
    reader.open(Path::new("index.html")).await.unwrap();
    browser.click("#mdbook-search-toggle").await.unwrap();
    browser.fill("#mdbook-searchbar", "terraform").await.unwrap();
    browser.click("#mdbook-searchresults li a").await.unwrap();
    let found = wait::until(TIME_LIMIT, "the page that was found", async || {
        browser.url().await.ok().filter(|url| url.contains("/docs/howto/terraform.html"))
    });
    found.await.unwrap();
}
