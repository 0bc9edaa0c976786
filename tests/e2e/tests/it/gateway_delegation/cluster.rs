//! Objects of these tests, written by server-side apply.

use anyhow::Context as _;
use kube::Client;
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{CLASS, backend};
use crate::installed::TIME_LIMIT;

/// The current API group.
pub(super) const CURRENT: &str = "projectcontour.io/v1";
/// The API group of Contour's first releases.
pub(super) const LEGACY: &str = "contour.heptio.com/v1beta1";
/// The API group of the design document.
pub(super) const DESIGN: &str = "contour.vmware.com/v1";

/// Kinds and their plurals in paths.
const PLURALS: [(&str, &str); 8] = [
    ("Namespace", "namespaces"),
    ("Secret", "secrets"),
    ("Service", "services"),
    ("EndpointSlice", "endpointslices"),
    ("Ingress", "ingresses"),
    ("IngressRoute", "ingressroutes"),
    ("HTTPProxy", "httpproxies"),
    ("TLSCertificateDelegation", "tlscertificatedelegations"),
];

/// The cluster for one test. The names of its namespaces start with the test's name.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    prefix: &'static str,
}

/// Returns the identifying members of a manifest.
pub(super) fn object(version: &str, kind: &str, namespace: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let Value::Object(fields) = rest {
        for (field, value) in fields {
            let environment = if field == "annotations" { &mut object["metadata"] } else { &mut object };
            environment[field] = value;
        }
    }
    object
}

impl Cluster {
    pub(super) fn new(client: Client, prefix: &'static str) -> Self {
        Self { client, prefix }
    }

    /// Returns a namespace name of the test.
    pub(super) fn ns(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Returns a host name of the test.
    pub(super) fn host(&self, name: &str) -> String {
        format!("{name}.{}.example.com", self.prefix)
    }

    /// Applies an object.
    pub(super) async fn apply(&self, object: &Value) -> anyhow::Result<Value> {
        let path = format!("{}?fieldManager=it&force=true", path_of(object)?);
        let request = http::Request::patch(path)
            .header("content-type", "application/apply-patch+yaml")
            .body(object.to_string().into_bytes())?;
        let kind = &object["kind"];
        self.client.request(request).await.with_context(|| format!("could not apply the {kind}: {object}"))
    }

    /// Applies a valid object. Retries while its kind is not served yet.
    pub(super) async fn put(&self, object: Value) {
        wait::until_ok(TIME_LIMIT, "the object to be taken", async || self.apply(&object).await)
            .await
            .unwrap();
    }

    /// Deletes an object if it exists.
    pub(super) async fn delete(&self, object: &Value) {
        let request = http::Request::delete(path_of(object).unwrap()).body(Vec::new()).unwrap();
        match self.client.request::<Value>(request).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("could not delete {object}: {error}"),
        }
    }

    /// Returns an object as stored in the cluster.
    pub(super) async fn get(&self, object: &Value) -> anyhow::Result<Value> {
        let request = http::Request::get(path_of(object)?).body(Vec::new())?;
        Ok(self.client.request(request).await?)
    }

    /// Returns the result in the status of an HTTPProxy or IngressRoute: `valid`, or the
    /// concatenated errors.
    pub(super) async fn validation(&self, object: &Value) -> anyhow::Result<String> {
        let found = self.get(object).await?;
        let generation = &found["metadata"]["generation"];
        let status = &found["status"];
        if found["kind"] == "IngressRoute" {
            let text = |field: &str| status[field].as_str().unwrap_or("nothing").to_owned();
            return Ok(match text("currentStatus").as_str() {
                "valid" => "valid".to_owned(),
                word => format!("{word}: {}", text("description")),
            });
        }
        let condition = &status["conditions"][0];
        anyhow::ensure!(&condition["observedGeneration"] == generation, "it has not been processed: {found}");
        let errors = condition["errors"].as_array();
        let reported = errors.into_iter().flatten().map(|error| {
            let part = |field: &str| error[field].as_str().unwrap_or_default();
            format!("{} {}: {}", part("type"), part("reason"), part("message"))
        });
        let reported: Vec<String> = reported.collect();
        Ok(if reported.is_empty() {
            status["currentStatus"].as_str().unwrap_or("nothing").into()
        } else {
            reported.join("; ")
        })
    }

    /// Waits for a result.
    pub(super) async fn await_validation(&self, object: &Value, wanted: &str) {
        let waited = wait::until_ok(TIME_LIMIT, format!("the status {wanted:?}"), async || {
            let validation = self.validation(object).await?;
            anyhow::ensure!(validation == wanted, "it is {validation:?}");
            Ok(())
        });
        waited.await.unwrap();
    }

    /// Creates a namespace with a Service `web` whose backend answers all requests.
    pub(super) async fn namespace(&self, name: &str) -> String {
        let namespace = self.ns(name);
        self.put(object("v1", "Namespace", "", &namespace, json!({}))).await;
        self.service(&namespace, "web", backend().plain.port(), json!({})).await;
        namespace
    }

    /// Creates a Service whose only endpoint is a port of this process.
    pub(super) async fn service(&self, namespace: &str, name: &str, port: u16, port_fields: Value) {
        let mut ports = json!([{"name": "web", "port": 80, "targetPort": port}]);
        for (field, value) in port_fields.as_object().into_iter().flatten() {
            ports[0][field] = value.clone();
        }
        self.put(object("v1", "Service", namespace, name, json!({"spec": {"ports": ports}}))).await;
        let mut slice = object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            namespace,
            name,
            json!({
                "addressType": "IPv4",
                "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [backend().plain.ip()], "conditions": {"ready": true}}],
            }),
        );
        slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
        self.put(slice).await;
    }

    /// Creates a Secret with a certificate whose common name is `shown`.
    pub(super) async fn certificate(&self, namespace: &str, name: &str, shown: &str) -> Value {
        let Pair { certificate_pem, private_key_pem } = serving(shown);
        let secret =
            secret(namespace, name, &json!({"tls.crt": certificate_pem, "tls.key": private_key_pem}));
        self.put(secret.clone()).await;
        secret
    }
}

/// Issues a certificate for any host, with the common name `shown`.
pub(super) fn serving(shown: &str) -> Pair {
    Authority::new("it").unwrap().server(shown, &["any.example.com"], &[]).unwrap()
}

/// Returns a Secret of type `kubernetes.io/tls`, or `Opaque` if it has no key pair.
pub(super) fn secret(namespace: &str, name: &str, data: &Value) -> Value {
    let type_ = if data.get("tls.crt").is_some() { "kubernetes.io/tls" } else { "Opaque" };
    object("v1", "Secret", namespace, name, json!({"type": type_, "stringData": data}))
}

/// Returns a delegation with these entries: Secrets and target namespaces.
pub(super) fn grant(version: &str, namespace: &str, name: &str, entries: &[(&str, &[&str])]) -> Value {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(secret, targets)| json!({"secretName": secret, "targetNamespaces": targets}))
        .collect();
    object(version, "TLSCertificateDelegation", namespace, name, json!({"spec": {"delegations": entries}}))
}

/// Returns an HTTPProxy that routes all requests to `web`.
pub(super) fn proxy(namespace: &str, name: &str, host: &str, tls: Value) -> Value {
    let mut spec = json!({
        "virtualhost": {"fqdn": host},
        "routes": [{"services": [{"name": "web", "port": 80}]}],
    });
    spec["virtualhost"]["tls"] = tls;
    proxy_of(namespace, name, spec)
}

/// Returns an HTTPProxy of our class.
pub(super) fn proxy_of(namespace: &str, name: &str, mut spec: Value) -> Value {
    spec["ingressClassName"] = json!(CLASS);
    object(CURRENT, "HTTPProxy", namespace, name, json!({"spec": spec}))
}

fn path_of(object: &Value) -> anyhow::Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let plural = PLURALS.iter().find(|(name, _)| *name == kind).context("no path is known for the kind")?.1;
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let metadata = &object["metadata"];
    let namespace = match metadata["namespace"].as_str() {
        Some(namespace) => format!("/namespaces/{namespace}"),
        None => String::new(),
    };
    Ok(format!("{root}{namespace}/{plural}/{}", text(&metadata["name"])))
}
