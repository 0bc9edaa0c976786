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
pub(crate) enum Change<K> {
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
pub(crate) struct Refusal {
    /// There is no such resource; else the right to it is missing.
    pub(crate) missing: bool,
    /// The API server's words.
    pub(crate) text: String,
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
pub(crate) async fn follow<K>(
    api: &Api<K>,
    config: watcher::Config,
    only: Option<&str>,
    tell: impl FnMut(Change<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    follow_slim(api, config, only, |_| {}, tell).await;
}

/// The same, with each object cut down by `slim` as soon as it is there: a list is never held as it came.
pub(crate) async fn follow_slim<K>(
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
                    Some(refusal) => {
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
