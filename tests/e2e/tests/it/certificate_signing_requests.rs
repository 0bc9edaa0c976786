//! Logins with certificates that the cluster's own signer signs, in an installation from our
//! manifests whose signing key is not accessible and whose impersonation proxy is off. This is the
//! state of a managed cluster in mode `auto`, which needs no configuration but the address of the
//! API server.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use jiff::Timestamp;
use kube::config::AuthInfo;
use pinniped_e2e::walkthrough::strategy;
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::apis;
use crate::cli::Home;
use crate::installed::TIME_LIMIT;
use crate::separate_concierge::SeparateConcierge;
use crate::service_account_tokens::webhook::{Webhook, token_of};

const APP: &str = "signed-logins";
const TYPE: &str = "KubeCertificateSigningRequest";
const ROLE: &str = "signed-logins-certificate-signing-requests";

/// Time limit for the strategy in mode `auto`, which waits a minute for the strategies of upstream,
/// and for a probe, which is repeated after 30 and 60 seconds.
const TAKEOVER: Duration = Duration::from_secs(240);

struct Installation {
    own: SeparateConcierge,
    webhook: Webhook,
}

impl Installation {
    async fn new() -> Option<Self> {
        let edit = |text: String| {
            let server = World::shared().unwrap().control_plane().server();
            text.replace("replicas: 1", "replicas: 2")
                .replace("      url: null", &format!("      url: {server}"))
        };
        let own = SeparateConcierge::install(APP, &[], edit).await?;
        let installation = Self { own, webhook: Webhook::start().unwrap() };
        installation.own.await_api().await;
        installation.own.create_authenticator(&installation.webhook).await;
        Some(installation)
    }

    fn issuer(&self) -> (String, String) {
        (format!("credentialissuers.v1alpha1.config.concierge.{}", self.own.suffix), format!("{APP}-config"))
    }

    async fn patch(&self, spec: Value) {
        let (resource, name) = self.issuer();
        let patch = json!({"spec": spec}).to_string();
        self.own.kubectl(&["patch", &resource, &name, "--type=merge", "-p", &patch]).await.unwrap();
    }

    async fn status(&self) -> anyhow::Result<Value> {
        let (resource, name) = self.issuer();
        self.own.get(&resource, &name).await
    }

    /// Waits for an entry with this status whose message contains this text.
    async fn await_entry(&self, status: &str, message: &str) -> Value {
        let waited = wait::until_ok(TAKEOVER, format!("{status}: {message}"), async || {
            let issuer = self.status().await?;
            let entry = strategy(&issuer, TYPE);
            let fits = entry["status"] == status
                && entry["message"].as_str().is_some_and(|text| text.contains(message));
            anyhow::ensure!(fits, "{}", issuer["status"]);
            Ok(issuer)
        });
        let issuer = waited.await;
        if let Err(error) = &issuer {
            self.own.check(Err(anyhow::anyhow!("{error:#}")));
        }
        issuer.unwrap()
    }

    async fn await_no_entry(&self) {
        let waited = wait::until_ok(TIME_LIMIT, "no entry", async || {
            let issuer = self.status().await?;
            anyhow::ensure!(strategy(&issuer, TYPE).is_null(), "{}", issuer["status"]);
            Ok(())
        });
        self.own.check(waited.await);
    }

    /// Logs in until every replica issues a certificate.
    async fn await_logins(&self, user: &Value) -> Value {
        let waited = wait::until_ok(TIME_LIMIT, "all replicas to issue certificates", async || {
            let mut last = Value::Null;
            for _ in 0..6 {
                last = self.own.log_in(user).await?;
                anyhow::ensure!(last["credential"]["clientCertificateData"].is_string(), "{last}");
            }
            Ok(last)
        });
        let status = waited.await;
        if let Err(error) = &status {
            self.own.check(Err(anyhow::anyhow!("{error:#}")));
        }
        status.unwrap()
    }

    /// Returns the user that the API server authenticates for this credential.
    async fn who_is(&self, credential: &Value) -> Value {
        let text = |field: &str| STANDARD.encode(credential[field].as_str().unwrap());
        let auth = AuthInfo {
            client_certificate_data: Some(text("clientCertificateData")),
            client_key_data: Some(text("clientKeyData").into()),
            ..AuthInfo::default()
        };
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap();
        let client = apis::client_with(self.own.world, auth).await;
        let review: Value = client.request(request).await.unwrap();
        review["status"]["userInfo"].clone()
    }

    /// Returns the requests of this installation that exist.
    async fn requests(&self) -> String {
        let selector = format!("concierge.pinniped.dev/certificate-signing-request={APP}");
        let args = ["get", "certificatesigningrequests", "--selector", &selector, "-o", "name"];
        self.own.world.kubectl().output(&args).await.unwrap()
    }

    async fn role_binding(&self, exists: bool) {
        let kubectl = self.own.world.kubectl();
        if exists {
            let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": ROLE},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
                "subjects": [{"kind": "ServiceAccount", "name": APP, "namespace": APP}]});
            kubectl.apply(&object.to_string()).await.unwrap();
        } else {
            kubectl.output(&["delete", "clusterrolebinding", ROLE]).await.unwrap();
        }
    }
}

/// One test, because each step depends on the previous one, and the first one takes a minute.
#[tokio::test]
async fn users_log_in_with_certificates_of_the_clusters_signer() {
    let Some(installation) = Installation::new().await else { return };
    the_strategy_takes_over(&installation).await;
    certificates_are_accepted(&installation).await;
    masters_are_refused(&installation).await;
    the_command_line_uses_it(&installation).await;
    a_missing_permission_is_reported(&installation).await;
    the_strategy_gives_way_to_the_proxy(&installation).await;
}

async fn the_strategy_takes_over(installation: &Installation) {
    let issuer = installation.await_entry("Success", "signed through the cluster's certificate API").await;
    let strategies = issuer["status"]["strategies"].as_array().unwrap();
    let types: Vec<_> = strategies.iter().map(|entry| entry["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["KubeClusterSigningCertificate", TYPE, "ImpersonationProxy"]);
    let info = &strategies[1]["frontend"]["tokenCredentialRequestInfo"];
    assert_eq!(info["server"], installation.own.world.control_plane().server());
    let (resource, name) = installation.issuer();
    let row = installation.own.kubectl(&["get", &resource, &name, "--no-headers"]).await.unwrap();
    assert!(row.contains(&format!(" {TYPE} ")), "{row}");
    let ready = ["wait", &resource, &name, "--for=condition=Ready", "--timeout=30s"];
    installation.own.kubectl(&ready).await.unwrap();
}

async fn certificates_are_accepted(installation: &Installation) {
    let user = json!({"username": "signed-pinny", "groups": ["sea", "land"], "extra": {"acme.io/k": ["x"]}});
    let status = installation.await_logins(&user).await;
    let expires = status["credential"]["expirationTimestamp"].as_str().unwrap();
    let left = expires.parse::<Timestamp>().unwrap().duration_since(Timestamp::now()).as_secs();
    assert!((550..=610).contains(&left), "ten minutes: {left}");
    let me = installation.who_is(&status["credential"]).await;
    assert_eq!(me["username"], "signed-pinny");
    assert_eq!(me["groups"], json!(["sea", "land", "system:authenticated"]));

    // Each login has a request of its own, and all of them are deleted.
    assert_eq!(installation.requests().await, "");
    let account = format!("system:serviceaccount:{APP}:{APP}");
    let events = installation.own.world.control_plane().audit_events("certificatesigningrequests").unwrap();
    let count = |verb: &str, subresource: Value| {
        let fits = |event: &&Value| {
            event["user"]["username"] == account.as_str()
                && event["objectRef"]["resource"] == "certificatesigningrequests"
                && event["objectRef"].get("subresource").cloned().unwrap_or_default() == subresource
                && event["verb"] == verb
                && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
        };
        events.iter().filter(fits).count()
    };
    let created = count("create", Value::Null);
    assert!(created >= 7, "one probe and at least six logins: {created}");
    assert_eq!(count("update", json!("approval")), created);
    assert_eq!(count("delete", Value::Null), created);
}

async fn masters_are_refused(installation: &Installation) {
    let user = json!({"username": "signed-master", "groups": ["system:masters"]});
    assert_eq!(installation.own.log_in(&user).await.unwrap(), json!({"message": "authentication failed"}));
    installation
        .own
        .await_log("kube-certificate-signing-request failed to issue client cert: group \\\"system:masters\\\" is not allowed")
        .await;
}

async fn the_command_line_uses_it(installation: &Installation) {
    let (home, world) = (Home::new(), installation.own.world);
    let suffix = format!("--concierge-api-group-suffix={}", installation.own.suffix);
    let name = format!("--concierge-credential-issuer={}", installation.issuer().1);
    let token = token_of(&json!({"username": "signed-kubectl", "groups": ["sea"]}));
    let written = home
        .get_kubeconfig(
            world,
            &[
                &suffix,
                &name,
                "--concierge-authenticator-type=webhook",
                "--concierge-authenticator-name=anybody",
                &format!("--static-token={token}"),
            ],
        )
        .await;
    let logged = "discovered Concierge operating in TokenCredentialRequest API mode";
    assert!(written.stderr.contains(logged), "{}", written.stderr);
    let output = home.kubectl(world, &["auth", "whoami", "-o", "json"], &[]).await.success().unwrap();
    let me: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], "signed-kubectl");

    let output = home.pinniped_with(&world.admin_kubeconfig(), &["doctor", &suffix, &name]).await;
    let wanted = format!("strategy {TYPE} works: ");
    assert!(output.stdout.contains(&wanted), "{output:?}");
}

async fn a_missing_permission_is_reported(installation: &Installation) {
    installation.patch(json!({"certificateSigningRequests": {"mode": "disabled"}})).await;
    installation.await_no_entry().await;
    let user = json!({"username": "signed-pinny"});
    let refused = wait::until_ok(TIME_LIMIT, "logins to be refused", async || {
        let status = installation.own.log_in(&user).await?;
        anyhow::ensure!(status == json!({"message": "authentication failed"}), "{status}");
        Ok(())
    });
    installation.own.check(refused.await);

    installation.role_binding(false).await;
    installation.patch(json!({"certificateSigningRequests": {"mode": "enabled"}})).await;
    let message = "cannot create resource \"certificatesigningrequests\" in API group \"certificates.k8s.io\" \
                   at the cluster scope: apply install-pinniped-concierge-resources.yaml";
    installation.await_entry("Error", message).await;
    installation.role_binding(true).await;
    installation.await_entry("Success", "signed through").await;
    installation.await_logins(&user).await;
}

async fn the_strategy_gives_way_to_the_proxy(installation: &Installation) {
    installation
        .patch(json!({"certificateSigningRequests": {"mode": "auto"}, "impersonationProxy":
            {"mode": "enabled", "externalEndpoint": "proxy.example.com", "service": {"type": "None"}}}))
        .await;
    installation.await_no_entry().await;
    installation.own.await_strategy(["Success", "Listening"], "").await;
    // With the configured mode, both are in use.
    installation.patch(json!({"certificateSigningRequests": {"mode": "enabled"}})).await;
    installation.await_entry("Success", "signed through").await;
}
