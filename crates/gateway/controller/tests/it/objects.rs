//! Test objects, in a separate namespace for each test.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use pinniped_pki::{CertificateAuthority, IssuedPair, Validity};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::replica::PATIENCE;

pub(crate) const PROXY: (&str, &str) = ("projectcontour.io/v1", "HTTPProxy");
pub(crate) const ROUTE: (&str, &str) = ("contour.heptio.com/v1beta1", "IngressRoute");
pub(crate) const INGRESS: (&str, &str) = ("networking.k8s.io/v1", "Ingress");
pub(crate) const SECRET: (&str, &str) = ("v1", "Secret");
pub(crate) const SERVICE: (&str, &str) = ("v1", "Service");
pub(crate) const SLICE: (&str, &str) = ("discovery.k8s.io/v1", "EndpointSlice");
pub(crate) const GRANT: (&str, &str) = ("projectcontour.io/v1", "TLSCertificateDelegation");

/// The namespace of a test.
#[derive(Clone)]
pub(crate) struct Namespace {
    client: Client,
    pub(crate) name: String,
}

impl Namespace {
    /// Creates the namespace.
    pub(crate) async fn new(client: &Client, name: &str) -> anyhow::Result<Self> {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
        api.patch(name, &apply(), &Patch::Apply(object)).await?;
        Ok(Self { client: client.clone(), name: name.to_owned() })
    }

    pub(crate) fn api(&self, (api_version, kind): (&str, &str)) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.client.clone(), &self.name, &resource)
    }

    /// Creates or updates an object; waits until its kind is served.
    pub(crate) async fn put(&self, kind: (&str, &str), name: &str, mut object: Value) -> anyhow::Result<()> {
        (object["apiVersion"], object["kind"]) = (kind.0.into(), kind.1.into());
        object["metadata"]["name"] = name.into();
        let api = self.api(kind);
        wait::until_ok(PATIENCE, format!("{} to be taken", kind.1), async || {
            Ok(api.patch(name, &apply(), &Patch::Apply(&object)).await.map(drop)?)
        })
        .await
    }

    pub(crate) async fn delete(&self, kind: (&str, &str), name: &str) -> anyhow::Result<()> {
        self.api(kind).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a proxy for a host with the certificate of this Secret and a direct response.
    pub(crate) async fn host(&self, name: &str, host: &str, secret: Option<&str>) -> anyhow::Result<()> {
        let mut virtualhost = json!({"fqdn": host});
        if let Some(secret) = secret {
            virtualhost["tls"] = json!({"secretName": secret});
        }
        self.put(PROXY, name, json!({"spec": {"virtualhost": virtualhost, "routes": [direct_response()]}}))
            .await
    }

    /// Delegates a Secret of this namespace.
    pub(crate) async fn grant(&self, secret: &str, targets: &[&str]) -> anyhow::Result<()> {
        self.grant_in(GRANT, secret, targets).await
    }

    /// Delegates a Secret with an object of the given API group.
    pub(crate) async fn grant_in(
        &self,
        kind: (&str, &str),
        secret: &str,
        targets: &[&str],
    ) -> anyhow::Result<()> {
        let delegations = json!([{"secretName": secret, "targetNamespaces": targets}]);
        self.put(kind, "grant", json!({"spec": {"delegations": delegations}})).await
    }

    pub(crate) async fn secret(&self, name: &str, pair: &IssuedPair) -> anyhow::Result<()> {
        let data = json!({
            "tls.crt": STANDARD.encode(&pair.certificate_pem),
            "tls.key": STANDARD.encode(pair.private_key_pem.as_str()),
        });
        self.put(SECRET, name, json!({"type": "kubernetes.io/tls", "data": data})).await
    }

    /// Creates an Ingress with a rule for this host that forwards to `web:80`.
    pub(crate) async fn ingress(&self, name: &str, host: &str) -> anyhow::Result<()> {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
        self.put(INGRESS, name, json!({"spec": {"rules": [{"host": host, "http": {"paths": [path]}}]}})).await
    }

    /// Creates a Service without pods.
    pub(crate) async fn service(&self, name: &str) -> anyhow::Result<()> {
        let ports = json!([{"port": 80, "targetPort": 8080, "protocol": "TCP"}]);
        self.put(SERVICE, name, json!({"spec": {"ports": ports}})).await
    }

    /// Creates or updates the endpoints of a Service, with their readiness.
    pub(crate) async fn endpoints(&self, service: &str, addresses: &[(&str, bool)]) -> anyhow::Result<()> {
        let endpoint =
            |(address, ready): &(&str, bool)| json!({"addresses": [address], "conditions": {"ready": ready}});
        let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
        let labels = json!({"kubernetes.io/service-name": service});
        let object = json!({
            "metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
        });
        self.put(SLICE, &format!("{service}-x"), object).await
    }

    /// Returns the status of an object.
    pub(crate) async fn status(&self, kind: (&str, &str), name: &str) -> anyhow::Result<Value> {
        let object = self.api(kind).get(name).await?;
        Ok(object.data.get("status").cloned().unwrap_or_default())
    }

    /// Waits for a status that satisfies `is_so`.
    pub(crate) async fn await_status(
        &self,
        kind: (&str, &str),
        name: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        wait::until_ok(PATIENCE, format!("{name} to be {what}"), async || {
            let status = self.status(kind, name).await?;
            anyhow::ensure!(is_so(&status), "still {status}");
            Ok(status)
        })
        .await
    }

    /// Waits until the current status of a proxy is `word`.
    pub(crate) async fn await_word(&self, name: &str, word: &str) -> anyhow::Result<Value> {
        self.await_status(PROXY, name, word, |status| status["currentStatus"] == word).await
    }
}

fn apply() -> PatchParams {
    PatchParams::apply("test").force()
}

/// Returns a route that needs no backend.
pub(crate) fn direct_response() -> Value {
    json!({"directResponsePolicy": {"statusCode": 200}})
}

/// Returns the reason of the first error in a status.
pub(crate) fn reason(status: &Value) -> &str {
    status["conditions"][0]["errors"][0]["reason"].as_str().unwrap_or_default()
}

/// Returns a new certificate for this name. Each call returns a different one.
pub(crate) fn issue(name: &str) -> anyhow::Result<IssuedPair> {
    let validity = Validity::starting(jiff::Timestamp::now(), PATIENCE * 100);
    let authority = CertificateAuthority::generate("owner", &validity)?;
    authority.issue_server(&[name.to_owned()], &[], &validity).context("no certificate")
}
