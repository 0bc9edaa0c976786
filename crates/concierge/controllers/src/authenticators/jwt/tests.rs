//! Tests of the whole controller with a scripted issuer, real TLS and a scripted API server.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pinniped_concierge_api::authentication::JwtAuthenticatorSpec;
use pinniped_controller::runtime::Trigger;
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_kube_types::suffix::GroupSuffix;
use pinniped_metrics::Metrics;
use pinniped_oidc::WITHDRAWN_KEY_LIFETIME;
use pinniped_secret::token::Token;
use pinniped_test_support::issuer::{DISCOVERY_PATH, KEYS_PATH, Reply, ScriptedIssuer};
use serde_json::json;

use super::metrics;
use super::refresh::KeyRefresh;
use super::*;
use crate::authenticators::test_util::{self, created, eventually, inline_bundle, run_per_object, statuses};

type Fixture = test_util::Fixture<JwtAuthenticator, JwtAuthenticatorController>;

fn fixture(is_leader: bool) -> Fixture {
    Fixture::with(is_leader, |api| {
        JwtAuthenticatorController::new(JwtAuthenticatorParams {
            context: api.context.clone(),
            registry: api.registry.clone(),
            authenticators: api.objects(),
            ca_objects: api.ca_objects(),
            proxies: ProxyEnvironment::default(),
            ciphers: CipherRestriction::default(),
        })
    })
}

impl Fixture {
    /// Logs in, and returns the name of the user; `None` for any failure.
    async fn log_in(&self, authenticator: &str, token: &str) -> Option<String> {
        let key = registry_key(&GroupSuffix::default(), JwtAuthenticator::KIND, authenticator);
        let authenticator = self.api.registry.get(&key)?;
        authenticator.authenticate(&Token::new(token)).await.ok().flatten().map(|user| user.name)
    }
}

struct Provider {
    issuer: ScriptedIssuer,
    signer: Signer,
}

impl Provider {
    async fn start() -> Self {
        pinniped_pki::install_crypto_provider();
        let issuer = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await.unwrap();
        let signer = Signer::generate(Algorithm::Es256, "es");
        issuer.publish(&key_set([&signer]));
        Self { issuer, signer }
    }

    fn object(&self, name: &str) -> JwtAuthenticator {
        let spec = JwtAuthenticatorSpec {
            issuer: self.issuer.url(),
            audience: "aud".to_owned(),
            tls: inline_bundle(&self.issuer.ca_pem),
            ..JwtAuthenticatorSpec::default()
        };
        created(JwtAuthenticator::new(&GroupSuffix::default(), name, spec))
    }

    fn token(&self) -> String {
        let expiry = Timestamp::now().as_second() + 600;
        let claims =
            json!({"iss": self.issuer.url(), "aud": "aud", "exp": expiry, "username": "u", "sub": "s"});
        self.signer.sign(&claims)
    }

    fn requests(&self) -> usize {
        self.issuer.seen(DISCOVERY_PATH).len() + self.issuer.seen(KEYS_PATH).len()
    }
}

#[tokio::test]
async fn a_valid_object_becomes_ready_with_a_single_write() {
    let (mut provider, mut fixture) = (Provider::start().await, fixture(true));
    let written = fixture.become_ready(&provider.object("a"), &provider.object("b")).await;
    assert_eq!(
        statuses(&written[0]),
        [
            "AuthenticatorValid True",
            "DiscoveryURLValid True",
            "IssuerURLValid True",
            "JWKSFetchValid True",
            "JWKSURLValid True",
            "Ready True",
            "TLSConfigurationValid True"
        ]
    );
    assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("u"));
    provider.issuer.stop().await;
    fixture.pass().await.expect("nothing is requested, although the issuer is stopped");
    assert_eq!(fixture.api.written(), []);
    assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("u"));
}

#[tokio::test]
async fn a_changed_spec_replaces_the_entry_and_an_invalid_one_removes_it() {
    let (provider, mut fixture) = (Provider::start().await, fixture(true));
    let mut object = fixture.becomes_ready(&provider.object("a")).await;
    object.spec.claims.username = "sub".to_owned();
    object.metadata.generation = Some(2);
    fixture.api.set(&object);
    fixture.pass().await.unwrap();
    assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("s"));

    let mut object = fixture.api.written().remove(0);
    object.spec.issuer = "http://plain".to_owned();
    let requests = provider.requests();
    fixture.becomes_invalid(&mut object, 3).await;
    assert_eq!(provider.requests(), requests);
}

#[tokio::test]
async fn a_changed_spec_takes_effect_although_its_status_cannot_be_written() {
    for is_leader in [true, false] {
        let (provider, mut leader, mut fixture) =
            (Provider::start().await, fixture(true), fixture(is_leader));
        let mut object = leader.becomes_ready(&provider.object("a")).await;
        fixture.api.set(&object);
        fixture.pass().await.unwrap();
        assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("u"));
        fixture.api.set_unavailable(true);

        object.spec.claims.username = "sub".to_owned();
        object.metadata.generation = Some(2);
        fixture.api.set(&object);
        fixture.pass().await.unwrap_err();
        assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("s"));
        object.spec.audience = "other".to_owned();
        object.metadata.generation = Some(3);
        fixture.api.set(&object);
        fixture.pass().await.unwrap_err();
        assert_eq!(fixture.log_in("a", &provider.token()).await, None, "the token has another audience");
        assert_eq!(fixture.api.names(), ["a"]);

        object.spec.issuer = "http://plain".to_owned();
        object.metadata.generation = Some(4);
        fixture.api.set(&object);
        fixture.pass().await.unwrap_err();
        assert_eq!(fixture.api.names(), [""; 0]);
    }
}

#[tokio::test]
async fn the_result_for_an_object_that_changed_or_disappeared_meanwhile_is_not_used() {
    let (provider, mut fixture) = (Provider::start().await, fixture(true));
    let mut object = provider.object("a");
    fixture.api.set(&object);
    let name = "a".to_owned();
    let mut pass = Box::pin(fixture.controller.reconcile(&name));
    assert!(futures::poll!(&mut pass).is_pending(), "the issuer is queried");
    object.spec.audience = "other".to_owned();
    object.metadata.generation = Some(2);
    fixture.api.set(&object);
    assert!(pass.await.unwrap().recheck_after.is_some());
    assert_eq!(fixture.api.names(), [""; 0]);
    assert_eq!(fixture.api.written(), []);

    let mut pass = Box::pin(fixture.controller.reconcile(&name));
    assert!(futures::poll!(&mut pass).is_pending(), "the issuer is queried");
    fixture.api.delete(&object);
    pass.await.unwrap();
    assert_eq!(fixture.api.names(), [""; 0]);
    assert_eq!(fixture.api.written(), []);
}

#[tokio::test]
async fn an_issuer_that_does_not_respond_does_not_delay_other_objects() {
    let (good, other, hanging) = (Provider::start().await, Provider::start().await, Provider::start().await);
    hanging.issuer.reply(DISCOVERY_PATH, Reply::Never);
    let Fixture { mut api, controller } = fixture(true);
    api.set(&hanging.object("hanging"));
    api.set(&good.object("good"));
    let trigger = Trigger::new();
    let _running = run_per_object(controller, api.context.leadership.clone(), &trigger);
    let queries = || hanging.issuer.seen(DISCOVERY_PATH).len();
    eventually("a query", async || (queries() == 1).then_some(())).await;
    eventually("good", async || (api.names() == ["good"]).then_some(())).await;
    api.set(&other.object("other"));
    trigger.wake();
    eventually("other", async || (api.names() == ["good", "other"]).then_some(())).await;
    assert_eq!(queries(), 1, "the first query is in progress");
}

#[tokio::test]
async fn an_issuer_that_does_not_respond_does_not_delay_keys_of_other_issuers() {
    let (good, hanging, mut fixture) = (Provider::start().await, Provider::start().await, fixture(true));
    fixture.become_ready(&hanging.object("a"), &good.object("b")).await;
    hanging.issuer.reply(KEYS_PATH, Reply::Never);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
    let refresh = KeyRefresh::new(fixture.api.registry.clone(), Trigger::new());
    let _running = run_per_object(refresh, fixture.api.context.leadership.clone(), &Trigger::new());
    let queries = || hanging.issuer.seen(KEYS_PATH).len();
    eventually("a query", async || (queries() == 2).then_some(())).await;
    let key = registry_key(&GroupSuffix::default(), JwtAuthenticator::KIND, "b");
    eventually("fresh keys", async || {
        let status = fixture.api.registry.get(&key)?.signing_keys()?.status();
        (status.age? < Duration::from_secs(300)).then_some(())
    })
    .await;
    assert_eq!(queries(), 2, "the query is in progress");
}

#[tokio::test]
async fn a_changed_spec_is_not_used_while_its_issuer_does_not_respond() {
    let (mut provider, mut fixture) = (Provider::start().await, fixture(true));
    let mut object = fixture.becomes_ready(&provider.object("a")).await;
    object.spec.audience = "other".to_owned();
    fixture.api.set(&object);
    provider.issuer.stop().await;
    let error = fixture.pass().await.unwrap_err().to_string();
    let wanted = format!(
        "error for JWTAuthenticator a: could not perform oidc discovery on provider issuer: Get \"{0}{DISCOVERY_PATH}\": \
         dial tcp {1}: connect: connection refused",
        provider.issuer.url(),
        provider.issuer.url().trim_start_matches("https://")
    );
    assert_eq!(error, wanted);
    assert_eq!(fixture.api.names(), [""; 0]);
    fixture.api.set(&fixture.api.written()[0].clone());
    provider.issuer.restart().await.unwrap();
    fixture.pass().await.unwrap();
    assert_eq!(fixture.api.names(), ["a"]);
}

#[tokio::test]
async fn an_invalid_field_is_reported_and_not_retried() {
    let (provider, mut fixture) = (Provider::start().await, fixture(true));
    let mut object = provider.object("a");
    object.spec.claims.username = "a".to_owned();
    object.spec.claims.username_expression = "b".to_owned();
    fixture.api.set(&object);
    fixture.pass().await.unwrap();
    let written = fixture.api.written().remove(0);
    let condition = &written.status.as_ref().unwrap().conditions[0];
    assert_eq!(
        (condition.type_.as_str(), condition.reason.as_str()),
        ("AuthenticatorValid", "InvalidAuthenticator")
    );
    assert_eq!(
        condition.message,
        "could not initialize jwt authenticator: claims.username: Invalid value: \"\": claim and expression can't both \
         be set"
    );
    assert_eq!(fixture.api.names(), [""; 0]);
}

#[tokio::test]
async fn a_follower_waits_for_the_leader_s_status() {
    let (provider, mut leader, mut follower) = (Provider::start().await, fixture(true), fixture(false));
    // The leader's keys may be older than the follower's.
    let other_messages = |object: &mut JwtAuthenticator| {
        for condition in &mut object.status.as_mut().unwrap().conditions {
            condition.message.push_str(" at another time");
        }
    };
    follower.follows(&mut leader, &provider.object("a"), other_messages).await;
    assert_eq!(follower.log_in("a", &provider.token()).await.as_deref(), Some("u"));
}

#[tokio::test]
async fn a_fault_of_one_issuer_does_not_affect_others() {
    let (provider, broken, mut fixture) = (Provider::start().await, Provider::start().await, fixture(true));
    broken.issuer.reply(KEYS_PATH, Reply::not_found());
    let error = "error for JWTAuthenticator a: could not fetch keys: fetching keys oidc: get keys failed: 404 Not Found \
                 404 page not found\n";
    fixture.one_fails(&broken.object("a"), &provider.object("b"), error).await;
}

fn metrics(fixture: &Fixture) -> Vec<String> {
    let metrics = Metrics::new();
    metrics::register(&metrics, &fixture.api.registry);
    let text = metrics.text().unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

#[tokio::test]
async fn keys_are_refreshed_and_their_age_is_visible_while_the_issuer_does_not_respond() {
    let start = Instant::now();
    let (mut provider, mut fixture) = (Provider::start().await, fixture(true));
    assert_eq!(metrics(&fixture), [""; 0]);
    let ready = fixture.becomes_ready(&provider.object("a")).await;
    fixture.api.set(&ready);
    let gauge = |name: &str, value: u64| {
        format!("pinniped_jwt_authenticator_keys_{name}{{authenticator=\"a\"}} {value}")
    };
    let age = |line: &str| -> u64 {
        let value = line.strip_prefix(gauge("age_seconds", 0).trim_end_matches('0'));
        value.expect("the metric of the age").parse().expect("a number of seconds")
    };
    let since_start = start.elapsed().as_secs() + 1;
    let lines = metrics(&fixture);
    assert!(age(&lines[0]) <= since_start, "{lines:?} after {since_start} s");
    assert_eq!(lines[1], gauge("fetch_failed", 0));

    let changed = Trigger::new();
    let refresh = KeyRefresh::new(fixture.api.registry.clone(), changed.clone());
    let refreshed = async || {
        for key in refresh.objects() {
            refresh.reconcile(&key).await.unwrap();
        }
    };
    refreshed().await;
    assert_eq!(provider.issuer.seen(KEYS_PATH).len(), 1, "the keys are not due yet");

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
    let successor = Signer::generate(Algorithm::Es256, "next");
    provider.issuer.publish(&key_set([&successor]));
    refreshed().await;
    assert_eq!(provider.issuer.seen(KEYS_PATH).len(), 2);
    let withdrawn = provider.token();
    assert_eq!(fixture.log_in("a", &withdrawn).await.as_deref(), Some("u"));
    tokio::time::pause();
    tokio::time::advance(WITHDRAWN_KEY_LIFETIME).await;
    tokio::time::resume();
    assert_eq!(fixture.log_in("a", &withdrawn).await, None, "the issuer withdrew the key");
    provider.signer = successor;

    provider.issuer.stop().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20 * 60)).await;
    tokio::time::resume();
    refreshed().await;
    changed.woken().await;
    let lines = metrics(&fixture);
    assert!(age(&lines[0]) >= 20 * 60, "{lines:?}");
    assert_eq!(lines[1], gauge("fetch_failed", 1));
    fixture.pass().await.unwrap();
    let written = fixture.api.written().remove(0);
    assert_eq!(statuses(&written), statuses(&ready));
    let message = &written.status.as_ref().unwrap().conditions[3].message;
    assert!(
        message.starts_with("successfully fetched jwks at 20")
            && message.ends_with("Z, but not since then: logins continue with these keys"),
        "{message}"
    );
    assert_eq!(fixture.log_in("a", &provider.token()).await.as_deref(), Some("u"));

    provider.issuer.restart().await.unwrap();
    refreshed().await;
    changed.woken().await;
    fixture.api.set(&written);
    fixture.pass().await.unwrap();
    let written = fixture.api.written().remove(0);
    assert_eq!(written.status.as_ref().unwrap().conditions[3].message, "successfully fetched jwks");
}
