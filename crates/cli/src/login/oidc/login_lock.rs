//! One login at a time for each session: many processes that start together, such as those of
//! `xargs kubectl`, open one browser tab and use a refresh token once.
//!
//! The process that logs in holds a lock beside the session cache. The others wait for the lock,
//! and then read the cache again. If the login failed while they waited, they fail with the same
//! text, so that they do not open a tab each. The lock of a process that is killed is free, and the
//! next one acquires it.
//!
//! The file of the lock has the last failure: its time, the program that called this one as its
//! plugin, and its text. kubectl calls its plugin several times if the plugin fails. After a login
//! that the user cancelled, or that failed with anything but a wrong password, the next calls of
//! the same program fail with the same text for [`REPEAT_WINDOW`], so that no second tab opens. A
//! file that is not readable or not writable is ignored.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::login::session_cache::{SessionCache, SessionKey};
use crate::printer::Printer;

/// The polling interval for the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time after which a waiting process reports that it waits.
const REPORT_WAIT_AFTER: Duration = Duration::from_secs(2);
/// The maximum size in bytes of a failure that is shared.
const MAX_FAILURE_SIZE: usize = 8 * 1024;
/// The time after a failure in which the same caller gets no other login. kubectl calls its plugin
/// again immediately; a program that lives longer may try again.
const REPEAT_WINDOW: SignedDuration = SignedDuration::from_secs(10);
/// The text of a login that ended without a result.
const CANCELLED: &str = "interrupted";

/// A process that wants to log in.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockRequest<'a> {
    /// The time of the request. Failures of other processes after it are shared.
    pub(super) time: Timestamp,
    /// The program that called this one as its plugin, if one did.
    pub(super) caller: Option<&'a str>,
    /// Whether the process waits for a login of another one.
    pub(super) may_wait: bool,
}

/// The exclusive lock of the logins of a session, until it is dropped.
#[derive(Debug)]
pub(super) struct LoginLock {
    file: File,
    caller: Option<String>,
    /// Whether the user has been asked to log in, and there is no result yet.
    awaits_user: bool,
}

/// The result of a request for the lock.
#[derive(Debug)]
pub(super) enum LockResult {
    /// This process may log in.
    Acquired(LoginLock),
    /// Another process tried meanwhile, and failed with this text.
    SharedFailure(String),
    /// The same caller has just got this text.
    RepeatedFailure(String),
    /// Another process logs in, and this one does not wait for a user.
    HeldByOther,
}

impl LoginLock {
    /// Acquires the lock of a session. `now` is the clock.
    ///
    /// # Errors
    ///
    /// Returns the failed call on the lock file; callers then log in without the lock.
    pub(super) async fn acquire(
        cache: &SessionCache,
        key: &SessionKey,
        request: LockRequest<'_>,
        now: impl Fn() -> Timestamp,
        printer: Printer,
    ) -> io::Result<LockResult> {
        let mut file = cache.login_lock_file(key)?;
        let mut waited = Duration::ZERO;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if !request.may_wait => return Ok(LockResult::HeldByOther),
                Err(TryLockError::WouldBlock) => {}
            }
            if waited == REPORT_WAIT_AFTER {
                printer.line("Waiting for the login that another process has begun");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            waited += POLL_INTERVAL;
        }
        let failure = LastFailure::read(&mut file).and_then(|failure| failure.result_for(request, now()));
        Ok(failure.unwrap_or_else(|| {
            let caller = request.caller.map(str::to_owned);
            LockResult::Acquired(Self { file, caller, awaits_user: false })
        }))
    }

    /// Notes that the user is asked to log in. If the lock is dropped without a result, the user
    /// has cancelled the login.
    pub(super) fn involve_user(&mut self) {
        self.awaits_user = true;
    }

    /// Releases the lock after a login.
    pub(super) fn succeed(mut self) {
        self.awaits_user = false;
    }

    /// Releases the lock, and lets the processes that requested it before `now` fail with this
    /// text. Unless the failure is `correctable`, the next calls of the same caller fail with it,
    /// too, if the user was asked.
    pub(super) fn fail(mut self, text: &str, correctable: bool, now: Timestamp) {
        let ends_command = std::mem::take(&mut self.awaits_user) && !correctable;
        self.record(text, ends_command, now);
    }

    fn record(&mut self, text: &str, ends_command: bool, now: Timestamp) {
        let caller = self.caller.as_deref().filter(|_| ends_command).unwrap_or_default();
        let mut text = format!("{now}\n{caller}\n{text}");
        text.truncate(text.floor_char_boundary(MAX_FAILURE_SIZE));
        // Without it, the others log in themselves.
        let _ = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

impl Drop for LoginLock {
    fn drop(&mut self) {
        if self.awaits_user {
            self.record(CANCELLED, true, Timestamp::now());
        }
        // Closing the file releases the lock.
    }
}

/// The last failure.
#[derive(Debug)]
struct LastFailure {
    when: Timestamp,
    /// The caller that gets no other login; empty if every process may try again.
    caller: String,
    text: String,
}

impl LastFailure {
    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(MAX_FAILURE_SIZE as u64 + 1).read_to_string(&mut text).ok()?;
        let mut parts = text.splitn(3, '\n');
        Some(Self {
            when: parts.next()?.parse().ok()?,
            caller: parts.next()?.to_owned(),
            text: parts.next()?.to_owned(),
        })
    }

    /// Returns the result for a process that has the lock at `now`, unless the process may log in.
    fn result_for(self, request: LockRequest<'_>, now: Timestamp) -> Option<LockResult> {
        if self.when > now {
            // The clock was set back, or the file is not ours.
            return None;
        }
        // A login that the user cancelled concerns its caller alone.
        if self.when >= request.time && self.text != CANCELLED {
            return Some(LockResult::SharedFailure(self.text));
        }
        let is_repeated = request.caller.is_some_and(|caller| !caller.is_empty() && caller == self.caller)
            && now.duration_since(self.when) <= REPEAT_WINDOW;
        is_repeated.then_some(LockResult::RepeatedFailure(self.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::Level;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-24T{text}Z").parse().unwrap()
    }

    fn key(issuer: &str) -> SessionKey {
        SessionKey {
            issuer: issuer.into(),
            client_id: "c".into(),
            scopes: Vec::new(),
            redirect_uri: String::new(),
            upstream_provider_name: String::new(),
        }
    }

    /// Requests the lock at `since` and has it at `now`.
    async fn acquire(
        cache: &SessionCache,
        issuer: &str,
        since: &str,
        now: &str,
        caller: Option<&str>,
    ) -> LockResult {
        let request = LockRequest { time: at(since), caller, may_wait: true };
        LoginLock::acquire(cache, &key(issuer), request, || at(now), Printer::new(Level::Warning))
            .await
            .unwrap()
    }

    async fn lock(cache: &SessionCache, caller: Option<&str>) -> LoginLock {
        let LockResult::Acquired(lock) = acquire(cache, "a", "10:00:00", "10:00:00", caller).await else {
            panic!()
        };
        lock
    }

    fn cache() -> (tempfile::TempDir, SessionCache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = SessionCache::new(dir.path().join("s.yaml"));
        (dir, cache)
    }

    #[tokio::test]
    async fn the_lock_is_for_one_process_and_one_session() {
        let (_dir, cache) = cache();
        let first = lock(&cache, None).await;
        let LockResult::Acquired(_other) = acquire(&cache, "b", "10:00:00", "10:00:00", None).await else {
            panic!()
        };
        let waiting = acquire(&cache, "a", "10:00:00", "10:00:01", None);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(POLL_INTERVAL * 3, &mut waiting).await.is_err());
        let trying = LockRequest { time: at("10:00:00"), caller: None, may_wait: false };
        let printer = Printer::new(Level::Warning);
        let tried = LoginLock::acquire(&cache, &key("a"), trying, Timestamp::now, printer).await.unwrap();
        assert!(matches!(tried, LockResult::HeldByOther));
        drop(first);
        assert!(matches!(waiting.await, LockResult::Acquired(_)));
    }

    #[tokio::test]
    async fn a_failure_is_shared_with_the_processes_that_waited_for_it() {
        let (dir, cache) = cache();
        lock(&cache, None).await.fail(&"é".repeat(MAX_FAILURE_SIZE), false, at("10:00:05"));
        let LockResult::SharedFailure(text) = acquire(&cache, "a", "10:00:04", "10:00:06", None).await else {
            panic!()
        };
        assert!(text.starts_with("éé") && text.len() < MAX_FAILURE_SIZE);
        assert!(matches!(acquire(&cache, "a", "10:00:06", "10:00:06", None).await, LockResult::Acquired(_)));
        // The clock was set back: a failure in the future would refuse every login until then.
        assert!(matches!(acquire(&cache, "a", "09:00:00", "09:00:01", None).await, LockResult::Acquired(_)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "one lock file for a session");
    }

    #[tokio::test]
    async fn a_failed_login_is_not_repeated_for_the_same_caller_for_a_short_time() {
        for (asked, correctable, caller, since, is_repeated) in [
            (true, false, Some("7 1"), "10:00:06", true),
            (true, false, Some("7 1"), "10:00:15", true),
            (true, false, Some("7 1"), "10:00:16", false),
            // Another program, with the process ID of the first, and a user in a shell.
            (true, false, Some("8 1"), "10:00:06", false),
            (true, false, Some("7 2"), "10:00:06", false),
            (true, false, Some(""), "10:00:06", false),
            (true, false, None, "10:00:06", false),
            // A wrong password, and an issuer that could not be reached.
            (true, true, Some("7 1"), "10:00:06", false),
            (false, false, Some("7 1"), "10:00:06", false),
        ] {
            let (_dir, cache) = cache();
            let mut first = lock(&cache, Some("7 1")).await;
            if asked {
                first.involve_user();
            }
            first.fail("refused", correctable, at("10:00:05"));
            let next = acquire(&cache, "a", since, since, caller).await;
            match next {
                LockResult::RepeatedFailure(text) if is_repeated => assert_eq!(text, "refused"),
                LockResult::Acquired(_) if !is_repeated => {}
                next => panic!("{asked} {correctable} {caller:?} {since}: {next:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_lock_that_is_dropped_while_the_user_is_asked_records_a_cancelled_login() {
        let next = async |cache: &SessionCache| {
            let now = Timestamp::now();
            let request = LockRequest { time: now, caller: Some("7"), may_wait: true };
            let printer = Printer::new(Level::Warning);
            // The time of the cancellation precedes the time at which the next call has the lock.
            LoginLock::acquire(cache, &key("a"), request, Timestamp::now, printer).await.unwrap()
        };
        let (_dir, cache) = cache();
        drop(lock(&cache, Some("7")).await);
        assert!(matches!(next(&cache).await, LockResult::Acquired(_)));
        let mut succeeded = lock(&cache, Some("7")).await;
        succeeded.involve_user();
        succeeded.succeed();
        assert!(matches!(next(&cache).await, LockResult::Acquired(_)));
        let mut cancelled = lock(&cache, Some("7")).await;
        cancelled.involve_user();
        drop(cancelled);
        assert!(matches!(next(&cache).await, LockResult::RepeatedFailure(text) if text == CANCELLED));
        // Another process, which waited for it, acquires the lock.
        let request = LockRequest { time: Timestamp::UNIX_EPOCH, caller: Some("8"), may_wait: true };
        let printer = Printer::new(Level::Warning);
        let other = LoginLock::acquire(&cache, &key("a"), request, Timestamp::now, printer).await.unwrap();
        assert!(matches!(other, LockResult::Acquired(_)));
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_failure_is_ignored() {
        for content in
            [&b""[..], b"garbage", b"2026-11-24T10:00:05Z", b"2026-11-24T10:00:05Z\n7\n\xff", b"x\n7\nt"]
        {
            let (_dir, cache) = cache();
            let mut file = cache.login_lock_file(&key("a")).unwrap();
            file.write_all(content).unwrap();
            drop(file);
            let next = acquire(&cache, "a", "10:00:05", "10:00:06", Some("7")).await;
            assert!(matches!(next, LockResult::Acquired(_)), "{content:?}: {next:?}");
        }
    }
}
