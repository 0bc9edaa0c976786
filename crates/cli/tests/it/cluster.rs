//! A scripted cluster with a Concierge, and runs of `get kubeconfig` against it.

use serde_json::{Value, json};

use crate::support::{Home, ReceivedResponse, Request, Run, Server, admin_kubeconfig};

pub(crate) const CONFIG: &str = "/apis/config.concierge.pinniped.dev/v1alpha1/credentialissuers";
pub(crate) const JWT: &str = "/apis/authentication.concierge.pinniped.dev/v1alpha1/jwtauthenticators";
pub(crate) const WEBHOOK: &str = "/apis/authentication.concierge.pinniped.dev/v1alpha1/webhookauthenticators";

/// The objects of the cluster; lists and single objects are returned from it.
#[derive(Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) issuers: Vec<Value>,
    pub(crate) jwts: Vec<Value>,
    pub(crate) webhooks: Vec<Value>,
    pub(crate) api_services: Vec<Value>,
    pub(crate) secrets: Vec<Value>,
}

impl Cluster {
    pub(crate) fn respond(&self, request: &Request) -> ReceivedResponse {
        if request.path == "/" {
            // The validation request has no credentials.
            assert!(!request.headers.contains_key("authorization"));
            return ReceivedResponse::text(403, "who are you?");
        }
        assert_eq!(request.headers["authorization"], "Bearer admin-token");
        let path = request.path.trim_end_matches('?');
        let lists: [(&str, &str, &Vec<Value>); 5] = [
            (CONFIG, "credentialissuers.config.concierge.pinniped.dev", &self.issuers),
            (JWT, "jwtauthenticators.authentication.concierge.pinniped.dev", &self.jwts),
            (WEBHOOK, "webhookauthenticators.authentication.concierge.pinniped.dev", &self.webhooks),
            (
                "/apis/apiregistration.k8s.io/v1/apiservices",
                "apiservices.apiregistration.k8s.io",
                &self.api_services,
            ),
            ("/api/v1/namespaces/concierge-namespace/secrets", "secrets", &self.secrets),
        ];
        for (list, resource, items) in lists {
            if path == list {
                return ReceivedResponse::list(items);
            }
            if let Some(name) = path.strip_prefix(list).and_then(|rest| rest.strip_prefix('/')) {
                return match items.iter().find(|item| item["metadata"]["name"] == name) {
                    Some(item) => ReceivedResponse::json(item),
                    None => ReceivedResponse::not_found(&format!("{resource} \"{name}\" not found")),
                };
            }
        }
        ReceivedResponse::text(404, "404 page not found")
    }

    pub(crate) fn start(self) -> Server {
        Server::start(move |request| self.respond(request))
    }
}

pub(crate) fn issuer(name: &str, strategies: &[Value]) -> Value {
    json!({
        "apiVersion": "config.concierge.pinniped.dev/v1alpha1", "kind": "CredentialIssuer",
        "metadata": {"name": name}, "spec": {}, "status": {"strategies": strategies},
    })
}

pub(crate) fn strategy(kind: &str, status: &str, reason: &str, frontend: &Value) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "some message",
        "lastUpdateTime": "2026-11-21T10:00:00Z", "frontend": frontend,
    })
}

pub(crate) fn api_strategy() -> Value {
    strategy(
        "KubeClusterSigningCertificate",
        "Success",
        "FetchedKey",
        &json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo": {"server": "https://not-used", "certificateAuthorityData": "bm90LXVzZWQ="},
        }),
    )
}

pub(crate) fn proxy_strategy(endpoint: &str, ca_data: &str) -> Value {
    strategy(
        "ImpersonationProxy",
        "Success",
        "Listening",
        &json!({
            "type": "ImpersonationProxy",
            "impersonationProxyInfo": {"endpoint": endpoint, "certificateAuthorityData": ca_data},
        }),
    )
}

pub(crate) fn webhook(name: &str) -> Value {
    json!({
        "apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": "WebhookAuthenticator",
        "metadata": {"name": name}, "spec": {"endpoint": "https://webhook"},
    })
}

pub(crate) fn jwt(name: &str, issuer: &str, tls: &Value) -> Value {
    json!({
        "apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": "JWTAuthenticator",
        "metadata": {"name": name}, "spec": {"issuer": issuer, "audience": "test-audience", "tls": tls},
    })
}

/// Returns a cluster with one CredentialIssuer with the cluster's own API, and one webhook.
pub(crate) fn usual() -> Cluster {
    Cluster {
        issuers: vec![issuer("test-issuer", &[api_strategy()])],
        webhooks: vec![webhook("test-webhook")],
        ..Cluster::default()
    }
}

pub(crate) fn home_for(server: &Server) -> Home {
    let mut home = Home::new();
    let extra = format!("    certificate-authority-data: {}", server.ca_data());
    let path = home.write("config", &admin_kubeconfig(&server.url(), &extra));
    home.set("KUBECONFIG", path.to_str().unwrap());
    home
}

pub(crate) fn run(home: &Home, flags: &[&str]) -> Run {
    let args: Vec<&str> = ["get", "kubeconfig", "--pinniped-cli-path=/p", "--timeout=30s"]
        .iter()
        .chain(flags)
        .copied()
        .collect();
    home.run(&args)
}

pub(crate) fn exec_args(run: &Run) -> Vec<String> {
    assert_eq!(run.code, 0, "{run:?}");
    let document: Value = serde_saphyr::from_str(&run.stdout).unwrap();
    serde_json::from_value(document["users"][0]["user"]["exec"]["args"].clone()).unwrap()
}
