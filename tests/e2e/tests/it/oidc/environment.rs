//! The providers, which all tests share, and the parts of a test: a user's home and a browser.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinniped_e2e::environment::Step;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{OidcLogin, UserBrowser, Walk};
use pinniped_test_support::browser::{Browser, LinkFile, Programs};
use pinniped_test_support::identity_provider::{IdentityProvider, Kind};
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::world::World;
use tokio::sync::{OnceCell, RwLockReadGuard};

use crate::installed::{self, InstallationGuard};

/// Time limit until a program opens the browser.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A command that every authenticated user may run, and that consists of one request: with more,
/// kubectl repeats a failed login. The permissions of the group depend on other tests.
pub(super) const DISCOVERY: [&str; 3] = ["get", "--raw", "/api"];

static KEYCLOAK: OnceCell<Result<Arc<IdentityProvider>, String>> = OnceCell::const_new();
static OIDC_PROVIDER: OnceCell<Result<Arc<IdentityProvider>, String>> = OnceCell::const_new();
static AUTHENTICATORS: [OnceCell<Result<(), String>>; 2] = [const { OnceCell::const_new() }; 2];

/// The parts of a test.
pub(super) struct Stage {
    pub(super) installed: InstallationGuard<RwLockReadGuard<'static, ()>>,
    /// A user of the machine with an empty home folder.
    pub(super) walk: Walk<'static>,
    /// The provider, the user's browser, and the links that programs of the user open.
    pub(super) login: OidcLogin,
}

/// Returns the parts of a test, with a JWTAuthenticator for the provider. `home` is unique. Returns
/// `None` and records a skip where this machine cannot run the test.
pub(super) async fn stage(kind: Kind, home: &str, test: &str) -> Option<Stage> {
    let provider = kind.for_test(test)?;
    let browser = Programs::for_test(test)?;
    let world = World::shared().unwrap();
    // The names of providers need the network of the pods.
    world.pods(test)?;
    let (installed, provider) = tokio::join!(installed::shared(test), running(world, kind, &provider));
    let installed = installed?;
    authenticator(world, &provider).await;
    let walk = walk(world).at_home(&format!("home-{home}")).unwrap();
    let links = LinkFile::new(&walk.home().join("links")).unwrap();
    let browser = UserBrowser::Headless(Browser::start(&browser).await.unwrap());
    Some(Stage { installed, walk, login: OidcLogin { provider, browser, links } })
}

fn walk(world: &'static World) -> Walk<'static> {
    Walk::new(world, Narrator::Silent, Instant::now()).unwrap()
}

/// Returns the running provider; the first caller starts it.
async fn running(world: &'static World, kind: Kind, programs: &Path) -> Arc<IdentityProvider> {
    let cell = match kind {
        Kind::Keycloak => &KEYCLOAK,
        Kind::OidcProvider => &OIDC_PROVIDER,
    };
    let started = cell.get_or_init(|| async {
        let started = walk(world).start_identity_provider(kind, programs, None).await;
        started.map(Arc::new).map_err(|error| format!("{error:#}"))
    });
    Arc::clone(started.await.as_ref().unwrap())
}

/// Creates the JWTAuthenticator of the provider; only the first caller does.
async fn authenticator(world: &'static World, provider: &IdentityProvider) {
    let created = AUTHENTICATORS[provider.kind() as usize].get_or_init(|| async {
        walk(world).create_jwt_authenticator(provider).await.map_err(|error| format!("{error:#}"))
    });
    created.await.as_ref().unwrap();
}

impl Stage {
    /// The browser of the user.
    pub(super) fn browser(&self) -> &Browser {
        match &self.login.browser {
            UserBrowser::Headless(browser) => browser,
            UserBrowser::Own { .. } => panic!("tests have a browser of their own"),
        }
    }

    /// Runs a command of the user that opens a link, while `person` uses the browser that shows it.
    pub(super) async fn run_with(
        &self,
        command: Step,
        person: impl AsyncFnOnce(&Browser) -> anyhow::Result<()>,
    ) -> CommandOutput {
        let before = self.login.links.links().unwrap().len();
        let browser = self.browser();
        let command = command.run(None);
        tokio::pin!(command);
        let link = tokio::select! {
            link = self.login.links.link(before, TIME_LIMIT) => link.unwrap(),
            output = &mut command => panic!("the command opened no link: {output:?}"),
        };
        let person = async {
            browser.open(&link).await?;
            person(browser).await
        };
        let (person, output) = tokio::join!(person, command);
        let output = output.unwrap();
        if let Err(error) = person {
            let page = browser.describe().await;
            panic!("{error:#}\n{page}\n{output:?}\n{}", self.login.provider.log_tail(10));
        }
        output
    }

    /// Saves screenshots of the page in both color schemes.
    pub(super) async fn screenshots(&self, name: &str) -> anyhow::Result<()> {
        for (dark, scheme) in [(false, "light"), (true, "dark")] {
            self.browser().prefer_dark(dark).await?;
            self.browser().screenshot(&format!("{name}-{scheme}")).await?;
        }
        Ok(())
    }
}
