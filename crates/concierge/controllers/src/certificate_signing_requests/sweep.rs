//! Deletes the requests of logins that ended without deleting them.

use jiff::Timestamp;
use kube::api::ListParams;
use pinniped_concierge_domain::strategy::certificate_signing_requests::orphans::{Orphan, orphans};

use super::signing::SigningClient;
use pinniped_controller::client::{WriteError, Writer};

/// Deletes the orphaned requests of this installation, and returns the number of requests that were
/// found. A failed deletion does not prevent the others.
///
/// # Errors
///
/// Returns an error if the requests cannot be listed, or another pod is the leader.
pub(super) async fn sweep(writer: &Writer, signing: &SigningClient) -> Result<usize, WriteError> {
    let requests = signing.requests();
    let selector = ListParams::default().labels(&signing.maker().selector());
    let list = requests.list_metadata(&selector).await.map_err(WriteError::Api)?;
    for Orphan { name, uid } in orphans(list.items.iter().map(|item| &item.metadata), Timestamp::now()) {
        tracing::info!(%name, "deleting the CertificateSigningRequest of an ended login");
        match writer.delete_exactly(requests, &name, uid.as_deref(), None).await {
            Err(error @ WriteError::Api(_)) => {
                tracing::info!(%name, %error, "could not delete the CertificateSigningRequest of an ended login");
            }
            deleted => deleted?,
        }
    }
    Ok(list.items.len())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use pinniped_concierge_domain::strategy::certificate_signing_requests::request::Maker;
    use pinniped_controller::lease::Leadership;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn only_orphaned_requests_of_the_installation_are_deleted_and_all_are_counted() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let text = format!("{} {} {}", head.method, head.uri, String::from_utf8_lossy(&body));
                seen.lock().unwrap().push(text);
                let item = |name: &str, created: Timestamp| {
                    let created = created.to_string();
                    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": created}})
                };
                let old = Timestamp::UNIX_EPOCH;
                let response = match head.method.as_str() {
                    "GET" => json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": [
                        item("pinniped-login-1", old), item("pinniped-login-2", old),
                        item("pinniped-login-3", Timestamp::now())]}),
                    _ if head.uri.path().ends_with("-1") => {
                        json!({"kind": "Status", "status": "Failure", "code": 500, "message": "no"})
                    }
                    _ => json!({"kind": "Status", "status": "Success"}),
                };
                let code = response["code"].as_u64().unwrap_or(200);
                let response = Body::from(response.to_string().into_bytes());
                let response = Response::builder().status(u16::try_from(code).unwrap()).body(response);
                Ok::<_, std::io::Error>(response.unwrap())
            }
        });
        let maker = Maker { namespace: "ns".to_owned(), labels: [].into() };
        let signing = SigningClient::new(kube::Client::new(service, "ns"), maker);
        let writer = |leads| Writer::new(Leadership::fixed(leads));
        assert_eq!(sweep(&writer(true), &signing).await.unwrap(), 3);
        let calls = std::mem::take(&mut *calls.lock().unwrap());
        assert_eq!(calls.len(), 3, "{calls:?}");
        let selector = "labelSelector=concierge.pinniped.dev%2Fcertificate-signing-request%3Dns";
        assert!(calls[0].contains(selector), "{}", calls[0]);
        for (call, name) in calls[1..].iter().zip(["pinniped-login-1", "pinniped-login-2"]) {
            assert!(call.starts_with("DELETE ") && call.contains(&format!("uid-{name}")), "{call}");
        }
        // A pod that is no longer the leader deletes nothing.
        assert!(matches!(sweep(&writer(false), &signing).await, Err(WriteError::NotLeader(_))));
    }
}
