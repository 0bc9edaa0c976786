//! The release post: the impersonation proxy, enabled by an edit of the CredentialIssuer.

use std::net::IpAddr;
use std::time::Duration;

use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::{Names, TIME_LIMIT, TIMEOUT_FLAG, Walk, strategy};
use crate::narrator::Show;

/// The host name under which clients reach the proxy.
pub const EXTERNAL_NAME: &str = "impersonation-proxy-mtls.local";
/// The text that the proxy appends to the reason of a refusal.
pub const DECISION: &str = "decision made by impersonation-proxy.concierge.pinniped.dev";
/// The file of the user's kubeconfig.
pub(super) const KUBECONFIG: &str = "pinniped-kubeconfig.yaml";
/// The binding that grants access to the post's user.
pub(super) const BINDING: &str = "mtls-admins";
/// The certificate that the proxy serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Serving {
    /// The generated one.
    Generated,
    /// The certificate of a Secret, and the bundle to advertise as base64 of PEM.
    Secret {
        /// The name of the Secret.
        name: String,
        /// The bundle.
        authority: String,
    },
}

impl Walk<'_> {
    /// Enables the impersonation proxy, waits until it serves, and makes its external name resolve
    /// to its Service.
    ///
    /// # Errors
    /// Returns an error when the strategy does not become Success/Listening.
    pub async fn enable_proxy(&self, serving: &Serving) -> anyhow::Result<Value> {
        let ip = self.turn_proxy_on(serving).await?;
        let name = self.names.external_name;
        self.environment.set_host(name, ip)?;
        self.narrator.print(&format!("(/etc/hosts in there: {ip} {name}, in place of an ingress)"));
        self.credential_issuer().await
    }

    /// Enables the impersonation proxy, waits until it serves, and returns the address of its
    /// Service.
    ///
    /// # Errors
    /// Returns an error when the strategy does not become Success/Listening.
    pub async fn turn_proxy_on(&self, serving: &Serving) -> anyhow::Result<IpAddr> {
        self.heading("Enable the impersonation proxy");
        let mut proxy = json!({"mode": "enabled", "externalEndpoint": self.names.external_name,
            "service": {"type": "ClusterIP"}});
        if let Serving::Secret { name, authority } = serving {
            proxy["tls"] = json!({"certificateAuthorityData": authority, "secretName": name});
        }
        let patch = json!({"spec": {"impersonationProxy": proxy}}).to_string();
        let kind = self.kind("credentialissuer");
        let issuer = self.names.object("config");
        let args = ["patch", &kind, &issuer, "--type=merge", "--patch", &patch];
        self.kubectl(&args, None, Show::Output).await?;
        let listening =
            "--for=jsonpath={.status.strategies[?(@.type==\"ImpersonationProxy\")].reason}=Listening";
        let name = format!("{kind}/{issuer}");
        self.kubectl(&["wait", &name, listening, TIMEOUT_FLAG], None, Show::Output).await?;
        if let Serving::Secret { authority, .. } = serving {
            // The proxy may have been listening before, with another certificate.
            wait::until_ok(TIME_LIMIT, "the proxy's bundle to be advertised", async || {
                let issuer = self.credential_issuer().await?;
                let info = &strategy(&issuer, "ImpersonationProxy")["frontend"]["impersonationProxyInfo"];
                anyhow::ensure!(info["certificateAuthorityData"] == **authority, "{}", issuer["status"]);
                Ok(())
            })
            .await?;
        }
        self.show_strategies().await?;

        let service = self.names.object("impersonation-proxy-cluster-ip");
        let path = "jsonpath={.spec.clusterIP}";
        let args = ["get", "service", &service, "--namespace", self.names.app, "-o", path];
        let has_ip = |output: &CommandOutput| output.code == 0 && output.stdout.parse::<IpAddr>().is_ok();
        let step = || self.admin_step(&args);
        Ok(self.narrator.run_until(TIME_LIMIT, step, Show::Output, has_ip).await?.stdout.parse()?)
    }

    /// Writes a kubeconfig for the user.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn kubeconfig(&self) -> anyhow::Result<CommandOutput> {
        self.heading("Create a kubeconfig for the user");
        let user = self.names.user;
        self.get_kubeconfig(user, &["--concierge-mode", "ImpersonationProxy"], KUBECONFIG).await
    }

    /// Lists pods as the user, who has no permission yet, and checks the complete output of
    /// kubectl.
    ///
    /// # Errors
    /// Returns an error when the output is different.
    pub async fn refused(&self) -> anyhow::Result<CommandOutput> {
        self.heading("The user is authenticated, but has no permissions");
        let step = self.user_kubectl(&self.user_kubeconfig(), &["get", "pods", "-A"]);
        let output = self.narrator.run(step, None, Show::Output).await?;
        anyhow::ensure!(
            output.code == 1 && output.stderr.contains(DECISION),
            "the user should have been refused by the proxy, but kubectl printed: {}{}",
            output.stdout,
            output.stderr
        );
        Ok(output)
    }

    /// Grants access to the user's group, and lists pods again.
    ///
    /// # Errors
    /// Returns an error when the listing does not work in time.
    pub async fn allow_and_list(&self) -> anyhow::Result<CommandOutput> {
        self.heading("An administrator grants permissions to the user's group");
        let Names { group, binding, .. } = self.names;
        let group = format!("--group={group}");
        let args = ["create", "clusterrolebinding", binding, "--clusterrole=cluster-admin", &group];
        self.kubectl(&args, None, Show::Output).await?;
        self.narrator.print("(a denial is cached for up to 10 seconds)");
        let step = || self.user_kubectl(&self.user_kubeconfig(), &["get", "pods", "-A"]);
        self.narrator.run_until(Duration::from_secs(20), step, Show::Output, |output| output.code == 0).await
    }

    /// Runs `pinniped whoami` as the user.
    ///
    /// # Errors
    /// Returns an error when the command line fails.
    pub async fn whoami(&self) -> anyhow::Result<CommandOutput> {
        self.heading("Who am I?");
        let suffix = ["--api-group-suffix", self.names.suffix];
        let suffix = if self.names.suffix == Names::DEFAULT.suffix { &[][..] } else { &suffix };
        let step = self.pinniped(&[&["whoami"], suffix].concat(), &self.user_kubeconfig());
        self.narrator.run(step, None, Show::Output).await?.success()
    }
}
