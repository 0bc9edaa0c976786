//! The request guard.

use std::sync::Arc;

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    FromClient,
    /// From the server to the client.
    ToClient,
}

/// A value that lives as long as an exchange, and whose drop releases the resources of the request.
pub trait Guard: Send + Sync + Unpin + 'static {
    /// Counts bytes: those of a response body, and those of an upgraded connection in both
    /// directions. The caller counts those of request bodies, because it creates these bodies.
    fn transferred(&self, direction: Direction, bytes: u64) {
        let _ = (direction, bytes);
    }
}

impl Guard for () {}

impl<T: Send + Sync + 'static> Guard for Arc<T> {}

impl<G: Guard> Guard for Option<G> {
    fn transferred(&self, direction: Direction, bytes: u64) {
        if let Some(guard) = self {
            guard.transferred(direction, bytes);
        }
    }
}
