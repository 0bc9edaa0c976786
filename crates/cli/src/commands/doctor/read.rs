//! Reads the observed state: from the API server with the user's permissions, from the endpoint as
//! any client. Failures are recorded and do not stop the command.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Resource};
use pinniped_concierge_api::authentication::{JwtAuthenticator, WebhookAuthenticator};
use pinniped_concierge_api::config::{CredentialIssuer, StrategyType};
use pinniped_concierge_api::names::{ANNOTATION_BOOKKEEPING_ANNOTATIONS, ANNOTATION_BOOKKEEPING_LABELS};
use pinniped_delegation::api::{DelegationGroup, TlsCertificateDelegation};
use pinniped_delegation::grants::SecretReference;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::suffix::GroupSuffix;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;

use super::observed::{
    Authenticators, DEFAULT_NAMESPACE, EndpointProbe, KubeconfigEntry, Observed, ObservedPod, ObservedSecret,
    ObservedService, ReadResult, ServiceState, UnreadyAuthenticator, UnservedAuthenticator,
};
use super::{Limits, probe};
use crate::admin::{Admin, Subject};
use crate::explanations::client_errors::NO_CONCIERGE;

/// There is no CredentialIssuer to check.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The named one does not exist.
    #[error("there is no {resource} called {name}")]
    NotFound {
        /// The resource and its group.
        resource: String,
        /// The given name.
        name: String,
    },
    /// There is none.
    #[error("this cluster has no CredentialIssuer ({0})")]
    None(String),
    /// There are several.
    #[error("there are several CredentialIssuers: choose one of {0} with --concierge-credential-issuer")]
    Several(String),
    /// The cluster does not serve the resource.
    #[error("this cluster does not serve {0}")]
    Unknown(String),
    /// The user may not read it, with the text of the API server.
    #[error("{0}")]
    Hidden(String),
    /// The request failed, with the text of client-go.
    #[error("{0}")]
    Request(String),
}

impl IssuerError {
    /// Returns the remedy.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::NotFound { .. } | Self::Several(_) => {
                "name an existing one with --concierge-credential-issuer"
            }
            Self::None(_) => "kubectl apply -f install-pinniped-concierge-resources.yaml",
            Self::Unknown(_) => NO_CONCIERGE.remedy,
            Self::Hidden(_) => "ask an administrator for the permission",
            Self::Request(_) => "check whether the API server is reachable",
        }
    }
}

/// Reads from one cluster.
pub(super) struct Reader<'a> {
    pub(super) admin: &'a Admin,
    pub(super) suffix: &'a GroupSuffix,
    pub(super) dialer: TcpDialer,
    /// The time limits.
    pub(super) limits: Limits,
    /// The end of the time for all reads together; `None` for no limit.
    pub(super) deadline: Option<Instant>,
}

impl Reader<'_> {
    /// Returns the `CredentialIssuer` with this name, or the only one.
    pub(super) async fn credential_issuer(&self, name: &str) -> Result<CredentialIssuer, IssuerError> {
        let api: Api<CredentialIssuer> = Api::all_with(self.admin.client.clone(), self.suffix);
        let resource =
            format!("{}.{}", CredentialIssuer::PLURAL, self.suffix.replace(CredentialIssuer::GROUP));
        if !name.is_empty() {
            return match self.get(&api, &resource, name).await {
                ReadResult::Found(issuer) => Ok(issuer),
                ReadResult::Missing => Err(IssuerError::NotFound { resource, name: name.to_owned() }),
                ReadResult::Hidden(text) => Err(IssuerError::Hidden(text)),
                ReadResult::Failed(text) => Err(IssuerError::Request(text)),
            };
        }
        match self.list(&api, &resource, ListParams::default()).await {
            ReadResult::Found(mut issuers) if issuers.len() == 1 => Ok(issuers.remove(0)),
            ReadResult::Found(issuers) if issuers.is_empty() => Err(IssuerError::None(resource)),
            ReadResult::Found(issuers) => {
                let names: Vec<_> =
                    issuers.iter().filter_map(|issuer| issuer.metadata.name.as_deref()).collect();
                Err(IssuerError::Several(names.join(", ")))
            }
            ReadResult::Missing => Err(IssuerError::Unknown(resource)),
            ReadResult::Hidden(text) => Err(IssuerError::Hidden(text)),
            ReadResult::Failed(text) => Err(IssuerError::Request(text)),
        }
    }

    /// Reads everything related to the `CredentialIssuer`. If the user may not read it, for the
    /// given reason, reads everything else.
    pub(super) async fn observe(
        &self,
        issuer: Result<CredentialIssuer, String>,
        entries: Vec<KubeconfigEntry>,
    ) -> Observed {
        let (issuer, hidden) = match issuer {
            Ok(issuer) => (issuer, None),
            Err(why) => (CredentialIssuer::default(), Some(why)),
        };
        let (namespace, api_trouble) = self.api_service().await;
        let own = namespace.found().map_or(DEFAULT_NAMESPACE, String::as_str).to_owned();
        let group = self.suffix.replace(CredentialIssuer::GROUP);
        let name = issuer.metadata.name.as_deref().unwrap_or_default();
        Observed {
            issuer_argument: format!("credentialissuer.{group}/{name}"),
            pods: self.pods(&own).await,
            authenticators: self.authenticators().await,
            services: self.services(&own).await,
            secret: self.secret(&issuer, &own).await,
            endpoint: self.endpoint(&issuer).await,
            entries,
            logins: Vec::new(),
            namespace,
            api_trouble,
            issuer,
            hidden,
        }
    }

    /// Returns the namespace of the Concierge, and the reason why its API is unavailable, from its
    /// APIService.
    async fn api_service(&self) -> (ReadResult<String>, ReadResult<String>) {
        let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
        let resource = ApiResource::from_gvk_with_plural(&kind, "apiservices");
        let api: Api<DynamicObject> = Api::all_with(self.admin.client.clone(), &resource);
        let name = pinniped_concierge_api::names::api_service(
            &self.suffix.replace(pinniped_concierge_api::names::GROUP_LOGIN),
        );
        let found = self.get(&api, "apiservices.apiregistration.k8s.io", &name).await;
        let namespace = found.clone().map(|object| {
            object.data["spec"]["service"]["namespace"].as_str().unwrap_or(DEFAULT_NAMESPACE).to_owned()
        });
        let trouble = found.map(|object| {
            let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let available = conditions.iter().find(|condition| condition["type"] == "Available");
            match available {
                Some(condition) if condition["status"] == "True" => String::new(),
                Some(condition) => condition["message"].as_str().unwrap_or("no reason is given").to_owned(),
                None => "it has no status yet".to_owned(),
            }
        });
        (namespace, trouble)
    }

    async fn authenticators(&self) -> ReadResult<Authenticators> {
        let client = &self.admin.client;
        let group = self.suffix.replace(WebhookAuthenticator::GROUP);
        let webhooks: Api<WebhookAuthenticator> = Api::all_with(client.clone(), self.suffix);
        let jwts: Api<JwtAuthenticator> = Api::all_with(client.clone(), self.suffix);
        let resource = format!("{}.{group}", WebhookAuthenticator::PLURAL);
        let webhooks = self.list(&webhooks, &resource, ListParams::default()).await;
        let resource = format!("{}.{group}", JwtAuthenticator::PLURAL);
        let jwts = self.list(&jwts, &resource, ListParams::default()).await;
        let mut all = Authenticators::default();
        let mut add = |kind: &str, name: &Option<String>, status: serde_json::Value| {
            let name = format!("{kind}.{group}/{}", name.as_deref().unwrap_or_default());
            if let Some((why, reason)) = unreadiness(kind, &status) {
                all.unready.push(UnreadyAuthenticator { name: name.clone(), why, reason });
            }
            all.names.push(name);
        };
        match (webhooks, jwts) {
            (ReadResult::Found(webhooks), ReadResult::Found(jwts)) => {
                for webhook in &webhooks {
                    let status = serde_json::to_value(&webhook.status).unwrap_or_default();
                    add("webhookauthenticator", &webhook.metadata.name, status);
                }
                for jwt in jwts {
                    let status = serde_json::to_value(&jwt.status).unwrap_or_default();
                    add("jwtauthenticator", &jwt.metadata.name, status);
                }
                for webhook in webhooks {
                    let name = webhook.metadata.name.as_deref().unwrap_or_default();
                    let name = format!("webhookauthenticator.{group}/{name}");
                    all.unserved.extend(self.unserved(name, &webhook.spec.endpoint).await);
                }
                ReadResult::Found(all)
            }
            (ReadResult::Hidden(why), _) | (_, ReadResult::Hidden(why)) => ReadResult::Hidden(why),
            (ReadResult::Failed(why), _) | (_, ReadResult::Failed(why)) => ReadResult::Failed(why),
            (ReadResult::Missing, _) | (_, ReadResult::Missing) => ReadResult::Missing,
        }
    }

    /// Returns the authenticator if its webhook is a Service in the cluster that no pod serves, or
    /// that cannot be read.
    async fn unserved(&self, name: String, endpoint: &str) -> Option<UnservedAuthenticator> {
        let (service, namespace) = service_of(endpoint)?;
        let api: Api<Service> = Api::namespaced(self.admin.client.clone(), &namespace);
        let state = match self.get(&api, "services", &service).await {
            ReadResult::Found(found) if !selects_pods(&found) => return None,
            ReadResult::Found(_) => match self.ready_endpoints(&namespace, &service).await {
                ReadResult::Found(0) => ServiceState::NoEndpoint,
                ReadResult::Found(_) | ReadResult::Missing => return None,
                ReadResult::Hidden(why) | ReadResult::Failed(why) => ServiceState::Unread(why),
            },
            ReadResult::Missing => ServiceState::Missing,
            ReadResult::Hidden(why) | ReadResult::Failed(why) => ServiceState::Unread(why),
        };
        Some(UnservedAuthenticator { name, namespace, service, state })
    }

    /// Returns the pods of the Concierge.
    async fn pods(&self, namespace: &str) -> ReadResult<Vec<ObservedPod>> {
        let api: Api<Pod> = Api::namespaced(self.admin.client.clone(), namespace);
        let of_concierge = ListParams::default().labels(CONCIERGE_PODS);
        self.list(&api, "pods", of_concierge).await.map(|pods| pods.iter().map(pod).collect())
    }

    /// Returns the Services that the Concierge created, which have its bookkeeping annotation.
    async fn services(&self, namespace: &str) -> ReadResult<Vec<ObservedService>> {
        let api: Api<Service> = Api::namespaced(self.admin.client.clone(), namespace);
        let services = match self.list(&api, "services", ListParams::default()).await {
            ReadResult::Found(services) => services,
            ReadResult::Missing => return ReadResult::Missing,
            ReadResult::Hidden(why) => return ReadResult::Hidden(why),
            ReadResult::Failed(why) => return ReadResult::Failed(why),
        };
        let books = [ANNOTATION_BOOKKEEPING_LABELS, ANNOTATION_BOOKKEEPING_ANNOTATIONS];
        let mut looks = Vec::new();
        for service in services {
            let annotations = service.metadata.annotations.as_ref();
            if annotations.is_some_and(|found| books.iter().any(|key| found.contains_key(*key))) {
                let name = service.metadata.name.clone().unwrap_or_default();
                looks.push(ObservedService { ready: self.ready_endpoints(namespace, &name).await, service });
            }
        }
        ReadResult::Found(looks)
    }

    async fn ready_endpoints(&self, namespace: &str, service: &str) -> ReadResult<usize> {
        let api: Api<EndpointSlice> = Api::namespaced(self.admin.client.clone(), namespace);
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        let slices = self.list(&api, "endpointslices.discovery.k8s.io", of_service).await;
        slices.map(|slices| {
            let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
            endpoints
                .filter(|endpoint| {
                    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
                })
                .count()
        })
    }

    async fn secret(&self, issuer: &CredentialIssuer, own: &str) -> Option<ObservedSecret> {
        let proxy = issuer.spec.as_ref()?.impersonation_proxy.as_ref()?;
        let written = proxy.tls.as_ref()?.secret_name.as_deref().filter(|name| !name.is_empty())?;
        let reference = SecretReference::parse(written, own);
        if reference.is_malformed() {
            return Some(ObservedSecret { reference, secret: ReadResult::Missing, delegations: None });
        }
        let api: Api<Secret> = Api::namespaced(self.admin.client.clone(), &reference.namespace);
        let secret = self.get(&api, "secrets", &reference.name).await;
        let foreign = reference.namespace != own;
        let delegations = if foreign { Some(self.delegations(&reference.namespace).await) } else { None };
        Some(ObservedSecret { reference, secret, delegations })
    }

    /// Returns the delegations of a namespace, in all served API groups.
    async fn delegations(&self, namespace: &str) -> ReadResult<Vec<TlsCertificateDelegation>> {
        let mut all: ReadResult<Vec<TlsCertificateDelegation>> = ReadResult::Missing;
        for group in DelegationGroup::ALL {
            let api: Api<TlsCertificateDelegation> =
                Api::namespaced_with(self.admin.client.clone(), namespace, &group);
            let resource = format!("{}.{}", TlsCertificateDelegation::PLURAL, group.group());
            all = match (all, self.list(&api, &resource, ListParams::default()).await) {
                (ReadResult::Found(mut all), ReadResult::Found(more)) => {
                    all.extend(more);
                    ReadResult::Found(all)
                }
                (all @ ReadResult::Found(_), _) | (all, ReadResult::Missing) => all,
                (_, result) => result,
            };
        }
        all
    }

    async fn endpoint(&self, issuer: &CredentialIssuer) -> Option<EndpointProbe> {
        let strategies = &issuer.status.as_ref()?.strategies;
        let proxy = strategies.iter().find(|strategy| strategy.type_ == StrategyType::ImpersonationProxy)?;
        let info = proxy.frontend.as_ref()?.impersonation_proxy_info.as_ref()?;
        let system = info.certificate_authority_data.is_empty();
        Some(probe::probe_endpoint(&self.dialer, &info.endpoint, system, self.time_left()).await)
    }

    pub(super) async fn get<K>(&self, api: &Api<K>, resource: &str, name: &str) -> ReadResult<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let path = format!("{}/{name}", api.resource_url());
        let subject = Subject { verb: "get", resource, name, path: &path };
        self.within_limit(api.get(name), subject).await
    }

    async fn list<K>(&self, api: &Api<K>, resource: &str, parameters: ListParams) -> ReadResult<Vec<K>>
    where
        K: Resource + Clone + DeserializeOwned + Debug,
    {
        let path = api.resource_url();
        let subject = Subject { verb: "list", resource, name: "", path };
        self.within_limit(api.list(&parameters), subject).await.map(|list| list.items)
    }

    /// Returns the time limit of the next request.
    pub(super) fn time_left(&self) -> Duration {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        left.map_or(self.limits.request(), |left| left.min(self.limits.request()))
    }

    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
        subject: Subject<'_>,
    ) -> ReadResult<T> {
        let error = match tokio::time::timeout(self.time_left(), call).await {
            Ok(Ok(found)) => return ReadResult::Found(found),
            Ok(Err(error)) => error,
            Err(_) => return ReadResult::Failed("context deadline exceeded".to_owned()),
        };
        let text = self.admin.request_error(&error, subject).to_string();
        match &error {
            kube::Error::Api(status) if status.code == 404 => ReadResult::Missing,
            kube::Error::Api(status) if matches!(status.code, 401 | 403) => ReadResult::Hidden(text),
            _ => ReadResult::Failed(text),
        }
    }
}

/// Returns name and namespace of the Service that an endpoint names; `None` for another host. Only
/// `cluster.local` is recognized as the domain of a cluster.
fn service_of(endpoint: &str) -> Option<(String, String)> {
    let url = Url::parse(endpoint).ok()?;
    let host = url.host_str()?;
    let name = host.strip_suffix(".svc").or_else(|| host.strip_suffix(".svc.cluster.local"))?;
    let (service, namespace) = name.split_once('.')?;
    let is_service = !service.is_empty() && !namespace.is_empty() && !namespace.contains('.');
    is_service.then(|| (service.to_owned(), namespace.to_owned()))
}

/// Returns whether a Service selects the pods that serve it. Otherwise, other objects or a name in
/// DNS have its addresses.
fn selects_pods(service: &Service) -> bool {
    let external = Some("ExternalName");
    service.spec.as_ref().is_some_and(|spec| spec.selector.is_some() && spec.type_.as_deref() != external)
}

/// The label of the Concierge's pods.
const CONCIERGE_PODS: &str = "deployment.pinniped.dev=concierge";

fn pod(pod: &Pod) -> ObservedPod {
    let status = pod.status.as_ref();
    let containers: Vec<_> =
        status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten().collect();
    let waiting = containers.iter().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        Some(match waiting.message.as_deref() {
            Some(message) => format!("{reason}: {message}"),
            None => reason,
        })
    });
    let unscheduled = status.and_then(|status| {
        let conditions = status.conditions.as_ref()?;
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
    });
    ObservedPod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        ready: !containers.is_empty() && containers.iter().all(|container| container.ready),
        waiting: waiting.or(unscheduled),
        restarts: containers.iter().map(|container| container.restart_count).sum(),
        images: pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .filter_map(|spec| spec.image.clone())
            .collect(),
    }
}

/// Returns the reason why an authenticator with this status is not ready, if there is one. A
/// WebhookAuthenticator without conditions may be of a version that writes none.
fn unreadiness(kind: &str, status: &serde_json::Value) -> Option<(String, String)> {
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(ready) = conditions.iter().find(|condition| condition["type"] == "Ready") else {
        return (kind == "jwtauthenticator")
            .then(|| ("it has no status: no Concierge has processed it".to_owned(), String::new()));
    };
    if ready["status"] == "True" {
        return None;
    }
    // The other conditions contain the cause.
    let causes: Vec<&serde_json::Value> = conditions
        .iter()
        .filter(|condition| condition["type"] != "Ready" && condition["status"] == "False")
        .collect();
    let texts: Vec<&str> = causes.iter().filter_map(|condition| condition["message"].as_str()).collect();
    let own = ready["message"].as_str().unwrap_or("no reason is given");
    let reason = causes.first().and_then(|condition| condition["reason"].as_str()).unwrap_or_default();
    let why = if texts.is_empty() { own.to_owned() } else { texts.join("; ") };
    Some((why, reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_service_of_a_webhook_is_the_host_of_its_url() {
        for (endpoint, wanted) in [
            ("https://hook.ns.svc/authenticate", Some(("hook", "ns"))),
            ("https://hook.ns.svc.cluster.local:8443", Some(("hook", "ns"))),
            ("https://hook.ns.example.com", None),
            ("https://hook.ns.svc.example.com", None),
            ("https://a.hook.ns.svc", None),
            ("https://hook", None),
            ("https://10.0.0.1/svc", None),
            ("hook.ns.svc", None),
        ] {
            let found = service_of(endpoint);
            let found = found.as_ref().map(|(service, namespace)| (service.as_str(), namespace.as_str()));
            assert_eq!(found, wanted, "{endpoint}");
        }
    }

    #[test]
    fn an_unready_authenticator_is_reported_with_the_reason() {
        let condition = |type_: &str, status: &str, message: &str| {
            json!({"type": type_, "status": status, "message": message,
            "reason": format!("{type_}Reason")})
        };
        let no_status = "it has no status: no Concierge has processed it";
        assert_eq!(unreadiness("webhookauthenticator", &json!(null)), None);
        for (status, wanted) in [
            (json!(null), Some((no_status, ""))),
            (json!({"conditions": []}), Some((no_status, ""))),
            (json!({"conditions": [condition("Ready", "True", "")]}), None),
            (json!({"conditions": [condition("Ready", "False", "see others")]}), Some(("see others", ""))),
            (
                json!({"conditions": [condition("A", "False", "no route"), condition("B", "Unknown", "x"),
                    condition("Ready", "False", "see others")]}),
                Some(("no route", "AReason")),
            ),
        ] {
            let wanted = wanted.map(|(why, reason)| (why.to_owned(), reason.to_owned()));
            assert_eq!(unreadiness("jwtauthenticator", &status), wanted, "{status}");
        }
    }
}
