use std::sync::Mutex;

use http::{Request, Response};
use kube::{client::Body, runtime::reflector::store::Writer, runtime::watcher::Event};
use pinniped_pki::{Certificate, CertificatePair, chain::verify_client};

use super::*;

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

#[test]
fn a_new_secret_contains_a_ca_and_a_leaf_valid_for_a_hundred_years() {
    let secret = new_secret(now()).unwrap();
    let metadata = &secret.metadata;
    assert_eq!(metadata.name.as_deref(), Some("local-user-authenticator-tls-serving-certificate"));
    assert_eq!(metadata.namespace.as_deref(), Some("local-user-authenticator"));
    assert_eq!(metadata.labels.as_ref().unwrap()["app"], "local-user-authenticator");
    assert_eq!(secret.type_, None);
    let keys: Vec<&String> = secret.data.as_ref().unwrap().keys().collect();
    assert_eq!(keys, ["caCertificate", "caCertificatePrivateKey", "tlsCertificateChain", "tlsPrivateKey"]);

    let ca = Certificate::parse_pem(text(&secret, "caCertificate").as_bytes()).unwrap();
    assert_eq!(ca.subject_cn, "local-user-authenticator CA");
    assert!(ca.is_ca && text(&secret, "caCertificatePrivateKey").contains("BEGIN EC PRIVATE KEY"));
    let pair = CertificatePair::parse(
        text(&secret, "tlsCertificateChain").as_bytes(),
        text(&secret, "tlsPrivateKey").as_bytes(),
    )
    .unwrap();
    assert!(text(&secret, "tlsPrivateKey").starts_with("-----BEGIN PRIVATE KEY-----"));
    let leaf = pair.leaf();
    assert_eq!(
        leaf.dns_names,
        [
            "local-user-authenticator.local-user-authenticator.svc",
            "local-user-authenticator.local-user-authenticator.svc.cluster.local"
        ]
    );
    assert_eq!(leaf.subject_cn, "");
    for certificate in [&ca, leaf] {
        assert_eq!(certificate.not_before.to_string(), "2026-11-21T11:55:00Z");
        assert_eq!(certificate.not_after.to_string(), "2126-10-28T12:00:00Z");
    }
    // The chain is valid; only the key usage is not that of a client.
    let bundle = pinniped_pki::CaBundle::from_pem(text(&secret, "caCertificate").as_bytes()).unwrap();
    let error = verify_client(&leaf.der, &[], &bundle, now()).unwrap_err();
    assert_eq!(error.to_string(), "x509: certificate specifies an incompatible key usage");
}

/// A controller, the writer of its cache, and the requests to an API server that responds to all of
/// them with `status`.
struct Stage {
    controller: ServingCertificate,
    cache: Writer<Secret>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    fn new(status: u16) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let log = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                let body = if status == 201 {
                    request.into_body().collect_bytes().await?.to_vec()
                } else {
                    let response = serde_json::json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": status,
                        "reason": if status == 403 { "Forbidden" } else { "Conflict" },
                    });
                    response.to_string().into_bytes()
                };
                Ok::<_, kube::Error>(Response::builder().status(status).body(Body::from(body)).unwrap())
            }
        });
        let client = kube::Client::new(service, NAMESPACE);
        let cache = Writer::default();
        let controller = ServingCertificate {
            api: Api::namespaced(client, NAMESPACE),
            store: cache.as_reader(),
            holder: CertificateStore::serving(CERTIFICATE_SECRET),
        };
        Self { controller, cache, requests }
    }

    fn see(&mut self, event: &Event<Secret>) {
        self.cache.apply_watcher_event(event);
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

/// Makes a Secret invalid.
type Change<'a> = &'a dyn Fn(&mut Secret);

const CREATE: &str = "POST /api/v1/namespaces/local-user-authenticator/secrets";

#[tokio::test]
async fn a_missing_secret_is_created_and_an_existing_one_is_loaded() {
    let mut stage = Stage::new(201);
    assert_eq!(stage.controller.reconcile().await.unwrap(), Action::recheck(SETTLE));
    assert_eq!(stage.requests(), [CREATE]);
    assert!(stage.controller.holder.current().is_none());
    let secret = new_secret(now()).unwrap();
    stage.see(&Event::Apply(secret.clone()));
    for _ in 0..2 {
        assert_eq!(stage.controller.reconcile().await.unwrap(), Action::done());
        let current = stage.controller.holder.current().unwrap();
        assert_eq!(current.certificate_pem(), text(&secret, "tlsCertificateChain"));
        assert!(stage.requests().is_empty());
    }
}

#[tokio::test]
async fn a_replica_that_loses_the_race_waits_for_the_existing_secret() {
    let mut stage = Stage::new(409);
    assert_eq!(stage.controller.reconcile().await.unwrap(), Action::recheck(SETTLE));
    stage.see(&Event::Apply(new_secret(now()).unwrap()));
    stage.controller.reconcile().await.unwrap();
    assert!(stage.controller.holder.current().is_some());
    assert_eq!(stage.requests(), [CREATE]);
}

#[tokio::test]
async fn a_deleted_secret_stops_serving_until_a_new_one_exists() {
    let mut stage = Stage::new(201);
    let (first, second) = (new_secret(now()).unwrap(), new_secret(now()).unwrap());
    stage.see(&Event::Apply(first.clone()));
    stage.controller.reconcile().await.unwrap();
    stage.see(&Event::Delete(first));
    stage.controller.reconcile().await.unwrap();
    assert!(stage.controller.holder.current().is_none());
    assert_eq!(stage.requests(), [CREATE]);
    stage.see(&Event::Apply(second.clone()));
    stage.controller.reconcile().await.unwrap();
    let current = stage.controller.holder.current().unwrap();
    assert_eq!(current.certificate_pem(), text(&second, "tlsCertificateChain"));
}

#[tokio::test]
async fn an_invalid_secret_is_reported_and_the_previous_pair_remains() {
    let mut stage = Stage::new(201);
    stage.see(&Event::Apply(new_secret(now()).unwrap()));
    stage.controller.reconcile().await.unwrap();
    let prefix = "failed to set serving cert/key content from secret \
                  local-user-authenticator/local-user-authenticator-tls-serving-certificate: \
                  local-user-authenticator-tls-serving-certificate: attempt to set ";
    let ca_as_leaf = |secret: &mut Secret| {
        let data = secret.data.as_mut().unwrap();
        for (from, to) in
            [("caCertificate", "tlsCertificateChain"), ("caCertificatePrivateKey", "tlsPrivateKey")]
        {
            let value = data[from].clone();
            data.insert(to.to_owned(), value);
        }
    };
    let table: [(Change<'_>, &str); 2] = [
        (
            &|secret| secret.data = None,
            "invalid key pair: tls: failed to find any PEM data in certificate input",
        ),
        (&ca_as_leaf, "x509 cert with unexpected IsCA=true"),
    ];
    for (change, expected) in table {
        let mut secret = new_secret(now()).unwrap();
        change(&mut secret);
        stage.see(&Event::Apply(secret));
        let error = stage.controller.reconcile().await.unwrap_err();
        assert_eq!(error.to_string(), format!("{prefix}{expected}"));
        assert!(stage.controller.holder.current().is_some());
    }
    assert!(stage.requests().is_empty());
}

#[tokio::test]
async fn a_missing_permission_is_reported() {
    let mut stage = Stage::new(403);
    let error = stage.controller.reconcile().await.unwrap_err();
    assert!(
        matches!(&error, ReconcileError::Forbidden(text) if text == "could not create secret: no"),
        "{error}"
    );
}
