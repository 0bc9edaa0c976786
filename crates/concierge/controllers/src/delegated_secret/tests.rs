use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use pinniped_pki::{CertificateAuthority, Validity};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use pinniped_controller::follow::Change;

fn store() -> CertificateStore {
    let validity = Validity::starting(jiff::Timestamp::now(), Duration::from_secs(1000));
    let ca = CertificateAuthority::generate("ca", &validity).unwrap();
    let leaf = ca.issue_server(&["a.example.com".to_owned()], &[], &validity).unwrap();
    let store = CertificateStore::serving("serving");
    store.set(leaf.certificate_pem.as_bytes(), leaf.private_key_pem.as_bytes()).unwrap();
    store
}

/// Returns a client whose requests get a response with a status code and a body, and counted in
/// `requests`.
fn client(respond: fn(&Request<Body>) -> (u16, Value), requests: &Arc<AtomicUsize>) -> kube::Client {
    let requests = Arc::clone(requests);
    let service = tower::service_fn(move |request: Request<Body>| {
        requests.fetch_add(1, Ordering::SeqCst);
        async move {
            let (code, body) = respond(&request);
            if code == 0 {
                std::future::pending::<()>().await;
            }
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body).expect("a response"))
        }
    });
    kube::Client::new(service, "app")
}

fn refusal(code: u16) -> (u16, Value) {
    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"}))
}

fn list(items: &Value) -> (u16, Value) {
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

fn grant() -> TlsCertificateDelegation {
    let spec = json!({"delegations": [{"secretName": "w", "targetNamespaces": ["app"]}]});
    serde_json::from_value(json!({"metadata": {"name": "d", "namespace": "certs"}, "spec": spec})).unwrap()
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "w", "namespace": "certs"}})
}

fn reference() -> SecretReference {
    SecretReference::parse("certs/w", "app")
}

#[tokio::test]
async fn a_revoked_permission_is_refused_without_a_pass() {
    provider();
    let store = store();
    let client = crate::context::tests::context().client;
    let delegated = DelegatedSecret::new(client, "app".into(), store.clone(), Trigger::new());
    let group = DelegationGroup::ProjectContour;
    delegated.set_wanted(Some(reference()));
    delegated.change(&reference(), |state| state.apply_grants(group, Change::All(vec![grant()])));
    let secret = serde_json::from_value(secret()).unwrap();
    delegated.change(&reference(), |state| state.apply_secret(Change::Set(secret)));
    assert!(delegated.confirm(&reference()));
    assert!(store.current().is_some());
    // A change of a Secret that is no longer wanted is ignored.
    let other = SecretReference::parse("certs/other", "app");
    delegated.change(&other, |state| state.apply_grants(group, Change::All(Vec::new())));
    assert!(store.current().is_some());

    delegated.change(&reference(), |state| state.apply_grants(group, Change::Gone(grant())));
    assert!(store.current().is_none());
}

#[tokio::test]
async fn a_pair_loaded_after_the_revocation_is_refused() {
    provider();
    let store = store();
    let client = crate::context::tests::context().client;
    let delegated = DelegatedSecret::new(client, "app".into(), store.clone(), Trigger::new());
    delegated.set_wanted(Some(reference()));
    assert!(!delegated.confirm(&reference()));
    assert!(store.current().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_missing_api_group_is_requested_only_every_few_seconds() {
    provider();
    let requests = Arc::new(AtomicUsize::new(0));
    let client = client(|_| refusal(404), &requests);
    let delegated = DelegatedSecret::new(client, "app".into(), store(), Trigger::new());
    let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
    tasks.spawn(delegated.clone().run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(requests.load(Ordering::SeqCst), 0, "nothing is wanted");

    assert_eq!(delegated.follow(&reference()).await.permission, Permission::Denied);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let count = requests.load(Ordering::SeqCst);
    assert!((3 * 12..=3 * 14).contains(&count), "{count} requests in a minute");
    delegated.stop_following();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(requests.load(Ordering::SeqCst) <= count + 3, "it continues");
    stop.cancel();
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_response_is_not_a_denial() {
    provider();
    let client = client(|_| (0, Value::Null), &Arc::default());
    let delegated = DelegatedSecret::new(client, "app".into(), store(), Trigger::new());
    let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
    tasks.spawn(delegated.clone().run(stop.clone()));
    let result = delegated.follow(&reference()).await;
    assert!(matches!(result.permission, Permission::Unknown(_)), "{:?}", result.permission);
    stop.cancel();
    tasks.join_all().await;
}

/// A Role with `get` but without `list` on the Secret is sufficient.
#[tokio::test(start_paused = true)]
async fn a_role_with_only_get_is_sufficient() {
    provider();
    let respond = |request: &Request<Body>| match request.uri().path() {
        _ if is_watch(request) => (0, Value::Null),
        "/apis/projectcontour.io/v1/namespaces/certs/tlscertificatedelegations" => {
            list(&json!([serde_json::to_value(grant()).unwrap()]))
        }
        "/api/v1/namespaces/certs/secrets/w" => (200, secret()),
        "/api/v1/namespaces/certs/secrets" => refusal(403),
        _ => refusal(404),
    };
    let delegated =
        DelegatedSecret::new(client(respond, &Arc::default()), "app".into(), store(), Trigger::new());
    let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
    tasks.spawn(delegated.clone().run(stop.clone()));
    let result = delegated.follow(&reference()).await;
    assert_eq!(result.permission, Permission::Granted);
    assert!(result.secret.is_some());
    stop.cancel();
    tasks.join_all().await;
}

fn provider() {
    pinniped_pki::install_crypto_provider();
}
