//! One login at a time for each session: many processes that start together, such as those of
//! `xargs kubectl`, open one browser tab and use a refresh token once.
//!
//! The process whose turn it is holds a lock beside the session cache. The others wait, and then
//! read the cache again. If the login failed while they waited, they fail with the same text, so
//! that they do not open a tab each. A process that is killed holds no lock any more, and the next
//! one takes its turn.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::time::Duration;

use jiff::Timestamp;

use crate::login::session_cache::{SessionCache, SessionKey};
use crate::printer::Printer;

/// The polling interval for the lock.
const POLL: Duration = Duration::from_millis(50);
/// The time after which a waiting process reports that it waits.
const QUIET: Duration = Duration::from_secs(2);
/// The maximum size in bytes of a failure that is shared.
const MAX_FAILURE: usize = 8 * 1024;

/// The permission to log in, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(File);

/// The result of waiting.
#[derive(Debug)]
pub(super) enum Waited {
    /// This process may log in.
    Turn(Turn),
    /// Another process tried meanwhile, and failed with this text.
    Failed(String),
    /// Another process logs in, and this one does not wait for a user.
    Busy,
}

impl Turn {
    /// Waits for the turn of this process, which began to wait at `since`, or only tries to get it.
    ///
    /// # Errors
    ///
    /// Returns the failed call on the lock file; callers then log in without a turn.
    pub(super) async fn wait(
        cache: &SessionCache,
        key: &SessionKey,
        since: Timestamp,
        waits: bool,
        printer: Printer,
    ) -> io::Result<Waited> {
        let mut file = cache.turn_file(key)?;
        let mut waited = Duration::ZERO;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if !waits => return Ok(Waited::Busy),
                Err(TryLockError::WouldBlock) => {}
            }
            if waited == QUIET {
                printer.line("Waiting for the login that another process has begun");
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
        Ok(match failure(&mut file) {
            Some((when, text)) if when >= since => Waited::Failed(text),
            _ => Waited::Turn(Self(file)),
        })
    }

    /// Lets the processes that wait fail with this text, which began to wait before `now`.
    pub(super) fn share_failure(mut self, text: &str, now: Timestamp) {
        let mut text = format!("{now}\n{text}");
        text.truncate(text.floor_char_boundary(MAX_FAILURE));
        // Without it, they log in themselves.
        let _ =
            self.0.set_len(0).and_then(|()| self.0.rewind()).and_then(|()| self.0.write_all(text.as_bytes()));
    }
}

fn failure(file: &mut File) -> Option<(Timestamp, String)> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MAX_FAILURE as u64 + 1).read_to_string(&mut text).ok()?;
    let (when, text) = text.split_once('\n')?;
    Some((when.parse().ok()?, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::Level;

    fn key(issuer: &str) -> SessionKey {
        SessionKey {
            issuer: issuer.into(),
            client_id: "c".into(),
            scopes: Vec::new(),
            redirect_uri: String::new(),
            upstream_provider_name: String::new(),
        }
    }

    async fn wait(cache: &SessionCache, issuer: &str, since: &str) -> Waited {
        Turn::wait(cache, &key(issuer), since.parse().unwrap(), true, Printer::new(Level::Warning))
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn a_turn_is_for_one_process_and_one_session() {
        let dir = tempfile::tempdir().unwrap();
        let cache = SessionCache::new(dir.path().join("s.yaml"));
        let Waited::Turn(turn) = wait(&cache, "a", "2026-11-24T10:00:00Z").await else { panic!() };
        let Waited::Turn(_other) = wait(&cache, "b", "2026-11-24T10:00:00Z").await else { panic!() };
        let waiting = wait(&cache, "a", "2026-11-24T10:00:00Z");
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(POLL * 3, &mut waiting).await.is_err());
        let printer = Printer::new(Level::Warning);
        let tried = Turn::wait(&cache, &key("a"), Timestamp::now(), false, printer).await.unwrap();
        assert!(matches!(tried, Waited::Busy));
        drop(turn);
        assert!(matches!(waiting.await, Waited::Turn(_)));
    }

    #[tokio::test]
    async fn a_failure_is_shared_with_those_who_waited_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = SessionCache::new(dir.path().join("s.yaml"));
        let Waited::Turn(turn) = wait(&cache, "a", "2026-11-24T10:00:00Z").await else { panic!() };
        turn.share_failure(&"é".repeat(MAX_FAILURE), "2026-11-24T10:00:05Z".parse().unwrap());
        let Waited::Failed(text) = wait(&cache, "a", "2026-11-24T10:00:04Z").await else { panic!() };
        assert!(text.starts_with("éé") && text.len() < MAX_FAILURE);
        assert!(matches!(wait(&cache, "a", "2026-11-24T10:00:06Z").await, Waited::Turn(_)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "one lock file for a session");
    }
}
