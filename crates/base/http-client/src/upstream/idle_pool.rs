//! A pool of idle HTTP/1.1 connections.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::keep_alive::Connection;

/// Maximum number of idle connections; more are closed.
const MAX_IDLE: usize = 256;

/// The idle connections of one pool.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// Ordered by time of last use, the latest at the end.
    all: Vec<(Box<Connection>, Instant)>,
    /// Whether a task closes expired connections.
    swept: bool,
}

impl IdlePool {
    /// Returns a connection that was used less than `idle_timeout` ago and that the server has not
    /// closed since.
    pub(super) fn take(&self, idle_timeout: Duration) -> Option<Box<Connection>> {
        let mut connections = self.lock();
        loop {
            // All other connections have been idle for longer.
            let (mut connection, since) = connections.all.pop()?;
            if since.elapsed() >= idle_timeout {
                connections.all.clear();
                return None;
            }
            if connection.is_idle() {
                return Some(connection);
            }
        }
    }

    /// Stores a connection. Returns whether the caller must start a task that closes expired
    /// connections.
    pub(super) fn put(&self, connection: Box<Connection>) -> bool {
        let mut connections = self.lock();
        if connections.all.len() >= MAX_IDLE {
            return false;
        }
        connections.all.push((connection, Instant::now()));
        !std::mem::replace(&mut connections.swept, true)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        // The state is consistent between any two statements, so a panic elsewhere does not
        // invalidate it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Maximum time for which a connection that its server has closed may stay here.
const MAX_SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Closes connections that were idle for too long or that the server has closed, until the pool is
/// empty.
pub(super) async fn sweep_until_empty(pool: Weak<IdlePool>, idle_timeout: Duration) {
    let _over = SweepStopped(Weak::clone(&pool));
    loop {
        tokio::time::sleep((idle_timeout / 2).min(MAX_SWEEP_INTERVAL)).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut connections = pool.lock();
        connections
            .all
            .retain_mut(|(connection, since)| since.elapsed() < idle_timeout && connection.is_idle());
        if connections.all.is_empty() {
            connections.swept = false;
            return;
        }
    }
}

/// Records that no task closes expired connections any more when the task is dropped, together with
/// its runtime.
struct SweepStopped(Weak<IdlePool>);

impl Drop for SweepStopped {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.lock().swept = false;
        }
    }
}
