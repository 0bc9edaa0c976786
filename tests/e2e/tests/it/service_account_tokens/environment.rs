//! A Concierge with the strategy enabled, and operations of the tests.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::webhook::{Webhook, token_of};
use crate::installed::TIME_LIMIT;
use crate::separate_concierge::{SeparateConcierge, manifest, with_proxy};

/// The opt-in manifest.
pub(crate) const MANIFEST: &str = "install-pinniped-concierge-service-account-tokens.yaml";

/// The label of every object that is created for an identity.
pub(crate) const SUBJECT: &str = "concierge.pinniped.dev/impersonation-subject";

static SHARED: OnceCell<Option<Tokens>> = OnceCell::const_new();

/// An installation with its own webhook.
pub(crate) struct Tokens {
    pub(crate) own: SeparateConcierge,
    webhook: Webhook,
}

/// Access of a test to the shared installation.
pub(crate) struct InstallationGuard {
    tokens: &'static Tokens,
}

impl Deref for InstallationGuard {
    type Target = Tokens;

    fn deref(&self) -> &Tokens {
        self.tokens
    }
}

impl Drop for InstallationGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tokens.own.pods.log_tails(self.tokens.own.app, 30));
        }
    }
}

/// Returns the shared installation, or `None` where this machine cannot run it; the skip is
/// recorded.
pub(crate) async fn shared() -> Option<InstallationGuard> {
    let tokens = SHARED
        .get_or_init(|| async {
            let tokens = Tokens::install("token-users", 3, true).await?;
            tokens.enable(json!({})).await;
            Some(tokens)
        })
        .await;
    tokens.as_ref().map(|tokens| InstallationGuard { tokens })
}

/// The response to a login.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) token: String,
    pub(crate) expires: String,
    pub(crate) impersonate: Value,
}

impl Login {
    /// Returns the headers that impersonate its user.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        headers_of(&self.impersonate)
    }
}

/// Returns the headers that impersonate a user, given in the form of a response.
pub(crate) fn headers_of(user: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut headers = vec![("Impersonate-User".to_owned(), text(&user["username"]))];
    if let Some(uid) = user["uid"].as_str() {
        headers.push(("Impersonate-Uid".to_owned(), uid.to_owned()));
    }
    for group in user["groups"].as_array().into_iter().flatten() {
        headers.push(("Impersonate-Group".to_owned(), text(group)));
    }
    for (key, values) in user["extra"].as_object().into_iter().flatten() {
        let name = format!("Impersonate-Extra-{}", key.replace('/', "%2F"));
        for value in values.as_array().into_iter().flatten() {
            headers.push((name.clone(), text(value)));
        }
    }
    headers
}

impl Tokens {
    /// Installs a Concierge called `app`, with its impersonation proxy enabled, so that it issues
    /// certificates, too, and with or without the opt-in manifest. The strategy is disabled.
    pub(crate) async fn install(app: &'static str, replicas: usize, opt_in: bool) -> Option<Self> {
        let edit = |text: String| {
            let server = World::shared().unwrap().control_plane().server();
            with_proxy(&text)
                .replace("replicas: 1", &format!("replicas: {replicas}"))
                .replace("      url: null", &format!("      url: {server}"))
        };
        let own = SeparateConcierge::install(app, &[], edit).await?;
        let webhook = Webhook::start().unwrap();
        let tokens = Self { own, webhook };
        if opt_in {
            tokens.opt_in().await;
        }
        tokens.own.await_api().await;
        tokens.await_webhook().await;
        Some(tokens)
    }

    /// Applies the opt-in manifest.
    pub(crate) async fn opt_in(&self) {
        let text = manifest(self.own.app, &self.own.suffix, MANIFEST);
        self.own.world.kubectl().apply(&text).await.unwrap();
    }

    /// Returns a user that only the webhook of this installation accepts.
    fn first(&self) -> Value {
        json!({"username": format!("{}-first", self.own.app)})
    }

    async fn await_webhook(&self) {
        let group = format!("authentication.concierge.{}", self.own.suffix);
        let object = json!({"apiVersion": format!("{group}/v1alpha1"), "kind": "WebhookAuthenticator",
            "metadata": {"name": "anybody"},
            "spec": {"endpoint": format!("https://{}/", self.webhook.address),
                "tls": {"certificateAuthorityData": self.webhook.ca}}});
        self.own.world.kubectl().apply(&object.to_string()).await.unwrap();
        // Every replica must have loaded the authenticator.
        let ready = wait::until_ok(TIME_LIMIT, "logins to be judged by all replicas", async || {
            for _ in 0..6 {
                let status = self.try_log_in(&self.first(), &["ClientCertificate"]).await?;
                anyhow::ensure!(status["credential"]["clientCertificateData"].is_string(), "{status}");
            }
            Ok(())
        });
        self.own.check(ready.await);
    }

    /// Returns the namespace of the service accounts.
    pub(crate) fn users(&self) -> String {
        format!("{}-users", self.own.app)
    }

    /// Returns name and resource of the CredentialIssuer.
    pub(crate) fn issuer(&self) -> (String, String) {
        (
            format!("credentialissuers.v1alpha1.config.concierge.{}", self.own.suffix),
            format!("{}-config", self.own.app),
        )
    }

    /// Changes `spec.serviceAccountTokens`.
    pub(crate) async fn configure(&self, spec: Value) {
        let (resource, name) = self.issuer();
        let patch = json!({"spec": {"serviceAccountTokens": spec}}).to_string();
        self.own.kubectl(&["patch", &resource, &name, "--type=merge", "-p", &patch]).await.unwrap();
    }

    /// Enables the strategy in its own namespace, with further settings, and waits until all
    /// replicas issue tokens.
    pub(crate) async fn enable(&self, further: Value) {
        let mut spec = json!({"mode": "enabled", "namespace": self.users()});
        spec.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        self.configure(spec).await;
        self.await_strategy("Success", "Listening", "service account token exchange is ready").await;
        let ready = wait::until_ok(TIME_LIMIT, "all replicas to issue tokens", async || {
            for _ in 0..6 {
                let status = self.try_log_in(&self.first(), &["ServiceAccountToken"]).await?;
                anyhow::ensure!(status["credential"]["token"].is_string(), "{status}");
            }
            Ok(())
        });
        self.own.check(ready.await);
    }

    /// Returns all entries of the status.
    pub(crate) async fn strategies(&self) -> anyhow::Result<Vec<Value>> {
        let (resource, name) = self.issuer();
        let issuer = self.own.get(&resource, &name).await?;
        Ok(issuer["status"]["strategies"].as_array().cloned().unwrap_or_default())
    }

    /// Returns the entry of the strategy.
    pub(crate) async fn entry(&self) -> anyhow::Result<Option<Value>> {
        Ok(self.strategies().await?.into_iter().find(|entry| entry["type"] == "ServiceAccountToken"))
    }

    /// Waits for an entry of the strategy whose message contains this text.
    pub(crate) async fn await_strategy(&self, status: &str, reason: &str, message: &str) {
        let waited = wait::until_ok(TIME_LIMIT, format!("{status}/{reason}: {message}"), async || {
            let entry = self.entry().await?.unwrap_or_default();
            let fits = entry["status"] == status
                && entry["reason"] == reason
                && entry["message"].as_str().is_some_and(|text| text.contains(message));
            anyhow::ensure!(fits, "{entry}");
            Ok(())
        });
        self.own.check(waited.await);
    }

    /// Returns the status of the response to a login of this user.
    pub(crate) async fn try_log_in(&self, user: &Value, accept: &[&str]) -> anyhow::Result<Value> {
        self.try_log_in_as(user, accept, "").await
    }

    async fn try_log_in_as(&self, user: &Value, accept: &[&str], audit_id: &str) -> anyhow::Result<Value> {
        let mut request = json!({"spec": {"token": token_of(user), "authenticator": {
            "apiGroup": format!("authentication.concierge.{}", self.own.suffix),
            "kind": "WebhookAuthenticator", "name": "anybody"}}});
        if !accept.is_empty() {
            request["spec"]["acceptCredentialTypes"] = json!(accept);
        }
        let path = format!("/apis/login.concierge.{}/v1alpha1/tokencredentialrequests", self.own.suffix);
        let client = client(AuthInfo::default(), self).await;
        let mut requested = Request::post(path).header("content-type", "application/json");
        if !audit_id.is_empty() {
            requested = requested.header("audit-id", audit_id);
        }
        let response: Value = client.request(requested.body(request.to_string().into_bytes())?).await?;
        Ok(response["status"].clone())
    }

    /// Logs in and requests a token.
    pub(crate) async fn log_in(&self, user: &Value) -> Login {
        let status = self.try_log_in(user, &["ServiceAccountToken"]).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let login = Login {
            token: text(&status["credential"]["token"]),
            expires: text(&status["credential"]["expirationTimestamp"]),
            impersonate: status["impersonate"].clone(),
        };
        if login.token.is_empty() {
            self.own.check(Err(anyhow::anyhow!("no token for {user}: {status}")));
        }
        login
    }

    /// Expects a login to fail, and returns its audit line.
    pub(crate) async fn refused(&self, user: &Value, accept: &[&str]) -> Value {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let audit_id = format!("refused-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let status = self.try_log_in_as(user, accept, &audit_id).await.unwrap();
        assert_eq!(status, json!({"message": "authentication failed"}), "{user}");
        let line = wait::until(TIME_LIMIT, "a line of the audit log", async || {
            let mut lines = self.audit_lines().into_iter();
            lines.find(|line| line["auditID"] == audit_id.as_str() && line["reason"].is_string())
        });
        line.await.unwrap()
    }

    /// Returns the Concierge's own audit lines.
    pub(crate) fn audit_lines(&self) -> Vec<Value> {
        let logs = self.own.pods.logs(self.own.app);
        let lines = logs.lines().filter(|line| line.contains("\"auditEvent\":true"));
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Sends a request to the API server with a token and further headers; returns the code, and
    /// the body or the message.
    pub(crate) async fn send_request(
        &self,
        token: &str,
        headers: &[(String, String)],
        target: &str,
    ) -> (u16, Value) {
        let auth = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        let client = client(auth, self).await;
        let (method, body) = match target {
            SELF_REVIEW => {
                ("POST", json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}))
            }
            _ => ("GET", Value::Null),
        };
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
            request = request.header(name, value);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = request.header("content-type", "application/json").body(body).unwrap();
        match client.request::<Value>(request).await {
            Ok(response) => (200, response),
            Err(kube::Error::Api(status)) => (status.code, Value::from(status.message.clone())),
            Err(error) => panic!("{target}: {error}"),
        }
    }

    /// Returns the user that the API server authenticates when this login impersonates its user.
    pub(crate) async fn who_am_i(&self, login: &Login) -> Value {
        let (code, response) = self.send_request(&login.token, &login.headers(), SELF_REVIEW).await;
        assert_eq!(code, 200, "{response}");
        response["status"]["userInfo"].clone()
    }

    /// Returns the number of objects of a kind for an identity, given by its name, or for all
    /// identities.
    pub(crate) async fn count(&self, resource: &str, subject: Option<&str>) -> usize {
        let selector = match subject {
            Some(name) => {
                format!("{SUBJECT}={},app={}", name.trim_start_matches("pinniped-user-"), self.own.app)
            }
            None => format!("{SUBJECT},app={}", self.own.app),
        };
        let users = self.users();
        let args = ["get", resource, "-n", &users, "-l", &selector, "-o", "name"];
        self.own.world.kubectl().output(&args).await.unwrap().lines().count()
    }
}

/// Path that returns the caller's identity.
pub(crate) const SELF_REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Returns the claims of a token.
fn claims_of(login: &Login) -> Value {
    use base64::Engine as _;
    let claims = login.token.split('.').nth(1).unwrap();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
    serde_json::from_slice(&claims).unwrap()
}

/// Returns the name of the objects that belong to a token, and the username of its service account.
pub(crate) fn account_of(login: &Login) -> (String, String) {
    let username = claims_of(login)["sub"].as_str().unwrap().to_owned();
    (username.rsplit(':').next().unwrap().to_owned(), username)
}

/// Returns the name of the secret to which a token is bound.
pub(crate) fn secret_of(login: &Login) -> String {
    claims_of(login)["kubernetes.io"]["secret"]["name"].as_str().unwrap().to_owned()
}

/// Creates a client of the API server with these credentials.
async fn client(auth: AuthInfo, tokens: &Tokens) -> kube::Client {
    let mut kubeconfig = Kubeconfig::read_from(tokens.own.world.admin_kubeconfig()).unwrap();
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(auth.clone());
    }
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}
