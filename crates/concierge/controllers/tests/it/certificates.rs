//! The proxy's certificates on a real API server: each situation with the resulting writes, the
//! status, and the served certificate.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_concierge_api::config::{CredentialIssuerStrategy, StrategyReason};
use pinniped_pki::{CertificateAuthority, IssuedPair, Validity};
use pinniped_test_support::control_plane::ControlPlane;
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::{Value, json};

use crate::install::{Install, PATIENCE, Pod};

mod bad_input;
mod delegation;
mod external;
mod failures;
mod generated;
mod log_lines;
mod services;
mod upgrade;
mod validation;

/// Names of the objects, and their short names in the tests.
const OBJECTS: [(&str, &str); 4] = [
    ("concierge-lb", "LB"),
    ("concierge-cip", "ClusterIP"),
    ("concierge-tls", "TLS"),
    ("concierge-ca", "CA"),
];

/// The host that is advertised to clients.
const HOST: &str = "proxy.example.com";

/// Prefix of errors about an external Secret.
const LOAD_FAILED: &str = "could not load the externally provided TLS secret for the impersonation proxy: ";
/// Prefix of errors about an external certificate.
const VALIDATE_FAILED: &str =
    "could not validate the externally provided TLS secret for the impersonation proxy: ";

/// One installation and all its writes.
struct Scenario {
    control_plane: &'static ControlPlane,
    install: Install,
    pod: Pod,
    writes: Vec<String>,
}

impl Scenario {
    /// Returns an installation with one pod in the shared control plane.
    async fn new(name: &str, proxy: Value) -> anyhow::Result<Self> {
        let control_plane = World::shared()?.control_plane();
        let install = Install::on(control_plane, &format!("certificates-{name}"), proxy).await?;
        let pod = install.pod("pod-1");
        Ok(Self { control_plane, install, pod, writes: Vec::new() })
    }

    /// Returns the writes of the pods so far, in order, such as `create TLS`; refused ones have
    /// their status code.
    fn written(&self) -> anyhow::Result<Vec<String>> {
        written(self.control_plane, &self.install)
    }

    /// Waits for a status that passes the predicate, and for exactly these writes since the last
    /// call.
    async fn expect(
        &mut self,
        what: &str,
        writes: &[&str],
        is_so: impl Fn(&CredentialIssuerStrategy) -> bool,
    ) -> anyhow::Result<CredentialIssuerStrategy> {
        let strategy = self.install.strategy(what, is_so).await?;
        self.writes.extend(writes.iter().map(|&write| write.to_owned()));
        wait::until_ok(PATIENCE, format!("{what}: the writes"), async || {
            let written = self.written()?;
            anyhow::ensure!(written == self.writes, "{written:#?} instead of {:#?}", self.writes);
            Ok(())
        })
        .await?;
        Ok(strategy)
    }

    /// Waits until the proxy is ready at this endpoint.
    async fn ready(&mut self, what: &str, writes: &[&str], endpoint: &str) -> anyhow::Result<Vec<u8>> {
        let entry = self.expect(what, writes, |entry| self::endpoint(entry) == Some(endpoint)).await?;
        assert_eq!(entry.message, "impersonation proxy is ready to accept client connections");
        bundle(&entry)
    }

    /// Waits until the status has an error with this message.
    async fn error(&mut self, what: &str, writes: &[&str], message: &str) -> anyhow::Result<()> {
        self.expect(what, writes, |entry| {
            entry.reason == StrategyReason::ErrorDuringSetup && entry.message == message
        })
        .await?;
        Ok(())
    }

    /// Returns the served leaf as PEM.
    fn served(&self) -> Option<String> {
        self.pod.serving.current().map(|pair| pair.certificate_pem().to_owned())
    }

    /// Waits until this pair is served.
    async fn serves(&self, what: &str, pem: &str) -> anyhow::Result<()> {
        wait::until(PATIENCE, format!("{what}: its certificate to be served"), async || {
            (self.served().as_deref() == Some(pem)).then_some(())
        })
        .await
    }

    /// Creates the Secret, or replaces the data of an existing one. Empty values are omitted.
    async fn put(&self, name: &str, type_: &str, values: &[(&str, &str)]) -> anyhow::Result<Secret> {
        let data: serde_json::Map<String, Value> = values
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| ((*key).to_owned(), json!(STANDARD.encode(value))))
            .collect();
        let secret =
            serde_json::from_value(json!({"metadata": {"name": name}, "type": type_, "data": data}))?;
        let secrets = self.install.secrets();
        if secrets.get_opt(name).await?.is_some_and(|old| old.type_.as_deref() != Some(type_)) {
            secrets.delete(name, &DeleteParams::default()).await?;
        }
        match secrets.replace(name, &PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => return Ok(done?),
        }
        Ok(secrets.create(&PostParams::default(), &secret).await?)
    }

    /// Creates or replaces a Secret of type `kubernetes.io/tls` with a pair and an optional CA.
    async fn put_pair(&self, name: &str, pair: &IssuedPair, ca: &str) -> anyhow::Result<Secret> {
        let values = [
            ("tls.crt", pair.certificate_pem.as_str()),
            ("tls.key", pair.private_key_pem.as_str()),
            ("ca.crt", ca),
        ];
        self.put(name, "kubernetes.io/tls", &values).await
    }

    /// Replaces `spec.impersonationProxy.tls` as a whole.
    async fn tls(&self, tls: Value) -> anyhow::Result<()> {
        let whole = json!({"secretName": null, "certificateAuthorityData": null, "validation": null});
        let mut block = whole;
        match (block.as_object_mut(), tls) {
            (Some(block), Value::Object(tls)) => block.extend(tls),
            _ => return self.install.configure(json!({"tls": null})).await,
        }
        self.install.configure(json!({"tls": block})).await
    }

    /// Waits for the condition.
    async fn condition(&self, what: &str, status: &str, message: &str) -> anyhow::Result<Condition> {
        wait::until_ok(PATIENCE, format!("{what}: the condition"), async || {
            let conditions = conditions(&self.install).await?;
            let found = conditions.iter().find(|condition| condition.type_ == "ServingCertificateValid");
            let found = found.with_context(|| format!("none in {conditions:?}"))?;
            anyhow::ensure!(found.status == status && found.message == message, "{found:?}");
            Ok(found.clone())
        })
        .await
    }

    /// Waits until the Secret of this name is deleted.
    async fn absent(&self, name: &str) -> anyhow::Result<()> {
        self.install.secret_gone(name).await
    }

    async fn end(self) {
        self.pod.controllers.shutdown().await;
    }
}

fn written(control_plane: &ControlPlane, install: &Install) -> anyhow::Result<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut writes = Vec::new();
    for event in control_plane.audit_events(&install.account)? {
        let object = &event["objectRef"];
        if event["impersonatedUser"]["username"] != *install.account
            || object["namespace"] != *install.namespace
            || !object["subresource"].is_null()
            || ["get", "list", "watch"].iter().any(|verb| event["verb"] == *verb)
        {
            continue;
        }
        let Some((_, called)) = OBJECTS.iter().find(|(name, _)| object["name"] == *name) else { continue };
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        let refused = if code >= 300 { format!(" ({code})") } else { String::new() };
        writes.push(format!("{} {called}{refused}", text(&event["verb"])));
    }
    Ok(writes)
}

/// Returns the conditions without `Ready`, which summarizes the strategies, and `AdmissionApplied`,
/// which depends on the objects of other tests.
async fn conditions(install: &Install) -> anyhow::Result<Vec<Condition>> {
    let issuer = install.issuers().get("concierge-config").await?;
    let mut conditions = issuer.status.map(|status| status.conditions).unwrap_or_default();
    conditions.retain(|condition| !matches!(condition.type_.as_str(), "Ready" | "AdmissionApplied"));
    Ok(conditions)
}

fn bundle(strategy: &CredentialIssuerStrategy) -> anyhow::Result<Vec<u8>> {
    let info = strategy.frontend.as_ref().and_then(|frontend| frontend.impersonation_proxy_info.as_ref());
    Ok(STANDARD.decode(&info.context("no frontend")?.certificate_authority_data)?)
}

fn endpoint(strategy: &CredentialIssuerStrategy) -> Option<&str> {
    Some(&strategy.frontend.as_ref()?.impersonation_proxy_info.as_ref()?.endpoint)
}

fn pending(strategy: &CredentialIssuerStrategy) -> bool {
    strategy.reason == StrategyReason::Pending
        && strategy.message == "waiting for load balancer Service to be assigned IP or hostname"
}

fn enabled(kind: &str, endpoint: &str) -> Value {
    let mut proxy = json!({"mode": "enabled", "service": {"type": kind}});
    if !endpoint.is_empty() {
        proxy["externalEndpoint"] = json!(endpoint);
    }
    proxy
}

/// Returns an external CA.
fn authority(name: &str) -> anyhow::Result<CertificateAuthority> {
    let validity = Validity::starting(Timestamp::now(), PATIENCE * 100_000);
    Ok(CertificateAuthority::generate(name, &validity)?)
}

/// Returns a certificate of the CA that is valid for a month.
fn issue(authority: &CertificateAuthority, names: &[&str]) -> anyhow::Result<IssuedPair> {
    let validity = Validity::starting(Timestamp::now(), PATIENCE * 100_000);
    issue_for(authority, names, &validity)
}

fn issue_for(
    authority: &CertificateAuthority,
    names: &[&str],
    validity: &Validity,
) -> anyhow::Result<IssuedPair> {
    let ips: Vec<std::net::IpAddr> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let names: Vec<String> = names
        .iter()
        .filter(|name| name.parse::<std::net::IpAddr>().is_err())
        .map(|&name| name.to_owned())
        .collect();
    Ok(authority.issue_server(&names, &ips, validity)?)
}

/// Returns a merge patch.
fn merge(patch: Value) -> (PatchParams, Patch<Value>) {
    (PatchParams::default(), Patch::Merge(patch))
}
