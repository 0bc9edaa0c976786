//! A headless Chromium, driven by ChromeDriver with the WebDriver protocol of W3C.
//!
//! The protocol is JSON over HTTP on loopback, and tests need a dozen of its commands, so
//! `web_driver` implements them: the crates for it bring a second major version of `http`, or a
//! second HTTP client with a TLS stack of its own.
//!
//! Loopback is enough: a browser runs in the network namespace of its test, with a new and empty
//! profile. It accepts every certificate, because the certificates of test providers have their own
//! authorities, and the browser is not what the tests verify.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::control_plane::{free_port, tail};
use crate::guardian::{Ending, Guardian};
use crate::{tools, wait};
use web_driver::WebDriver;

mod link_file;
mod web_driver;

pub use link_file::LinkFile;

/// Environment variable with the reason why this machine has no browser. With it, tests with a
/// browser are skipped even if everything else is required.
const MISSING_ENV: &str = "PINNIPED_NO_BROWSER";
const DRIVER: &str = "chromedriver";
/// The programs of a browser, most common first.
const BROWSERS: [&str; 3] = ["chromium", "google-chrome", "chromium-browser"];
/// No sandbox, because it needs namespaces below those of the test. No work in the background,
/// which has no network.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];
/// The size of the page, in CSS pixels.
const SIZE: (u32, u32) = (1000, 760);
/// Time limit of a step on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The browser and its driver on this machine.
#[derive(Clone, Debug)]
pub struct Programs {
    driver: PathBuf,
    browser: PathBuf,
}

impl Programs {
    /// Finds both programs in `PATH`.
    ///
    /// # Errors
    /// Returns the reason why there is none, for messages.
    pub fn find() -> Result<Self, String> {
        let driver = tools::in_path(DRIVER)
            .ok_or_else(|| format!("the program {DRIVER} is not in PATH (package chromium-driver)"))?;
        // Ubuntu has a script of this name that only asks to install a snap.
        let runs = |file: &PathBuf| {
            Command::new(file).arg("--version").output().is_ok_and(|output| output.status.success())
        };
        let browser = BROWSERS.iter().filter_map(|name| tools::in_path(name)).find(runs);
        let browser = browser.ok_or("no browser is in PATH (package chromium)")?;
        Ok(Self { driver, browser })
    }

    /// Finds both programs for a test. Returns `None` and records a skip where there is none.
    #[must_use]
    pub fn for_test(test: &str) -> Option<Self> {
        if let Some(why) = std::env::var(MISSING_ENV).ok().filter(|why| !why.is_empty()) {
            tools::permitted_skip(test, &why);
            return None;
        }
        Self::find().inspect_err(|why| tools::skip(test, why)).ok()
    }
}

/// A running browser with one tab. Dropping it terminates the browser and removes its profile.
#[derive(Debug)]
pub struct Browser {
    driver: WebDriver,
    _guardian: Guardian,
}

impl Browser {
    /// Starts a browser with an empty profile.
    ///
    /// # Errors
    /// Returns an error with the end of the driver's log when it does not start.
    pub async fn start(programs: &Programs) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("pinniped-browser-").tempdir();
        let dir = dir.context("could not create a folder for the browser")?.keep();
        let guardian = Guardian::start(Some(&dir))?;
        let log = dir.join("driver.log");
        let port = free_port()?;
        let mut command = Command::new(&programs.driver);
        // The browser and its helpers write to the home folder.
        command.args([format!("--port={port}"), "--log-level=WARNING".to_owned()]).env("HOME", &dir);
        command.env("XDG_CONFIG_HOME", dir.join("config")).env("XDG_CACHE_HOME", dir.join("cache"));
        guardian.spawn(&command, Ending::Kill, &log)?;
        let started = Self::new_session(port, &programs.browser, &dir.join("profile")).await;
        let driver =
            started.map_err(|error| error.context(format!("the driver's log ends:\n{}", tail(&log, 15))))?;
        let this = Self { driver, _guardian: guardian };
        this.resize(SIZE.0, SIZE.1).await?;
        Ok(this)
    }

    async fn new_session(port: u16, browser: &Path, profile: &Path) -> anyhow::Result<WebDriver> {
        wait::until_ok(TIME_LIMIT, "the browser's driver to listen", async || WebDriver::status(port).await)
            .await?;
        let mut args: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        args.push(format!("--user-data-dir={}", profile.display()));
        let capabilities = json!({"browserName": "chrome", "acceptInsecureCerts": true,
            "goog:loggingPrefs": {"performance": "ALL"}, "goog:chromeOptions": {"binary": browser, "args": args}});
        WebDriver::new_session(port, &capabilities).await
    }

    /// Loads a page and waits until it is complete. A page that takes 30 s to load is an error.
    ///
    /// # Errors
    /// Returns an error when the page cannot be loaded.
    pub async fn open(&self, url: &str) -> anyhow::Result<()> {
        self.driver.post("url", &json!({"url": url})).await.map(drop)
    }

    /// Returns the address of the page.
    ///
    /// # Errors
    /// Returns an error when the browser has ended.
    pub async fn url(&self) -> anyhow::Result<String> {
        self.driver.text("url").await
    }

    /// Returns the title of the page.
    ///
    /// # Errors
    /// Returns an error when the browser has ended.
    pub async fn title(&self) -> anyhow::Result<String> {
        self.driver.text("title").await
    }

    /// Returns the visible text of the page.
    ///
    /// # Errors
    /// Returns an error when the page has no body.
    pub async fn text(&self) -> anyhow::Result<String> {
        self.text_of("body").await
    }

    /// Returns the visible text of the first element that a CSS selector selects.
    ///
    /// # Errors
    /// Returns an error when there is no such element in time.
    pub async fn text_of(&self, selector: &str) -> anyhow::Result<String> {
        self.with_element(selector, async |element| {
            self.driver.text(&format!("element/{element}/text")).await
        })
        .await
    }

    /// Types text into a field, in place of its content.
    ///
    /// # Errors
    /// Returns an error when there is no such field in time.
    pub async fn fill(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        self.with_element(selector, async |element| {
            self.driver.post(&format!("element/{element}/clear"), &json!({})).await?;
            self.driver.post(&format!("element/{element}/value"), &json!({"text": text})).await.map(drop)
        })
        .await
    }

    /// Clicks an element.
    ///
    /// # Errors
    /// Returns an error when there is no such element in time.
    pub async fn click(&self, selector: &str) -> anyhow::Result<()> {
        self.with_element(selector, async |element| {
            self.driver.post(&format!("element/{element}/click"), &json!({})).await.map(drop)
        })
        .await
    }

    /// Returns the value of a JavaScript expression, evaluated in the page.
    ///
    /// # Errors
    /// Returns an error when the evaluation fails.
    pub async fn evaluate(&self, expression: &str) -> anyhow::Result<Value> {
        let script = json!({"script": format!("return {expression}"), "args": []});
        self.driver.post("execute/sync", &script).await
    }

    /// Returns the addresses that the pages have requested since the last call, files included.
    ///
    /// # Errors
    /// Returns an error when the browser has ended.
    pub async fn requested(&self) -> anyhow::Result<Vec<String>> {
        let entries = self.driver.post("se/log", &json!({"type": "performance"})).await?;
        let mut addresses = Vec::new();
        for entry in entries.as_array().context("the log is not a list")? {
            let text = entry["message"].as_str().context("an entry of the log has no message")?;
            let event: Value = serde_json::from_str(text).context("an entry of the log is not JSON")?;
            let event = &event["message"];
            if event["method"] == "Network.requestWillBeSent"
                && let Some(address) = event["params"]["request"]["url"].as_str()
            {
                addresses.push(address.to_owned());
            }
        }
        Ok(addresses)
    }

    /// Selects the color scheme that the page gets as the preference of the user.
    ///
    /// # Errors
    /// Returns an error when the browser has ended.
    pub async fn prefer_dark(&self, dark: bool) -> anyhow::Result<()> {
        let value = if dark { "dark" } else { "light" };
        let params = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        // WebDriver has no command for it; DevTools has.
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": params});
        self.driver.post("goog/cdp/execute", &command).await.map(drop)
    }

    /// Changes the size of the page, in CSS pixels. It may be narrower than a window can be.
    ///
    /// # Errors
    /// Returns an error when the browser has ended.
    pub async fn resize(&self, width: u32, height: u32) -> anyhow::Result<()> {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        // The command of WebDriver sets the size of the window, which has a least width.
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": params});
        self.driver.post("goog/cdp/execute", &command).await.map(drop)
    }

    /// Saves a screenshot of the window as `screenshots/NAME.png` in the target folder, and returns
    /// its path.
    ///
    /// # Errors
    /// Returns an error when the file cannot be written.
    pub async fn screenshot(&self, name: &str) -> anyhow::Result<PathBuf> {
        let image = STANDARD.decode(self.driver.text("screenshot").await?).context("not a screenshot")?;
        let bins = tools::bin_dir()?;
        let folder = bins.parent().unwrap_or(&bins).join("screenshots");
        std::fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
        let file = folder.join(format!("{name}.png"));
        std::fs::write(&file, image).with_context(|| format!("could not write {}", file.display()))?;
        Ok(file)
    }

    /// Describes the page for messages: address, title and visible text.
    pub async fn describe(&self) -> String {
        let mut description = String::new();
        for (name, text) in
            [("address", self.url().await), ("title", self.title().await), ("text", self.text().await)]
        {
            let text = text.unwrap_or_else(|error| format!("{error:#}"));
            // Writing to a String cannot fail.
            let _ = writeln!(description, "{name}: {text}");
        }
        description
    }

    /// Finds an element and uses it, again if the page changes in between.
    async fn with_element<T>(
        &self,
        selector: &str,
        mut use_it: impl AsyncFnMut(String) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        wait::until_ok(TIME_LIMIT, format!("the element {selector}"), async || {
            let found = self.driver.post("element", &css(selector)).await?;
            let id = found.as_object().and_then(|map| map.values().next()).and_then(Value::as_str);
            use_it(id.context("the element has no id")?.to_owned()).await
        })
        .await
    }
}

fn css(selector: &str) -> Value {
    json!({"using": "css selector", "value": selector})
}
