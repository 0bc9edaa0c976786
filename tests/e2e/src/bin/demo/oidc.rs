//! The demo with an identity provider: a browser that it drives, or the user's own.

use std::path::PathBuf;

use anyhow::Context as _;
use pinniped_e2e::walkthrough::{OidcLogin, UserBrowser, Walk};
use pinniped_test_support::browser::{Browser, Programs};
use pinniped_test_support::identity_provider::{Kind, PINNY};

use crate::relay::Relay;

/// The provider and the browser.
pub(crate) struct Params {
    kind: Kind,
    programs: PathBuf,
    browser: Choice,
}

/// The browser of the user.
enum Choice {
    /// A browser that the demo drives.
    Headless(Programs),
    /// The user's own, which reaches the provider and `pinniped` through relays.
    Own { provider: Relay, callback: Relay },
}

impl Params {
    /// Finds the programs of the demo. For the user's own browser, it takes two of the relays.
    pub(crate) fn new(kind: Kind, own_browser: bool, relays: &mut Vec<Relay>) -> anyhow::Result<Self> {
        let programs = kind.programs();
        let programs =
            programs.with_context(|| format!("{} is fetched by `cargo xtask demo`", kind.name()))?;
        let browser = if own_browser {
            let (Some(provider), Some(callback)) = (relays.pop(), relays.pop()) else {
                anyhow::bail!("standard input has no listeners: run `cargo xtask demo`");
            };
            Choice::Own { provider, callback }
        } else {
            Choice::Headless(Programs::find().map_err(|why| {
                anyhow::anyhow!(
                    "{why}; install it, or use your own browser: `cargo xtask demo --with-oidc --keep`"
                )
            })?)
        };
        Ok(Self { kind, programs, browser })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Runs the walk. The result ends the provider and the browser when it is dropped.
    pub(crate) async fn walk(&self, walk: &Walk<'_>) -> anyhow::Result<OidcLogin> {
        let (browser, port) = match &self.browser {
            Choice::Headless(programs) => (UserBrowser::Headless(Browser::start(programs).await?), None),
            Choice::Own { provider, callback } => {
                provider.start()?;
                callback.start()?;
                (UserBrowser::Own { listen_port: callback.port() }, Some(provider.port()))
            }
        };
        walk.everything_with_oidc(self.kind, &self.programs, port, browser, &PINNY).await
    }

    /// Describes how the user's own browser takes part, after the demo.
    pub(crate) fn hint(&self) -> String {
        match &self.browser {
            Choice::Headless(_) => String::new(),
            Choice::Own { .. } => format!(
                "\nThe login is kept in a cache. After `pinniped` has no valid tokens any more, kubectl prints a link: open it in \
                 your browser,\nand log in as {} with password {}.",
                PINNY.name, PINNY.password
            ),
        }
    }
}
