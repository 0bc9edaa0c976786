//! Installation, inspection and removal.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use pinniped_image::REFERENCE;
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::{tools, wait};

use super::gateway::{GATEWAY, GATEWAY_FILE};
use super::tokens::{SUBJECT, TOKENS_FILE};
use super::{CONCIERGE, LOCAL_USER_AUTHENTICATOR, TIME_LIMIT, TIMEOUT_FLAG, Walk};
use crate::narrator::Show;
use crate::third_party::MADE_BY_WALK;

/// The files to install, in this order.
pub const INSTALL_FILES: [&str; 3] = [
    "deploy/install-local-user-authenticator.yaml",
    "deploy/install-pinniped-concierge-crds.yaml",
    "deploy/install-pinniped-concierge-resources.yaml",
];

/// The namespace of the application.
const APPLICATION: &str = "some-app";
/// The pods of the application: name, container, and an image for the case that no node runs them.
const PODS: [(&str, &str, &str); 2] =
    [("frontend", "web", "example.com/web"), ("backend", "api", "example.com/api")];

impl Walk<'_> {
    /// Applies the install files and waits until the Deployments are available and logins work.
    ///
    /// # Errors
    /// Returns an error when kubectl fails or a Deployment does not become available.
    pub async fn install(&self) -> anyhow::Result<()> {
        self.install_image(REFERENCE).await
    }

    /// Does the same with another image.
    ///
    /// # Errors
    /// Returns an error when kubectl fails or a Deployment does not become available.
    pub async fn install_image(&self, image: &str) -> anyhow::Result<()> {
        self.heading("Install");
        for file in INSTALL_FILES {
            let definitions = file.ends_with("-crds.yaml");
            if image == REFERENCE || definitions {
                self.kubectl(&["apply", "-f", file], None, Show::Output).await?;
            } else {
                let text = std::fs::read_to_string(tools::repository().join(file));
                let text = text.with_context(|| format!("could not read {file}"))?;
                let text = with_image(&text, image).with_context(|| format!("could not change {file}"))?;
                let shown = format!("sed 's|{REFERENCE}|{image}|' {file} | kubectl apply -f -");
                let step = self.admin_step(&["apply", "-f", "-"]);
                self.narrator.show_command(&shown);
                let output = step.run(Some(&text)).await?;
                self.narrator.show(&output, Show::Output);
                output.success()?;
            }
            if definitions {
                // A busy API server needs a moment until it serves new kinds; the next file
                // contains objects of them.
                let args = ["wait", "--for=condition=Established", "--timeout=30s", "-f", file];
                wait::until_ok(TIME_LIMIT, "the definitions to be established", async || {
                    self.admin_step(&args).run(None).await?.success()?;
                    anyhow::Ok(())
                })
                .await?;
            }
        }
        for name in [LOCAL_USER_AUTHENTICATOR, CONCIERGE] {
            let deployment = format!("deployment/{name}");
            let args = ["rollout", "status", &deployment, "--namespace", name, TIMEOUT_FLAG];
            self.kubectl(&args, None, Show::Output).await?;
        }
        // Logins pass through the API server's aggregation layer, which checks the pods itself, a
        // moment after they are ready.
        wait::until_ok(TIME_LIMIT, "the aggregated API to respond", async || {
            let path = "/apis/login.concierge.pinniped.dev/v1alpha1";
            self.admin_step(&["get", "--raw", path]).run(None).await?.success()?;
            anyhow::Ok(())
        })
        .await
    }

    /// Lists the pods of the whole cluster.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn show_pods(&self) -> anyhow::Result<CommandOutput> {
        self.kubectl(&["get", "pods", "--all-namespaces", "--output", "wide"], None, Show::Output).await
    }

    /// Returns the CredentialIssuer after the install, and shows its printer columns.
    ///
    /// # Errors
    /// Returns an error when it does not exist or has no strategies in time.
    pub async fn show_credential_issuer(&self) -> anyhow::Result<serde_json::Value> {
        self.heading("The Concierge's status for this cluster");
        let issuer = wait::until_ok(TIME_LIMIT, "the CredentialIssuer to have two strategies", async || {
            let issuer = self.credential_issuer().await?;
            let count = issuer["status"]["strategies"].as_array().map_or(0, Vec::len);
            anyhow::ensure!(count >= 2, "its status is {}", issuer["status"]);
            Ok(issuer)
        })
        .await?;
        self.show_strategies().await?;
        Ok(issuer)
    }

    /// Shows the printer columns of the CredentialIssuer, and one line for each of its strategies.
    pub(super) async fn show_strategies(&self) -> anyhow::Result<()> {
        self.kubectl(&["get", &self.kind("credentialissuer")], None, Show::Output).await?;
        let path =
            r#"jsonpath={range .status.strategies[*]}{.type}: {.status}/{.reason}: {.message}{"\n"}{end}"#;
        let args = ["get", &self.kind("credentialissuer"), &self.names.object("config"), "-o", path];
        self.kubectl(&args, None, Show::Output).await?;
        Ok(())
    }

    /// Returns the current CredentialIssuer.
    ///
    /// # Errors
    /// Returns an error when it cannot be read.
    pub async fn credential_issuer(&self) -> anyhow::Result<serde_json::Value> {
        let args = ["get", &self.kind("credentialissuer"), &self.names.object("config"), "-o", "json"];
        let output = self.admin_step(&args).run(None).await?.success()?;
        Ok(serde_json::from_str(&output.stdout)?)
    }

    /// Creates the user with password `password123` and one group.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn create_user(&self) -> anyhow::Result<()> {
        self.heading("Create a user: one Secret");
        self.create_local_user(self.names.user, self.names.group).await
    }

    /// Creates a user of the local-user-authenticator with password `password123`.
    pub(super) async fn create_local_user(&self, name: &str, groups: &str) -> anyhow::Result<()> {
        let hash = bcrypt::hash("password123", 10).context("could not hash the password")?;
        let groups = format!("--from-literal=groups={groups}");
        let hash = format!("--from-literal=passwordHash={hash}");
        let args = ["create", "secret", "generic", name, "--namespace", LOCAL_USER_AUTHENTICATOR];
        self.kubectl(&[&args[..], &[&groups, &hash]].concat(), None, Show::Output).await?;
        Ok(())
    }

    /// Creates the WebhookAuthenticator with the webhook's CA, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error when the CA does not appear or the authenticator does not become ready.
    pub async fn create_authenticator(&self) -> anyhow::Result<()> {
        self.heading("Configure a webhook that validates tokens");
        let secret = "local-user-authenticator-tls-serving-certificate";
        let path = "jsonpath={.data.caCertificate}";
        let args = ["get", "secret", secret, "--namespace", LOCAL_USER_AUTHENTICATOR, "-o", path];
        let filled = |output: &CommandOutput| output.code == 0 && !output.stdout.is_empty();
        let ca =
            self.narrator.run_until(TIME_LIMIT, || self.admin_step(&args), Show::Size, filled).await?.stdout;
        let authenticator = format!(
            "apiVersion: {}/v1alpha1\nkind: WebhookAuthenticator\n\
             metadata: {{name: local-user-authenticator}}\nspec:\n  \
             endpoint: https://local-user-authenticator.local-user-authenticator.svc/authenticate\n  \
             tls: {{certificateAuthorityData: {ca}}}\n",
            self.names.group_of("authentication")
        );
        self.kubectl(&["apply", "-f", "-"], Some(&authenticator), Show::Output).await?;
        let name = format!("{}/local-user-authenticator", self.kind("webhookauthenticator"));
        let args = ["wait", &name, "--for=jsonpath={.status.phase}=Ready", TIMEOUT_FLAG];
        self.kubectl(&args, None, Show::Output).await?;
        self.kubectl(&["get", &self.kind("webhookauthenticator")], None, Show::Output).await?;
        Ok(())
    }

    /// Creates a few pods for the listings.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn create_workload(&self) -> anyhow::Result<()> {
        let idle = self.environment.idle_image();
        let nobody = if idle.is_some() { "" } else { " (no node runs them)" };
        self.heading(&format!("An application: its pods{nobody}"));
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {APPLICATION}}}\n");
        self.kubectl(&["apply", "-f", "-"], Some(&namespace), Show::Output).await?;
        // The API server refuses pods until the controller manager has created the account.
        let account = ["get", "serviceaccount", "default", "--namespace", APPLICATION];
        wait::until_ok(TIME_LIMIT, "the default service account of the application", async || {
            self.admin_step(&account).run(None).await?.success()?;
            anyhow::Ok(())
        })
        .await?;
        let mut yaml = String::new();
        for (pod, container, image) in PODS {
            let image = idle.as_deref().unwrap_or(image);
            // Writing to a String cannot fail.
            let _ = write!(
                yaml,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: {APPLICATION}}}\n\
                 spec: {{containers: [{{name: {container}, image: {image}, imagePullPolicy: IfNotPresent}}]}}\n"
            );
        }
        self.kubectl(&["apply", "-f", "-"], Some(&yaml), Show::Output).await?;
        if idle.is_some() {
            let args =
                ["wait", "pods", "--all", "--for=condition=Ready", "--namespace", APPLICATION, TIMEOUT_FLAG];
            self.kubectl(&args, None, Show::Output).await?;
        }
        Ok(())
    }

    /// Removes all objects that a walk creates, also after an interrupted walk.
    ///
    /// # Errors
    /// Returns an error when an object cannot be removed, or still exists.
    pub async fn remove(&self) -> anyhow::Result<()> {
        self.heading("Remove everything");
        let gone = ["--ignore-not-found", "--wait=true", TIMEOUT_FLAG];
        // Only some walks install the gateway, so its removal is only shown in these.
        let gateway = self.leftovers().await?.iter().any(|left| left.contains(GATEWAY));
        let gateway = gateway.then_some(&GATEWAY_FILE);
        for file in INSTALL_FILES.iter().chain([&TOKENS_FILE]).chain(gateway).rev() {
            let step = self.admin_step(&[&["delete", "-f", file][..], &gone].concat());
            let output = self.narrator.run(step, None, Show::Output).await?;
            // If the CRDs are gone, so are the objects of their kinds.
            if !output.stderr.contains("no matches for kind") {
                output.success()?;
            }
        }
        let bindings = ["delete", "clusterrolebinding", super::proxy::BINDING, super::login::BINDING];
        self.kubectl(&[&bindings[..], &gone].concat(), None, Show::Output).await?;
        // The permissions of users inside the namespace were removed with it.
        let users = ["delete", "clusterrolebindings,clusterroles", "--selector", SUBJECT];
        self.kubectl(&[&users[..], &gone].concat(), None, Show::Output).await?;
        self.kubectl(&[&["delete", "namespace", APPLICATION][..], &gone].concat(), None, Show::Output)
            .await?;
        // Admission first, because its webhook no longer responds. Another cert-manager does not
        // have the label.
        for kinds in [
            "mutatingwebhookconfigurations,validatingwebhookconfigurations",
            "customresourcedefinitions",
            "clusterrolebindings,clusterroles",
            "namespaces",
        ] {
            let labelled = ["delete", kinds, "--selector", MADE_BY_WALK];
            self.kubectl(&[&labelled[..], &gone].concat(), None, Show::Output).await?;
        }
        wait::until_ok(TIME_LIMIT, "no object of the demo to be left", async || {
            let left = self.leftovers().await?;
            anyhow::ensure!(left.is_empty(), "there is still {}", left.join(", "));
            Ok(())
        })
        .await?;
        self.narrator.print("(no object of it is left in the cluster)");
        Ok(())
    }

    /// Returns the remaining objects of an install or a walk, found by the names that all of them
    /// have.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let kinds = "namespaces,customresourcedefinitions,apiservices,clusterroles,clusterrolebindings,\
                     priorityclasses,roles,rolebindings,deployments,pods,leases,secrets";
        let args = ["get", kinds, "--all-namespaces", "--ignore-not-found", "--output=name"];
        let names = self.admin_step(&args).run(None).await?.success()?.stdout;
        let walks = [
            format!("namespace/{APPLICATION}"),
            format!("clusterrolebinding.rbac.authorization.k8s.io/{}", super::proxy::BINDING),
            format!("clusterrolebinding.rbac.authorization.k8s.io/{}", super::login::BINDING),
        ];
        let ours = |name: &str| {
            [CONCIERGE, GATEWAY, "pinniped-user-", "concierge.pinniped.dev", LOCAL_USER_AUTHENTICATOR]
                .iter()
                .any(|part| name.contains(part))
        };
        let kinds = "namespaces,customresourcedefinitions,mutatingwebhookconfigurations,validatingwebhookconfigurations";
        let args = ["get", kinds, "--selector", MADE_BY_WALK, "--ignore-not-found", "--output=name"];
        let labelled = self.admin_step(&args).run(None).await?.success()?.stdout;
        let left = names.lines().filter(|name| ours(name) || walks.iter().any(|walk| walk == name));
        Ok(left.chain(labelled.lines()).map(str::to_owned).collect())
    }
}

/// Returns a manifest with another name of the product's image.
fn with_image(manifest: &str, image: &str) -> anyhow::Result<String> {
    ensure!(manifest.contains(REFERENCE), "the manifest does not have the image {REFERENCE}");
    Ok(manifest.replace(REFERENCE, image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_install_files_get_another_image() {
        const IMAGE: &str = "registry.example.com/product:1";
        for file in INSTALL_FILES.iter().filter(|file| !file.ends_with("-crds.yaml")) {
            let text = std::fs::read_to_string(tools::repository().join(file)).unwrap();
            let changed = with_image(&text, IMAGE).unwrap();
            let images = changed.lines().filter_map(|line| line.trim().strip_prefix("image: "));
            assert_eq!(images.collect::<Vec<_>>(), [IMAGE], "{file}");
        }
    }

    #[test]
    fn a_manifest_without_the_image_is_refused() {
        let error = with_image("image: example.com/other\n", "example.com/new").unwrap_err();
        assert!(error.to_string().contains(REFERENCE), "{error}");
    }
}
