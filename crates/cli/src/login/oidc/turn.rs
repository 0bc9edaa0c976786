//! One login at a time for each session: many processes that start together, such as those of
//! `xargs kubectl`, open one browser tab and use a refresh token once.
//!
//! The process whose turn it is holds a lock beside the session cache. The others wait, and then
//! read the cache again. If the login failed while they waited, they fail with the same text, so
//! that they do not open a tab each. A process that is killed holds no lock any more, and the next
//! one takes its turn.
//!
//! The file of the lock has the last failure: its time, the program that called this one as its
//! plugin, and its text. kubectl calls its plugin several times if the plugin fails. After a login
//! that the user cancelled, or that failed with anything but a wrong password, the next calls of
//! the same program fail with the same text for [`SAME_COMMAND`], so that no second tab opens. A
//! file that is not readable or not writable is ignored.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::login::session_cache::{SessionCache, SessionKey};
use crate::printer::Printer;

/// The polling interval for the lock.
const POLL: Duration = Duration::from_millis(50);
/// The time after which a waiting process reports that it waits.
const QUIET: Duration = Duration::from_secs(2);
/// The maximum size in bytes of a failure that is shared.
const MAX_FAILURE: usize = 8 * 1024;
/// The time after a failure in which the same caller gets no other login. kubectl calls its plugin
/// again immediately; a program that lives longer may try again.
const SAME_COMMAND: SignedDuration = SignedDuration::from_secs(10);
/// The text of a login that ended without a result.
const CANCELLED: &str = "interrupted";

/// A process that wants to log in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter<'a> {
    /// The time at which it began to wait.
    pub(super) since: Timestamp,
    /// The program that called this one as its plugin, if one did.
    pub(super) caller: Option<&'a str>,
    /// Whether it waits for a login of another process, or only tries to get its turn.
    pub(super) waits: bool,
}

/// The permission to log in, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    file: File,
    caller: Option<String>,
    /// Whether the user has been asked to log in, and there is no result yet.
    pending: bool,
}

/// The result of waiting.
#[derive(Debug)]
pub(super) enum Waited {
    /// This process may log in.
    Turn(Turn),
    /// Another process tried meanwhile, and failed with this text.
    Failed(String),
    /// The same caller has just got this text.
    Repeated(String),
    /// Another process logs in, and this one does not wait for a user.
    Busy,
}

impl Turn {
    /// Waits for the turn of this process, or only tries to get it. `now` is the clock.
    ///
    /// # Errors
    ///
    /// Returns the failed call on the lock file; callers then log in without a turn.
    pub(super) async fn wait(
        cache: &SessionCache,
        key: &SessionKey,
        waiter: Waiter<'_>,
        now: impl Fn() -> Timestamp,
        printer: Printer,
    ) -> io::Result<Waited> {
        let mut file = cache.turn_file(key)?;
        let mut waited = Duration::ZERO;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if !waiter.waits => return Ok(Waited::Busy),
                Err(TryLockError::WouldBlock) => {}
            }
            if waited == QUIET {
                printer.line("Waiting for the login that another process has begun");
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        let shared = Failure::read(&mut file).and_then(|failure| failure.shared_with(waiter, now()));
        Ok(shared.unwrap_or_else(|| {
            Waited::Turn(Self { file, caller: waiter.caller.map(str::to_owned), pending: false })
        }))
    }

    /// Notes that the user is asked to log in. If the turn is dropped without a result, the user
    /// has cancelled the login.
    pub(super) fn involve_user(&mut self) {
        self.pending = true;
    }

    /// Ends the turn after a login.
    pub(super) fn succeed(mut self) {
        self.pending = false;
    }

    /// Lets the processes that wait fail with this text, which began to wait before `now`. Unless
    /// the failure is `correctable`, the next calls of the same caller fail with it, too, if the
    /// user was asked.
    pub(super) fn fail(mut self, text: &str, correctable: bool, now: Timestamp) {
        let ends_command = std::mem::take(&mut self.pending) && !correctable;
        self.record(text, ends_command, now);
    }

    fn record(&mut self, text: &str, ends_command: bool, now: Timestamp) {
        let caller = self.caller.as_deref().filter(|_| ends_command).unwrap_or_default();
        let mut text = format!("{now}\n{caller}\n{text}");
        text.truncate(text.floor_char_boundary(MAX_FAILURE));
        // Without it, the others log in themselves.
        let _ = self
            .file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.pending {
            self.record(CANCELLED, true, Timestamp::now());
        }
        // Closing the file releases the lock.
    }
}

/// The last failure.
#[derive(Debug)]
struct Failure {
    when: Timestamp,
    /// The caller that gets no other login; empty if every process may try again.
    caller: String,
    text: String,
}

impl Failure {
    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(MAX_FAILURE as u64 + 1).read_to_string(&mut text).ok()?;
        let mut parts = text.splitn(3, '\n');
        Some(Self {
            when: parts.next()?.parse().ok()?,
            caller: parts.next()?.to_owned(),
            text: parts.next()?.to_owned(),
        })
    }

    /// Returns the result for a process that has its turn at `now`, unless the process may log in.
    fn shared_with(self, waiter: Waiter<'_>, now: Timestamp) -> Option<Waited> {
        if self.when > now {
            // The clock was set back, or the file is not ours.
            return None;
        }
        // A login that the user cancelled concerns its caller alone.
        if self.when >= waiter.since && self.text != CANCELLED {
            return Some(Waited::Failed(self.text));
        }
        let is_repeated = waiter.caller.is_some_and(|caller| !caller.is_empty() && caller == self.caller)
            && now.duration_since(self.when) <= SAME_COMMAND;
        is_repeated.then_some(Waited::Repeated(self.text))
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

    /// Waits from `since` until `now`.
    async fn wait(
        cache: &SessionCache,
        issuer: &str,
        since: &str,
        now: &str,
        caller: Option<&str>,
    ) -> Waited {
        let waiter = Waiter { since: at(since), caller, waits: true };
        Turn::wait(cache, &key(issuer), waiter, || at(now), Printer::new(Level::Warning)).await.unwrap()
    }

    async fn turn(cache: &SessionCache, caller: Option<&str>) -> Turn {
        let Waited::Turn(turn) = wait(cache, "a", "10:00:00", "10:00:00", caller).await else { panic!() };
        turn
    }

    fn cache() -> (tempfile::TempDir, SessionCache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = SessionCache::new(dir.path().join("s.yaml"));
        (dir, cache)
    }

    #[tokio::test]
    async fn a_turn_is_for_one_process_and_one_session() {
        let (_dir, cache) = cache();
        let first = turn(&cache, None).await;
        let Waited::Turn(_other) = wait(&cache, "b", "10:00:00", "10:00:00", None).await else { panic!() };
        let waiting = wait(&cache, "a", "10:00:00", "10:00:01", None);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(POLL * 3, &mut waiting).await.is_err());
        let trying = Waiter { since: at("10:00:00"), caller: None, waits: false };
        let printer = Printer::new(Level::Warning);
        let tried = Turn::wait(&cache, &key("a"), trying, Timestamp::now, printer).await.unwrap();
        assert!(matches!(tried, Waited::Busy));
        drop(first);
        assert!(matches!(waiting.await, Waited::Turn(_)));
    }

    #[tokio::test]
    async fn a_failure_is_shared_with_those_who_waited_for_it() {
        let (dir, cache) = cache();
        turn(&cache, None).await.fail(&"é".repeat(MAX_FAILURE), false, at("10:00:05"));
        let Waited::Failed(text) = wait(&cache, "a", "10:00:04", "10:00:06", None).await else { panic!() };
        assert!(text.starts_with("éé") && text.len() < MAX_FAILURE);
        assert!(matches!(wait(&cache, "a", "10:00:06", "10:00:06", None).await, Waited::Turn(_)));
        // The clock was set back: a failure in the future would refuse every login until then.
        assert!(matches!(wait(&cache, "a", "09:00:00", "09:00:01", None).await, Waited::Turn(_)));
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
            let mut first = turn(&cache, Some("7 1")).await;
            if asked {
                first.involve_user();
            }
            first.fail("refused", correctable, at("10:00:05"));
            let next = wait(&cache, "a", since, since, caller).await;
            match next {
                Waited::Repeated(text) if is_repeated => assert_eq!(text, "refused"),
                Waited::Turn(_) if !is_repeated => {}
                next => panic!("{asked} {correctable} {caller:?} {since}: {next:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_turn_that_is_dropped_while_the_user_is_asked_was_cancelled() {
        let next = async |cache: &SessionCache| {
            let now = Timestamp::now();
            let waiter = Waiter { since: now, caller: Some("7"), waits: true };
            let printer = Printer::new(Level::Warning);
            // The time of the cancellation precedes the time at which the next call has its turn.
            Turn::wait(cache, &key("a"), waiter, Timestamp::now, printer).await.unwrap()
        };
        let (_dir, cache) = cache();
        drop(turn(&cache, Some("7")).await);
        assert!(matches!(next(&cache).await, Waited::Turn(_)));
        let mut succeeded = turn(&cache, Some("7")).await;
        succeeded.involve_user();
        succeeded.succeed();
        assert!(matches!(next(&cache).await, Waited::Turn(_)));
        let mut cancelled = turn(&cache, Some("7")).await;
        cancelled.involve_user();
        drop(cancelled);
        assert!(matches!(next(&cache).await, Waited::Repeated(text) if text == CANCELLED));
        // Another process, which waited for it, gets its turn.
        let waiter = Waiter { since: Timestamp::UNIX_EPOCH, caller: Some("8"), waits: true };
        let printer = Printer::new(Level::Warning);
        let other = Turn::wait(&cache, &key("a"), waiter, Timestamp::now, printer).await.unwrap();
        assert!(matches!(other, Waited::Turn(_)));
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_failure_is_ignored() {
        for content in
            [&b""[..], b"garbage", b"2026-11-24T10:00:05Z", b"2026-11-24T10:00:05Z\n7\n\xff", b"x\n7\nt"]
        {
            let (_dir, cache) = cache();
            let mut file = cache.turn_file(&key("a")).unwrap();
            file.write_all(content).unwrap();
            drop(file);
            let next = wait(&cache, "a", "10:00:05", "10:00:06", Some("7")).await;
            assert!(matches!(next, Waited::Turn(_)), "{content:?}: {next:?}");
        }
    }
}
