//! Service account tokens: no proxy in the cluster, no signing key, and an unmodified kubectl.
//!
//! The user logs in once and connects to the API server directly, with each way in which an
//! unmodified kubectl can send impersonation headers. The requests are in the API server's audit
//! log.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::kubectl::{CommandOutput, as_typed};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::{CONCIERGE, CREDENTIAL_ISSUER, DECISION, TIME_LIMIT, TIMEOUT_FLAG, Walk};
use crate::environment::{Running, Step};
use crate::narrator::Show;

/// The opt-in manifest.
pub const TOKENS_FILE: &str = "deploy/install-pinniped-concierge-service-account-tokens.yaml";
/// The namespace of the manifest for the service accounts of users.
pub const USERS_NAMESPACE: &str = "pinniped-concierge-users";
/// The label of every object that was created for a user.
pub(super) const SUBJECT: &str = "concierge.pinniped.dev/impersonation-subject";
/// The kubeconfig that `pinniped proxy` writes.
const PROXY_KUBECONFIG: &str = "local-proxy.yaml";
/// The command that the user runs.
const LISTING: [&str; 3] = ["get", "pods", "-A"];

/// The source of the impersonation headers of an unmodified kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Fields of its kubeconfig.
    Kubeconfig,
    /// `pinniped kubectl`, which runs kubectl.
    Wrapper,
    /// `pinniped proxy`, which adds the headers itself.
    Proxy,
}

impl Delivery {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Kubeconfig, Self::Wrapper, Self::Proxy];

    /// The value of the flag.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubeconfig => "kubeconfig",
            Self::Wrapper => "wrapper",
            Self::Proxy => "proxy",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Kubeconfig => "tokens-kubeconfig.yaml",
            Self::Wrapper => "tokens-wrapper.yaml",
            Self::Proxy => "tokens-proxy.yaml",
        }
    }
}

impl Walk<'_> {
    /// Applies the opt-in manifest, enables the strategy, and waits until it reports that it is
    /// ready.
    ///
    /// # Errors
    /// Returns an error when the strategy does not become Success/Listening.
    pub async fn enable_tokens(&self) -> anyhow::Result<Value> {
        self.heading("Enable service account tokens: a separate manifest, and one field");
        self.kubectl(&["apply", "-f", TOKENS_FILE], None, Show::Output).await?;
        let spec = json!({"mode": "enabled", "namespace": USERS_NAMESPACE});
        let patch = json!({"spec": {"serviceAccountTokens": spec}}).to_string();
        let kind = self.kind("credentialissuer");
        let args = ["patch", &kind, CREDENTIAL_ISSUER, "--type=merge", "--patch", &patch];
        self.kubectl(&args, None, Show::Output).await?;
        let issuer = wait::until_ok(TIME_LIMIT, "service account tokens to be issued", async || {
            let issuer = self.credential_issuer().await?;
            let strategies = issuer["status"]["strategies"].as_array().context("there are no strategies")?;
            let last = strategies.last().context("there is no strategy")?;
            anyhow::ensure!(
                last["type"] == "ServiceAccountToken" && last["status"] == "Success",
                "the last strategy is {last}"
            );
            Ok(issuer)
        })
        .await?;
        self.show_strategies().await?;
        // Logins pass through the API server's aggregation layer, which checks the pods itself and
        // uses the result a moment after the APIService reports it.
        let responses = || self.admin_step(&["get", "--raw", "/apis/login.concierge.pinniped.dev/v1alpha1"]);
        self.narrator.run_until(TIME_LIMIT, responses, Show::Size, |output| output.code == 0).await?;
        Ok(issuer)
    }

    /// Configures the address of the API server, which users connect to directly; kubeadm publishes
    /// it and managed clusters do not.
    ///
    /// # Errors
    /// Returns an error when kubectl fails or the Concierge does not become ready again.
    pub async fn set_address(&self) -> anyhow::Result<()> {
        self.heading("Configure the API server's address, which this cluster does not publish");
        let path = "jsonpath={.clusters[0].cluster.server}";
        let args = ["config", "view", "--minify", "--output", path];
        let server = self.kubectl(&args, None, Show::Output).await?.stdout;
        let config = "configmap pinniped-concierge-config --namespace pinniped-concierge";
        let line = format!(
            "kubectl get {config} -o yaml | sed 's|url: null|url: {}|' | kubectl replace -f -",
            server.trim()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]);
        for (name, value) in self.admin().command(&[]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let step = self.with_kubectl_in_path(shell)?.shown_as(&line);
        self.narrator.run(step, None, Show::Output).await?.success()?;
        let deployment = format!("deployment/{CONCIERGE}");
        self.kubectl(&["rollout", "restart", &deployment, "--namespace", CONCIERGE], None, Show::Output)
            .await?;
        let args = ["rollout", "status", &deployment, "--namespace", CONCIERGE, TIMEOUT_FLAG];
        self.kubectl(&args, None, Show::Output).await?;
        Ok(())
    }

    /// The path of the kubeconfig for a delivery.
    #[must_use]
    pub fn tokens_kubeconfig(&self, delivery: Delivery) -> PathBuf {
        self.home.join(delivery.file())
    }

    /// Writes the kubeconfig for a delivery.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn write_tokens_kubeconfig(&self, delivery: Delivery) -> anyhow::Result<CommandOutput> {
        let more = ["--concierge-mode", "ServiceAccountToken", "--impersonation-delivery", delivery.name()];
        self.get_kubeconfig("pinny", &more, delivery.file()).await
    }

    /// Lists pods as the user, who has no permission yet, and checks for the API server's own
    /// refusal.
    ///
    /// # Errors
    /// Returns an error when the output is different.
    pub async fn refused_with_token(&self) -> anyhow::Result<CommandOutput> {
        self.heading("The API server authenticates the user, who has no permissions");
        let step = self.user_kubectl(&self.tokens_kubeconfig(Delivery::Kubeconfig), &LISTING);
        let output = self.narrator.run(step, None, Show::Output).await?;
        let refused = "Error from server (Forbidden): pods is forbidden: User \"pinny\" cannot list resource \"pods\" \
                       in API group \"\" at the cluster scope\n";
        anyhow::ensure!(
            output.code == 1 && output.stderr == refused && !output.stderr.contains(DECISION),
            "the user should have been refused by the API server, but kubectl printed: {}{}",
            output.stdout,
            output.stderr
        );
        Ok(output)
    }

    /// Grants access to the user's group, and lists pods with an unmodified kubectl whose
    /// kubeconfig names the user.
    ///
    /// # Errors
    /// Returns an error when the listing does not work in time.
    pub async fn allow_and_list_with_token(&self) -> anyhow::Result<CommandOutput> {
        self.heading("An administrator grants permissions to the user's group");
        let binding = super::proxy::BINDING;
        let args = [
            "create",
            "clusterrolebinding",
            binding,
            "--clusterrole=cluster-admin",
            "--group=group-for-mtls",
        ];
        self.kubectl(&args, None, Show::Output).await?;
        let kubeconfig = self.tokens_kubeconfig(Delivery::Kubeconfig);
        let step = || self.user_kubectl(&kubeconfig, &LISTING);
        let fits = |output: &CommandOutput| output.code == 0;
        self.narrator.run_until(Duration::from_secs(20), step, Show::Output, fits).await
    }

    /// Lists pods with `pinniped kubectl`; kubectl alone gets no token from that kubeconfig.
    ///
    /// # Errors
    /// Returns an error when kubectl alone is not refused, or when `pinniped kubectl` fails.
    pub async fn list_with_wrapper(&self) -> anyhow::Result<CommandOutput> {
        self.heading("An alternative: pinniped runs kubectl");
        self.write_tokens_kubeconfig(Delivery::Wrapper).await?;
        let kubeconfig = self.tokens_kubeconfig(Delivery::Wrapper);
        self.narrator.print("(kubectl alone would be another user with this token, so it receives none)");
        let alone = self.narrator.run(self.user_kubectl(&kubeconfig, &LISTING), None, Show::Output).await?;
        anyhow::ensure!(
            alone.code != 0 && alone.stderr.contains("requires impersonation headers"),
            "kubectl alone should have received no token, but it printed: {}{}",
            alone.stdout,
            alone.stderr
        );
        let listing = [&["kubectl", "--"][..], &LISTING].concat();
        let step = self.with_kubectl_in_path(self.pinniped_command(&listing, &kubeconfig))?;
        self.narrator.run(step, None, Show::Output).await?.success()
    }

    /// Starts `pinniped proxy` and waits until it serves. Returns the running program, and the
    /// kubeconfig that it wrote.
    ///
    /// # Errors
    /// Returns an error when it does not start.
    pub async fn start_local_proxy(&self) -> anyhow::Result<(Running, PathBuf)> {
        self.write_tokens_kubeconfig(Delivery::Proxy).await?;
        let file = self.home.join(PROXY_KUBECONFIG);
        let output = file.to_str().context("the home folder has no readable name")?;
        let args = ["proxy", "--output", output];
        let command = self.settled(self.pinniped_command(&args, &self.tokens_kubeconfig(Delivery::Proxy)));
        self.narrator.show_command(&format!("{} &", as_typed(&command)));
        let proxy = self.environment.start("pinniped-proxy", command)?;
        wait::until_ok(TIME_LIMIT, "pinniped proxy to write its kubeconfig", async || {
            anyhow::ensure!(file.exists(), "it printed: {}", self.environment.log_tail("pinniped-proxy"));
            Ok(())
        })
        .await?;
        self.narrator.print(self.environment.log_tail("pinniped-proxy").trim_end());
        Ok((proxy, file))
    }

    /// Lists pods through `pinniped proxy`, then stops it and checks that it removed its
    /// kubeconfig.
    ///
    /// # Errors
    /// Returns an error when the proxy does not start, does not serve, or leaves files.
    pub async fn list_through_local_proxy(&self) -> anyhow::Result<CommandOutput> {
        self.heading("A second alternative, for programs of any kind: a proxy on the user's machine");
        let (mut proxy, file) = self.start_local_proxy().await?;
        let listing = self.narrator.run(self.user_kubectl(&file, &LISTING), None, Show::Output).await;
        self.narrator.show_command("kill -INT %1");
        let ended = proxy.interrupt(TIME_LIMIT).await;
        let listing = listing?.success()?;
        ended?;
        anyhow::ensure!(!file.exists(), "{} is still there", file.display());
        self.narrator.print("(it has exited and removed its kubeconfig)");
        Ok(listing)
    }

    /// Runs `pinniped whoami` as the user.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn whoami_with_token(&self) -> anyhow::Result<CommandOutput> {
        self.heading("Who am I?");
        let step = self.pinniped(&["whoami"], &self.tokens_kubeconfig(Delivery::Kubeconfig));
        self.narrator.run(step, None, Show::Output).await?.success()
    }

    /// Shows the last listing of the user in the API server's audit log: the service account, and
    /// the user whom it impersonated.
    ///
    /// # Errors
    /// Returns an error when there is no such event, or when it lacks one of the two.
    pub async fn show_audit_event(&self) -> anyhow::Result<Value> {
        self.heading("The audit log of the API server");
        let event = wait::until_ok(TIME_LIMIT, "the listing to be in the audit log", async || {
            let events = self.environment.audit_events("pinny")?;
            let listing = |event: &&Value| {
                event["verb"] == "list"
                    && event["objectRef"]["resource"] == "pods"
                    && event["impersonatedUser"]["username"] == "pinny"
                    && event["responseStatus"]["code"] == 200
                    && event["user"]["username"].as_str().is_some_and(|name| {
                        name.starts_with(&format!("system:serviceaccount:{USERS_NAMESPACE}:pinniped-user-"))
                    })
            };
            events.iter().rev().find(listing).cloned().context("it is not there")
        })
        .await?;
        let shown = json!({
            "verb": event["verb"], "requestURI": event["requestURI"], "userAgent": event["userAgent"],
            "user": event["user"], "impersonatedUser": event["impersonatedUser"],
        });
        self.narrator.print(&serde_json::to_string_pretty(&shown)?.replace('\n', "\n   "));
        Ok(event)
    }

    /// Returns `command` with kubectl in its PATH.
    fn with_kubectl_in_path(&self, mut command: Command) -> anyhow::Result<Step> {
        let admin = self.admin();
        let folder = admin.program().parent().context("kubectl has no folder")?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&path)))?;
        command.env("PATH", path);
        Ok(self.settle(command))
    }

    /// Runs the strategy's steps in a process world, in order.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn everything_with_tokens(&self) -> anyhow::Result<()> {
        self.install().await?;
        self.create_user().await?;
        self.show_credential_issuer().await?;
        self.create_authenticator().await?;
        self.create_workload().await?;
        self.set_address().await?;
        self.enable_tokens().await?;
        self.heading("Create a kubeconfig for the user, with the identity to impersonate");
        self.write_tokens_kubeconfig(Delivery::Kubeconfig).await?;
        self.refused_with_token().await?;
        self.allow_and_list_with_token().await?;
        self.list_with_wrapper().await?;
        self.list_through_local_proxy().await?;
        self.whoami_with_token().await?;
        self.show_audit_event().await?;
        Ok(())
    }
}
