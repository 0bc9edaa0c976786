//! The tutorial "Learn to use the Pinniped Concierge": login with credentials signed by the
//! cluster's own key, directly to the API server.

use std::path::PathBuf;

use pinniped_test_support::kubectl::CommandOutput;

use super::{CONCIERGE, CREDENTIAL_ISSUER, DECISION, TIME_LIMIT, TIMEOUT_FLAG, Walk};
use crate::narrator::Show;

/// The binding that grants access to the tutorial's user.
pub(super) const BINDING: &str = "pinny-can-read";
/// The tutorial's user.
pub(super) const USER: &str = "pinny-the-seal";
/// The file of the user's kubeconfig.
pub(super) const KUBECONFIG: &str = "tutorial-kubeconfig.yaml";
/// The command that the user runs.
pub(super) const LISTING: [&str; 4] = ["get", "pods", "--namespace", CONCIERGE];

impl Walk<'_> {
    /// Waits until the Concierge has the cluster's signing key.
    ///
    /// # Errors
    /// Returns an error when the strategy does not become Success/FetchedKey.
    pub async fn await_cluster_key(&self) -> anyhow::Result<()> {
        self.heading("The Concierge's agent finds the cluster's signing key");
        let issuer = format!("{}/{CREDENTIAL_ISSUER}", self.kind("credentialissuer"));
        let there = "--for=jsonpath={.status.strategies[?(@.type==\"KubeClusterSigningCertificate\")].reason}=FetchedKey";
        self.kubectl(&["wait", &issuer, there, TIMEOUT_FLAG], None, Show::Output).await?;
        let args = ["get", "pods", "--namespace", CONCIERGE, "--output", "wide"];
        self.kubectl(&args, None, Show::Output).await?;
        Ok(())
    }

    /// The path of the kubeconfig that [`Walk::kubeconfig_without_proxy`] writes.
    #[must_use]
    pub fn tutorial_kubeconfig(&self) -> PathBuf {
        self.home.join(KUBECONFIG)
    }

    /// Creates the tutorial's user.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn create_tutorial_user(&self) -> anyhow::Result<()> {
        self.heading("Login without a proxy: the cluster's key signs");
        self.create_local_user(USER, "group1,group2").await
    }

    /// Writes a kubeconfig for the tutorial's user whose server is the API server itself.
    ///
    /// # Errors
    /// Returns an error when the command line fails, or discovers another way to log in.
    pub async fn kubeconfig_without_proxy(&self) -> anyhow::Result<CommandOutput> {
        let output = self.get_kubeconfig(USER, &[], KUBECONFIG).await?;
        let found = "discovered Concierge operating in TokenCredentialRequest API mode";
        anyhow::ensure!(output.stderr.contains(found), "{found:?} was not printed: {}", output.stderr);
        Ok(output)
    }

    /// Lists pods as the tutorial's user, who has no permission yet.
    ///
    /// # Errors
    /// Returns an error when the response is not the API server's own refusal.
    pub async fn refused_without_proxy(&self) -> anyhow::Result<CommandOutput> {
        let step = self.user_kubectl(&self.tutorial_kubeconfig(), &LISTING);
        let output = self.narrator.run(step, None, Show::Output).await?;
        let refused = format!(
            "Error from server (Forbidden): pods is forbidden: User \"{USER}\" cannot list resource \"pods\" \
             in API group \"\" in the namespace \"{CONCIERGE}\"\n"
        );
        anyhow::ensure!(
            output.code == 1 && output.stderr == refused && !output.stderr.contains(DECISION),
            "the user should have been refused by the API server, but kubectl printed: {}{}",
            output.stdout,
            output.stderr
        );
        Ok(output)
    }

    /// Grants read permission to the tutorial's user, and lists pods again.
    ///
    /// # Errors
    /// Returns an error when the listing does not work in time.
    pub async fn allow_and_list_without_proxy(&self) -> anyhow::Result<CommandOutput> {
        let args = ["create", "clusterrolebinding", BINDING, "--clusterrole=view", &format!("--user={USER}")];
        self.kubectl(&args, None, Show::Output).await?;
        let step = || self.user_kubectl(&self.tutorial_kubeconfig(), &LISTING);
        self.narrator.run_until(TIME_LIMIT, step, Show::Output, |output| output.code == 0).await
    }
}
