//! The current login of the proxy.
//!
//! A request shortly before the expiration triggers the renewal without waiting for it; a request
//! after the expiration waits for the new login. An idle proxy does not log in. The state depends
//! on the clock and not on timers, so it is correct after the machine was suspended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use pinniped_error::chain;

use super::identity::{Identity, IdentityError, State};
use crate::login::Login;
use crate::login::session::{LoginError, Session};
use crate::printer::Printer;

/// A cached login is used if its remaining lifetime exceeds that of the current one by this time.
const MIN_LIFETIME_GAIN: SignedDuration = SignedDuration::from_secs(30);
/// After a failed login, requests get its error for this time before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// There is no identity for requests.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// There is no login.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The login cannot be used for requests.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// A source of logins.
pub(super) trait LogIn: Send + Sync {
    /// Returns a login that is valid for at least `good_for`, or a fresh one if `None`.
    fn log_in(&self, good_for: Option<SignedDuration>) -> BoxFuture<'_, Result<Login, LoginError>>;
}

impl LogIn for Session {
    fn log_in(&self, good_for: Option<SignedDuration>) -> BoxFuture<'_, Result<Login, LoginError>> {
        Box::pin(async move {
            match good_for {
                Some(left) => self.login(left).await,
                None => self.fresh().await,
            }
        })
    }
}

/// The current login and the source of the next one.
pub(super) struct Logins {
    source: Box<dyn LogIn>,
    current: Mutex<Arc<Identity>>,
    /// Allows one login at a time.
    attempts: Semaphore,
    failure: Mutex<Option<(Instant, Arc<RenewalError>)>>,
    due: Notify,
    printer: Printer,
}

impl Logins {
    /// Makes the first login.
    pub(super) async fn begin(source: Box<dyn LogIn>, printer: Printer) -> Result<Self, Arc<RenewalError>> {
        let identity = log_in(source.as_ref(), Some(MIN_LIFETIME_GAIN)).await?;
        Ok(Self {
            source,
            current: Mutex::new(Arc::new(identity)),
            attempts: Semaphore::new(1),
            failure: Mutex::default(),
            due: Notify::new(),
            printer,
        })
    }

    /// Returns the current identity, valid or not.
    pub(super) fn now(&self) -> Arc<Identity> {
        Arc::clone(&lock(&self.current))
    }

    /// Returns an identity that is expected to be valid at the API server.
    ///
    /// # Errors
    /// Returns the error of the login; requests share it for [`RETRY_PAUSE`].
    pub(super) async fn identity(&self) -> Result<Arc<Identity>, Arc<RenewalError>> {
        let identity = self.now();
        match identity.state(Timestamp::now()) {
            State::Good => Ok(identity),
            State::Due => {
                self.due.notify_one();
                Ok(identity)
            }
            // Boxed because it is large and rare; otherwise every request future would reserve
            // space for it.
            State::Over => Box::pin(self.renew(&identity)).await,
        }
    }

    /// Renews the login whenever a request used an identity that is about to expire, until `ended`.
    pub(super) async fn renew_when_due(self: Arc<Self>, ended: CancellationToken) {
        let renewing = async {
            loop {
                self.due.notified().await;
                let identity = self.now();
                if identity.state(Timestamp::now()) != State::Good {
                    // `renew` has reported the error; a later request triggers the next attempt.
                    let _reported = self.renew(&identity).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            () = renewing => {}
        }
    }

    /// Returns the successor of `seen`.
    async fn renew(&self, seen: &Arc<Identity>) -> Result<Arc<Identity>, Arc<RenewalError>> {
        // The semaphore is never closed. If it were, a login without the permit would only be
        // redundant.
        let _permit = self.attempts.acquire().await.ok();
        let current = self.now();
        if !Arc::ptr_eq(&current, seen) {
            return Ok(current);
        }
        if let Some((when, error)) = &*lock(&self.failure)
            && when.elapsed() < RETRY_PAUSE
        {
            return Err(Arc::clone(error));
        }
        let now = Timestamp::now();
        let left = seen.ends().map_or(SignedDuration::ZERO, |end| end.duration_since(now));
        let good_for = (!seen.is_refused()).then(|| left.max(SignedDuration::ZERO) + MIN_LIFETIME_GAIN);
        match log_in(self.source.as_ref(), good_for).await {
            Ok(identity) => {
                let identity = Arc::new(identity);
                *lock(&self.failure) = None;
                *lock(&self.current) = Arc::clone(&identity);
                Ok(identity)
            }
            Err(error) => {
                self.printer.line(&format!("could not log in again: {}", chain(&*error)));
                *lock(&self.failure) = Some((Instant::now(), Arc::clone(&error)));
                Err(error)
            }
        }
    }
}

async fn log_in(source: &dyn LogIn, good_for: Option<SignedDuration>) -> Result<Identity, Arc<RenewalError>> {
    let login = source.log_in(good_for).await.map_err(RenewalError::from)?;
    Ok(Identity::new(&login, Timestamp::now()).map_err(RenewalError::from)?)
}

/// A panic elsewhere cannot leave the values in an inconsistent state: each statement completes
/// them.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::identity::tests::login;
    use super::*;
    use crate::concierge::ExchangeError;
    use crate::printer::Level;

    /// Returns these logins one after the other, and counts the calls.
    #[derive(Clone, Default)]
    struct Script {
        logins: Arc<Mutex<VecDeque<Result<Login, LoginError>>>>,
        asked: Arc<Mutex<Vec<Option<SignedDuration>>>>,
        running: Arc<AtomicUsize>,
    }

    impl LogIn for Script {
        fn log_in(&self, good_for: Option<SignedDuration>) -> BoxFuture<'_, Result<Login, LoginError>> {
            Box::pin(async move {
                assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                tokio::task::yield_now().await;
                self.running.fetch_sub(1, Ordering::SeqCst);
                lock(&self.asked).push(good_for);
                lock(&self.logins).pop_front().expect("no more logins than these")
            })
        }
    }

    fn good_for(token: &str, seconds: i64) -> Result<Login, LoginError> {
        Ok(login(token, "u", Timestamp::now() + SignedDuration::from_secs(seconds)))
    }

    async fn begin(logins: Vec<Result<Login, LoginError>>) -> (Script, Arc<Logins>) {
        let script = Script { logins: Arc::new(Mutex::new(logins.into())), ..Script::default() };
        let logins = Logins::begin(Box::new(script.clone()), Printer::new(Level::Warning)).await.unwrap();
        (script, Arc::new(logins))
    }

    fn token(identity: &Identity) -> String {
        let mut headers = http::HeaderMap::new();
        identity.headers().append_to(&mut headers).unwrap();
        headers["authorization"].to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn an_expired_login_is_replaced_once_for_all_waiting_requests() {
        let (script, logins) = begin(vec![good_for("a", 0), good_for("b", 300)]).await;
        let all = futures::future::join_all((0..20).map(|_| logins.identity())).await;
        assert!(all.into_iter().all(|identity| token(&identity.unwrap()) == "Bearer b"));
        assert_eq!(lock(&script.asked).len(), 2);
    }

    #[tokio::test]
    async fn a_due_login_is_used_while_its_successor_is_fetched() {
        let (script, logins) = begin(vec![good_for("a", 300), good_for("b", 300)]).await;
        let ended = CancellationToken::new();
        let renewing = tokio::spawn(Arc::clone(&logins).renew_when_due(ended.clone()));
        let identity = logins.now();
        assert_eq!(identity.state(Timestamp::now()), State::Good);
        logins.due.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(token(&logins.now()), "Bearer a", "what is good is not replaced");
        identity.refuse(Timestamp::now() + SignedDuration::from_secs(60));
        logins.due.notify_one();
        let replaced = async {
            while token(&logins.now()) != "Bearer b" {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), replaced).await.unwrap();
        assert_eq!(
            *lock(&script.asked),
            [Some(MIN_LIFETIME_GAIN), None],
            "a refused one is not looked for in the cache"
        );
        ended.cancel();
        renewing.await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_is_returned_for_a_while_before_the_next_attempt() {
        let refused = || LoginError::from(ExchangeError::RefusedSilently);
        let (script, logins) = begin(vec![good_for("a", 0), Err(refused())]).await;
        for _ in 0..3 {
            assert_eq!(
                chain(&*logins.identity().await.err().unwrap()).to_string(),
                chain(&refused()).to_string()
            );
        }
        assert_eq!(lock(&script.asked).len(), 2);
        // The pause has elapsed.
        lock(&script.logins).push_back(good_for("b", 300));
        *lock(&logins.failure) = Some((Instant::now() - RETRY_PAUSE, Arc::new(refused().into())));
        assert_eq!(token(&logins.identity().await.unwrap()), "Bearer b");
    }
}
