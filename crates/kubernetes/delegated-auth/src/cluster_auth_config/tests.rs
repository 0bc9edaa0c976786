use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use pinniped_test_support::log_events::{LogEvent, LogEvents};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::Level;

use super::*;

fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn authority(name: &str) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.self_signed(&key).unwrap().pem()
}

#[test]
fn every_key_of_the_config_map_is_read() {
    let (client_ca, proxy_ca) = (authority("kubernetes"), authority("front-proxy"));
    let (config, problems) = ClusterAuthConfig::parse(
        &data(&[
            ("client-ca-file", &client_ca),
            ("requestheader-client-ca-file", &proxy_ca),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ]),
        &ClusterAuthConfig::default(),
    );
    assert_eq!(problems, []);
    let expected = ClusterAuthConfig {
        client_ca: Some(CaBundle::from_pem(client_ca.as_bytes()).unwrap()),
        request_header: Some(RequestHeaderConfig {
            ca: CaBundle::from_pem(proxy_ca.as_bytes()).unwrap(),
            allowed_names: vec!["front-proxy-client".to_owned()],
            username_headers: vec![HeaderName::from_static("x-remote-user")],
            uid_headers: vec![HeaderName::from_static("x-remote-uid")],
            group_headers: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        }),
    };
    assert_eq!(config, expected);
}

#[test]
fn an_empty_config_map_trusts_no_ca() {
    let (config, problems) = ClusterAuthConfig::parse(&data(&[]), &ClusterAuthConfig::default());
    assert_eq!((config, problems), (ClusterAuthConfig::default(), Vec::new()));
}

#[test]
fn invalid_content_keeps_the_last_valid_content_of_its_part() {
    let last = ClusterAuthConfig {
        client_ca: Some(CaBundle::from_pem(authority("old").as_bytes()).unwrap()),
        request_header: None,
    };
    let proxy_ca = authority("front-proxy");
    let (config, problems) = ClusterAuthConfig::parse(
        &data(&[("client-ca-file", "garbage"), ("requestheader-client-ca-file", &proxy_ca)]),
        &last,
    );
    assert_eq!(config.client_ca, last.client_ca);
    assert!(config.request_header.is_some());
    assert_eq!(problems.len(), 1);
    assert!(problems[0].to_string().starts_with(
        "key \"client-ca-file\" of ConfigMap kube-system/extension-apiserver-authentication is not usable: "
    ));
}

#[test]
fn removed_content_is_no_longer_trusted_and_increases_the_generation() {
    let client_ca = Some(CaBundle::from_pem(authority("old").as_bytes()).unwrap());
    let watch = ClusterAuthConfigWatch::fixed(ClusterAuthConfig { client_ca, request_header: None });
    let before = watch.generation();
    watch.observe(&ConfigMap::default());
    assert_eq!(*watch.current(), ClusterAuthConfig::default());
    assert_eq!(watch.generation(), before + 1);
    watch.observe(&ConfigMap::default());
    assert_eq!(watch.generation(), before + 1);
}

fn object(client_ca: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"namespace": NAMESPACE, "name": NAME, "resourceVersion": "1"},
        "data": {"client-ca-file": client_ca},
    })
}

/// Returns a client of an API server that has this ConfigMap and sends these events to the first
/// watch.
fn api_server(map: Value, events: mpsc::UnboundedReceiver<Value>) -> kube::Client {
    let events = Arc::new(Mutex::new(Some(events)));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (map, events) = (map.clone(), Arc::clone(&events));
        async move {
            let query = request.uri().query().unwrap_or_default();
            let line = |value: &Value| Bytes::from(format!("{value}\n"));
            let responses = if request.uri().path().ends_with(NAME) {
                futures::stream::iter([line(&map)]).boxed()
            } else if query.contains("watch=true") {
                assert!(
                    query.contains("fieldSelector=metadata.name%3Dextension-apiserver-authentication"),
                    "{query}"
                );
                let events = events.lock().unwrap().take();
                let events = futures::stream::unfold(events, |events| async {
                    let mut events = events?;
                    Some((events.recv().await?, Some(events)))
                });
                events.map(move |event| line(&event)).boxed()
            } else {
                let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [map]});
                futures::stream::iter([line(&list)]).boxed()
            };
            let body = StreamBody::new(responses.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))));
            Ok::<_, Infallible>(Response::new(body.boxed_unsync()))
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn the_watch_applies_changes_until_cancelled() {
    let (old, new) = (authority("old"), authority("new"));
    let (events, receiver) = mpsc::unbounded_channel();
    let watch = ClusterAuthConfigWatch::load(api_server(object(&old), receiver)).await.unwrap();
    assert_eq!(watch.current().client_ca, Some(CaBundle::from_pem(old.as_bytes()).unwrap()));
    let before = watch.generation();
    let cancel = CancellationToken::new();
    let run = watch.run(cancel.clone());
    let script = async {
        events.send(json!({"type": "MODIFIED", "object": object(&new)})).unwrap();
        while watch.generation() == before {
            tokio::task::yield_now().await;
        }
        events.send(json!({"type": "DELETED", "object": object(&new)})).unwrap();
        cancel.cancel();
    };
    tokio::time::timeout(Duration::from_secs(10), async { futures::join!(run, script) }).await.unwrap();
    assert_eq!(watch.current().client_ca, Some(CaBundle::from_pem(new.as_bytes()).unwrap()));
}

#[tokio::test]
async fn load_fails_when_the_config_map_is_missing_or_unusable() {
    let service = tower::service_fn(|_: Request<Body>| async {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        let response = Response::builder().status(404).body(Body::from(status.to_string().into_bytes()));
        Ok::<_, Infallible>(response.unwrap())
    });
    let error = ClusterAuthConfigWatch::load(kube::Client::new(service, "default")).await.err().unwrap();
    assert_eq!(error.to_string(), "could not read ConfigMap kube-system/extension-apiserver-authentication");
    let (_, receiver) = mpsc::unbounded_channel();
    let error = ClusterAuthConfigWatch::load(api_server(object("garbage"), receiver)).await.err().unwrap();
    assert!(matches!(error, LoadError::Key(_)), "{error}");
}

/// Returns a client of an API server that responds to each list and watch with the status code that
/// `code` returns for the verb. A successful watch sends one event after ten seconds and ends.
fn refusing(code: impl Fn(&str) -> u16 + Send + Sync + 'static) -> kube::Client {
    let code = Arc::new(code);
    let service = tower::service_fn(move |request: Request<Body>| {
        let watching = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let by_name = request.uri().path().ends_with(NAME);
        let code = if by_name { 200 } else { code(if watching { "watch" } else { "list" }) };
        let body = match code {
            200 if by_name => object(""),
            200 if watching => json!({"type": "MODIFIED", "object": object("")}),
            200 => {
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
            }
            code => {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"})
            }
        };
        let response = Response::builder().status(code).body(Body::from(format!("{body}\n").into_bytes()));
        async move {
            if watching && code == 200 {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    kube::Client::new(service, "default")
}

async fn warnings(time: Duration, code: impl Fn(&str) -> u16 + Send + Sync + 'static) -> Vec<LogEvent> {
    const MODULE: &[&str] = &[concat!(env!("CARGO_CRATE_NAME"), "::cluster_auth_config")];
    let warnings = LogEvents::record(MODULE, Level::WARN);
    let watch = ClusterAuthConfigWatch::load(refusing(code)).await.unwrap();
    assert!(tokio::time::timeout(time, watch.run(CancellationToken::new())).await.is_err());
    warnings.all()
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_logged_once_as_a_warning() {
    for missing in ["list", "watch"] {
        let code = move |verb: &str| if verb == missing { 403 } else { 200 };
        let lines = warnings(Duration::from_secs(3600), code).await;
        assert_eq!(lines.len(), 1, "{lines:?}");
        let field = |name: &str| lines[0].field(name);
        assert_eq!((field("verb"), field("resource")), (missing, "configmaps"));
        assert_eq!((field("namespace"), field("name")), (NAMESPACE, NAME));
        assert_eq!(field("role"), "extension-apiserver-authentication-reader");
        assert!(field("message").contains("RoleBinding"), "{lines:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fails_is_reported_again_only_after_it_worked() {
    let lines = warnings(Duration::from_secs(3600), |_| 500).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].field("message").contains("fails"), "{lines:?}");
    // The API server works for one of every ten minutes.
    let began = Instant::now();
    let code = move |_: &str| if (began.elapsed().as_secs() / 60) % 10 == 5 { 200 } else { 500 };
    let lines = warnings(Duration::from_secs(2400), code).await;
    assert_eq!(lines.len(), 5, "{lines:?}");
}
