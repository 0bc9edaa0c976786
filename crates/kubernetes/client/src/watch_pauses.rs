//! Pauses between watches that end at once.
//!
//! The watcher of `kube` repeats a watch that ended without an error immediately, which is correct
//! after its timeout. If an API server, or a proxy in front of it, ends each watch at once, every
//! watch of every program would become a loop without a pause. client-go treats a watch of less
//! than a second without any event as a failure, and backs off. [`WatchPauses`] pauses all watches
//! of a Kubernetes client, also after short watches with events and after those that end with an
//! error. It does not repeat a request, and it does not delay a request that is not a watch.
//!
//! Watches with the same path and query share their pauses; the resource version does not count.
//! Only a response with a success status counts: the callers pause after failures. A watch whose
//! response the caller drops does not count either.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::TryFutureExt as _;
use futures::future::{BoxFuture, Either, MapOk};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use kube::runtime::watcher::DefaultBackoff;
use pinniped_cache::Cache;
use tokio::time::Instant;
use tower::Service;

/// A watch that ends earlier is short, as in client-go, which also requires that it had no event.
/// It is also the shortest pause after one; that of client-go is 0.8 seconds.
const SHORT: Duration = Duration::from_secs(1);

/// The longest pause after a short watch.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The number of short watches in succession at which they are reported. A single one is normal
/// when an API server shuts down.
const REPORTED: u32 = 3;

/// Maximum number of watches whose pauses are stored. A program has some dozens.
const MAX_WATCHES: u64 = 1000;

/// Time after the last short watch at which its pauses start again with the shortest, as in
/// client-go. It exceeds [`LONGEST_PAUSE`] and [`SHORT`].
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// A service that delays a watch if the previous ones ended at once.
#[derive(Clone)]
pub(super) struct WatchPauses<S> {
    inner: S,
    successions: Successions,
}

/// The successions of short watches. The keys are those of [`Watch`].
type Successions = Arc<Cache<String, Arc<Mutex<Succession>>>>;

/// Watches with the same key that were short, without a longer one in between.
#[derive(Default)]
struct Succession {
    length: u32,
    pauses: DefaultBackoff,
    /// The end of the current pause.
    resumed_at: Option<Instant>,
}

impl Succession {
    /// Records another short watch, and returns how many there are.
    fn extend(&mut self) -> u32 {
        let pause = self.pauses.next().unwrap_or(LONGEST_PAUSE).clamp(SHORT, LONGEST_PAUSE);
        self.resumed_at = Some(Instant::now() + pause);
        self.length = self.length.saturating_add(1);
        self.length
    }
}

impl<S> WatchPauses<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, successions: Arc::new(Cache::new(MAX_WATCHES, FORGOTTEN_AFTER)) }
    }
}

type WithoutWatch<B> = fn(Response<B>) -> Response<WatchBody<B>>;

impl<S, T, B> Service<Request<T>> for WatchPauses<S>
where
    S: Service<Request<T>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    T: Send + 'static,
{
    type Response = Response<WatchBody<B>>;
    type Error = S::Error;
    type Future =
        Either<MapOk<S::Future, WithoutWatch<B>>, BoxFuture<'static, Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<T>) -> Self::Future {
        let Some(key) = key(&request) else {
            let without_watch: WithoutWatch<B> =
                |response| response.map(|inner| WatchBody { inner, watch: None });
            return Either::Left(self.inner.call(request).map_ok(without_watch));
        };
        // The service that is ready, as tower recommends for calls in a future.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let successions = Arc::clone(&self.successions);
        Either::Right(Box::pin(async move {
            let resumed_at = successions.get(&key).and_then(|short| locked(&short).resumed_at);
            if let Some(resumed_at) = resumed_at {
                tokio::time::sleep_until(resumed_at).await;
            }
            let begin = Instant::now();
            // After the pause, so that the request carries the token of that time.
            let response = inner.call(request).await?;
            let watch = response.status().is_success().then_some(Watch { key, begin, successions });
            Ok(response.map(|inner| WatchBody { inner, watch }))
        }))
    }
}

/// Returns the key of a watch: its path and query without the resource version.
fn key<T>(request: &Request<T>) -> Option<String> {
    let query = request.uri().query().filter(|_| request.method() == Method::GET)?;
    // `kube` writes this form.
    if !query.split('&').any(|pair| pair == "watch=true") {
        return None;
    }
    let mut key = request.uri().path().to_owned();
    for pair in query.split('&').filter(|pair| !pair.starts_with("resourceVersion=")) {
        key.push(if key.contains('?') { '&' } else { '?' });
        key.push_str(pair);
    }
    Some(key)
}

/// A watch that has begun.
struct Watch {
    key: String,
    begin: Instant,
    successions: Successions,
}

impl Watch {
    /// Records that the server ended the watch.
    fn ended(self) {
        if self.begin.elapsed() >= SHORT {
            self.successions.remove(&self.key);
            return;
        }
        let succession = self.successions.get(&self.key).unwrap_or_default();
        let length = locked(&succession).extend();
        if length == REPORTED {
            let path = self.key.split('?').next().unwrap_or_default();
            let resource = path.rsplit('/').next().unwrap_or_default();
            tracing::warn!(
                resource,
                path,
                "watches end as soon as they begin, so changes are noticed late: repeating them with pauses"
            );
        }
        // Each short watch prolongs the entry.
        self.successions.insert(self.key, succession);
    }
}

fn locked(succession: &Mutex<Succession>) -> MutexGuard<'_, Succession> {
    succession.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of a response, which notices the end of a watch.
pub(super) struct WatchBody<B> {
    inner: B,
    watch: Option<Watch>,
}

impl<B: Body + Unpin> Body for WatchBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if !matches!(frame, Some(Ok(_)))
            && let Some(watch) = self.watch.take()
        {
            watch.ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // A reader that relies on this would not poll to the end, which must be noticed.
        self.watch.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
