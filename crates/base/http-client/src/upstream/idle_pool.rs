//! HTTP/1.1 connections between two requests.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::keep_alive::Connection;

/// Connections that wait at most; a crowd's others are closed after it.
const MOST: usize = 256;

/// Those of one pool.
#[derive(Debug, Default)]
pub(super) struct IdlePool(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// The last used one at the end.
    all: Vec<(Box<Connection>, Instant)>,
    /// A task looks after them.
    swept: bool,
}

impl IdlePool {
    /// One that was used less than `idle_timeout` ago, and which the server has not closed since.
    pub(super) fn take(&self, idle_timeout: Duration) -> Option<Box<Connection>> {
        let mut connections = self.lock();
        loop {
            // The others have waited for even longer.
            let (mut connection, since) = connections.all.pop()?;
            if since.elapsed() >= idle_timeout {
                connections.all.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection. Whether somebody should look after them from now on.
    pub(super) fn put(&self, connection: Box<Connection>) -> bool {
        let mut connections = self.lock();
        if connections.all.len() >= MOST {
            return false;
        }
        connections.all.push((connection, Instant::now()));
        !std::mem::replace(&mut connections.swept, true)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        // What it guards is whole between any two statements, so a panic elsewhere does not spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a connection may stay here that its server has closed.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// Closes connections that waited for too long, or that the server has closed, until there are none.
pub(super) async fn keep_swept(waiting: Weak<IdlePool>, idle_timeout: Duration) {
    let _over = NotSwept(Weak::clone(&waiting));
    loop {
        tokio::time::sleep((idle_timeout / 2).min(LONGEST_LOOK)).await;
        let Some(waiting) = waiting.upgrade() else { return };
        let mut connections = waiting.lock();
        connections
            .all
            .retain_mut(|(connection, since)| since.elapsed() < idle_timeout && connection.is_quiet());
        if connections.all.is_empty() {
            connections.swept = false;
            return;
        }
    }
}

/// Says that nobody sweeps any more when the task is dropped, with the runtime that it runs on.
struct NotSwept(Weak<IdlePool>);

impl Drop for NotSwept {
    fn drop(&mut self) {
        if let Some(waiting) = self.0.upgrade() {
            waiting.lock().swept = false;
        }
    }
}
