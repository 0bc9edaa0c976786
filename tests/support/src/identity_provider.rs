//! Real identity providers on loopback: Keycloak, and the npm package `oidc-provider`.
//!
//! ```text
//! keycloak.rs        the most used provider, with passwords; tools/third-party/keycloak
//! oidc_provider.rs   a certified provider with consent pages; tools/third-party/oidc-provider
//! ```
//!
//! Both have the same users ([`PINNY`], [`RYAN`]) and the same public client ([`CLIENT_ID`]), serve
//! TLS with a certificate of their own authority, and know the authorization code flow with PKCE,
//! the device flow, refresh tokens, and a claim `groups`. A person logs in on their own pages:
//! [`IdentityProvider::log_in`] does it in a [`Browser`].

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::Request;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::certs::Authority;
use crate::control_plane::{free_port, tail};
use crate::exchange::exchange;
use crate::guardian::{Ending, Guardian, Process};
use crate::{tools, wait};

mod keycloak;
mod oidc_provider;

/// The client of the command line. Tokens for it are what the JWTAuthenticator accepts.
pub const CLIENT_ID: &str = "pinniped-cli";
/// Time limit until a provider is ready. Keycloak takes ten seconds on an idle machine.
const READY_WITHIN: Duration = Duration::from_secs(240);

/// A user of both providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The name with which the user logs in.
    pub name: &'static str,
    /// The password. `oidc-provider` accepts every password.
    pub password: &'static str,
    /// The email address.
    pub email: &'static str,
    /// Whether the provider has verified the email address.
    pub email_verified: bool,
    /// The group of the user.
    pub group: &'static str,
}

/// A user with a verified email address.
pub const PINNY: User = User {
    name: "pinny",
    password: "pinny-password",
    email: "pinny@example.com",
    email_verified: true,
    group: "developers",
};

/// A user whose email address is not verified, to be refused by a claim rule.
pub const RYAN: User = User {
    name: "ryan",
    password: "ryan-password",
    email: "ryan@example.com",
    email_verified: false,
    group: "developers",
};

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keycloak.
    Keycloak,
    /// The npm package.
    OidcProvider,
}

impl Kind {
    /// The name for messages and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Keycloak => "keycloak",
            Self::OidcProvider => "oidc-provider",
        }
    }

    /// Environment variable with the folder of the programs, which `cargo xtask test` and `cargo
    /// xtask demo --with-oidc` set.
    #[must_use]
    pub fn env(self) -> &'static str {
        match self {
            Self::Keycloak => "PINNIPED_KEYCLOAK",
            Self::OidcProvider => "PINNIPED_OIDC_PROVIDER",
        }
    }

    /// Environment variable with the reason why this machine cannot run it. With it, its tests are
    /// skipped even if everything else is required.
    fn missing_env(self) -> &'static str {
        match self {
            Self::Keycloak => "PINNIPED_NO_KEYCLOAK",
            Self::OidcProvider => "PINNIPED_NO_OIDC_PROVIDER",
        }
    }

    /// Returns the folder of the programs, if it is known.
    #[must_use]
    pub fn programs(self) -> Option<PathBuf> {
        std::env::var_os(self.env()).filter(|dir| !dir.is_empty()).map(PathBuf::from)
    }

    /// Returns the folder of the programs for a test. Returns `None` and records a skip where there
    /// is none.
    #[must_use]
    pub fn for_test(self, test: &str) -> Option<PathBuf> {
        if let Some(why) = std::env::var(self.missing_env()).ok().filter(|why| !why.is_empty()) {
            tools::permitted_skip(test, &why);
            return None;
        }
        let programs = self.programs();
        if programs.is_none() {
            tools::skip(test, &format!("{} is fetched by `cargo xtask test` ({})", self.name(), self.env()));
        }
        programs
    }
}

/// The address of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host name in the issuer. The caller makes it resolve.
    pub host: String,
    /// The address of the listener.
    pub listen: IpAddr,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    /// Returns `localhost` with a free port. Pods of a [`crate::world::World`] do not reach it.
    ///
    /// # Errors
    /// Returns an error when there is no free port.
    pub fn loopback() -> anyhow::Result<Self> {
        Ok(Self { host: "localhost".to_owned(), listen: Ipv4Addr::LOCALHOST.into(), port: free_port()? })
    }
}

/// A running provider. Dropping it terminates the provider and removes its folder.
#[derive(Debug)]
pub struct IdentityProvider {
    kind: Kind,
    endpoint: Endpoint,
    dir: PathBuf,
    ca_pem: String,
    start: Command,
    process: Mutex<Process>,
    guardian: Guardian,
}

impl IdentityProvider {
    /// Starts a provider and waits until it serves.
    ///
    /// # Errors
    /// Returns an error with the end of its log when it does not start.
    pub async fn start(kind: Kind, programs: &Path, endpoint: Endpoint) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("pinniped-provider-").tempdir();
        let dir = dir.context("could not create a folder for the identity provider")?.keep();
        let guardian = Guardian::start(Some(&dir))?;
        let authority = Authority::new(&format!("{} authority", kind.name()))?;
        let pair = authority.server(&endpoint.host, &[&endpoint.host], &[])?;
        for (name, text) in [
            ("ca.crt", &authority.certificate_pem),
            ("tls.crt", &pair.certificate_pem),
            ("tls.key", &pair.private_key_pem),
        ] {
            std::fs::write(dir.join(name), text).with_context(|| format!("could not write {name}"))?;
        }
        let mut start = match kind {
            Kind::Keycloak => keycloak::command(programs, &dir, &endpoint)?,
            Kind::OidcProvider => oidc_provider::command(programs, &dir, &endpoint)?,
        };
        start.current_dir(&dir);
        let process = Mutex::new(guardian.spawn(&start, Ending::Kill, &dir.join("provider.log"))?);
        let this = Self { kind, endpoint, dir, ca_pem: authority.certificate_pem, start, process, guardian };
        this.await_ready().await?;
        Ok(this)
    }

    /// Kills the provider and starts it again on the same port, with the same certificate.
    /// `oidc-provider` has new signing keys and no sessions then; Keycloak keeps its own.
    ///
    /// # Errors
    /// Returns an error when it does not start again.
    pub async fn restart(&self) -> anyhow::Result<()> {
        self.kill()?;
        let process = self.guardian.spawn(&self.start, Ending::Kill, &self.dir.join("provider.log"))?;
        *self.lock_process() = process;
        self.await_ready().await
    }

    /// Kills the provider, which then refuses connections. [`IdentityProvider::restart`] starts it
    /// again.
    ///
    /// # Errors
    /// Returns an error when the process cannot be waited for.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut process = self.lock_process();
        if process.ended().is_none() {
            crate::guardian::signal_group(process.id(), rustix::process::Signal::KILL);
            process.wait().context("could not wait for the identity provider")?;
            self.guardian.forget(process.id());
        }
        Ok(())
    }

    fn lock_process(&self) -> std::sync::MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn await_ready(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        let ready = wait::until_ok(READY_WITHIN, format!("{} to serve", self.kind.name()), async || {
            if let Some(status) = self.lock_process().ended() {
                return Ok(Err(anyhow::anyhow!("{} ended ({status})", self.kind.name())));
            }
            self.discovery().await.map(|_| Ok(()))
        });
        ready
            .await
            .and_then(|ended| ended)
            .with_context(|| format!("after {:?}; its log ends:\n{}", start.elapsed(), self.log_tail(15)))
    }

    /// The product.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The issuer, without a slash at the end.
    #[must_use]
    pub fn issuer(&self) -> String {
        match self.kind {
            Kind::Keycloak => format!("{}/realms/{}", self.address(), keycloak::REALM),
            Kind::OidcProvider => self.address(),
        }
    }

    /// `https://HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("https://{}:{}", self.endpoint.host, self.endpoint.port)
    }

    /// The certificate of its authority, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The file with the certificate of its authority.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The scopes that `pinniped` requests: an ID token with the claim `groups`, and a refresh
    /// token. Keycloak refuses scopes that it does not know, and has the claim in every token.
    #[must_use]
    pub fn scopes(&self) -> &'static str {
        match self.kind {
            Kind::Keycloak => "openid,offline_access",
            Kind::OidcProvider => "openid,offline_access,email,groups",
        }
    }

    /// The claim that has the user's name.
    #[must_use]
    pub fn username_claim(&self) -> &'static str {
        match self.kind {
            Kind::Keycloak => "preferred_username",
            Kind::OidcProvider => "sub",
        }
    }

    /// Returns the last lines of its log.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.dir.join("provider.log"), lines)
    }

    /// Reads the discovery document.
    ///
    /// # Errors
    /// Returns an error when the provider does not respond, or when the document is of another
    /// issuer.
    pub async fn discovery(&self) -> anyhow::Result<Value> {
        let url = format!("{}/.well-known/openid-configuration", self.issuer());
        let document = self.send(Request::get(url).body(String::new())?).await?;
        anyhow::ensure!(document["issuer"] == json!(self.issuer()), "the issuer is {}", document["issuer"]);
        Ok(document)
    }

    /// Sends a form to an endpoint of the discovery document and returns the JSON response.
    ///
    /// # Errors
    /// Returns an error with the response when its status is not a success.
    pub async fn post(&self, endpoint: &str, form: &[(&str, &str)]) -> anyhow::Result<Value> {
        let discovery = self.discovery().await?;
        let url = discovery[endpoint].as_str().with_context(|| format!("there is no {endpoint}"))?;
        self.post_to(url, form).await
    }

    async fn post_to(&self, url: &str, form: &[(&str, &str)]) -> anyhow::Result<Value> {
        let request = Request::post(url).header("content-type", "application/x-www-form-urlencoded");
        self.send(request.body(encode(form))?).await
    }

    async fn send(&self, request: Request<String>) -> anyhow::Result<Value> {
        let response = exchange(request, &self.ca_pem).await?;
        let status = response.status();
        let text = String::from_utf8_lossy(response.body()).into_owned();
        anyhow::ensure!(status.is_success(), "{status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Logs in on the page that the browser shows, and consents where the provider requires it.
    /// Returns when the browser has left the provider.
    ///
    /// # Errors
    /// Returns an error that describes the page when a step fails.
    pub async fn log_in(&self, browser: &Browser, user: &User) -> anyhow::Result<()> {
        let steps = async {
            self.enter_password(browser, user.name, user.password).await?;
            self.consent(browser).await?;
            self.await_departure(browser).await
        };
        match steps.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(browser.describe().await)),
        }
    }

    /// Enters a name and a password on the login page that the browser shows.
    ///
    /// # Errors
    /// Returns an error when the page is no login page.
    pub async fn enter_password(&self, browser: &Browser, name: &str, password: &str) -> anyhow::Result<()> {
        match self.kind {
            Kind::Keycloak => keycloak::enter_password(browser, name, password).await,
            Kind::OidcProvider => oidc_provider::enter_password(browser, name, password).await,
        }
    }

    /// Consents to the requested scopes. Keycloak does not require consent for this client.
    ///
    /// # Errors
    /// Returns an error when there is no consent page in time.
    pub async fn consent(&self, browser: &Browser) -> anyhow::Result<()> {
        match self.kind {
            Kind::Keycloak => Ok(()),
            Kind::OidcProvider => oidc_provider::consent(browser).await,
        }
    }

    /// Waits until the browser shows the page of another server, to which the provider redirected
    /// it.
    ///
    /// # Errors
    /// Returns an error when it stays at the provider.
    pub async fn await_departure(&self, browser: &Browser) -> anyhow::Result<()> {
        wait::until_ok(Duration::from_secs(60), "the browser to leave the provider", async || {
            let url = browser.url().await?;
            anyhow::ensure!(!url.starts_with(&self.address()), "it is at {url}");
            Ok(())
        })
        .await
    }

    /// Returns a token for Keycloak's administration API, which is below [`Self::address`].
    ///
    /// # Errors
    /// Returns an error when the provider is not Keycloak.
    pub async fn administrator_token(&self) -> anyhow::Result<String> {
        anyhow::ensure!(self.kind == Kind::Keycloak, "only Keycloak has an administrator");
        let (name, password) = keycloak::ADMINISTRATOR;
        let url = format!("{}/realms/master/protocol/openid-connect/token", self.address());
        let form = [
            ("grant_type", "password"),
            ("client_id", "admin-cli"),
            ("username", name),
            ("password", password),
        ];
        let response = self.post_to(&url, &form).await?;
        response["access_token"].as_str().map(str::to_owned).context("there is no token")
    }
}

/// Encodes a form.
fn encode(form: &[(&str, &str)]) -> String {
    let encoded = |text: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        text.bytes()
            .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect()
    };
    let pairs: Vec<String> =
        form.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_encoded() {
        assert_eq!(
            encode(&[("a", "b c"), ("url", "https://x/?y=é")]),
            "a=b%20c&url=https%3A%2F%2Fx%2F%3Fy%3D%C3%A9"
        );
    }

    #[test]
    fn the_realm_of_keycloak_has_the_same_users_and_the_same_client() {
        let file = tools::repository().join("tools/third-party/keycloak/realm.json");
        let realm: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(realm["realm"], keycloak::REALM);
        let found: Vec<[&Value; 5]> = realm["users"]
            .as_array()
            .unwrap()
            .iter()
            .map(|user| {
                [
                    &user["username"],
                    &user["credentials"][0]["value"],
                    &user["email"],
                    &user["emailVerified"],
                    &user["groups"][0],
                ]
            })
            .collect();
        let wanted = [PINNY, RYAN].map(|user| {
            [
                json!(user.name),
                json!(user.password),
                json!(user.email),
                json!(user.email_verified),
                json!(format!("/{}", user.group)),
            ]
        });
        assert_eq!(found, wanted.each_ref().map(|user| user.each_ref()));
        assert_eq!(realm["clients"][0]["clientId"], CLIENT_ID);
    }
}
