//! What a request occupies, kept for a moment after a client gave the request up.
//!
//! A stream that is reset is over for us at once, but not for the server: its handler goes on until it notices, and a Go
//! server ends a connection with more than a hundred handlers that run and four hundred that wait for their turn, whatever
//! else the connection carries. No frame says when a handler has ended. So what bounds the number of requests counts a
//! request that was given up for [`AFTER_RESET`] longer; a client which opens streams and resets them can have only so many
//! handlers at work as if it had waited for them.

use std::time::Duration;

/// How long a request that was given up still counts.
pub(crate) const AFTER_RESET: Duration = Duration::from_secs(2);

/// A value that is dropped at once by [`Lingering::finish`], and otherwise [`AFTER_RESET`] after this is dropped.
#[derive(Debug)]
pub struct Lingering<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Lingering<T> {
    /// Wraps a value that a request occupies.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// The request is over on the server, too.
    pub fn finish(self) {
        drop(self.into_inner());
    }

    /// The value, which something else looks after from now on.
    pub fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send + 'static> Drop for Lingering<T> {
    fn drop(&mut self) {
        // Without a runtime everything ends.
        if let Some(value) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::time::sleep(AFTER_RESET).await;
                drop(value);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_stays_for_a_moment_and_what_is_finished_does_not() {
        let counted = Arc::new(());
        Lingering::new(Arc::clone(&counted)).finish();
        assert_eq!(Arc::strong_count(&counted), 1);
        drop(Lingering::new(Arc::clone(&counted)));
        // The task begins.
        tokio::task::yield_now().await;
        tokio::time::advance(AFTER_RESET - Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&counted), 2);
        tokio::time::advance(Duration::from_millis(2)).await;
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
