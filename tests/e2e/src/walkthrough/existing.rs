//! An installation in an existing cluster, and a login with the strategy that works there.

use anyhow::Context as _;
use pinniped_test_support::tools;

use super::install::INSTALL_FILES;
use super::login::{BINDING, KUBECONFIG, LISTING, USER};
use super::{CREDENTIAL_ISSUER, TIMEOUT_FLAG, Walk};
use crate::narrator::Show;

impl Walk<'_> {
    /// Installs, creates a user and an authenticator, and logs in. `image` is the name of the image
    /// in a registry that the cluster reaches, or on its nodes.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn on_existing_cluster(&self, image: &str) -> anyhow::Result<()> {
        self.install_image(image).await?;
        self.heading("Create a user: one Secret");
        self.create_local_user(USER, "group1,group2").await?;
        self.create_authenticator().await?;
        self.heading("Wait until a strategy works");
        let name = format!("{}/{CREDENTIAL_ISSUER}", self.kind("credentialissuer"));
        let args = ["wait", &name, "--for=condition=Ready", TIMEOUT_FLAG];
        let waited = self.kubectl(&args, None, Show::Output).await;
        self.show_strategies().await?;
        waited.context("no strategy works in this cluster, see docs/howto/managed-clusters.md")?;
        self.heading("Create a kubeconfig for the user");
        self.get_kubeconfig(USER, &[], KUBECONFIG).await?;
        self.heading("The user is authenticated, but has no permissions");
        let step = self.user_kubectl(&self.tutorial_kubeconfig(), &LISTING);
        let output = self.narrator.run(step, None, Show::Output).await?;
        let refused = format!("User \"{USER}\" cannot list resource \"pods\"");
        anyhow::ensure!(
            output.code == 1 && output.stderr.contains(&refused),
            "the user should have been refused, but kubectl printed: {}{}",
            output.stdout,
            output.stderr
        );
        self.heading("An administrator grants permissions to the user");
        self.allow_and_list_without_proxy().await?;
        self.heading("Who am I?");
        let step = self.pinniped(&["whoami"], &self.tutorial_kubeconfig());
        self.narrator.run(step, None, Show::Output).await?.success()?;
        Ok(())
    }

    /// Returns the commands that remove the objects of [`Walk::on_existing_cluster`].
    #[must_use]
    pub fn removal(&self) -> Vec<String> {
        let kubectl = format!("kubectl --kubeconfig {}", self.environment.admin_kubeconfig().display());
        let repository = tools::repository();
        let files = INSTALL_FILES.iter().rev();
        let files = files.map(|file| format!("{kubectl} delete -f {}", repository.join(file).display()));
        files.chain([format!("{kubectl} delete clusterrolebinding {BINDING}")]).collect()
    }
}
