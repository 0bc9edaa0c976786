//! A login with OIDC: a real identity provider, a JWTAuthenticator, and the user's browser.
//!
//! The provider has a host name below `.localhost`, which browsers resolve to the loopback
//! interface without configuration, and a listener for all addresses of the world, because pods
//! reach it at the node's address.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_test_support::browser::{Browser, LinkFile};
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::identity_provider::{CLIENT_ID, Endpoint, IdentityProvider, Kind, User};
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::pods::NODE_IP;

use super::{TIME_LIMIT, TIMEOUT_FLAG, Walk};
use crate::environment::Step;
use crate::narrator::Show;

/// The time that a person has to log in.
const PATIENCE: Duration = Duration::from_secs(600);
/// The command that needs a login.
const LISTING: [&str; 3] = ["get", "pods", "-A"];

/// The browser of the user.
#[derive(Debug)]
pub enum UserBrowser {
    /// A browser that the walk drives.
    Headless(Browser),
    /// The browser of the person who runs the demo, who opens the link that is printed. The port of
    /// the loopback interface, on which `pinniped` waits for the browser, is fixed.
    Own {
        /// The port.
        listen_port: u16,
    },
}

/// The parts of a login.
#[derive(Debug)]
pub struct OidcLogin {
    /// The provider.
    pub provider: Arc<IdentityProvider>,
    /// The browser of the user.
    pub browser: UserBrowser,
    /// The links that `pinniped` opens.
    pub links: LinkFile,
}

impl OidcLogin {
    /// The name of the JWTAuthenticator.
    #[must_use]
    pub fn authenticator(&self) -> &'static str {
        self.provider.kind().name()
    }
}

impl Walk<'_> {
    /// Starts a provider and waits until it serves. `port` selects its port.
    ///
    /// # Errors
    /// Returns an error when it does not start, or when its name cannot be set.
    pub async fn start_identity_provider(
        &self,
        kind: Kind,
        programs: &Path,
        port: Option<u16>,
    ) -> anyhow::Result<IdentityProvider> {
        self.heading(&format!("Start {}: a client, a group and two users", kind.name()));
        let host = format!("{}.localhost", kind.name());
        self.environment.set_host(&host, IpAddr::V4(NODE_IP))?;
        let port = port.map_or_else(free_port, Ok)?;
        let endpoint = Endpoint { host, listen: Ipv4Addr::UNSPECIFIED.into(), port };
        let provider = IdentityProvider::start(kind, programs, endpoint).await?;
        self.narrator.print(&format!("issuer: {}", provider.issuer()));
        Ok(provider)
    }

    /// Creates a JWTAuthenticator for the provider, with a rule for its claims, and waits until it
    /// is ready.
    ///
    /// # Errors
    /// Returns an error when it does not become ready.
    pub async fn create_jwt_authenticator(&self, provider: &IdentityProvider) -> anyhow::Result<()> {
        self.heading("Configure the issuer whose tokens are accepted");
        let name = provider.kind().name();
        let object = format!(
            "apiVersion: authentication.concierge.pinniped.dev/v1alpha1\nkind: JWTAuthenticator\n\
             metadata:\n  name: {name}\nspec:\n  issuer: {}\n  audience: {CLIENT_ID}\n  claims:\n    \
             username: {}\n    groups: groups\n  claimValidationRules:\n  - expression: claims.email_verified == true\n    \
             message: the email address must be verified\n  tls:\n    certificateAuthorityData: {}\n",
            provider.issuer(),
            provider.username_claim(),
            STANDARD.encode(provider.ca_pem()),
        );
        self.kubectl(&["apply", "-f", "-"], Some(&object), Show::Output).await?;
        let object = format!("{}/{name}", self.kind("jwtauthenticator"));
        let args = ["wait", &object, "--for=jsonpath={.status.phase}=Ready", TIMEOUT_FLAG];
        let ready = self.kubectl(&args, None, Show::Output).await;
        if let Err(error) = ready {
            let status = self.admin_step(&["get", &object, "-o", "jsonpath={.status}"]).run(None).await?;
            return Err(error.context(status.stdout));
        }
        self.kubectl(&["get", &self.kind("jwtauthenticator")], None, Show::Output).await?;
        Ok(())
    }

    /// The path of the kubeconfig for logins at a provider.
    #[must_use]
    pub fn oidc_kubeconfig(&self, kind: Kind) -> PathBuf {
        self.home.join(kubeconfig_file(kind))
    }

    /// Writes the kubeconfig for logins at a provider, with more flags.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn write_oidc_kubeconfig(
        &self,
        provider: &IdentityProvider,
        more: &[&str],
    ) -> anyhow::Result<CommandOutput> {
        self.heading("Create a kubeconfig: the same for every user");
        let args = [
            "get",
            "kubeconfig",
            "--concierge-authenticator-type",
            "jwt",
            "--concierge-authenticator-name",
            provider.kind().name(),
            "--concierge-mode",
            "ImpersonationProxy",
        ];
        // The claim `email` of this provider has a scope that is not one of the default scopes.
        let scopes: &[&str] = match provider.kind() {
            Kind::Keycloak => &[],
            Kind::OidcProvider => &["--oidc-scopes", provider.scopes()],
        };
        let step = self.pinniped(&[&args[..], scopes, more].concat(), &self.environment.admin_kubeconfig());
        let file = kubeconfig_file(provider.kind());
        let output = self.narrator.run(step, None, Show::RedirectedTo(file)).await?.success()?;
        std::fs::write(self.home.join(file), &output.stdout).context("could not write the kubeconfig")?;
        Ok(output)
    }

    /// Returns the user's kubectl, whose login opens links in [`OidcLogin::links`].
    #[must_use]
    pub fn oidc_kubectl(&self, login: &OidcLogin, args: &[&str]) -> Step {
        Step::inside(self.environment, self.oidc_kubectl_command(login, args)).within(PATIENCE)
    }

    /// Returns the same as a command, to be started in the background.
    #[must_use]
    pub fn oidc_kubectl_command(&self, login: &OidcLogin, args: &[&str]) -> Command {
        let mut command = self.admin().command(args);
        command.arg("--kubeconfig").arg(self.oidc_kubeconfig(login.provider.kind()));
        self.settled(self.with_links(login, command))
    }

    /// Returns a command whose programs find the one that writes links to a file.
    fn with_links(&self, login: &OidcLogin, mut command: Command) -> Command {
        let mut path = vec![login.links.bin()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
        // The link is opened here, whatever terminal the walk runs in.
        command.env_remove("SSH_CONNECTION");
        command
    }

    /// Runs the user's first command and logs in meanwhile: the API server authenticates the user,
    /// who has no permission yet.
    ///
    /// # Errors
    /// Returns an error when the login fails, or when the user is not refused by name.
    pub async fn log_in(&self, login: &OidcLogin, user: &User) -> anyhow::Result<CommandOutput> {
        self.heading("The first command opens the browser");
        let before = login.links.links()?.len();
        let step = self.oidc_kubectl(login, &LISTING);
        self.narrator.show_command(step.shown());
        let browser = async {
            let link = login.links.link(before, TIME_LIMIT).await?;
            self.use_browser(login, user, &link).await
        };
        let (output, browser) = tokio::join!(step.run(None), browser);
        let output = output?;
        self.narrator.show(&output, Show::Output);
        browser.with_context(|| format!("kubectl printed: {}{}", output.stdout, output.stderr))?;
        let refused = format!("User \"{}\" cannot list resource \"pods\"", user.name);
        anyhow::ensure!(
            output.code == 1 && output.stderr.contains(&refused),
            "the user should have been logged in and refused, but kubectl printed: {}{}",
            output.stdout,
            output.stderr
        );
        Ok(output)
    }

    async fn use_browser(&self, login: &OidcLogin, user: &User, link: &str) -> anyhow::Result<()> {
        match &login.browser {
            UserBrowser::Headless(browser) => {
                browser.open(link).await?;
                self.narrator.print(&format!("(the browser shows {:?})", browser.title().await?));
                self.narrator.print(&format!("(it logs in as {} with a password)", user.name));
                login.provider.log_in(browser, user).await?;
                let text = browser.text().await?;
                self.narrator.print(&format!("(the browser shows {:?})", text.lines().next().unwrap_or_default()));
            }
            UserBrowser::Own { .. } => self.narrator.print(&format!(
                "Open this link in your browser, accept the certificate of the demo's provider, and log in as {} \
                 with password {}:\n\n   {link}\n",
                user.name, user.password
            )),
        }
        Ok(())
    }

    /// Grants permissions to the group of the user, and repeats the command, which needs no login.
    ///
    /// # Errors
    /// Returns an error when the command does not succeed in time, or when it needs another login.
    pub async fn allow_group_and_list(
        &self,
        login: &OidcLogin,
        user: &User,
    ) -> anyhow::Result<CommandOutput> {
        self.heading("An administrator grants permissions to the group of the provider");
        let group = format!("--group={}", user.group);
        let binding = format!("{}-{}", login.authenticator(), user.group);
        let args = ["create", "clusterrolebinding", &binding, "--clusterrole=view", &group];
        self.kubectl(&args, None, Show::Output).await?;
        self.narrator.print("(a denial is cached for up to 10 seconds)");
        let logins = login.links.links()?.len();
        let step = || self.oidc_kubectl(login, &LISTING);
        let fits = |output: &CommandOutput| output.code == 0;
        let output = self.narrator.run_until(Duration::from_secs(30), step, Show::Output, fits).await?;
        anyhow::ensure!(login.links.links()?.len() == logins, "the user had to log in again");
        Ok(output)
    }

    /// Runs `pinniped whoami` as the user.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn whoami_with_oidc(&self, login: &OidcLogin) -> anyhow::Result<CommandOutput> {
        self.heading("Who am I?");
        let kubeconfig = self.oidc_kubeconfig(login.provider.kind());
        let command = self.with_links(login, self.pinniped_command(&["whoami"], &kubeconfig));
        self.narrator.run(self.settle(command), None, Show::Output).await?.success()
    }

    /// Runs all steps in a process world, in order, and returns the provider and the browser, which
    /// end when the value is dropped.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn everything_with_oidc(
        &self,
        kind: Kind,
        programs: &Path,
        port: Option<u16>,
        browser: UserBrowser,
        user: &User,
    ) -> anyhow::Result<OidcLogin> {
        self.install().await?;
        self.show_credential_issuer().await?;
        self.create_workload().await?;
        self.enable_proxy(&super::Serving::Generated).await?;
        let provider = Arc::new(self.start_identity_provider(kind, programs, port).await?);
        let links = LinkFile::new(&self.environment.dir().join("links"))?;
        let login = OidcLogin { provider, browser, links };
        self.create_jwt_authenticator(&login.provider).await?;
        let fixed = match login.browser {
            UserBrowser::Headless(_) => None,
            UserBrowser::Own { listen_port } => Some(listen_port.to_string()),
        };
        let more: Vec<&str> = fixed.iter().flat_map(|port| ["--oidc-listen-port", port]).collect();
        self.write_oidc_kubeconfig(&login.provider, &more).await?;
        self.log_in(&login, user).await?;
        self.allow_group_and_list(&login, user).await?;
        self.whoami_with_oidc(&login).await?;
        Ok(login)
    }
}

fn kubeconfig_file(kind: Kind) -> &'static str {
    match kind {
        Kind::Keycloak => "keycloak-kubeconfig.yaml",
        Kind::OidcProvider => "oidc-provider-kubeconfig.yaml",
    }
}
