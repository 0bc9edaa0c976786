//! A set of objects, and the client's view of the table that is built from them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex},
};

use http::{HeaderMap, Method};
use k8s_openapi::api::core::v1::Secret;
use pinniped_gateway_routing::{
    Builder, Built, Name, Objects, Settings,
    status::IngressRouteValidation,
    table::{
        Action, Backends, Decision, RequestParts, Response, Route, TcpProxy, Terminated, Termination,
        TlsAction, TlsTarget, prepare,
    },
};
use serde_json::{Value, json};

/// The objects of a test. Their names have the form `namespace/name`.
pub(crate) struct World {
    pub(crate) objects: Objects,
    builder: Builder,
}

impl Default for World {
    fn default() -> Self {
        Self::with(Settings::default())
    }
}

fn metadata(name: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    json!({"namespace": namespace, "name": name, "generation": 1})
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Returns a certificate for its own name and its key, created once for all tests.
pub(crate) fn certificate(name: &str) -> (String, String) {
    static MADE: LazyLock<Mutex<HashMap<String, (String, String)>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap();
    made.entry(name.to_owned())
        .or_insert_with(|| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        })
        .clone()
}

impl World {
    pub(crate) fn with(settings: Settings) -> Self {
        Self { objects: Objects::default(), builder: Builder::new(settings) }
    }

    /// Keeps the objects and replaces the settings.
    pub(crate) fn again(&mut self, settings: Settings) -> &mut Self {
        self.builder = Builder::new(settings);
        self
    }

    pub(crate) fn build(&mut self) -> BuildResult {
        BuildResult(self.builder.build(&self.objects))
    }

    pub(crate) fn proxy(&mut self, name: &str, spec: Value) -> &mut Self {
        self.proxy_object(json!({"metadata": metadata(name), "spec": spec}))
    }

    pub(crate) fn proxy_object(&mut self, object: Value) -> &mut Self {
        self.objects.http_proxies.push(read(object));
        self
    }

    /// Adds a root whose only route leads to the Service `app/web`.
    pub(crate) fn root(&mut self, name: &str, host: &str, tls: Option<Value>) -> &mut Self {
        let mut virtualhost = json!({"fqdn": host});
        if let Some(tls) = tls {
            virtualhost["tls"] = tls;
        }
        self.proxy(name, json!({"virtualhost": virtualhost, "routes": [route("/", "web")]}))
    }

    pub(crate) fn ingress_route(&mut self, name: &str, spec: Value) -> &mut Self {
        self.objects.ingress_routes.push(read(json!({"metadata": metadata(name), "spec": spec})));
        self
    }

    pub(crate) fn ingress(&mut self, name: &str, annotations: Value, spec: Value) -> &mut Self {
        let mut metadata = metadata(name);
        metadata["annotations"] = annotations;
        // Objects that were added earlier are older.
        let second = self.objects.ingresses.len();
        metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
        self.objects.ingresses.push(read(json!({"metadata": metadata, "spec": spec})));
        self
    }

    pub(crate) fn grant(&mut self, namespace: &str, secret: &str, targets: &[&str]) -> &mut Self {
        self.objects.delegations.push(read(json!({
            "metadata": {"namespace": namespace, "name": format!("grant-{}", self.objects.delegations.len())},
            "spec": {"delegations": [{"secretName": secret, "targetNamespaces": targets}]},
        })));
        self
    }

    /// Adds a valid serving Secret, whose certificate is for the name of the Secret.
    pub(crate) fn secret(&mut self, name: &str) -> &mut Self {
        let (certificate, key) = certificate(name.split_once('/').unwrap().1);
        self.secret_of(name, "kubernetes.io/tls", &[("tls.crt", &certificate), ("tls.key", &key)])
    }

    pub(crate) fn ca(&mut self, name: &str) -> &mut Self {
        let (certificate, _) = certificate(name);
        self.secret_of(name, "Opaque", &[("ca.crt", &certificate)])
    }

    pub(crate) fn secret_of(&mut self, name: &str, type_: &str, data: &[(&str, &str)]) -> &mut Self {
        let mut secret: Secret =
            serde_json::from_value(json!({"metadata": metadata(name), "type": type_})).unwrap();
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), k8s_openapi::ByteString(value.as_bytes().to_vec())));
        secret.data = Some(data.collect());
        self.objects.secrets.retain(|known| {
            known.metadata.name != secret.metadata.name
                || known.metadata.namespace != secret.metadata.namespace
        });
        self.objects.secrets.push(Arc::new(secret));
        self
    }

    pub(crate) fn without_secrets(&mut self) -> &mut Self {
        self.objects.secrets.clear();
        self
    }

    pub(crate) fn without_grants(&mut self) -> &mut Self {
        self.objects.delegations.clear();
        self
    }

    /// Adds a Service with port 80, named `http`, and one endpoint.
    pub(crate) fn service(&mut self, name: &str) -> &mut Self {
        self.service_of(name, json!({"ports": [{"name": "http", "port": 80}]}));
        self.slice(name, json!([{"addresses": ["10.0.0.1"]}]), json!([{"name": "http", "port": 8080}]))
    }

    pub(crate) fn service_of(&mut self, name: &str, spec: Value) -> &mut Self {
        self.annotated_service(name, json!({}), spec)
    }

    pub(crate) fn annotated_service(&mut self, name: &str, annotations: Value, spec: Value) -> &mut Self {
        let mut metadata = metadata(name);
        metadata["annotations"] = annotations;
        self.objects.services.push(read(json!({"metadata": metadata, "spec": spec})));
        self
    }

    pub(crate) fn slice(&mut self, service: &str, endpoints: Value, ports: Value) -> &mut Self {
        let (namespace, service) = service.split_once('/').unwrap();
        self.objects.endpoint_slices.push(read(json!({
            "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": ports,
        })));
        self
    }
}

/// Returns a route of an HTTPProxy: a prefix and a Service with port 80.
pub(crate) fn route(prefix: &str, service: &str) -> Value {
    json!({"conditions": [{"prefix": prefix}], "services": [{"name": service, "port": 80}]})
}

/// The result of a build, and the client's view of it.
pub(crate) struct BuildResult(pub(crate) Built);

impl BuildResult {
    /// Describes a request on port 80: `404`, `301`, `503`, or the backends.
    pub(crate) fn plain(&self, url: &str) -> String {
        self.plain_with(url, &HeaderMap::new())
    }

    pub(crate) fn plain_with(&self, url: &str, headers: &HeaderMap) -> String {
        request(url, headers, |facts| decision(self.0.table.plain.route(facts)))
    }

    /// Describes a connection to port 443: `closed`, `raw` and the backends, or the certificate and
    /// the content.
    pub(crate) fn connection(&self, sni: &str) -> String {
        match self.0.table.tls.by_sni((!sni.is_empty()).then_some(sni)) {
            None => "closed".to_owned(),
            Some(TlsTarget::Fallback(fallback)) => {
                format!("{}, any host", fallback.certificate.leaf().subject_cn)
            }
            Some(TlsTarget::Host(host)) => match &host.action {
                TlsAction::Passthrough(TcpProxy { backends }) => format!("raw {}", list(backends)),
                TlsAction::Terminate(Termination { certificate, inside, .. }) => {
                    let inside = match inside {
                        Terminated::Http(_) => "http".to_owned(),
                        Terminated::Tcp(TcpProxy { backends }) => format!("bytes {}", list(backends)),
                    };
                    format!("{}, {inside}", certificate.leaf().subject_cn)
                }
            },
        }
    }

    /// Describes a request on port 443 over a connection with a server name.
    pub(crate) fn tls(&self, sni: &str, url: &str) -> String {
        let headers = HeaderMap::new();
        request(url, &headers, |facts| match self.0.table.tls.by_sni((!sni.is_empty()).then_some(sni)) {
            None => "closed".to_owned(),
            Some(TlsTarget::Fallback(fallback)) => decision(fallback.route(facts)),
            Some(TlsTarget::Host(host)) => decision(host.route(sni, facts)),
        })
    }

    /// Describes a host: the connection to port 443, and the request for `/` on port 80.
    pub(crate) fn host(&self, host: &str) -> (String, String) {
        (self.connection(host), self.plain(&format!("{host}/")))
    }

    pub(crate) fn termination(&self, sni: &str) -> Termination {
        match self.0.table.tls.by_sni(Some(sni)) {
            Some(TlsTarget::Host(host)) => match &host.action {
                TlsAction::Terminate(termination) => termination.clone(),
                TlsAction::Passthrough(_) => panic!("{sni} is passed through"),
            },
            _ => panic!("{sni} is no host"),
        }
    }

    /// Returns the route of port 80 for a URL.
    pub(crate) fn route(&self, url: &str) -> Arc<Route> {
        let headers = HeaderMap::new();
        request(url, &headers, |facts| match self.0.table.plain.route(facts) {
            Decision::Take(route) => Arc::clone(route),
            other => panic!("{url}: {other:?}"),
        })
    }

    /// Returns `valid`, or every error as `type reason: message`.
    pub(crate) fn validation(&self, name: &str) -> String {
        let validation = &self.0.http_proxies[&named(name)];
        if validation.errors.is_empty() {
            return "valid".to_owned();
        }
        let lines = validation.errors.iter();
        let lines: Vec<String> =
            lines.map(|e| format!("{} {}: {}", e.part.as_str(), e.reason, e.message)).collect();
        lines.join("\n")
    }

    /// Returns every warning as `type reason: message`.
    pub(crate) fn warnings(&self, name: &str) -> String {
        let lines = self.0.http_proxies[&named(name)].warnings.iter();
        let lines: Vec<String> =
            lines.map(|e| format!("{} {}: {}", e.part.as_str(), e.reason, e.message)).collect();
        lines.join("\n")
    }

    /// Returns `valid`, `orphaned`, or the reason for the refusal.
    pub(crate) fn ingress_route_validation(&self, name: &str) -> String {
        match &self.0.ingress_routes[&named(name)] {
            IngressRouteValidation::Valid => "valid".to_owned(),
            IngressRouteValidation::Orphaned => "orphaned".to_owned(),
            IngressRouteValidation::Invalid(why) => why.clone(),
        }
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        self.0.notices.iter().map(ToString::to_string).collect()
    }
}

fn named(name: &str) -> Name {
    let (namespace, name) = name.split_once('/').unwrap();
    Name { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn request<T>(url: &str, headers: &HeaderMap, send_request: impl FnOnce(&RequestParts<'_>) -> T) -> T {
    let (authority, path) = url.split_once('/').unwrap_or((url, ""));
    let path = format!("/{path}");
    let (path, query) =
        path.split_once('?').map_or((path.as_str(), None), |(path, query)| (path, Some(query)));
    let path = prepare(path);
    send_request(&RequestParts { method: &Method::GET, authority, path: &path, query, headers })
}

fn decision(decision: Decision<'_>) -> String {
    match decision {
        Decision::UpgradeToHttps => "301".to_owned(),
        Decision::NotFound => "404".to_owned(),
        Decision::Misdirected => "421".to_owned(),
        Decision::Take(route) => match &route.action {
            Action::Forward(forward) => list(&forward.backends),
            Action::Respond(Response { status, .. }) => status.as_str().to_owned(),
            Action::Redirect(redirect) => format!("redirect {}", redirect.status.as_str()),
        },
    }
}

/// Returns `namespace/name:port`, with the weight if there are several.
fn list(backends: &Backends) -> String {
    let choices = backends.choices();
    let each = choices.iter().map(|choice| {
        let service = &choice.upstream.id.service;
        if choices.len() == 1 { service.to_string() } else { format!("{service}*{}", choice.weight) }
    });
    each.collect::<Vec<_>>().join(" ")
}

/// A host that is served with this certificate and that port 80 redirects to.
pub(crate) fn up(certificate: &str) -> (String, String) {
    (format!("{certificate}, http"), "301".to_owned())
}

/// A host that neither port serves.
pub(crate) fn down() -> (String, String) {
    ("closed".to_owned(), "404".to_owned())
}

/// The results of both ports.
pub(crate) fn ports(tls: &str, plain: &str) -> (String, String) {
    (tls.to_owned(), plain.to_owned())
}
