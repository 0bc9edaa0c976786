//! The walk-through of the Pinniped v0.25.0 release post (Concierge with impersonation proxy), step
//! by step.
//!
//! ```text
//! install.rs       the files of deploy/, their objects, an application, and the removal of them
//! login.rs         the tutorial without a proxy: credentials signed by the cluster's own key
//! certificates.rs  certificate authority and serving certificate of the post, its last commands
//! oidc.rs          logins at a real identity provider, with a browser
//! tokens.rs        service account tokens, and the ways in which kubectl uses them
//! proxy.rs         the post's edit of the CredentialIssuer, and its effects for the user
//! metrics.rs       a real Prometheus, and the queries of the dashboard
//! gateway.rs       the post's ingress: our gateway, or a real Contour in its place
//! existing.rs      an installation in an existing cluster
//! ```
//!
//! Without an ingress the external name resolves to the proxy's ClusterIP Service. A real
//! cert-manager issues the certificate where it is available. Otherwise the proxy serves its own
//! generated certificate, or one that the walk creates in place of cert-manager.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_test_support::kubectl::{CommandOutput, Kubectl};
use pinniped_test_support::tools;
use serde_json::Value;

use crate::environment::{Environment, Step};
use crate::narrator::{Narrator, Show};

mod certificates;
mod existing;
mod gateway;
mod install;
mod login;
mod metrics;
mod oidc;
mod proxy;
mod tokens;

pub use certificates::{AUTHORITY_SECRET, SERVING_CERTIFICATE, SERVING_SECRET, YQ_ENV};
pub use gateway::{Entrance, GATEWAY, Ingress};
pub use install::INSTALL_FILES;
pub use oidc::{OidcLogin, UserBrowser};
pub use proxy::{DECISION, EXTERNAL_NAME, Serving};
pub use tokens::{Delivery, TOKENS_FILE, USERS_NAMESPACE};

/// The namespace of the Concierge.
pub const CONCIERGE: &str = "pinniped-concierge";
/// The namespace of the demo authenticator.
pub const LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator";
/// The name of the CredentialIssuer.
pub const CREDENTIAL_ISSUER: &str = "pinniped-concierge-config";

/// The names of an installation, and of the objects that a walk creates for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The namespace of the Concierge, with which the names of its objects begin.
    pub app: &'static str,
    /// The API group suffix.
    pub suffix: &'static str,
    /// The host name under which clients reach the impersonation proxy.
    pub external_name: &'static str,
    /// The user.
    pub user: &'static str,
    /// The group of the user.
    pub group: &'static str,
    /// The binding that grants access to the group.
    pub binding: &'static str,
}

impl Names {
    /// The names of the install files and of the release post.
    pub const DEFAULT: Self = Self {
        app: CONCIERGE,
        suffix: "pinniped.dev",
        external_name: EXTERNAL_NAME,
        user: "pinny",
        group: "group-for-mtls",
        binding: proxy::BINDING,
    };

    /// Returns the name of an object of the Concierge.
    #[must_use]
    pub fn object(&self, name: &str) -> String {
        format!("{}-{name}", self.app)
    }

    /// Returns the name of a group, such as `login`, in this installation.
    #[must_use]
    pub fn group_of(&self, group: &str) -> String {
        format!("{group}.concierge.{}", self.suffix)
    }
}

/// Time limit of a step, which takes seconds on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The same limit as a flag of kubectl.
const TIMEOUT_FLAG: &str = "--timeout=120s";

/// Returns the entry of a strategy in the status of a CredentialIssuer; null if there is none. The
/// position of an entry depends on the other strategies.
#[must_use]
pub fn strategy<'v>(issuer: &'v Value, type_: &str) -> &'v Value {
    let mut strategies = issuer["status"]["strategies"].as_array().into_iter().flatten();
    strategies.find(|strategy| strategy["type"] == type_).unwrap_or(&Value::Null)
}

/// One run of the walk-through.
#[derive(Debug)]
pub struct Walk<'p> {
    environment: &'p dyn Environment,
    names: Names,
    narrator: Narrator,
    start: Instant,
    /// HOME of the commands, so that caches and credentials are not written to the user's own home.
    home: PathBuf,
    pinniped: PathBuf,
}

impl<'p> Walk<'p> {
    /// Creates a walk; headings show the time since `start`.
    ///
    /// # Errors
    /// Returns an error when the product's programs are not built.
    pub fn new(environment: &'p dyn Environment, narrator: Narrator, start: Instant) -> anyhow::Result<Self> {
        let home = environment.dir().join("home");
        std::fs::create_dir_all(&home).context("could not create a home folder")?;
        let pinniped = tools::binary("pinniped")?;
        Ok(Self { environment, names: Names::DEFAULT, narrator, start, home, pinniped })
    }

    /// Returns the same walk with another installation. Only the steps of a login through the
    /// impersonation proxy use the names.
    #[must_use]
    pub fn with_names(self, names: Names) -> Self {
        Self { names, ..self }
    }

    /// Returns the same walk as another user of the machine, whose home folder is `name`: with
    /// separate caches.
    ///
    /// # Errors
    /// Returns an error when the folder cannot be created.
    pub fn at_home(self, name: &str) -> anyhow::Result<Self> {
        let home = self.environment.dir().join(name);
        std::fs::create_dir_all(&home).context("could not create a home folder")?;
        Ok(Self { home, ..self })
    }

    /// The path of the kubeconfig that [`Walk::kubeconfig`] writes.
    #[must_use]
    pub fn user_kubeconfig(&self) -> PathBuf {
        self.home.join(proxy::KUBECONFIG)
    }

    /// The home folder of the commands.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    fn heading(&self, text: &str) {
        self.narrator.heading(self.start, text);
    }

    /// Returns the name of a kind for kubectl: short for people, and in full in tests, because
    /// other tests of the same cluster may have kinds of the same name under another API group
    /// suffix.
    fn kind(&self, brief: &str) -> String {
        let group = if brief == "credentialissuer" { "config" } else { "authentication" };
        match self.narrator {
            Narrator::Loud => brief.to_owned(),
            Narrator::Silent => format!("{brief}s.{}", self.names.group_of(group)),
        }
    }

    fn admin(&self) -> Kubectl {
        self.environment.kubectl()
    }

    fn settle(&self, command: Command) -> Step {
        Step::inside(self.environment, self.settled(command))
    }

    /// Returns the same command with its own home.
    fn settled(&self, mut command: Command) -> Command {
        command.current_dir(tools::repository());
        if self.environment.has_own_home() {
            command.env("HOME", &self.home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        }
        command
    }

    /// Returns an administrator's kubectl without starting it.
    fn admin_step(&self, args: &[&str]) -> Step {
        self.settle(self.admin().command(args))
    }

    /// Runs and shows an administrator's kubectl; the command must succeed.
    async fn kubectl(&self, args: &[&str], input: Option<&str>, show: Show) -> anyhow::Result<CommandOutput> {
        self.narrator.run(self.admin_step(args), input, show).await?.success()
    }

    /// Returns kubectl as a user of `kubeconfig` would run it.
    fn user_kubectl(&self, kubeconfig: &Path, args: &[&str]) -> Step {
        let mut command = self.admin().command(args);
        command.arg("--kubeconfig").arg(kubeconfig);
        self.settle(command)
    }

    fn pinniped(&self, args: &[&str], kubeconfig: &Path) -> Step {
        self.settle(self.pinniped_command(args, kubeconfig))
    }

    fn pinniped_command(&self, args: &[&str], kubeconfig: &Path) -> Command {
        let mut command = Command::new(&self.pinniped);
        command.args(args).arg("--kubeconfig").arg(kubeconfig);
        command
    }

    /// Runs `pinniped get kubeconfig` for a user of the local-user-authenticator and writes its
    /// output to the file `name`.
    async fn get_kubeconfig(
        &self,
        user: &str,
        more: &[&str],
        name: &'static str,
    ) -> anyhow::Result<CommandOutput> {
        let token = format!("{user}:password123");
        let args = [
            "get",
            "kubeconfig",
            "--static-token",
            &token,
            "--concierge-authenticator-type",
            "webhook",
            "--concierge-authenticator-name",
            "local-user-authenticator",
        ];
        let suffix = format!("--concierge-api-group-suffix={}", self.names.suffix);
        // The default is left out, as in the post.
        let suffix = Some(suffix.as_str()).filter(|_| self.names.suffix != Names::DEFAULT.suffix);
        let args = [&args[..], more, suffix.as_slice()].concat();
        let step = self.pinniped(&args, &self.environment.admin_kubeconfig());
        let output = self.narrator.run(step, None, Show::RedirectedTo(name)).await?.success()?;
        std::fs::write(self.home.join(name), &output.stdout)
            .context("could not write the user's kubeconfig")?;
        Ok(output)
    }

    /// Runs the release post in a process world, in order. With the folder of cert-manager's
    /// programs the proxy serves a certificate that cert-manager issues, otherwise its own.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn everything(&self, cert_manager: Option<&Path>) -> anyhow::Result<()> {
        self.install().await?;
        self.create_user().await?;
        self.show_credential_issuer().await?;
        self.create_authenticator().await?;
        self.create_workload().await?;
        let (_cert_manager, serving) = match cert_manager {
            Some(programs) => {
                (Some(self.start_cert_manager(programs).await?), self.issue_certificates().await?)
            }
            None => (None, Serving::Generated),
        };
        self.enable_proxy(&serving).await?;
        self.kubeconfig().await?;
        self.refused().await?;
        self.allow_and_list().await?;
        self.whoami().await?;
        if serving != Serving::Generated {
            self.check_bundles().await?;
        }
        Ok(())
    }

    /// Runs the tutorial without a proxy and then the release post, in pods of a real node.
    /// cert-manager, if it issues the certificate, terminates when this function returns.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn everything_on_a_node(&self, cert_manager: Option<&Path>) -> anyhow::Result<()> {
        self.install().await?;
        self.show_pods().await?;
        self.create_user().await?;
        self.await_cluster_key().await?;
        self.show_credential_issuer().await?;
        self.create_authenticator().await?;
        self.create_workload().await?;
        self.create_tutorial_user().await?;
        self.kubeconfig_without_proxy().await?;
        self.refused_without_proxy().await?;
        self.allow_and_list_without_proxy().await?;
        let (_cert_manager, serving) = match cert_manager {
            Some(programs) => {
                (Some(self.start_cert_manager(programs).await?), self.issue_certificates().await?)
            }
            None => (None, self.make_certificates().await?),
        };
        self.enable_proxy(&serving).await?;
        self.kubeconfig().await?;
        self.refused().await?;
        self.allow_and_list().await?;
        self.whoami().await?;
        self.check_bundles().await?;
        Ok(())
    }

    /// Runs the whole release post in order, with its ingress; `on_node` selects a node with pods.
    /// Returns the ingress, which may terminate when the value is dropped.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn release_post(
        &self,
        cert_manager: &Path,
        ingress: &Ingress,
        on_node: bool,
    ) -> anyhow::Result<Entrance> {
        let entrance = self.install_ingress(ingress).await?;
        self.install().await?;
        self.create_user().await?;
        if on_node {
            self.await_cluster_key().await?;
        }
        self.show_credential_issuer().await?;
        let _cert_manager = self.start_cert_manager(cert_manager).await?;
        let serving = self.issue_certificates().await?;
        self.turn_proxy_on(&serving).await?;
        self.create_authenticator().await?;
        self.create_workload().await?;
        self.through_ingress(&entrance, &serving).await?;
        Ok(entrance)
    }
}
