//! `/debug/state`: the state of this process as it sees it, for administrators.
//!
//! The page is JSON with one member for each section that the composition adds, and the current
//! values of counters and gauges, except those in `NOT_LISTED`. Clients need the permission for
//! the path, as for metrics. The page contains no key, no token and no name of a user. Its size is
//! bounded: long texts and lists are cut. A section takes locks only to copy its values.

use std::sync::Arc;

use jiff::Timestamp;
use pinniped_apiserver::slow_requests::SlowRequests;
use pinniped_concierge_authentication::registry::Registry;
use pinniped_concierge_controllers::controllers::Controllers;
use pinniped_http_client::upstream::Upstream;
use pinniped_http_server::Listeners;
use pinniped_kube_types::condition::wire_time;
use pinniped_kube_types::text::truncated;
use pinniped_metrics::Metrics;
use pinniped_pki::CertificateStore;
use serde_json::{Map, Value, json};

use crate::token_client::FreshToken;

/// Maximum length of a text, in bytes.
const MAX_TEXT_LENGTH: usize = 1024;

/// Maximum number of elements of a list.
const MAX_ELEMENTS: usize = 100;

/// The maximum number of metrics.
const MAX_METRICS: usize = 500;

/// Metrics that are not on the page, because they have many series and other sections or a scrape
/// have the same information.
const NOT_LISTED: [&str; 2] = ["pinniped_requests_total", "pinniped_controller_reconciles_total"];

type Section = Arc<dyn Fn() -> Value + Send + Sync>;

/// The sections of the page.
#[derive(Clone, Default)]
pub struct DebugState(Vec<(&'static str, Section)>);

impl std::fmt::Debug for DebugState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl DebugState {
    /// Adds a section. `read` is called for each request; it must neither block nor wait.
    pub fn add(&mut self, name: &'static str, read: impl Fn() -> Value + Send + Sync + 'static) {
        self.0.push((name, Arc::new(read)));
    }

    /// Returns the page.
    pub(crate) async fn read(&self, metrics: &Metrics) -> Value {
        let mut page: Map<String, Value> =
            self.0.iter().map(|(name, read)| ((*name).to_owned(), bounded(read()))).collect();
        let values = match metrics.numbers().await {
            Ok(numbers) => values(numbers),
            Err(error) => json!({ "error": error.to_string() }),
        };
        page.insert("metrics".to_owned(), values);
        Value::Object(page)
    }
}

/// Returns the values of counters and gauges, by name and labels.
fn values(numbers: Vec<(String, u64)>) -> Value {
    let is_listed = |series: &str| !NOT_LISTED.iter().any(|name| series.starts_with(name));
    let listed = numbers.into_iter().filter(|(series, _)| is_listed(series)).take(MAX_METRICS);
    Value::Object(listed.map(|(series, value)| (truncated(&series, MAX_TEXT_LENGTH), value.into())).collect())
}

/// Cuts long texts and lists.
fn bounded(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(truncated(&text, MAX_TEXT_LENGTH)),
        Value::Array(mut elements) => {
            let omitted = elements.len().saturating_sub(MAX_ELEMENTS);
            elements.truncate(MAX_ELEMENTS);
            let mut elements: Vec<Value> = elements.into_iter().map(bounded).collect();
            if omitted > 0 {
                elements.push(json!({ "omitted": omitted }));
            }
            Value::Array(elements)
        }
        Value::Object(members) => {
            let members = members.into_iter().take(MAX_ELEMENTS);
            Value::Object(members.map(|(name, value)| (name, bounded(value))).collect())
        }
        scalar => scalar,
    }
}

/// Returns the section `program`.
pub(crate) fn program(pod: &str, namespace: &str, started: Timestamp) -> impl Fn() -> Value + use<> {
    let (pod, namespace) = (pod.to_owned(), namespace.to_owned());
    move || {
        let now = Timestamp::now();
        json!({
            "pod": pod,
            "namespace": namespace,
            "version": pinniped_version::VERSION,
            "startTime": time(started),
            "time": time(now),
            "uptimeSeconds": now.duration_since(started).as_secs().max(0),
        })
    }
}

/// Adds the sections of the controllers: the leader election, the strategies and the impersonation
/// proxy.
pub(crate) fn add_controllers(state: &mut DebugState, controllers: &Controllers) {
    let leadership = controllers.leadership();
    state.add("leaderElection", move || {
        let holder = leadership.holder();
        json!({
            "isLeader": leadership.is_leader(),
            "holder": holder.as_ref().map(|holder| &holder.identity),
            "lastRenewal": holder.and_then(|holder| holder.renewed).map(time),
        })
    });
    let issuers = controllers.credential_issuers();
    state.add("strategies", move || {
        let issuer = issuers.get();
        let status = issuer.as_ref().and_then(|issuer| issuer.status.as_ref());
        let strategies = status.map_or(&[][..], |status| &status.strategies);
        let entry = |entry: &pinniped_concierge_api::config::CredentialIssuerStrategy| {
            json!({
                "type": entry.type_.as_str(),
                "status": entry.status.as_str(),
                "reason": entry.reason.as_str(),
                "message": entry.message,
                "lastUpdateTime": entry.last_update_time,
            })
        };
        strategies.iter().map(entry).collect()
    });
    let proxy = controllers.impersonator();
    state.add("impersonationProxy", move || {
        let health = proxy.current();
        json!({
            "isReady": proxy.is_ready(),
            "observed": health.observed,
            "wanted": health.wanted,
            "running": health.running,
            "hasCertificate": health.has_certificate,
        })
    });
}

/// Returns the section `authenticators`: those that are ready.
pub(crate) fn authenticators(registry: Registry) -> impl Fn() -> Value {
    move || {
        let entry = |(key, authenticator): (
            pinniped_concierge_authentication::registry::AuthenticatorKey,
            Arc<dyn pinniped_concierge_authentication::registry::TokenAuthenticator>,
        )| {
            let keys = authenticator.signing_keys().map(|keys| {
                let status = keys.status();
                json!({ "ageSeconds": status.age.map(|age| age.as_secs()), "lastFetchFailed": status.failure.is_some() })
            });
            json!({ "apiGroup": key.api_group, "kind": key.kind, "name": key.name, "signingKeys": keys })
        };
        registry.entries().into_iter().map(entry).collect()
    }
}

/// Returns the section `certificates`: the first certificate of each store.
pub(crate) fn certificates(stores: Vec<(CertificateStore, &'static str)>) -> impl Fn() -> Value {
    move || {
        let entry = |(store, usage): &(CertificateStore, &'static str)| {
            let Some(pair) = store.current() else {
                return json!({ "store": store.name(), "use": usage, "isLoaded": false });
            };
            let leaf = pair.leaf();
            json!({
                "store": store.name(),
                "use": usage,
                "isLoaded": true,
                "commonName": leaf.subject_cn,
                "dnsNames": leaf.dns_names,
                "ipAddresses": leaf.ip_addresses,
                "notBefore": time(leaf.not_before),
                "notAfter": time(leaf.not_after),
            })
        };
        stores.iter().map(entry).collect()
    }
}

/// Returns the section `tokens`.
pub(crate) fn tokens(impersonation_proxy: FreshToken) -> impl Fn() -> Value {
    move || {
        let problem = impersonation_proxy.check().err().map(|problem| problem.to_string());
        json!([{
            "use": "impersonation proxy",
            "notAfter": impersonation_proxy.expires().map(time),
            "problem": problem,
        }])
    }
}

/// Returns the section `listeners`.
pub(crate) fn listeners(listeners: Listeners) -> impl Fn() -> Value {
    move || {
        let entry = |(name, stats): (&'static str, pinniped_http_server::Stats)| {
            json!({
                "name": name,
                "open": stats.open,
                "accepted": stats.accepted,
                "refused": stats.refused,
                "handshakesFailed": stats.handshakes_failed,
                "openByWorker": stats.open_by_worker(),
            })
        };
        listeners.stats().into_iter().map(entry).collect()
    }
}

/// Returns the section `upstream`: the connections to the API server.
pub(crate) fn upstream(upstream: Upstream) -> impl Fn() -> Value {
    move || {
        let stats = upstream.stats();
        json!({
            "http2Connections": stats.connections,
            "http2Streams": stats.streams,
            "http1Connections": stats.short_reads,
        })
    }
}

/// Returns the section `slowestRequests`.
pub(crate) fn slowest_requests(requests: SlowRequests) -> impl Fn() -> Value {
    move || {
        let entry = |request: pinniped_apiserver::slow_requests::SlowRequest| {
            json!({
                "server": request.server,
                "verb": request.verb,
                "resource": request.resource,
                "milliseconds": u64::try_from(request.duration.as_millis()).unwrap_or(u64::MAX),
                "secondsAgo": request.age.as_secs(),
                "auditID": request.audit_id,
            })
        };
        requests.slowest().into_iter().map(entry).collect()
    }
}

/// Returns a time in whole seconds.
fn time(time: Timestamp) -> Timestamp {
    wire_time(time).0
}

#[cfg(test)]
mod tests {
    use pinniped_concierge_metrics::{LOGIN_DURATION, SERVING_CERTIFICATE_VALID};
    use pinniped_metrics::{ByName, HistogramTable};
    use pinniped_pki::{CertificateAuthority, Validity};

    use super::*;

    #[tokio::test]
    async fn the_page_has_its_sections_and_the_values_of_metrics() {
        let metrics = Metrics::new();
        metrics.collect(|samples| {
            samples.push(&SERVING_CERTIFICATE_VALID, [], 1);
        });
        let durations = ByName::<HistogramTable<1>>::new(&LOGIN_DURATION);
        durations.of("a").observe([0], std::time::Duration::ZERO);
        metrics.add(&durations);
        let mut state = DebugState::default();
        state.add("section", || json!({ "text": "a" }));
        let page = state.read(&metrics).await;
        let values = json!({ "pinniped_impersonation_proxy_serving_certificate_valid": 1 });
        assert_eq!(page, json!({ "section": { "text": "a" }, "metrics": values }));
    }

    #[tokio::test]
    async fn the_size_of_a_section_is_bounded() {
        let mut state = DebugState::default();
        state.add("list", || (0..10_000).map(|_| "x".repeat(10_000)).collect());
        let page = state.read(&Metrics::new()).await;
        let list = page["list"].as_array().unwrap();
        assert_eq!(list.len(), MAX_ELEMENTS + 1);
        assert_eq!(list[MAX_ELEMENTS], json!({ "omitted": 9_900 }));
        assert!(page.to_string().len() < MAX_ELEMENTS * (MAX_TEXT_LENGTH + 10));
    }

    #[test]
    fn a_certificate_is_shown_without_its_key() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let validity = Validity::starting(now, std::time::Duration::from_secs(600));
        let ca = CertificateAuthority::generate("my ca", &validity).unwrap();
        let store = CertificateStore::signer("signer");
        let section = certificates(vec![(store.clone(), "signing")]);
        assert_eq!(section(), json!([{ "store": "signer", "use": "signing", "isLoaded": false }]));
        store.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes()).unwrap();
        let expected = json!([{
            "store": "signer", "use": "signing", "isLoaded": true, "commonName": "my ca",
            "dnsNames": [], "ipAddresses": [],
            "notBefore": "2026-01-02T02:59:05Z", "notAfter": "2026-01-02T03:14:05Z",
        }]);
        assert_eq!(section(), expected);
    }
}
