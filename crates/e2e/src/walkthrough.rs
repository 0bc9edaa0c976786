//! The walk-through of the Pinniped v0.25.0 release post (Concierge with impersonation proxy), step by step,
//! without its ingress and cert-manager: the proxy's own generated certificate serves, and the external name
//! resolves to the proxy's ClusterIP Service.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_test_support::kubectl::{Kubectl, Outcome};
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};

use crate::narrator::{Narrator, Show};

/// The Concierge's namespace.
pub const CONCIERGE: &str = "pinniped-concierge";
/// The demo authenticator's namespace.
pub const LOCAL_USER_AUTHENTICATOR: &str = "local-user-authenticator";
/// The host name under which clients reach the proxy.
pub const EXTERNAL_NAME: &str = "impersonation-proxy-mtls.local";
/// What the proxy adds to the reason of a refusal.
pub const DECISION: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";

/// What has to be installed, in this order.
pub const INSTALL_FILES: [&str; 3] = [
    "deploy/install-local-user-authenticator.yaml",
    "deploy/install-pinniped-concierge-crds.yaml",
    "deploy/install-pinniped-concierge-resources.yaml",
];

/// How long a step may take: seconds on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// A few pods to look at. No node runs their images.
const WORKLOAD: &str = "apiVersion: v1
kind: Namespace
metadata: {name: some-app}
---
apiVersion: v1
kind: Pod
metadata: {name: frontend, namespace: some-app}
spec: {containers: [{name: web, image: example.com/web}]}
---
apiVersion: v1
kind: Pod
metadata: {name: backend, namespace: some-app}
spec: {containers: [{name: api, image: example.com/api}]}
";

/// One walk through the story.
#[derive(Debug)]
pub struct Walk<'w> {
    world: &'w World,
    narrator: Narrator,
    start: Instant,
    /// HOME of the commands: caches and credentials go here, not into the user's own.
    home: PathBuf,
    pinniped: PathBuf,
}

impl<'w> Walk<'w> {
    /// Starts a walk; headings show the time since `start`.
    ///
    /// # Errors
    /// When our programs are not built.
    pub fn new(world: &'w World, narrator: Narrator, start: Instant) -> anyhow::Result<Self> {
        for program in ["pinniped-concierge", "local-user-authenticator"] {
            tools::binary(program)?;
        }
        let home = world.dir().join("home");
        std::fs::create_dir_all(&home).context("could not make a home folder")?;
        Ok(Self { world, narrator, start, home, pinniped: tools::binary("pinniped")? })
    }

    /// The kubeconfig that [`Walk::kubeconfig`] writes.
    #[must_use]
    pub fn user_kubeconfig(&self) -> PathBuf {
        self.home.join("pinniped-kubeconfig.yaml")
    }

    /// The home folder of the commands.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    fn heading(&self, text: &str) {
        self.narrator.heading(self.start, text);
    }

    /// How a kind is named to kubectl: briefly for people; in full where other tests of the same cluster may
    /// have kinds of the same name under another API group suffix.
    fn kind(&self, brief: &str) -> String {
        let group = if brief == "credentialissuer" { "config" } else { "authentication" };
        match self.narrator {
            Narrator::Loud => brief.to_owned(),
            Narrator::Silent => format!("{brief}s.{group}.concierge.pinniped.dev"),
        }
    }

    fn admin(&self) -> Kubectl {
        self.world.kubectl()
    }

    fn settle(&self, mut command: Command) -> Command {
        command.current_dir(tools::repository()).env("HOME", &self.home);
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        command
    }

    /// An administrator's kubectl, shown, which has to succeed.
    async fn kubectl(&self, args: &[&str], input: Option<&str>, show: Show) -> anyhow::Result<Outcome> {
        self.narrator.run(self.settle(self.admin().command(args)), input, show).await?.success()
    }

    /// kubectl as a user of the written kubeconfig would call it.
    fn user_kubectl(&self, args: &[&str]) -> Command {
        let mut command = self.settle(self.admin().command(args));
        command.arg("--kubeconfig").arg(self.user_kubeconfig());
        command
    }

    fn pinniped(&self, args: &[&str]) -> Command {
        let mut command = self.settle(Command::new(&self.pinniped));
        command.args(args);
        command
    }

    /// Applies the install files and waits until the Deployments are available.
    ///
    /// # Errors
    /// When kubectl fails or a Deployment does not become available.
    pub async fn install(&self) -> anyhow::Result<()> {
        self.heading("Install");
        for file in INSTALL_FILES {
            self.kubectl(&["apply", "-f", file], None, Show::Output).await?;
        }
        for name in [LOCAL_USER_AUTHENTICATOR, CONCIERGE] {
            let deployment = format!("deployment/{name}");
            let args = ["rollout", "status", &deployment, "--namespace", name, "--timeout=60s"];
            self.kubectl(&args, None, Show::Output).await?;
        }
        Ok(())
    }

    /// The CredentialIssuer as it is after the install, with its printer columns.
    ///
    /// # Errors
    /// When it is not there or has no strategies in time.
    pub async fn look_at_credential_issuer(&self) -> anyhow::Result<serde_json::Value> {
        self.heading("What the Concierge says about this cluster");
        let issuer = wait::until_ok(SOON, "the CredentialIssuer to have two strategies", async || {
            let issuer = self.credential_issuer().await?;
            let count = issuer["status"]["strategies"].as_array().map_or(0, Vec::len);
            anyhow::ensure!(count >= 2, "its status is {}", issuer["status"]);
            Ok(issuer)
        })
        .await?;
        self.kubectl(&["get", &self.kind("credentialissuer")], None, Show::Output).await?;
        let path =
            r#"jsonpath={range .status.strategies[*]}{.type}: {.status}/{.reason}: {.message}{"\n"}{end}"#;
        let args = ["get", &self.kind("credentialissuer"), "pinniped-concierge-config", "-o", path];
        self.kubectl(&args, None, Show::Output).await?;
        Ok(issuer)
    }

    /// The CredentialIssuer now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn credential_issuer(&self) -> anyhow::Result<serde_json::Value> {
        let args = ["get", &self.kind("credentialissuer"), "pinniped-concierge-config", "-o", "json"];
        Ok(serde_json::from_str(&self.admin().output(&args).await?)?)
    }

    /// Makes the user `pinny` with password `password123` in group `group-for-mtls`.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn create_user(&self) -> anyhow::Result<()> {
        self.heading("Create a user: one Secret");
        let hash = bcrypt::hash("password123", 10).context("could not hash the password")?;
        let hash = format!("--from-literal=passwordHash={hash}");
        let args = ["create", "secret", "generic", "pinny", "--namespace", LOCAL_USER_AUTHENTICATOR];
        let args = [&args[..], &["--from-literal=groups=group-for-mtls", &hash]].concat();
        self.kubectl(&args, None, Show::Output).await?;
        Ok(())
    }

    /// Makes the WebhookAuthenticator with the webhook's CA, and waits until it is ready.
    ///
    /// # Errors
    /// When the CA does not appear or the authenticator does not become ready.
    pub async fn create_authenticator(&self) -> anyhow::Result<()> {
        self.heading("Tell the Concierge whom to ask about tokens");
        let secret = "local-user-authenticator-tls-serving-certificate";
        let path = "jsonpath={.data.caCertificate}";
        let args = ["get", "secret", secret, "--namespace", LOCAL_USER_AUTHENTICATOR, "-o", path];
        let command = || self.settle(self.admin().command(&args));
        let filled = |outcome: &Outcome| outcome.code == 0 && !outcome.stdout.is_empty();
        let ca = self.narrator.run_until(SOON, command, Show::Size, filled).await?.stdout;
        let shown = |ca: &str| {
            format!(
                "apiVersion: authentication.concierge.pinniped.dev/v1alpha1\nkind: WebhookAuthenticator\n\
                 metadata: {{name: local-user-authenticator}}\nspec:\n  \
                 endpoint: https://local-user-authenticator.local-user-authenticator.svc/authenticate\n  \
                 tls: {{certificateAuthorityData: {ca}}}\n"
            )
        };
        self.kubectl(&["apply", "-f", "-"], Some(&shown(&ca)), Show::Output).await?;
        let name = format!("{}/local-user-authenticator", self.kind("webhookauthenticator"));
        let args = ["wait", &name, "--for=jsonpath={.status.phase}=Ready", "--timeout=60s"];
        self.kubectl(&args, None, Show::Output).await?;
        self.kubectl(&["get", &self.kind("webhookauthenticator")], None, Show::Output).await?;
        Ok(())
    }

    /// Makes a few Pod objects to look at.
    ///
    /// # Errors
    /// When kubectl fails.
    pub async fn create_workload(&self) -> anyhow::Result<()> {
        self.heading("Something to look at: pods of an application (no node runs them)");
        self.kubectl(&["apply", "-f", "-"], Some(WORKLOAD), Show::Output).await?;
        Ok(())
    }

    /// Turns the impersonation proxy on and waits until it serves; lets its external name resolve.
    ///
    /// # Errors
    /// When the strategy does not become Success/Listening.
    pub async fn enable_proxy(&self) -> anyhow::Result<serde_json::Value> {
        self.heading("Turn the impersonation proxy on");
        let patch = format!(
            r#"{{"spec":{{"impersonationProxy":{{"mode":"enabled","externalEndpoint":"{EXTERNAL_NAME}","service":{{"type":"ClusterIP"}}}}}}}}"#
        );
        let args = [
            "patch",
            &self.kind("credentialissuer"),
            "pinniped-concierge-config",
            "--type=merge",
            "--patch",
            &patch,
        ];
        self.kubectl(&args, None, Show::Output).await?;
        let listening = "--for=jsonpath={.status.strategies[1].reason}=Listening";
        let name = format!("{}/pinniped-concierge-config", self.kind("credentialissuer"));
        let args = ["wait", &name, listening, "--timeout=60s"];
        self.kubectl(&args, None, Show::Output).await?;
        self.kubectl(&["get", &self.kind("credentialissuer")], None, Show::Output).await?;

        let service = "pinniped-concierge-impersonation-proxy-cluster-ip";
        let args = ["get", "service", service, "--namespace", CONCIERGE, "-o", "jsonpath={.spec.clusterIP}"];
        let command = || self.settle(self.admin().command(&args));
        let has_ip =
            |outcome: &Outcome| outcome.code == 0 && outcome.stdout.parse::<std::net::IpAddr>().is_ok();
        let ip = self.narrator.run_until(SOON, command, Show::Output, has_ip).await?.stdout;
        self.world.set_host(EXTERNAL_NAME, ip.parse()?)?;
        self.narrator
            .say(&format!("(/etc/hosts of this world: {ip} {EXTERNAL_NAME}, in place of an ingress)"));
        self.credential_issuer().await
    }

    /// Writes a kubeconfig for the user.
    ///
    /// # Errors
    /// When the command line fails.
    pub async fn kubeconfig(&self) -> anyhow::Result<Outcome> {
        self.heading("Make a kubeconfig for the user");
        let admin = self.world.admin_kubeconfig();
        let mut command = self.pinniped(&[
            "get",
            "kubeconfig",
            "--static-token",
            "pinny:password123",
            "--concierge-authenticator-type",
            "webhook",
            "--concierge-authenticator-name",
            "local-user-authenticator",
            "--concierge-mode",
            "ImpersonationProxy",
            "--kubeconfig",
        ]);
        command.arg(admin);
        let show = Show::RedirectedTo("pinniped-kubeconfig.yaml");
        let outcome = self.narrator.run(command, None, show).await?.success()?;
        std::fs::write(self.user_kubeconfig(), &outcome.stdout)
            .context("could not write the user's kubeconfig")?;
        Ok(outcome)
    }

    /// Lists pods as the user, who may not yet: kubectl's whole answer.
    ///
    /// # Errors
    /// When the answer is another one.
    pub async fn refused(&self) -> anyhow::Result<Outcome> {
        self.heading("The user is known, but may do nothing");
        let outcome =
            self.narrator.run(self.user_kubectl(&["get", "pods", "-A"]), None, Show::Output).await?;
        anyhow::ensure!(
            outcome.code == 1 && outcome.stderr.contains(DECISION),
            "the user should have been refused by the proxy, but kubectl said: {}{}",
            outcome.stdout,
            outcome.stderr
        );
        Ok(outcome)
    }

    /// Lets the user's group in, and lists pods again.
    ///
    /// # Errors
    /// When the listing does not work in time.
    pub async fn allow_and_list(&self) -> anyhow::Result<Outcome> {
        self.heading("An administrator lets the user's group in");
        let args = [
            "create",
            "clusterrolebinding",
            "mtls-admins",
            "--clusterrole=cluster-admin",
            "--group=group-for-mtls",
        ];
        self.kubectl(&args, None, Show::Output).await?;
        self.narrator.say("(a refusal is remembered for up to 10 seconds)");
        let command = || self.user_kubectl(&["get", "pods", "-A"]);
        self.narrator
            .run_until(Duration::from_secs(20), command, Show::Output, |outcome| outcome.code == 0)
            .await
    }

    /// Who the cluster thinks the user is.
    ///
    /// # Errors
    /// When the command line fails.
    pub async fn whoami(&self) -> anyhow::Result<Outcome> {
        self.heading("Who am I?");
        let mut command = self.pinniped(&["whoami", "--kubeconfig"]);
        command.arg(self.user_kubeconfig());
        self.narrator.run(command, None, Show::Output).await?.success()
    }

    /// All of it, in order; the last outcome is whoami's.
    ///
    /// # Errors
    /// That of the first step that fails.
    pub async fn everything(&self) -> anyhow::Result<Outcome> {
        self.install().await?;
        self.create_user().await?;
        self.look_at_credential_issuer().await?;
        self.create_authenticator().await?;
        self.create_workload().await?;
        self.enable_proxy().await?;
        self.kubeconfig().await?;
        self.refused().await?;
        self.allow_and_list().await?;
        self.whoami().await
    }
}
