//! A separate Concierge for one test, besides the shared one: another namespace, another API group
//! suffix.

use pinniped_e2e::walkthrough::strategy;
use pinniped_test_support::pods::Pods;
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::installed::TIME_LIMIT;
use crate::service_account_tokens::webhook::{Webhook, token_of};
use crate::{apis, crds};

/// The authenticator that accepts every user.
const DEFAULT_AUTHENTICATOR: &str = "anybody";

/// An installation for one test.
pub(crate) struct SeparateConcierge {
    pub(crate) world: &'static World,
    pub(crate) pods: &'static Pods,
    pub(crate) app: &'static str,
    pub(crate) suffix: String,
}

impl SeparateConcierge {
    /// Installs our manifest with `app` as namespace and in all names, with one replica, after
    /// `edit`; `before` are objects (JSON) of the namespace that exist before the Concierge.
    pub(crate) async fn install(
        app: &'static str,
        before: &[Value],
        edit: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        Self::install_with_suffix(app, format!("{app}.example.com"), before, edit).await
    }

    /// Does the same with another API group suffix than that of the other tests.
    pub(crate) async fn install_with_suffix(
        app: &'static str,
        suffix: String,
        before: &[Value],
        edit: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        let world = World::shared().unwrap();
        let pods = world.pods(app)?;
        crds::install_ours(world, &suffix).await;
        let text = manifest(app, &suffix, "install-pinniped-concierge-resources.yaml")
            .replace(&format!("            - {app}\n"), "            - pinniped-concierge\n")
            .replace("replicas: 2", "replicas: 1");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app}});
        world.kubectl().apply(&namespace.to_string()).await.unwrap();
        for object in before {
            world.kubectl().apply(&object.to_string()).await.unwrap();
        }
        world.kubectl().apply(&edit(text)).await.unwrap();
        Some(Self { world, pods, app, suffix })
    }

    pub(crate) async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.world.kubectl().output(&[args, &["-n", self.app]].concat()).await
    }

    pub(crate) async fn get(&self, resource: &str, name: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&["get", resource, name, "-o", "json"]).await?)?)
    }

    /// Waits for the strategy of the impersonation proxy.
    pub(crate) async fn await_strategy(&self, wanted: [&str; 2], message: &str) {
        let resource = format!("credentialissuers.v1alpha1.config.concierge.{}", self.suffix);
        let name = format!("{}-config", self.app);
        let waited = wait::until_ok(TIME_LIMIT, format!("the strategy {wanted:?} {message}"), async || {
            let issuer = self.get(&resource, &name).await?;
            let strategy = strategy(&issuer, "ImpersonationProxy");
            let fits = strategy["status"] == wanted[0]
                && strategy["reason"] == wanted[1]
                && strategy["message"].as_str().is_some_and(|text| text.contains(message));
            anyhow::ensure!(fits, "{strategy}");
            Ok(())
        })
        .await;
        self.check(waited);
    }

    /// Waits until the aggregated API responds.
    pub(crate) async fn await_api(&self) {
        let path = format!("/apis/identity.concierge.{}/v1alpha1/whoamirequests", self.suffix);
        let waited = wait::until_ok(TIME_LIMIT, "the API of this installation", async || {
            self.kubectl(&["get", "--raw", &path]).await
        });
        self.check(waited.await.map(drop));
    }

    /// Creates the WebhookAuthenticator `anybody`, which accepts every user.
    pub(crate) async fn create_authenticator(&self, webhook: &Webhook) {
        self.create_authenticator_named(DEFAULT_AUTHENTICATOR, webhook).await;
    }

    /// Creates a WebhookAuthenticator with this name.
    pub(crate) async fn create_authenticator_named(&self, name: &str, webhook: &Webhook) {
        let object = json!({"apiVersion": format!("authentication.concierge.{}/v1alpha1", self.suffix),
            "kind": "WebhookAuthenticator", "metadata": {"name": name},
            "spec": {"endpoint": format!("https://{}/", webhook.address),
                "tls": {"certificateAuthorityData": webhook.ca}}});
        self.world.kubectl().apply(&object.to_string()).await.unwrap();
    }

    /// Returns the status of the response to a login of this user.
    pub(crate) async fn log_in(&self, user: &Value) -> anyhow::Result<Value> {
        let client = apis::anonymous(self.world).await;
        let response =
            apis::post(&client, &self.login_path(), &self.login_request(DEFAULT_AUTHENTICATOR, user)).await?;
        Ok(response["status"].clone())
    }

    /// Returns the path of logins.
    pub(crate) fn login_path(&self) -> String {
        format!("/apis/login.concierge.{}/v1alpha1/tokencredentialrequests", self.suffix)
    }

    /// Returns the request of a login of this user through a WebhookAuthenticator.
    pub(crate) fn login_request(&self, authenticator: &str, user: &Value) -> Value {
        json!({"spec": {"token": token_of(user), "authenticator": {
            "apiGroup": format!("authentication.concierge.{}", self.suffix),
            "kind": "WebhookAuthenticator", "name": authenticator}}})
    }

    pub(crate) async fn await_log(&self, wanted: &str) {
        let waited = wait::until(TIME_LIMIT, format!("{wanted:?} in the log"), async || {
            self.pods.logs(self.app).contains(wanted).then_some(())
        });
        self.check(waited.await);
    }

    pub(crate) fn check(&self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            panic!("{}\n{error:#}", self.pods.log_tails(self.app, 30));
        }
    }
}

impl Drop for SeparateConcierge {
    /// Removes the Deployment and the APIs, so that no program of a finished test keeps running. An
    /// API without a backend would block the deletion of every namespace, because the API server
    /// could not list the namespace's objects.
    fn drop(&mut self) {
        let [login, identity] =
            ["login", "identity"].map(|group| format!("v1alpha1.{group}.concierge.{}", self.suffix));
        let deletions: [&[&str]; 2] = [
            &["delete", "apiservices", &login, &identity, "--ignore-not-found"],
            &["delete", "deployment", self.app, "-n", self.app, "--ignore-not-found", "--wait=false"],
        ];
        for args in deletions {
            let deleted = self.world.kubectl().command(args).output();
            if !deleted.as_ref().is_ok_and(|output| output.status.success()) {
                eprintln!("could not remove {}: {deleted:?}", self.app);
            }
        }
    }
}

/// Returns a file of `deploy/` with another API group suffix, and `app` in all names.
pub(crate) fn manifest(app: &str, suffix: &str, file: &str) -> String {
    let text = std::fs::read_to_string(tools::repository().join("deploy").join(file)).unwrap();
    text.replace("concierge.pinniped.dev", &format!("concierge.{suffix}"))
        .replace("apiGroupSuffix: pinniped.dev", &format!("apiGroupSuffix: {suffix}"))
        .replace("pinniped-concierge", app)
}

/// Enables the proxy without a Service.
pub(crate) fn with_proxy(text: &str) -> String {
    with_proxy_service(text, "None", "    externalEndpoint: proxy.example.com\n")
}

/// Enables the proxy with a Service of this type, and other lines of its configuration.
pub(crate) fn with_proxy_service(text: &str, kind: &str, lines: &str) -> String {
    let mode = ("    mode: auto\n", format!("    mode: enabled\n{lines}"));
    let service = ("      type: LoadBalancer\n", format!("      type: {kind}\n"));
    [mode, service].into_iter().fold(text.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replace(from, &to)
    })
}
