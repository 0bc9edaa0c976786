//! Probes of the API server at start and every minute: whether anonymous authentication is enabled,
//! and whether the proxy may impersonate UIDs.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use http::header::{ACCEPT, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use pinniped_delegated_auth::reviews::{Authorizer, Decision};
use pinniped_kube_request::anonymous::{AnonymousPolicy, ProbeResult};
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::{self, AUTHENTICATED, User};
use pinniped_kube_request::impersonation::UidImpersonation;
use pinniped_kube_types::status::generic_message;

use pinniped_kube_client::{AGENT, ApiServerError, RequestBody, Upstream, UpstreamError};

/// Timeout of one probe.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the probes.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of bytes of a response that are read.
const MAX_RESPONSE_SIZE: usize = 64 << 10;
/// The first minor version of Kubernetes 1 that supports `Impersonate-Uid`.
const UIDS_SINCE: (u32, u32) = (1, 22);

/// The response of the API server to a request without credentials is inconclusive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error from {api} API: {error}")]
pub struct ProbeError {
    api: &'static str,
    error: String,
}

/// Probes the API server without credentials.
pub(super) async fn probe_anonymous(upstream: &Upstream) -> Result<AnonymousPolicy, ProbeError> {
    let health = send_probe(upstream, "healthz", "/healthz", "").await?;
    let other = send_probe(upstream, "v1 nodes", "/api/v1/nodes?limit=1", " (get nodes)").await?;
    tracing::debug!(results = ?[("healthz", health), ("nodes", other)], "anonymous authentication probed");
    Ok(AnonymousPolicy { health, other })
}

/// Sends one probe. `what` names the resource in errors, in the format of client-go.
async fn send_probe(
    upstream: &Upstream,
    api: &'static str,
    path: &'static str,
    what: &str,
) -> Result<bool, ProbeError> {
    let error = |error: String| ProbeError { api, error };
    let (status, body) = tokio::time::timeout(CALL_TIMEOUT, get(upstream, path))
        .await
        .unwrap_or_else(|_| Err("context deadline exceeded".to_owned()))
        .map_err(|text| error(format!("Get \"https://{}{path}\": {text}", upstream.authority())))?;
    match ProbeResult::of_status(status.as_u16()) {
        ProbeResult::Allowed => Ok(true),
        ProbeResult::Refused => Ok(false),
        ProbeResult::Unclear => Err(error(client_go_text(status, &body, what))),
    }
}

async fn get(upstream: &Upstream, path: &'static str) -> Result<(StatusCode, Vec<u8>), String> {
    let request = Request::get(path)
        .header(USER_AGENT, AGENT.clone())
        .header(ACCEPT, HeaderValue::from_static("application/json, */*"))
        .body(RequestBody::Empty)
        .map_err(|error| error.to_string())?;
    let response = upstream.send(request).await.map_err(|error| match error {
        UpstreamError::Dial(dial) => dial.to_string(),
        other => ApiServerError::from(other).to_string(),
    })?;
    let status = response.status();
    // The body only contributes to the text of an error.
    let body = Limited::new(response.into_body(), MAX_RESPONSE_SIZE)
        .collect()
        .await
        .map(|all| all.to_bytes().to_vec());
    Ok((status, body.unwrap_or_default()))
}

/// Returns the error that client-go derives from an unexpected response.
fn client_go_text(status: StatusCode, body: &[u8], what: &str) -> String {
    #[derive(serde::Deserialize)]
    struct StatusBody {
        kind: String,
        message: String,
    }
    if let Ok(reported) = serde_json::from_slice::<StatusBody>(body)
        && reported.kind == "Status"
        && !reported.message.is_empty()
    {
        return reported.message;
    }
    let message = generic_message(status.as_u16(), String::from_utf8_lossy(body).trim());
    format!("{message}{what}")
}

/// The latest results of the probes. A probe that fails keeps the previous result.
#[derive(Debug)]
pub(super) struct Capabilities {
    anonymous: AtomicU8,
    uids: AtomicBool,
}

impl Capabilities {
    pub(super) fn new(anonymous: AnonymousPolicy) -> Self {
        let known = Self { anonymous: AtomicU8::new(0), uids: AtomicBool::new(false) };
        known.set_anonymous(anonymous);
        known
    }

    pub(super) fn anonymous(&self) -> AnonymousPolicy {
        let bits = self.anonymous.load(Ordering::Relaxed);
        AnonymousPolicy { health: bits & 1 != 0, other: bits & 2 != 0 }
    }

    pub(super) fn set_anonymous(&self, policy: AnonymousPolicy) {
        let bits = u8::from(policy.health) | u8::from(policy.other) << 1;
        if self.anonymous.swap(bits, Ordering::Relaxed) != bits {
            tracing::info!(
                health = policy.health,
                other = policy.other,
                "anonymous access of the API server"
            );
        }
    }

    pub(super) fn uids(&self) -> UidImpersonation {
        if self.uids.load(Ordering::Relaxed) { UidImpersonation::Enabled } else { UidImpersonation::Disabled }
    }

    pub(super) fn set_uids(&self, usable: bool) {
        if self.uids.swap(usable, Ordering::Relaxed) != usable {
            tracing::info!(usable, "impersonation of user IDs");
        }
    }
}

/// Returns whether the impersonating service account may send `Impersonate-Uid` to this API server.
/// `None` when the probe fails.
pub(super) async fn probe_uids(
    client: &kube::Client,
    authorizer: &Authorizer,
    impersonator: &str,
) -> Option<bool> {
    let version = match tokio::time::timeout(CALL_TIMEOUT, client.apiserver_version()).await {
        Ok(Ok(version)) => version,
        Ok(Err(error)) => {
            tracing::debug!(%error, "could not read the API server's version");
            return None;
        }
        Err(_) => return None,
    };
    if !is_since(&version.major, &version.minor, UIDS_SINCE) {
        return Some(false);
    }
    let mut user = User { name: impersonator.to_owned(), ..User::default() };
    if let Some((namespace, _)) = identity::service_account(impersonator) {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            AUTHENTICATED.to_owned(),
        ];
    }
    let attributes = Attributes::Resource(ResourceAttributes {
        verb: "impersonate".to_owned(),
        group: "authentication.k8s.io".to_owned(),
        version: "v1".to_owned(),
        resource: "uids".to_owned(),
        ..ResourceAttributes::default()
    });
    match authorizer.authorize(impersonator, &user.into(), &attributes).await {
        Ok(decision) => Some(decision == Decision::Allow),
        Err(error) => {
            tracing::debug!(%error, "could not review the impersonation of user IDs");
            None
        }
    }
}

/// Compares versions like `1` and `22+`.
fn is_since(major: &str, minor: &str, since: (u32, u32)) -> bool {
    let number =
        |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>();
    match (number(major), number(minor)) {
        (Ok(major), Ok(minor)) => (major, minor) >= since,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (major, minor, wanted) in [
            ("1", "22", true),
            ("1", "21", false),
            ("1", "36+", true),
            ("1", "9", false),
            ("2", "0", true),
            ("", "", false),
        ] {
            assert_eq!(is_since(major, minor, UIDS_SINCE), wanted, "{major}.{minor}");
        }
    }

    #[test]
    fn unexpected_responses_have_the_error_texts_of_client_go() {
        for (code, body, what, wanted) in [
            (
                500,
                "broken",
                "",
                r#"an error on the server ("broken") has prevented the request from succeeding"#,
            ),
            (
                500,
                "broken\n",
                " (get nodes)",
                r#"an error on the server ("broken") has prevented the request from succeeding (get nodes)"#,
            ),
            (404, "", "", "the server could not find the requested resource"),
            (500, r#"{"kind":"Status","message":"etcd is gone"}"#, "", "etcd is gone"),
        ] {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(client_go_text(status, body.as_bytes(), what), wanted);
        }
    }

    #[test]
    fn capabilities_return_the_stored_results() {
        for health in [false, true] {
            for other in [false, true] {
                let policy = AnonymousPolicy { health, other };
                assert_eq!(Capabilities::new(policy).anonymous(), policy);
            }
        }
    }
}
