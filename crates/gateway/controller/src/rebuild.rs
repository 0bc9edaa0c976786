//! Builds a new routing table when one is due, and publishes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinniped_gateway_routing::status::{HttpProxyValidation, IngressRouteValidation};
use pinniped_gateway_routing::{Builder, Built, Name, Notice, ReferencedObjects, RoutingTable, Settings};
use tokio::sync::watch;

use super::changes::Changes;
use super::metrics::GatewayMetrics;
use super::observe::Observed;

/// The delay after a build that panicked. The panic is a defect, and the next set of objects may
/// not trigger it.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// The validation results of the last table, for the statuses of objects.
#[derive(Debug, Default)]
pub(super) struct ValidationResults {
    pub(super) http_proxies: BTreeMap<Name, HttpProxyValidation>,
    pub(super) ingress_routes: BTreeMap<Name, IngressRouteValidation>,
    pub(super) ingresses: Vec<Name>,
    /// The Ingresses that are refused in part or completely, with the reason.
    pub(super) refused_ingresses: BTreeMap<Name, String>,
}

/// The receiver of tables.
pub(super) type Publish = Arc<dyn Fn(Arc<RoutingTable>) + Send + Sync>;

/// Builds routing tables.
pub(super) struct Rebuilder {
    pub(super) settings: Settings,
    pub(super) observed: Arc<Observed>,
    pub(super) changes: Arc<Changes>,
    pub(super) publish: Publish,
    pub(super) results: watch::Sender<Arc<ValidationResults>>,
    pub(super) metrics: GatewayMetrics,
}

impl Rebuilder {
    /// Builds a table immediately, and then whenever one is due. Never returns.
    pub(super) async fn run(self) {
        let mut builder = Builder::new(self.settings.clone());
        let mut notices = LoggedNotices::default();
        let mut referenced = ReferencedObjects::default();
        loop {
            match self.rebuild(builder).await {
                Ok((reused, last, new_notices)) => {
                    (builder, referenced) = (reused, last);
                    notices.log_new(new_notices);
                }
                Err(error) => {
                    self.metrics.failed();
                    tracing::error!(%error, "could not build the routing table, serving from the last one");
                    builder = Builder::new(self.settings.clone());
                    tokio::time::sleep(AFTER_PANIC).await;
                }
            }
            self.changes.batch(&referenced).await;
        }
    }

    /// Builds and publishes one table on a thread that may block.
    async fn rebuild(
        &self,
        mut builder: Builder,
    ) -> Result<(Builder, ReferencedObjects, Vec<Notice>), tokio::task::JoinError> {
        let (observed, publish) = (Arc::clone(&self.observed), Arc::clone(&self.publish));
        self.changes.forget();
        let began = Instant::now();
        let (builder, results, referenced, notices) = tokio::task::spawn_blocking(move || {
            let built = builder.build(&observed.objects());
            let Built {
                table,
                http_proxies,
                ingress_routes,
                ingresses,
                refused_ingresses,
                notices,
                referenced,
            } = built;
            publish(Arc::new(table));
            let results = ValidationResults { http_proxies, ingress_routes, ingresses, refused_ingresses };
            (builder, results, referenced, notices)
        })
        .await?;
        let took = began.elapsed();
        self.metrics.rebuilt(took, &results);
        tracing::debug!(
            milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            http_proxies = results.http_proxies.len(),
            ingress_routes = results.ingress_routes.len(),
            ingresses = results.ingresses.len(),
            "new routing table"
        );
        // Published after the table, so that an object with a valid status is already served.
        self.results.send_replace(Arc::new(results));
        Ok((builder, referenced, notices))
    }
}

/// The current notices that have been logged.
#[derive(Default)]
struct LoggedNotices(BTreeSet<Notice>);

impl LoggedNotices {
    /// Logs the new notices and returns their number.
    fn log_new(&mut self, notices: Vec<Notice>) -> usize {
        let standing: BTreeSet<Notice> = notices.into_iter().collect();
        let mut new = 0;
        for notice in standing.difference(&self.0) {
            new += 1;
            let Notice { kind, name, text } = notice;
            tracing::warn!(%kind, object = %name, problem = text.as_str(), "an object has a problem");
        }
        self.0 = standing;
        new
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use pinniped_gateway_api::HttpProxy;
    use pinniped_gateway_routing::Kind;
    use serde_json::json;
    use tokio_util::task::AbortOnDropHandle;

    use super::super::changes::ChangedObject;
    use super::super::observe::Mirrors;
    use super::*;

    /// A running rebuilder, and the times at which it published tables, in milliseconds.
    struct Running {
        observed: Arc<Observed>,
        changes: Arc<Changes>,
        published: Arc<Mutex<Vec<u128>>>,
        _task: AbortOnDropHandle<()>,
    }

    impl Running {
        async fn start(proxies: Vec<HttpProxy>) -> Self {
            let mut observed = Observed::default();
            observed.http_proxies = Mirrors::of(proxies);
            let (observed, changes) = (Arc::new(observed), Arc::new(Changes::default()));
            let published = Arc::new(Mutex::new(Vec::new()));
            let (times, began) = (Arc::clone(&published), tokio::time::Instant::now());
            let rebuilder = Rebuilder {
                settings: Settings::default(),
                observed: Arc::clone(&observed),
                changes: Arc::clone(&changes),
                publish: Arc::new(move |_| times.lock().unwrap().push(began.elapsed().as_millis())),
                results: watch::Sender::default(),
                metrics: GatewayMetrics::default(),
            };
            let running = Self {
                observed,
                changes,
                published,
                _task: AbortOnDropHandle::new(tokio::spawn(rebuilder.run())),
            };
            // The paused clock does not advance while a thread builds.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(running.taken().len(), 1, "the first table");
            running
        }

        /// Returns the times since the last call.
        fn taken(&self) -> Vec<u128> {
            std::mem::take(&mut *self.published.lock().unwrap())
        }
    }

    fn proxy(name: &str, secret: &str) -> HttpProxy {
        let spec = json!({
            "virtualhost": {"fqdn": format!("{name}.example"), "tls": {"secretName": secret}},
            "routes": [{"directResponsePolicy": {"statusCode": 200}}],
        });
        let object = json!({
            "apiVersion": "projectcontour.io/v1", "kind": "HTTPProxy",
            "metadata": {"namespace": "ns", "name": name}, "spec": spec,
        });
        serde_json::from_value(object).unwrap()
    }

    fn name(name: &str) -> Name {
        Name { namespace: "ns".to_owned(), name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn irrelevant_changes_cause_no_new_table() {
        let running = Running::start(vec![proxy("p", "used")]).await;
        // Longer than the maximum delay, so that a build for one of them would be counted.
        for _ in 0..40 {
            running
                .changes
                .add([ChangedObject::Secret(name("unused")), ChangedObject::Service(name("unused"))]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(running.taken(), [0; 0]);
        running.changes.add([ChangedObject::Secret(name("used"))]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(running.taken().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_changes_cause_one_table_for_each_maximum_delay() {
        let running = Running::start(vec![proxy("first", "w")]).await;
        for n in 0..200 {
            running.observed.http_proxies.set(proxy(&format!("p{n}"), "w"));
            running.changes.add([ChangedObject::Routing]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Four seconds of changes, and the maximum delay is half a second.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let tables = running.taken();
        assert!((7..=9).contains(&tables.len()), "{tables:?}");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(running.taken(), [0; 0], "no change, no table");
    }

    #[test]
    fn a_notice_is_logged_once_each_time_it_appears() {
        let notice = |text: &str| Notice {
            kind: Kind::Ingress,
            name: Name { namespace: "ns".to_owned(), name: "i".to_owned() },
            text: text.to_owned(),
        };
        let mut logged = LoggedNotices::default();
        assert_eq!(logged.log_new(vec![notice("a"), notice("b")]), 2);
        assert_eq!(logged.log_new(vec![notice("a"), notice("b"), notice("c")]), 1);
        assert_eq!(logged.log_new(vec![notice("c")]), 0);
        assert_eq!(logged.log_new(vec![notice("a")]), 1);
    }
}
