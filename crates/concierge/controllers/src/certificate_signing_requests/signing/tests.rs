use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// The behaviour of an API server and its signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// Approves, but never signs.
    Silent,
    /// Signs with this text instead of a certificate.
    Garbage,
    /// Refuses this method with this code and message.
    Refuses(&'static str, u16, &'static str),
    /// Refuses the first approvals with a conflict, then never signs.
    Conflicts(usize),
    /// Adds this condition to an approved request.
    Condition(&'static str),
    /// Loses an approved request.
    Loses,
}

/// An API server for one request.
struct ApiServer {
    behaviour: Behaviour,
    object: Mutex<Option<Value>>,
    calls: Mutex<Vec<String>>,
}

impl ApiServer {
    fn new(behaviour: Behaviour) -> Arc<Self> {
        Arc::new(Self { behaviour, object: Mutex::default(), calls: Mutex::default() })
    }

    fn signing(self: &Arc<Self>) -> SigningClient {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (code, response) = server.respond(head.method.as_str(), head.uri.path(), body);
                let response = Body::from(response.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::builder().status(code).body(response).unwrap())
            }
        });
        let maker = Maker { namespace: "ns".to_owned(), labels: [].into() };
        SigningClient::new(kube::Client::new(service, "ns"), maker)
    }

    fn respond(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut object = self.object.lock().unwrap();
        self.calls.lock().unwrap().push(method.to_owned());
        let status = |code: u16, message: &str| {
            let reason = if code == 404 { "NotFound" } else { "" };
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": message,
                "reason": reason});
            (code, status)
        };
        match self.behaviour {
            Behaviour::Refuses(refused, code, message) if refused == method => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                return status(code, &message.replace("NAME", name));
            }
            Behaviour::Conflicts(times) if method == "PUT" => {
                let before = self.calls.lock().unwrap().iter().filter(|call| *call == "PUT").count();
                if before <= times {
                    return status(409, "the object has been modified");
                }
            }
            _ => {}
        }
        match method {
            "POST" => *object = Some(body),
            "PUT" => {
                assert!(path.ends_with("/approval"), "{path}");
                let mut approved = body.clone();
                assert_eq!(approved["status"]["conditions"][0]["type"], "Approved");
                match self.behaviour {
                    Behaviour::Garbage => {
                        approved["status"]["certificate"] = json!(STANDARD.encode("garbage"));
                    }
                    Behaviour::Condition(type_) => {
                        let condition =
                            json!({"type": type_, "status": "True", "message": "I do not like it"});
                        approved["status"]["conditions"].as_array_mut().unwrap().push(condition);
                    }
                    _ => {}
                }
                *object = (self.behaviour != Behaviour::Loses).then_some(approved);
                return (200, body);
            }
            "DELETE" => *object = None,
            _ => {}
        }
        match &*object {
            Some(object) => (200, object.clone()),
            None if method == "DELETE" => (200, json!({"kind": "Status", "status": "Success"})),
            None => status(404, "not found"),
        }
    }

    /// Signs for this user and returns the error text.
    async fn error(self: &Arc<Self>, username: &str, groups: &[&str]) -> String {
        let subject = ClientSubject {
            username: username.to_owned(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..ClientSubject::default()
        };
        let signed = self.signing().sign(&subject, Duration::from_secs(300)).await;
        assert!(self.object.lock().unwrap().is_none(), "no request is left");
        signed.unwrap_err().to_string()
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_is_created_for_masters_or_an_empty_username() {
    for (username, groups, wanted) in [
        ("", &[][..], "empty username is not allowed"),
        ("system:masters", &[], "username \"system:masters\" is not allowed"),
        ("u", &["g", "system:masters"], "group \"system:masters\" is not allowed"),
    ] {
        let server = ApiServer::new(Behaviour::Silent);
        assert_eq!(server.error(username, groups).await, wanted);
        assert_eq!(server.calls(), <[&str; 0]>::default());
    }
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_does_not_respond_is_an_error_after_fifteen_seconds() {
    let began = tokio::time::Instant::now();
    let server = ApiServer::new(Behaviour::Silent);
    assert_eq!(
        server.error("u", &[]).await,
        "the signer kubernetes.io/kube-apiserver-client did not sign a CertificateSigningRequest within 15 seconds"
    );
    assert_eq!(began.elapsed().as_secs(), 15);
    let calls = server.calls();
    assert_eq!(
        (calls[0].as_str(), calls[1].as_str(), calls[calls.len() - 1].as_str()),
        ("POST", "PUT", "DELETE")
    );
    // The pauses grow to a second, so that slow signers do not cause many requests.
    let reads = calls.iter().filter(|call| *call == "GET").count();
    assert!((15..25).contains(&reads), "{reads}");
}

#[tokio::test(start_paused = true)]
async fn every_failure_is_described_without_the_random_name_and_leaves_no_request() {
    let approve = "certificatesigningrequests.certificates.k8s.io \"NAME\" is forbidden: user not permitted";
    for (behaviour, wanted) in [
        (
            Behaviour::Refuses("POST", 403, "cannot create"),
            "could not create a CertificateSigningRequest: cannot create: \
             apply install-pinniped-concierge-resources.yaml",
        ),
        (
            Behaviour::Refuses("PUT", 403, approve),
            "could not approve a CertificateSigningRequest: certificatesigningrequests.certificates.k8s.io \
             \"pinniped-login-…\" is forbidden: user not permitted: apply install-pinniped-concierge-resources.yaml",
        ),
        (
            Behaviour::Refuses("GET", 500, "etcd is gone"),
            "could not get a CertificateSigningRequest: etcd is gone",
        ),
        (Behaviour::Condition("Denied"), "the CertificateSigningRequest was denied: I do not like it"),
        (
            Behaviour::Condition("Failed"),
            "the signer kubernetes.io/kube-apiserver-client failed: I do not like it",
        ),
        (Behaviour::Loses, "the CertificateSigningRequest was deleted before it was signed"),
        (
            Behaviour::Garbage,
            "the signer kubernetes.io/kube-apiserver-client returned an unusable certificate: \
             tls: failed to find any PEM data in certificate input",
        ),
        (
            Behaviour::Conflicts(4),
            "could not approve a CertificateSigningRequest: the object has been modified",
        ),
    ] {
        let server = ApiServer::new(behaviour);
        assert_eq!(server.error("u", &["g"]).await, wanted, "{behaviour:?}");
        assert_eq!(server.calls().last().map(String::as_str), Some("DELETE"), "{behaviour:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_repeated_after_a_conflict() {
    let server = ApiServer::new(Behaviour::Conflicts(3));
    let error = server.error("u", &[]).await;
    assert!(error.contains("did not sign"), "{error}");
    assert_eq!(server.calls()[..8], ["POST", "PUT", "GET", "PUT", "GET", "PUT", "GET", "PUT"]);
}
