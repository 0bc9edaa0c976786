//! The keys of a provider, fetched and cached.
//!
//! A token whose key is known needs no request. Otherwise the keys are fetched again, because
//! providers replace their keys at any time. Any client can send tokens with unknown keys, so
//! concurrent callers share one request, and requests begin at least [`REFETCH_INTERVAL`] apart; a
//! caller waits for the next one. Servers use [`WaitLimits`], so that such tokens do not occupy all
//! their resources while the provider does not respond. Keys that the provider no longer publishes
//! are withdrawn with the next successful request, and verify signatures for
//! [`WITHDRAWN_KEY_LIFETIME`](crate::WITHDRAWN_KEY_LIFETIME) more; a failed request changes
//! nothing. `withdrawn_keys.rs` decides about them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use pinniped_cache::{Flights, Start};
use pinniped_error::chain;
use pinniped_http_client::https::{HttpsClient, SendError};
use pinniped_jose::{Algorithm, Jws, KeySet, KeySetError, SignatureError};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use crate::response::ResponseJsonError;
use crate::withdrawn_keys::WithdrawnKeys;

/// Minimum time between the beginnings of two requests for the keys of one provider.
pub const REFETCH_INTERVAL: Duration = Duration::from_secs(1);

/// Number of requests for which a caller waits at most. The first may have begun before the key of
/// the token was published.
const MAX_WAITS: usize = 2;

/// Maximum number of bytes of a response that an error contains. An error becomes part of a status.
const MAX_ERROR_BODY: usize = 1024;

/// The keys could not be fetched. The texts are go-oidc's.
#[derive(Debug, thiserror::Error)]
pub enum FetchKeysError {
    /// There is no response. The error is not a source, because its text is part of this one.
    #[error("oidc: get keys failed {}", chain(.0))]
    Send(SendError),
    /// The response is an error.
    #[error("oidc: get keys failed: {status} {body}")]
    Status {
        /// The status line.
        status: String,
        /// The beginning of the body.
        body: String,
    },
    /// The response is not a key set.
    #[error("oidc: failed to decode keys: {problem} {body}")]
    Decode {
        /// The error of the parser.
        problem: ResponseJsonError,
        /// The beginning of the body.
        body: String,
    },
    /// The task that sent the request has ended with the program.
    #[error("oidc: get keys failed: the request was interrupted")]
    Interrupted,
}

/// The reason why a signature is not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoteKeySetError {
    /// The algorithm is not allowed, or no key of the provider has signed the token.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The key is not known, and the keys could not be fetched.
    #[error("fetching keys {0}")]
    Fetch(Arc<FetchKeysError>),
    /// The key is not known, and the keys did not arrive within [`WaitLimits::max_wait`]. The text
    /// is that of a deadline in Go.
    #[error("fetching keys context deadline exceeded")]
    WaitTimeout,
    /// The key is not known, and [`WaitLimits::max_callers`] others wait already.
    #[error("fetching keys: too many tokens with unknown keys wait for the issuer")]
    TooManyWaiting,
}

/// Limits on callers of [`RemoteKeySet::verify`] whose token has an unknown key, and which wait for
/// a request. Any client can send such tokens.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// The time for which a caller waits, for all requests together. A request continues after it,
    /// so that later callers find its keys.
    pub max_wait: Duration,
    /// The number of callers that wait at once.
    pub max_callers: usize,
}

#[derive(Debug)]
struct Waiting {
    max_wait: Duration,
    callers: Semaphore,
}

/// The state of the cached keys, for metrics and statuses.
#[derive(Clone, Debug)]
pub struct KeySetStatus {
    /// Number of keys that the provider publishes.
    pub keys: usize,
    /// Time since the request that returned the keys; `None` before the first one.
    pub age: Option<Duration>,
    /// The error of the last request, if it failed.
    pub failure: Option<Arc<FetchKeysError>>,
}

/// The keys of one provider. Dropping it ends a request that is in flight, and forgets withdrawn
/// keys.
#[derive(Debug)]
pub struct RemoteKeySet {
    cache: Arc<CachedKeys>,
    requests: Flights<(), Result<Arc<FetchedKeys>, Arc<FetchKeysError>>>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct CachedKeys {
    url: Url,
    client: HttpsClient,
    fetched: ArcSwapOption<FetchedKeys>,
    last: Mutex<LastRequest>,
}

#[derive(Debug, Default)]
struct LastRequest {
    begun: Option<Instant>,
    failure: Option<Arc<FetchKeysError>>,
}

#[derive(Debug)]
struct FetchedKeys {
    keys: KeySet,
    /// The keys of earlier responses that `keys` no longer has.
    withdrawn: WithdrawnKeys,
    /// The time at which the request began.
    requested: Instant,
}

impl FetchedKeys {
    /// Verifies a signature, with the published keys first: a provider may publish other numbers
    /// with the ID of a key that it withdrew.
    fn verify(
        &self,
        jws: &Jws<'_>,
        allowed: &[Algorithm],
        now: Instant,
    ) -> Result<Algorithm, SignatureError> {
        self.keys.verify(jws, allowed).or_else(|_| self.withdrawn.verify(jws, allowed, now))
    }
}

impl RemoteKeySet {
    /// Creates a set whose keys are at `url`. It fetches nothing yet. The client must have a
    /// timeout and a limit for responses. Callers of [`RemoteKeySet::verify`] wait for requests
    /// without limits.
    pub fn new(url: Url, client: HttpsClient) -> Self {
        let cache = CachedKeys { url, client, fetched: ArcSwapOption::empty(), last: Mutex::default() };
        Self { cache: Arc::new(cache), requests: Flights::default(), waiting: None }
    }

    /// Limits the callers that wait.
    #[must_use]
    pub fn with_wait_limits(self, limits: WaitLimits) -> Self {
        let WaitLimits { max_wait, max_callers } = limits;
        Self { waiting: Some(Waiting { max_wait, callers: Semaphore::new(max_callers) }), ..self }
    }

    /// Fetches the keys now, so that the first token needs no request.
    ///
    /// # Errors
    /// Returns an error when the provider does not return keys; the keys do not change.
    pub async fn fetch(&self) -> Result<(), Arc<FetchKeysError>> {
        self.fetched_after(Instant::now()).await.map(drop)
    }

    /// Verifies the signature of a token whose algorithm is one of `allowed`, and returns the
    /// algorithm. Fetches the keys when no cached key has signed the token. A caller that goes away
    /// does not end the request, on which others may wait.
    ///
    /// # Errors
    /// Returns an error when the algorithm is not allowed, no key has signed the token, the keys
    /// could not be fetched, or the [`WaitLimits`] are exceeded.
    pub async fn verify(&self, jws: &Jws<'_>, allowed: &[Algorithm]) -> Result<Algorithm, RemoteKeySetError> {
        let arrived = Instant::now();
        jws.algorithm(allowed).map_err(SignatureError::from)?;
        let cached = self.cache.fetched.load_full();
        if let Some(Ok(algorithm)) = cached.map(|cached| cached.verify(jws, allowed, arrived)) {
            return Ok(algorithm);
        }
        let verified = self.verify_with_fetched(jws, allowed, arrived);
        let Some(waiting) = &self.waiting else { return verified.await };
        let _permit = waiting.permit()?;
        timeout(waiting.max_wait, verified).await.unwrap_or(Err(RemoteKeySetError::WaitTimeout))
    }

    /// Verifies a signature with keys that are fetched after `arrived`.
    async fn verify_with_fetched(
        &self,
        jws: &Jws<'_>,
        allowed: &[Algorithm],
        arrived: Instant,
    ) -> Result<Algorithm, RemoteKeySetError> {
        for _ in 0..MAX_WAITS {
            let fetched = self.fetched_after(arrived).await.map_err(RemoteKeySetError::Fetch)?;
            let result = fetched.verify(jws, allowed, arrived);
            // A request that began earlier may have missed the key.
            if result.is_ok() || fetched.requested >= arrived {
                return Ok(result?);
            }
        }
        Err(SignatureError::NoKey.into())
    }

    /// Returns the state of the cached keys.
    pub fn status(&self) -> KeySetStatus {
        let fetched = self.cache.fetched.load();
        KeySetStatus {
            keys: fetched.as_ref().map_or(0, |fetched| fetched.keys.len()),
            age: fetched.as_ref().map(|fetched| fetched.requested.elapsed()),
            failure: self.cache.last().failure.clone(),
        }
    }

    /// Returns keys of a request that began after `arrived`, or of the one that is in flight.
    async fn fetched_after(&self, arrived: Instant) -> Result<Arc<FetchedKeys>, Arc<FetchKeysError>> {
        let start = || {
            // Another caller may have completed a request meanwhile.
            match self.cache.fetched.load_full() {
                Some(fetched) if fetched.requested >= arrived => Start::Done(Ok(fetched)),
                _ => Start::Work(Arc::clone(&self.cache).fetch()),
            }
        };
        let interrupted = || Err(Arc::new(FetchKeysError::Interrupted));
        self.requests.join(&(), start).await.unwrap_or_else(interrupted)
    }
}

impl Waiting {
    fn permit(&self) -> Result<SemaphorePermit<'_>, RemoteKeySetError> {
        self.callers.try_acquire().map_err(|_| RemoteKeySetError::TooManyWaiting)
    }
}

impl CachedKeys {
    fn last(&self) -> std::sync::MutexGuard<'_, LastRequest> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(self: Arc<Self>) -> Result<Arc<FetchedKeys>, Arc<FetchKeysError>> {
        let previous = self.last().begun;
        if let Some(previous) = previous {
            sleep_until(previous + REFETCH_INTERVAL).await;
        }
        let requested = Instant::now();
        self.last().begun = Some(requested);
        match self.request().await {
            Ok(keys) => {
                let withdrawn = match self.fetched.load_full() {
                    Some(before) => before.withdrawn.after(&before.keys, &keys, requested),
                    None => WithdrawnKeys::default(),
                };
                let fetched = Arc::new(FetchedKeys { keys, withdrawn, requested });
                self.fetched.store(Some(Arc::clone(&fetched)));
                self.last().failure = None;
                Ok(fetched)
            }
            Err(error) => {
                let error = Arc::new(error);
                self.last().failure = Some(Arc::clone(&error));
                Err(error)
            }
        }
    }

    async fn request(&self) -> Result<KeySet, FetchKeysError> {
        let headers = [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
        let sent = self.client.send(&Method::GET, &self.url, &headers, Bytes::new()).await;
        let response = sent.map_err(FetchKeysError::Send)?;
        let body = || beginning(&response.body);
        if response.status != StatusCode::OK {
            return Err(FetchKeysError::Status { status: response.status_line(), body: body() });
        }
        KeySet::parse(&response.body).map_err(|error| {
            let problem = match &error {
                KeySetError::Json(error) => ResponseJsonError::new(&response, error),
                KeySetError::TooLarge => ResponseJsonError::with_problem(&response, error.to_string()),
            };
            FetchKeysError::Decode { problem, body: body() }
        })
    }
}

/// Returns the first [`MAX_ERROR_BODY`] bytes as text.
fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_BODY)]).into_owned()
}
