//! Tests of the decision as tables, then of the whole controller with a real TLS server and a
//! scripted API server.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use pinniped_concierge_api::authentication::WebhookAuthenticatorSpec;
use pinniped_concierge_domain::authenticator_status::AuthenticatorConditions;
use pinniped_controller::runtime::Trigger;
use pinniped_kube_types::condition::DesiredCondition;
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_pki::{CertificateAuthority, CertificateStore, Validity};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::authenticators::plan::{Entry, Plan};
use crate::authenticators::test_util::{self, created, eventually, inline_bundle, run_per_object, statuses};
use crate::authenticators::tls_source::CaObjects;

struct NoObjects;

impl CaObjects for NoObjects {
    fn namespace(&self) -> &str {
        "ns"
    }
    fn secret(&self, _: &str) -> Option<Arc<Secret>> {
        None
    }
    fn config_map(&self, _: &str) -> Option<Arc<ConfigMap>> {
        None
    }
}

fn plan_of(
    endpoint: &str,
    proxies: &ProxyEnvironment,
    ready: Option<&str>,
    validation: impl FnOnce(&Next) -> Validation<&'static str>,
) -> Plan<&'static str, WebhookFailure> {
    let spec = WebhookAuthenticatorSpec { endpoint: endpoint.to_owned(), tls: None };
    let ready = ready.map(str::to_owned);
    let inspection = inspect(&Observed { spec: &spec, ca_objects: &NoObjects, proxies, ready });
    let validation = validation(&inspection.next);
    conclude(inspection, validation)
}

const TLS: &str =
    "spec.tls is valid: no TLS configuration provided: using default root CA bundle from container image";
const DIALED: &str = "successfully dialed webhook server";
const PROXIED: &str =
    "skipped dialing connection probe because HTTPS_PROXY is configured for use with the specified host";
const NOT_READY: &str = "the WebhookAuthenticator is not ready: see other conditions for details";
const UNABLE: &str = "unable to validate; see other conditions for details";

fn tls_valid() -> DesiredCondition {
    DesiredCondition::success("TLSConfigurationValid", TLS)
}

fn endpoint_valid() -> DesiredCondition {
    DesiredCondition::success("EndpointURLValid", "spec.endpoint is a valid URL")
}

/// Returns the plan with these conditions; the last one is the summary.
fn plan(
    conditions: &[DesiredCondition],
    entry: Entry<&'static str>,
    error: Option<WebhookFailure>,
) -> Plan<&'static str, WebhookFailure> {
    let (summary, others) = conditions.split_last().unwrap();
    let conditions = AuthenticatorConditions::summarize(others.to_vec(), "WebhookAuthenticator");
    assert_eq!(conditions.conditions().last(), Some(summary));
    Plan { conditions, entry, error }
}

fn not_ready() -> DesiredCondition {
    DesiredCondition::failure("Ready", "NotReady", NOT_READY)
}

fn all_true(connection: &str) -> Vec<DesiredCondition> {
    vec![
        tls_valid(),
        endpoint_valid(),
        DesiredCondition::success("WebhookConnectionValid", connection),
        DesiredCondition::success("AuthenticatorValid", "authenticator initialized"),
        DesiredCondition::success("Ready", "the WebhookAuthenticator is ready"),
    ]
}

#[test]
fn a_reachable_webhook_is_inserted() {
    let found = plan_of("https://a.example/x", &ProxyEnvironment::default(), Some("old"), |next| {
        assert!(matches!(next, Next::Validate { is_proxied: false, .. }));
        Validation::Done { dialed: Ok(()), client: Ok("client") }
    });
    let entry =
        Entry::Insert { authenticator: "client", fingerprint: "https://a.example/x system".to_owned() };
    assert!(found.conditions.is_ready());
    assert_eq!(found, plan(&all_true(DIALED), entry, None));
}

#[test]
fn unchanged_inputs_are_not_dialed_again_and_have_the_same_conditions() {
    let proxies = ProxyEnvironment::new("http://proxy:1", "");
    for (proxies, connection) in [(ProxyEnvironment::default(), DIALED), (proxies, PROXIED)] {
        let found = plan_of("https://a.example/x", &proxies, Some("https://a.example/x system"), |next| {
            assert!(matches!(next, Next::Unchanged));
            Validation::Skipped
        });
        assert_eq!(found, plan(&all_true(connection), Entry::Keep, None));
    }
}

#[test]
fn an_unreachable_webhook_is_removed_and_retried() {
    let error = "cannot dial server: dial tcp 127.0.0.1:8781: connect: connection refused";
    let found = plan_of("https://127.0.0.1:8781", &ProxyEnvironment::default(), None, |_| Validation::Done {
        dialed: Err(WebhookFailure::Dial("dial tcp 127.0.0.1:8781: connect: connection refused".into())),
        client: Ok("client"),
    });
    let conditions = vec![
        tls_valid(),
        endpoint_valid(),
        DesiredCondition::failure("WebhookConnectionValid", "UnableToDialServer", error),
        DesiredCondition::unknown("AuthenticatorValid", "UnableToValidate", UNABLE),
        not_ready(),
    ];
    assert_eq!(found.error.as_ref().unwrap().to_string(), error);
    assert!(!found.conditions.is_ready() && found.entry == Entry::Remove);
    assert_eq!(found.conditions.conditions(), conditions);
}

#[test]
fn an_invalid_object_is_not_retried() {
    let found = plan_of("http://a.example", &ProxyEnvironment::default(), Some("old"), |next| {
        assert!(matches!(next, Next::Invalid));
        Validation::Skipped
    });
    let endpoint = "spec.endpoint URL http://a.example has invalid scheme, require 'https'";
    let conditions = vec![
        tls_valid(),
        DesiredCondition::failure("EndpointURLValid", "InvalidEndpointURLScheme", endpoint),
        DesiredCondition::unknown("WebhookConnectionValid", "UnableToValidate", UNABLE),
        DesiredCondition::unknown("AuthenticatorValid", "UnableToValidate", UNABLE),
        not_ready(),
    ];
    assert!(!found.conditions.is_ready());
    assert_eq!(found, plan(&conditions, Entry::Remove, None));
}

#[test]
fn a_client_that_cannot_be_built_is_an_error() {
    let error = "unable to instantiate webhook: no";
    let found = plan_of("https://a.example", &ProxyEnvironment::default(), None, |_| Validation::Done {
        dialed: Ok(()),
        client: Err(WebhookFailure::Client("no".into())),
    });
    let conditions = vec![
        tls_valid(),
        endpoint_valid(),
        DesiredCondition::success("WebhookConnectionValid", DIALED),
        DesiredCondition::failure("AuthenticatorValid", "UnableToInstantiateWebhook", error),
        not_ready(),
    ];
    assert_eq!(found.error.as_ref().unwrap().to_string(), error);
    assert!(!found.conditions.is_ready() && found.entry == Entry::Remove);
    assert_eq!(found.conditions.conditions(), conditions);
}

/// A CA and a server on loopback that completes TLS handshakes.
struct TlsServer {
    ca_pem: String,
    address: SocketAddr,
    task: tokio::task::JoinSet<()>,
}

impl TlsServer {
    async fn start() -> Self {
        pinniped_pki::install_crypto_provider();
        let validity = Validity::starting(jiff::Timestamp::now(), std::time::Duration::from_secs(3600));
        let ca = CertificateAuthority::generate("ca", &validity).unwrap();
        let pair = ca.issue_server(&[], &["127.0.0.1".parse().unwrap()], &validity).unwrap();
        let store = CertificateStore::serving("test");
        store.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).unwrap();
        let tls = server_config(
            Profile::Default,
            &CipherRestriction::default(),
            &store,
            ClientCertificates::Ignore,
            &[b"http/1.1"],
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = TlsAcceptor::from(Arc::clone(&tls)).accept(stream).await;
            }
        });
        Self { ca_pem: ca.certificate_pem().to_owned(), address, task }
    }

    /// Stops the server and returns when its listener is closed.
    async fn stop(mut self) {
        self.task.shutdown().await;
    }

    fn object(&self, name: &str) -> WebhookAuthenticator {
        let spec = WebhookAuthenticatorSpec {
            endpoint: format!("https://{}/authenticate", self.address),
            tls: inline_bundle(&self.ca_pem),
        };
        created(WebhookAuthenticator::new(&GroupSuffix::default(), name, spec))
    }
}

type Fixture = test_util::Fixture<WebhookAuthenticator, WebhookAuthenticatorController>;

fn fixture(is_leader: bool) -> Fixture {
    Fixture::with(is_leader, |api| {
        WebhookAuthenticatorController::new(WebhookAuthenticatorParams {
            context: api.context.clone(),
            registry: api.registry.clone(),
            authenticators: api.objects(),
            ca_objects: api.ca_objects(),
            proxies: ProxyEnvironment::default(),
            ciphers: CipherRestriction::default(),
        })
    })
}

#[tokio::test]
async fn a_valid_object_becomes_ready_with_a_single_write() {
    let (server, mut fixture) = (TlsServer::start().await, fixture(true));
    let written = fixture.become_ready(&server.object("a"), &server.object("b")).await;
    assert_eq!(
        statuses(&written[0]),
        [
            "AuthenticatorValid True",
            "EndpointURLValid True",
            "Ready True",
            "TLSConfigurationValid True",
            "WebhookConnectionValid True"
        ]
    );
    server.stop().await;
    fixture.pass().await.expect("nothing is dialed, although the server is stopped");
    assert_eq!(fixture.api.written(), []);
}

#[tokio::test]
async fn an_invalidated_object_leaves_the_registry() {
    let (server, mut fixture) = (TlsServer::start().await, fixture(true));
    let mut object = fixture.becomes_ready(&server.object("a")).await;
    object.spec.endpoint = "http://plain".to_owned();
    fixture.becomes_invalid(&mut object, 2).await;
}

#[tokio::test]
async fn a_changed_object_takes_effect_although_its_status_cannot_be_written() {
    let (server, mut fixture) = (TlsServer::start().await, fixture(true));
    let mut object = fixture.becomes_ready(&server.object("a")).await;
    let fingerprint = |fixture: &Fixture| {
        let key = registry_key(&GroupSuffix::default(), WebhookAuthenticator::KIND, "a");
        fixture.api.registry.fingerprint(&key)
    };
    let before = fingerprint(&fixture);
    fixture.api.set_unavailable(true);
    object.spec.endpoint = format!("https://{}/other", server.address);
    object.metadata.generation = Some(2);
    fixture.api.set(&object);
    fixture.pass().await.unwrap_err();
    let after = fingerprint(&fixture);
    assert!(after.is_some() && after != before, "{after:?}");

    object.spec.endpoint = "http://plain".to_owned();
    object.metadata.generation = Some(3);
    fixture.api.set(&object);
    fixture.pass().await.unwrap_err();
    assert_eq!(fingerprint(&fixture), None);
}

#[tokio::test]
async fn an_endpoint_that_does_not_respond_does_not_delay_other_objects() {
    let server = TlsServer::start().await;
    // Connections are accepted by the system only.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let Fixture { mut api, controller } = fixture(true);
    let mut hanging = server.object("hanging");
    hanging.spec.endpoint = format!("https://{}/", silent.local_addr().unwrap());
    api.set(&hanging);
    api.set(&server.object("a"));
    let trigger = Trigger::new();
    let _running = run_per_object(controller, api.context.leadership.clone(), &trigger);
    let (_connection, _) = silent.accept().await.unwrap();
    eventually("a", async || (api.names() == ["a"]).then_some(())).await;
    api.set(&server.object("b"));
    trigger.wake();
    eventually("b", async || (api.names() == ["a", "b"]).then_some(())).await;
    assert!(silent.accept().now_or_never().is_none(), "the first attempt is in progress");
}

#[tokio::test]
async fn a_follower_waits_for_the_leader_s_status() {
    let (server, mut leader, mut follower) = (TlsServer::start().await, fixture(true), fixture(false));
    follower.follows(&mut leader, &server.object("a"), |_| {}).await;
}

#[tokio::test]
async fn an_unreachable_endpoint_does_not_affect_others() {
    let (server, gone, mut fixture) = (TlsServer::start().await, TlsServer::start().await, fixture(true));
    let (address, bad) = (gone.address, gone.object("a"));
    gone.stop().await;
    let error = format!(
        "error for WebhookAuthenticator a: cannot dial server: dial tcp {address}: connect: connection refused"
    );
    fixture.one_fails(&bad, &server.object("b"), &error).await;
}
