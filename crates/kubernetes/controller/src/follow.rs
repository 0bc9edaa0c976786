//! Follows a resource that may not be there, or may not be ours to see, for as long as it takes.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::client::error_text;

/// How long to wait before asking again after a refusal. Who installs the definition, or grants the right, looks at the
/// result; one list in a few seconds costs the API server nothing.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);

/// Something new.
pub enum Change<K> {
    /// These are all.
    All(Vec<K>),
    /// One was made or changed.
    Set(K),
    /// One was deleted.
    Gone(K),
    /// The API server will not tell.
    Refused(Refusal),
    /// It could not be asked, or did not know; that passes.
    Failing(String),
}

/// Why the API server will not tell: waiting does not change that, an administrator does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// There is no such resource; else the right to it is missing.
    pub missing: bool,
    /// The API server's words.
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

/// Tells `tell` what happens, and never ends. `only` is the name of the one object that is meant, if it is one: it is
/// then read by itself where it may not be listed.
pub async fn follow<K>(api: &Api<K>, config: watcher::Config, only: Option<&str>, tell: impl FnMut(Change<K>))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow_slim(api, config, only, |_| {}, tell).await;
}

/// The same, with each object cut down by `slim` as soon as it is there: a list is never held as it came.
pub async fn follow_slim<K>(
    api: &Api<K>,
    config: watcher::Config,
    only: Option<&str>,
    slim: fn(&mut K),
    mut tell: impl FnMut(Change<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    loop {
        let stream = watcher(api.clone(), config.clone()).modify(slim).default_backoff();
        let mut stream = std::pin::pin!(stream);
        let mut listed = Vec::new();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(object),
                Ok(Event::InitDone) => tell(Change::All(std::mem::take(&mut listed))),
                Ok(Event::Apply(object)) => tell(Change::Set(object)),
                Ok(Event::Delete(object)) => tell(Change::Gone(object)),
                Err(watcher::Error::InitialListFailed(error)) => match Refusal::of(&error) {
                    Some(mut refusal) => {
                        refusal.missing = refusal.missing || !is_served(api).await;
                        tell(read(api, only, refusal, slim).await);
                        break;
                    }
                    None => tell(Change::Failing(error_text(&error))),
                },
                // It was there a moment ago: the next list tells what became of it.
                Err(watcher::Error::WatchStartFailed(error)) if Refusal::of(&error).is_some() => break,
                Err(error) => tell(Change::Failing(error.to_string())),
            }
        }
        tokio::time::sleep(AFTER_REFUSAL).await;
    }
}

/// Whether there is such a resource at all. The API server looks at rights first, and refuses a list of what it does not
/// have with 403, too; what it serves it tells everybody.
async fn is_served<K: Resource + Clone>(api: &Api<K>) -> bool {
    let path = api.resource_url();
    let mut parts = path.trim_start_matches('/').split('/');
    let (Some("apis"), Some(group), Some(version)) = (parts.next(), parts.next(), parts.next()) else {
        return true;
    };
    let plural = parts.next_back().unwrap_or_default();
    match api.clone().into_client().list_api_group_resources(&format!("{group}/{version}")).await {
        Ok(served) => served.resources.iter().any(|resource| resource.name == plural),
        // Nothing but a clear answer makes less of the first one.
        Err(error) => !Refusal::of(&error).is_some_and(|refusal| refusal.missing),
    }
}

/// The one object that is meant, where the right to list was not given.
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

    use kube::client::Body;
    use pinniped_gateway_api::IngressRoute;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that refuses every list, and tells this about what it serves.
    fn refusing(told: Result<Value, u16>) -> kube::Client {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let failure = |code: u16| {
                (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}))
            };
            let (code, body) = match (request.uri().path(), &told) {
                ("/apis/contour.heptio.com/v1beta1", Ok(resources)) => {
                    let list = json!({"kind": "APIResourceList", "apiVersion": "v1",
                        "groupVersion": "contour.heptio.com/v1beta1", "resources": resources});
                    (200, list)
                }
                ("/apis/contour.heptio.com/v1beta1", Err(code)) => failure(*code),
                _ => failure(403),
            };
            let answer = http::Response::builder().status(code).header("content-type", "application/json");
            let answer = answer.body(Body::from(body.to_string().into_bytes()));
            async { Ok::<_, Infallible>(answer.unwrap()) }
        });
        kube::Client::new(service, "default")
    }

    #[tokio::test]
    async fn what_is_refused_and_not_served_is_missing_and_what_is_served_or_not_known_is_refused() {
        let resource = |name: &str| json!([{"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": []}]);
        let table = [
            (Ok(resource("ingressroutes")), false),
            (Ok(resource("tlscertificatedelegations")), true),
            (Err(404), true),
            (Err(403), false),
            (Err(500), false),
        ];
        for (told, missing) in table {
            for namespace in [None, Some("x")] {
                let client = refusing(told.clone());
                let api: Api<IngressRoute> = match namespace {
                    None => Api::all(client),
                    Some(namespace) => Api::namespaced(client, namespace),
                };
                let (sender, mut refusals) = tokio::sync::mpsc::unbounded_channel();
                let follow = follow(&api, watcher::Config::default(), None, |change| {
                    if let Change::Refused(refusal) = change {
                        let _ended = sender.send(refusal);
                    }
                });
                tokio::select! {
                    () = follow => {}
                    refusal = refusals.recv() => {
                        assert_eq!(refusal.unwrap().missing, missing, "{told:?} {namespace:?}");
                    }
                }
            }
        }
    }
}
