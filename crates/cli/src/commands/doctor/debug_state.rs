//! Reads `/debug/state` of each Concierge pod, and summarizes it.
//!
//! The request goes through a port-forward, with the credential of the kubeconfig: the Concierge
//! authenticates and authorizes the client itself. The API server's proxies to pods and Services do
//! not work for this, because they remove the credential. The certificate of the pod is verified
//! with the CA bundle of the APIService.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::client::ConfigExt as _;
use pinniped_concierge_api::names;
use pinniped_error::chain;
use pinniped_go_compat::base64 as gobase64;
use pinniped_pki::CaBundle;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde_json::Value;
use tokio_rustls::TlsConnector;
use tower::{ServiceBuilder, ServiceExt as _};

use super::observed::ReadResult;
use super::read::Reader;
use crate::printer::printable_line;
use crate::printer::style::{Color, Mark, Text};

/// The path of the page.
const PATH: &str = "/debug/state";

/// The maximum size of a page in bytes. The Concierge limits it to less.
const MAX_PAGE: usize = 8 << 20;

/// The port of the aggregated API if its Service cannot be read.
const DEFAULT_PORT: u16 = 10250;

/// The maximum number of pods that are read.
const MAX_PODS: usize = 20;

/// The remedy for a missing permission.
const ROLE: &str = "bind the ClusterRole pinniped-concierge-debug-state-reader to yourself; without the Helm chart, \
                    create it: kubectl create clusterrole pinniped-concierge-debug-state-reader --verb=get \
                    --non-resource-url=/debug/state";

/// The state of one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodState {
    /// The name of the pod.
    pub(super) pod: String,
    /// The page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<Value>,
    /// The reason why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<&'static str>,
}

/// The reasons why a page cannot be read.
#[derive(Debug, thiserror::Error)]
enum PageError {
    /// The connection to the pod could not be opened.
    #[error("could not forward a port of the pod")]
    Forward(#[source] kube::Error),
    /// The kubelet opened no stream.
    #[error("the port-forward has no stream")]
    NoStream,
    /// The credential or the CA bundle cannot be used.
    #[error("could not create a client of the pod")]
    Client(#[source] kube::Error),
    /// The request failed.
    #[error("could not request {PATH}")]
    Request(#[source] tower::BoxError),
    /// The server refused the request.
    #[error("{0}")]
    Refused(String),
    /// The Concierge has no such page.
    #[error("the Concierge has no {PATH}: it is of upstream, or of an earlier version")]
    NoPage,
    /// The server responded with another status.
    #[error("the Concierge responded with {0}")]
    Status(StatusCode),
    /// The page is not JSON.
    #[error("the page is not JSON")]
    NotJson(#[from] serde_json::Error),
}

impl PageError {
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Forward(kube::Error::Api(status)) if status.code == 403 => {
                Some("ask an administrator for the permission to create and get pods/portforward")
            }
            Self::Refused(_) => Some(ROLE),
            _ => None,
        }
    }
}

/// The server behind the APIService.
struct Target {
    namespace: String,
    /// The name in the certificate.
    host: String,
    port: u16,
    roots: Vec<Vec<u8>>,
}

impl Reader<'_> {
    /// Reads the state of each of these pods.
    pub(super) async fn debug_state(&self, pods: &[String]) -> Vec<PodState> {
        let target = self.target().await;
        let mut states = Vec::new();
        for pod in pods.iter().take(MAX_PODS) {
            let failed = |error: String, remedy| PodState {
                pod: pod.clone(),
                state: None,
                error: Some(error),
                remedy,
            };
            states.push(match &target {
                Err(why) => failed(why.clone(), None),
                Ok(target) => match tokio::time::timeout(self.time_left(), self.page(target, pod)).await {
                    Ok(Ok(state)) => {
                        PodState { pod: pod.clone(), state: Some(state), error: None, remedy: None }
                    }
                    Ok(Err(error)) => failed(chain(&error).to_string(), error.remedy()),
                    Err(_elapsed) => failed("context deadline exceeded".to_owned(), None),
                },
            });
        }
        let unread = |pod: &String| PodState {
            pod: pod.clone(),
            state: None,
            error: Some(format!("not read: there are more than {MAX_PODS} pods")),
            remedy: None,
        };
        states.extend(pods.iter().skip(MAX_PODS).map(unread));
        states
    }

    async fn target(&self) -> Result<Target, String> {
        let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
        let resource = ApiResource::from_gvk_with_plural(&kind, "apiservices");
        let api: Api<DynamicObject> = Api::all_with(self.admin.client.clone(), &resource);
        let name = names::api_service(&self.suffix.replace(names::GROUP_LOGIN));
        let object = match self.get(&api, "apiservices.apiregistration.k8s.io", &name).await {
            ReadResult::Found(object) => object,
            ReadResult::Missing => return Err(format!("there is no APIService {name}")),
            ReadResult::Hidden(why) | ReadResult::Failed(why) => return Err(why),
        };
        let spec = &object.data["spec"];
        let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (service, namespace) = (text("/service/name"), text("/service/namespace"));
        let bundle = gobase64::decode(text("/caBundle").as_bytes()).unwrap_or_default();
        let bundle = CaBundle::from_pem(&bundle)
            .map_err(|error| format!("the caBundle of the APIService {name} cannot be used: {error}"))?;
        Ok(Target {
            host: format!("{service}.{namespace}.svc"),
            port: self.container_port(namespace, service).await,
            namespace: namespace.to_owned(),
            roots: bundle.ders().iter().map(|der| der.to_vec()).collect(),
        })
    }

    /// Returns the port of the pods to which the Service leads.
    async fn container_port(&self, namespace: &str, service: &str) -> u16 {
        let api: Api<Service> = Api::namespaced(self.admin.client.clone(), namespace);
        let ReadResult::Found(service) = self.get(&api, "services", service).await else {
            return DEFAULT_PORT;
        };
        let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
        ports
            .iter()
            .find_map(|port| match &port.target_port {
                Some(IntOrString::Int(port)) => u16::try_from(*port).ok(),
                _ => None,
            })
            .unwrap_or(DEFAULT_PORT)
    }

    async fn page(&self, target: &Target, pod: &str) -> Result<Value, PageError> {
        let pods: Api<Pod> = Api::namespaced(self.admin.client.clone(), &target.namespace);
        let mut forwarder = pods.portforward(pod, &[target.port]).await.map_err(PageError::Forward)?;
        let stream = forwarder.take_stream(target.port).ok_or(PageError::NoStream)?;
        let page = self.page_over(target, stream).await;
        forwarder.abort();
        page
    }

    async fn page_over(
        &self,
        target: &Target,
        stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Value, PageError> {
        let request = |error: tower::BoxError| PageError::Request(error);
        let server = format!("https://{}", target.host);
        let server: http::Uri = server.parse().map_err(|error| request(Box::new(error)))?;
        let config = self.admin.config_of(server, target.roots.clone());
        let tls = Arc::new(config.rustls_client_config().map_err(PageError::Client)?);
        let name = ServerName::try_from(target.host.clone()).map_err(|error| request(Box::new(error)))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = stream.map_err(|error| request(Box::new(error)))?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| request(Box::new(error)))?;
        // kube's layers add the token and the impersonation headers.
        let sender = tower::service_fn({
            let sender = Arc::new(tokio::sync::Mutex::new(sender));
            move |request: Request<Full<Bytes>>| {
                let sender = Arc::clone(&sender);
                async move { sender.lock().await.send_request(request).await }
            }
        });
        let service = ServiceBuilder::new()
            .option_layer(config.auth_layer().map_err(PageError::Client)?)
            .map_err(tower::BoxError::from)
            .layer(config.extra_headers_layer().map_err(PageError::Client)?)
            .service(sender);
        let head = Request::get(PATH).header(http::header::HOST, &target.host);
        let head = head.header(http::header::ACCEPT, "application/json");
        let head = head.body(Full::default()).map_err(|error| request(Box::new(error)))?;
        let exchange = async move {
            let response = service.oneshot(head).await.map_err(PageError::Request)?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_PAGE).collect().await.map_err(PageError::Request)?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        // The connection ends after the exchange, which owns the sender.
        let (response, _closed): (Result<Response<Bytes>, PageError>, _) = tokio::join!(exchange, connection);
        parse(&response?)
    }
}

fn parse(response: &Response<Bytes>) -> Result<Value, PageError> {
    match response.status() {
        StatusCode::OK => Ok(serde_json::from_slice(response.body())?),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let status: Value = serde_json::from_slice(response.body())?;
            Err(PageError::Refused(status["message"].as_str().unwrap_or_default().to_owned()))
        }
        StatusCode::NOT_FOUND => Err(PageError::NoPage),
        status => Err(PageError::Status(status)),
    }
}

/// Adds a summary of the states to the report.
pub(super) fn summarize(states: &[PodState], for_people: bool, text: &mut Text) {
    for PodState { pod, state, error, remedy } in states {
        text.plain("\n");
        text.colored(Color::Dim, &format!("State of pod {}\n", printable_line(pod)));
        if let Some(state) = state {
            for line in lines(state) {
                text.plain(format!("  {}\n", printable_line(&line)));
            }
        }
        if let Some(error) = error {
            text.plain("  ");
            if for_people {
                text.mark(Mark::Warning).plain(" ");
            }
            text.plain(format!("{}\n", printable_line(error)));
        }
        if let Some(remedy) = remedy {
            text.plain(format!("  try: {remedy}\n"));
        }
    }
}

/// Returns the most important values of a page.
fn lines(state: &Value) -> Vec<String> {
    let text = |pointer: &str| match state.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => "unknown".to_owned(),
        Some(other) => other.to_string(),
    };
    let list = |name: &str| state[name].as_array().cloned().unwrap_or_default();
    let member = |value: &Value, name: &str| match &value[name] {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        other => other.to_string(),
    };
    let role = if state["leaderElection"]["isLeader"] == true { "leader" } else { "follower" };
    let mut lines = vec![format!(
        "version {}, running since {}, {role}; the Lease is held by {}, renewed at {}",
        text("/program/version"),
        text("/program/startTime"),
        text("/leaderElection/holder"),
        text("/leaderElection/lastRenewal"),
    )];
    for strategy in list("strategies") {
        let [type_, status, reason] = ["type", "status", "reason"].map(|name| member(&strategy, name));
        lines.push(format!("strategy {type_}: {status}, {reason}"));
    }
    let ready: Vec<String> = list("authenticators")
        .iter()
        .map(|authenticator| format!("{}/{}", member(authenticator, "kind"), member(authenticator, "name")))
        .collect();
    lines.push(format!(
        "ready authenticators: {}",
        if ready.is_empty() { "none".to_owned() } else { ready.join(", ") }
    ));
    for certificate in list("certificates") {
        let store = member(&certificate, "store");
        lines.push(match certificate["isLoaded"] == true {
            true => format!("certificate {store}: valid until {}", member(&certificate, "notAfter")),
            false => format!("certificate {store}: none"),
        });
    }
    for token in list("tokens") {
        let problem = token["problem"].as_str().map(|problem| format!(", {problem}")).unwrap_or_default();
        lines.push(format!(
            "token of the {}: valid until {}{problem}",
            member(&token, "use"),
            member(&token, "notAfter")
        ));
    }
    for listener in list("listeners") {
        let by_worker = match listener["openByWorker"].as_array() {
            Some(workers) if !workers.is_empty() => {
                format!(
                    " (by worker: {})",
                    workers.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
                )
            }
            _ => String::new(),
        };
        lines.push(format!(
            "connections of {}: {}{by_worker}",
            member(&listener, "name"),
            member(&listener, "open")
        ));
    }
    lines.push(format!(
        "connections to the API server: {} with {} streams, and {} for short reads",
        text("/upstream/http2Connections"),
        text("/upstream/http2Streams"),
        text("/upstream/http1Connections"),
    ));
    for (reviews, metric) in [("TokenReviews", "token"), ("SubjectAccessReviews", "access")] {
        let number = |name: &str| state["metrics"][format!("pinniped_{metric}_review_cache_{name}")].as_u64();
        let (entries, limit) = (number("entries"), number("entries_limit"));
        let [hits, misses] = ["hit", "miss"]
            .map(|result| number(&format!("requests_total{{result=\"{result}\"}}")).unwrap_or_default());
        if let (Some(entries), Some(limit)) = (entries, limit) {
            lines.push(format!("cached {reviews}: {entries} of {limit}, {hits} hits and {misses} misses"));
        }
    }
    for request in list("slowestRequests").iter().take(5) {
        lines.push(format!(
            "slow request: {} {} took {} ms, {} s ago, audit ID {}",
            member(request, "verb"),
            member(request, "resource"),
            member(request, "milliseconds"),
            member(request, "secondsAgo"),
            member(request, "auditID"),
        ));
    }
    if let Some(configuration) = state["configuration"].as_object() {
        let values = configuration.iter().filter(|(_, value)| !value.is_null());
        lines.extend(values.map(|(key, value)| format!("configuration {key}: {value}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refused_request_names_the_role_to_bind() {
        let refused = json!({"message": "forbidden: User \"jane\" cannot get path \"/debug/state\""});
        let response = |status: u16, body: &Value| {
            Response::builder().status(status).body(Bytes::from(body.to_string())).unwrap()
        };
        let error = parse(&response(403, &refused)).unwrap_err();
        assert_eq!(error.to_string(), "forbidden: User \"jane\" cannot get path \"/debug/state\"");
        assert!(error.remedy().unwrap().contains("pinniped-concierge-debug-state-reader"));
        assert!(matches!(parse(&response(404, &json!({}))), Err(PageError::NoPage)));
        assert!(matches!(parse(&response(500, &json!({}))), Err(PageError::Status(_))));
        assert_eq!(parse(&response(200, &json!({"a": 1}))).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn the_summary_has_the_most_important_values_and_tolerates_missing_ones() {
        let state = json!({
            "program": {"version": "1.2.3", "startTime": "2026-01-02T03:04:05Z"},
            "leaderElection": {"isLeader": true, "holder": "pod-1", "lastRenewal": "2026-01-02T03:05:05Z"},
            "strategies": [{"type": "ImpersonationProxy", "status": "Success", "reason": "Listening"}],
            "authenticators": [{"kind": "WebhookAuthenticator", "name": "mine"}],
            "certificates": [
                {"store": "api", "isLoaded": true, "notAfter": "2027-01-02T03:04:05Z"},
                {"store": "signer", "isLoaded": false},
            ],
            "tokens": [{"use": "impersonation proxy", "notAfter": null, "problem": "not issued"}],
            "listeners": [{"name": "impersonation_proxy", "open": 3, "openByWorker": [1, 2]}],
            "upstream": {"http2Connections": 1, "http2Streams": 2, "http1Connections": 0},
            "configuration": {"log.level": "info", "audit.logFormat": null, "limits.maxConnections": 16},
            "metrics": {
                "pinniped_access_review_cache_entries": 5,
                "pinniped_access_review_cache_entries_limit": 10,
                "pinniped_access_review_cache_requests_total{result=\"hit\"}": 7,
                "pinniped_access_review_cache_requests_total{result=\"miss\"}": 6,
            },
            "slowestRequests": [
                {"verb": "list", "resource": "pods", "milliseconds": 900, "secondsAgo": 4, "auditID": "a"},
            ],
        });
        let expected = [
            "version 1.2.3, running since 2026-01-02T03:04:05Z, leader; the Lease is held by pod-1, renewed at \
             2026-01-02T03:05:05Z",
            "strategy ImpersonationProxy: Success, Listening",
            "ready authenticators: WebhookAuthenticator/mine",
            "certificate api: valid until 2027-01-02T03:04:05Z",
            "certificate signer: none",
            "token of the impersonation proxy: valid until unknown, not issued",
            "connections of impersonation_proxy: 3 (by worker: 1, 2)",
            "connections to the API server: 1 with 2 streams, and 0 for short reads",
            "cached SubjectAccessReviews: 5 of 10, 7 hits and 6 misses",
            "slow request: list pods took 900 ms, 4 s ago, audit ID a",
            "configuration limits.maxConnections: 16",
            "configuration log.level: \"info\"",
        ];
        assert_eq!(lines(&state), expected);
        assert_eq!(lines(&json!({})).len(), 3);
    }
}
