//! The configuration with which this cluster authenticates clients of aggregated API servers: the
//! ConfigMap `kube-system/extension-apiserver-authentication`, which kube-apiserver writes.
//!
//! It is read once before the server starts, and then watched. When a part of the content cannot be
//! parsed, the last valid content of that part remains in use. Content that is removed is no longer
//! trusted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::StreamExt as _;
use http::HeaderName;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use pinniped_pki::CaBundle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

/// The Role in kube-system that permits reading the ConfigMap; every cluster has it.
const READER: &str = "extension-apiserver-authentication-reader";

/// A watch without an error for this long is considered healthy. Retries are more frequent than
/// this.
const WORKED: Duration = Duration::from_secs(120);

/// Trust and header names of the front proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderConfig {
    /// CA of the front proxy's client certificate.
    pub ca: CaBundle,
    /// Accepted common names; empty accepts any.
    pub allowed_names: Vec<String>,
    /// Headers that carry the user name.
    pub username_headers: Vec<HeaderName>,
    /// Headers that carry the UID; empty on clusters that do not support the header yet.
    pub uid_headers: Vec<HeaderName>,
    /// Headers that carry groups.
    pub group_headers: Vec<HeaderName>,
    /// Prefixes of headers that carry extra values, in lower case.
    pub extra_prefixes: Vec<String>,
}

/// The parsed ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAuthConfig {
    /// CA of client certificates.
    pub client_ca: Option<CaBundle>,
    /// The front proxy, if one is configured.
    pub request_header: Option<RequestHeaderConfig>,
}

/// A key of the ConfigMap cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {key:?} of ConfigMap {NAMESPACE}/{NAME} is not usable: {problem}")]
pub struct KeyError {
    key: &'static str,
    problem: String,
}

/// The reasons why the ConfigMap cannot be used at start.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The first read failed.
    #[error("could not read ConfigMap {NAMESPACE}/{NAME}")]
    Read(#[source] Box<kube::Error>),
    /// A key cannot be used.
    #[error(transparent)]
    Key(KeyError),
}

impl ClusterAuthConfig {
    /// Parses the data of the ConfigMap. Parts that cannot be parsed are taken from `last` and
    /// reported.
    fn parse(data: &BTreeMap<String, String>, last: &Self) -> (Self, Vec<KeyError>) {
        let mut problems = Vec::new();
        let client_ca = bundle(data, "client-ca-file").unwrap_or_else(|problem| {
            problems.push(problem);
            last.client_ca.clone()
        });
        let request_header = RequestHeaderConfig::parse(data).unwrap_or_else(|problem| {
            problems.push(problem);
            last.request_header.clone()
        });
        (Self { client_ca, request_header }, problems)
    }
}

impl RequestHeaderConfig {
    fn parse(data: &BTreeMap<String, String>) -> Result<Option<Self>, KeyError> {
        let Some(ca) = bundle(data, "requestheader-client-ca-file")? else { return Ok(None) };
        let extra_prefixes = strings(data, "requestheader-extra-headers-prefix")?;
        Ok(Some(Self {
            ca,
            allowed_names: strings(data, "requestheader-allowed-names")?,
            username_headers: names(data, "requestheader-username-headers")?,
            uid_headers: names(data, "requestheader-uid-headers")?,
            group_headers: names(data, "requestheader-group-headers")?,
            extra_prefixes: extra_prefixes.iter().map(|prefix| prefix.to_ascii_lowercase()).collect(),
        }))
    }
}

fn bundle(data: &BTreeMap<String, String>, key: &'static str) -> Result<Option<CaBundle>, KeyError> {
    let Some(pem) = data.get(key).filter(|pem| !pem.is_empty()) else { return Ok(None) };
    let bundle =
        CaBundle::from_pem(pem.as_bytes()).map_err(|error| KeyError { key, problem: error.to_string() })?;
    Ok(Some(bundle))
}

fn strings(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<String>, KeyError> {
    let Some(json) = data.get(key).filter(|json| !json.is_empty()) else { return Ok(Vec::new()) };
    let strings: Option<Vec<String>> =
        serde_json::from_str(json).map_err(|error| KeyError { key, problem: error.to_string() })?;
    Ok(strings.unwrap_or_default())
}

fn names(data: &BTreeMap<String, String>, key: &'static str) -> Result<Vec<HeaderName>, KeyError> {
    let names = strings(data, key)?;
    names
        .iter()
        .map(|name| {
            HeaderName::try_from(name.trim())
                .map_err(|error| KeyError { key, problem: format!("{name:?}: {error}") })
        })
        .collect()
}

struct Snapshot {
    config: Arc<ClusterAuthConfig>,
    generation: u64,
}

struct Inner {
    client: Option<kube::Client>,
    snapshot: ArcSwap<Snapshot>,
}

/// A watch of the ConfigMap. Clones are cheap and share the content.
#[derive(Clone)]
pub struct ClusterAuthConfigWatch(Arc<Inner>);

impl ClusterAuthConfigWatch {
    /// Reads the ConfigMap for the first time, which must succeed before the server starts.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when the ConfigMap is missing, may not be read, or has unusable content.
    pub async fn load(client: kube::Client) -> Result<Self, LoadError> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let map = api.get(NAME).await.map_err(|error| LoadError::Read(Box::new(error)))?;
        let (config, problems) =
            ClusterAuthConfig::parse(&map.data.unwrap_or_default(), &ClusterAuthConfig::default());
        if let Some(problem) = problems.into_iter().next() {
            return Err(LoadError::Key(problem));
        }
        Ok(Self::with(Some(client), config))
    }

    /// A source that never changes, for tests and for servers without a cluster.
    pub fn fixed(config: ClusterAuthConfig) -> Self {
        Self::with(None, config)
    }

    fn with(client: Option<kube::Client>, config: ClusterAuthConfig) -> Self {
        let snapshot = Snapshot { config: Arc::new(config), generation: 1 };
        Self(Arc::new(Inner { client, snapshot: ArcSwap::from_pointee(snapshot) }))
    }

    /// Watches the ConfigMap until cancelled. The caller owns the task that runs this.
    pub async fn run(&self, cancel: CancellationToken) {
        let Some(client) = self.0.client.clone() else {
            cancel.cancelled().await;
            return;
        };
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let selected = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut events = std::pin::pin!(watcher(api, selected).default_backoff());
        let mut failures = Failures::default();
        loop {
            let event = tokio::select! {
                () = cancel.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                Some(Ok(watcher::Event::Apply(map))) => {
                    failures.over(true);
                    self.observe(&map);
                }
                Some(Ok(watcher::Event::InitApply(map))) => self.observe(&map),
                Some(Ok(watcher::Event::Delete(_))) => {
                    failures.over(true);
                    tracing::warn!(
                        "ConfigMap with the cluster's client CAs was deleted, its last content stays in use"
                    );
                }
                // Emitted before the list is requested.
                Some(Ok(watcher::Event::Init)) => {}
                Some(Ok(watcher::Event::InitDone)) => failures.over(false),
                Some(Err(error)) => failures.report(&error),
                // A watcher never terminates on its own.
                None => return,
            }
        }
    }

    fn observe(&self, map: &ConfigMap) {
        let empty = BTreeMap::new();
        let last = self.0.snapshot.load_full();
        let (config, problems) = ClusterAuthConfig::parse(map.data.as_ref().unwrap_or(&empty), &last.config);
        for problem in problems {
            tracing::warn!(error = %problem, "cluster's client CAs are not usable, the last usable ones stay in use");
        }
        if config != *last.config {
            tracing::info!("cluster's client CAs changed");
            let next = Snapshot { config: Arc::new(config), generation: last.generation + 1 };
            self.0.snapshot.store(Arc::new(next));
        }
    }

    /// Returns the last valid content.
    pub fn current(&self) -> Arc<ClusterAuthConfig> {
        Arc::clone(&self.0.snapshot.load().config)
    }

    /// Returns a number that increases with every change of the content.
    pub fn generation(&self) -> u64 {
        self.0.snapshot.load().generation
    }
}

/// De-duplicates log lines: one warning when the watch begins to fail, one line when it works
/// again.
#[derive(Default)]
struct Failures {
    /// The verb of the last request that failed, and when.
    last: Option<(&'static str, Instant)>,
}

impl Failures {
    fn report(&mut self, error: &watcher::Error) {
        let (verb, cause) = match error {
            watcher::Error::InitialListFailed(cause) => ("list", Some(cause)),
            watcher::Error::WatchStartFailed(cause) => ("watch", Some(cause)),
            watcher::Error::NoResourceVersion => ("list", None),
            // The connection ended or the resource version expired; the next request shows whether
            // the watch works.
            watcher::Error::WatchFailed(_) | watcher::Error::WatchError(_) => {
                tracing::debug!(%error, "watch of the cluster's client CAs ended, starting again");
                return;
            }
        };
        let now = Instant::now();
        let before = self.last.replace((verb, now));
        let known = before.is_some_and(|(known, at)| known == verb && now.duration_since(at) < WORKED);
        let forbidden = matches!(cause, Some(kube::Error::Api(status)) if status.code == 403);
        let error = error as &dyn std::error::Error;
        if known {
            tracing::debug!(verb, error, "watch of the cluster's client CAs still fails");
        } else if forbidden {
            tracing::warn!(
                verb,
                resource = "configmaps",
                namespace = NAMESPACE,
                name = NAME,
                role = READER,
                error,
                "a permission is missing: changes of the cluster's client CAs are not noticed. Bind the role to the \
                 service account of this program with a RoleBinding in its namespace"
            );
        } else {
            tracing::warn!(
                verb,
                resource = "configmaps",
                namespace = NAMESPACE,
                name = NAME,
                error,
                "watch of the cluster's client CAs fails, the last ones stay in use (will retry)"
            );
        }
    }

    /// Records an event. A list does not show whether the permission to watch exists.
    fn over(&mut self, watched: bool) {
        if self.last.take_if(|(verb, _)| watched || *verb == "list").is_some() {
            tracing::info!("watch of the cluster's client CAs works again");
        }
    }
}

#[cfg(test)]
mod tests;
