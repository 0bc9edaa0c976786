//! Watches a resource that may not exist, or that the service account may not be allowed to read.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::{error_text, is_forbidden};
use crate::watch::{Pauses, WORKS_AFTER};

/// Delay before the next attempt after a refusal to list. The administrator who installs the CRD,
/// or grants the permission, expects a prompt effect; one list in a few seconds is cheap for the
/// API server.
const REFUSAL_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A change of the watched objects.
pub enum Change<K> {
    /// The complete list of objects.
    All(Vec<K>),
    /// An object was created or changed.
    Set(K),
    /// An object was deleted.
    Gone(K),
    /// The API server refuses the request.
    Refused(Refusal),
    /// The API server could not be reached or had a temporary failure.
    Failing(String),
}

/// The reason for a refusal, which does not change without an administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the resource does not exist; otherwise the permission is missing.
    pub missing: bool,
    /// The message of the API server.
    pub text: String,
}

impl Refusal {
    fn of(error: &kube::Error) -> Option<Self> {
        match error {
            kube::Error::Api(status) if matches!(status.code, 403 | 404) => {
                Some(Self { missing: status.code == 404, text: error_text(error) })
            }
            _ => None,
        }
    }
}

/// Passes every change to `on_change`, and never returns. `only` is the name of the object to watch
/// if there is only one: without the permission to list, it is read by name.
pub async fn follow<K>(
    api: &Api<K>,
    config: watcher::Config,
    only: Option<&str>,
    on_change: impl FnMut(Change<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow_slim(api, config, only, |_| {}, on_change).await;
}

/// Like [`follow`], and reduces each object with `slim` on arrival, so that complete objects are
/// never stored.
pub async fn follow_slim<K>(
    api: &Api<K>,
    config: watcher::Config,
    only: Option<&str>,
    slim: fn(&mut K),
    mut on_change: impl FnMut(Change<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut pauses = Pauses::default();
    let mut watch_refused_at = None::<Instant>;
    'lists: loop {
        let stream = watcher(api.clone(), config.clone()).modify(slim);
        let mut stream = std::pin::pin!(stream);
        let mut listed = Vec::new();
        while let Some(event) = stream.next().await {
            let pause = match &event {
                Ok(event) => {
                    pauses.observe(event);
                    None
                }
                Err(error) => Some(pauses.after(error)),
            };
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(object),
                Ok(Event::InitDone) => on_change(Change::All(std::mem::take(&mut listed))),
                Ok(Event::Apply(object)) => on_change(Change::Set(object)),
                Ok(Event::Delete(object)) => on_change(Change::Gone(object)),
                Err(watcher::Error::InitialListFailed(error)) => match Refusal::of(&error) {
                    Some(mut refusal) => {
                        refusal.missing = refusal.missing || !is_served(api).await;
                        on_change(read(api, only, refusal, slim).await);
                        break;
                    }
                    None => on_change(Change::Failing(error_text(&error))),
                },
                // The next list shows the changes, or the reason.
                Err(watcher::Error::WatchStartFailed(error)) if Refusal::of(&error).is_some() => {
                    let before = watch_refused_at.replace(Instant::now());
                    let is_new = before.is_none_or(|at| at.elapsed() >= WORKS_AFTER);
                    let (resource, is_forbidden) = (api.resource_url(), is_forbidden(&error));
                    let error = error_text(&error);
                    if is_forbidden && is_new {
                        tracing::warn!(
                            verb = "watch",
                            resource,
                            error,
                            "a permission is missing: changes have an effect only at the next list"
                        );
                    } else {
                        tracing::debug!(verb = "watch", resource, error, "the watch is refused");
                    }
                    tokio::time::sleep(pause.unwrap_or_default()).await;
                    continue 'lists;
                }
                Err(error) => on_change(Change::Failing(error.to_string())),
            }
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
        }
        tokio::time::sleep(REFUSAL_RETRY_INTERVAL).await;
    }
}

/// Returns whether the resource exists. The API server checks permissions first, so it also refuses
/// a list of an unknown resource with 403; its discovery is readable without special permissions.
pub(crate) async fn is_served<K: Resource + Clone>(api: &Api<K>) -> bool {
    let path = api.resource_url();
    let mut parts = path.trim_start_matches('/').split('/');
    let (Some("apis"), Some(group), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
        return true;
    };
    let plural = parts.next_back().unwrap_or_default();
    match api.clone().into_client().list_api_group_resources(&format!("{group}/{version}")).await {
        Ok(served) => served.resources.iter().any(|resource| resource.name == plural),
        // Only a definite response changes the result of the first request.
        Err(error) => !Refusal::of(&error).is_some_and(|refusal| refusal.missing),
    }
}

/// Reads the single object, without the permission to list.
async fn read<K>(api: &Api<K>, only: Option<&str>, refusal: Refusal, slim: fn(&mut K)) -> Change<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    let Some(name) = only.filter(|_| !refusal.missing) else { return Change::Refused(refusal) };
    match api.get_opt(name).await {
        Ok(mut object) => {
            object.iter_mut().for_each(slim);
            Change::All(object.into_iter().collect())
        }
        Err(error) => match Refusal::of(&error) {
            Some(refusal) => Change::Refused(refusal),
            None => Change::Failing(error_text(&error)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use pinniped_gateway_api::IngressRoute;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client of an API server that refuses every list and returns this discovery
    /// document.
    fn refusing(discovery: Result<Value, u16>) -> kube::Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let failure = |code: u16| {
                (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}))
            };
            let (code, body) = match (request.uri().path(), &discovery) {
                ("/apis/contour.heptio.com/v1beta1", Ok(resources)) => {
                    let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
                        "groupVersion": "contour.heptio.com/v1beta1", "resources": resources});
                    (200, list)
                }
                ("/apis/contour.heptio.com/v1beta1", Err(code)) => failure(*code),
                _ => failure(403),
            };
            let response = http::Response::builder().status(code).header("content-type", "application/json");
            let response = response.body(Body::from(body.to_string().into_bytes()));
            async { Ok::<_, Infallible>(response.unwrap()) }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_repeated_with_growing_pauses() {
        let lists = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&lists);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            seen.fetch_add(1, Ordering::SeqCst);
            async { Err::<http::Response<Body>, _>(std::io::Error::other("broken")) }
        });
        let api: Api<IngressRoute> = Api::all(kube::Client::new(service, "default"));
        let follow = follow(&api, watcher::Config::default(), None, |_| {});
        assert!(tokio::time::timeout(Duration::from_secs(600), follow).await.is_err());
        let lists = lists.load(Ordering::SeqCst);
        assert!((20..35).contains(&lists), "{lists}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_repeated_with_growing_pauses_while_the_watch_is_refused() {
        for code in [403, 404] {
            let service = tower::service_fn(move |request: http::Request<Body>| async move {
                let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let (code, body) = if watches {
                    (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}))
                } else {
                    let metadata = json!({"resourceVersion": "1"});
                    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": []}))
                };
                let response = http::Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            });
            let api: Api<IngressRoute> = Api::all(kube::Client::new(service, "default"));
            let mut lists = 0;
            let follow = follow(&api, watcher::Config::default(), None, |change| {
                assert!(matches!(change, Change::All(_)), "the objects are known");
                lists += 1;
            });
            assert!(tokio::time::timeout(Duration::from_secs(600), follow).await.is_err());
            assert!((20..35).contains(&lists), "{code} {lists}");
        }
    }

    #[tokio::test]
    async fn a_refused_resource_is_missing_only_when_discovery_does_not_list_it() {
        let resource = |name: &str| json!([{"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": []}]);
        let table = [
            (Ok(resource("ingressroutes")), false),
            (Ok(resource("tlscertificatedelegations")), true),
            (Err(404), true),
            (Err(403), false),
            (Err(500), false),
        ];
        for (discovery, missing) in table {
            for namespace in [None, Some("x")] {
                let client = refusing(discovery.clone());
                let api: Api<IngressRoute> = match namespace {
                    None => Api::all(client),
                    Some(namespace) => Api::namespaced(client, namespace),
                };
                let (sender, mut refusals) = tokio::sync::mpsc::unbounded_channel();
                let follow = follow(&api, watcher::Config::default(), None, |change| {
                    if let Change::Refused(refusal) = change {
                        let _terminated = sender.send(refusal);
                    }
                });
                tokio::select! {
                    () = follow => {}
                    refusal = refusals.recv() => {
                        assert_eq!(refusal.unwrap().missing, missing, "{discovery:?} {namespace:?}");
                    }
                }
            }
        }
    }
}
