//! Delays the release of a request's resources after the client cancelled the request.
//!
//! A stream that is reset is finished for the client at once, but not for the server: its handler
//! runs until it notices. A server written in Go closes a connection with more than a hundred
//! running handlers and four hundred waiting ones, whatever else the connection carries. No frame
//! reports the end of a handler. Therefore a limit on the number of requests counts a cancelled
//! request for another `AFTER_RESET`: a client that opens streams and resets them cannot cause
//! many more concurrent handlers than a client that waits for its responses.

use std::time::Duration;

/// Time for which a cancelled request still counts.
pub(crate) const AFTER_RESET: Duration = Duration::from_secs(2);

/// A value that [`Lingering::finish`] drops at once. Without `finish`, it is dropped
/// `AFTER_RESET` after this guard.
#[derive(Debug)]
pub struct Lingering<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Lingering<T> {
    /// Wraps a value that a request occupies.
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// Drops the value, because the request is finished on the server too.
    pub fn finish(self) {
        drop(self.into_inner());
    }

    /// Returns the value.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Returns the value, whose lifetime the caller manages from now on.
    pub fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send + 'static> Drop for Lingering<T> {
    fn drop(&mut self) {
        // Without a runtime all tasks have ended.
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
    async fn the_value_of_a_cancelled_request_lingers_and_that_of_a_finished_one_does_not() {
        let counted = Arc::new(());
        Lingering::new(Arc::clone(&counted)).finish();
        assert_eq!(Arc::strong_count(&counted), 1);
        drop(Lingering::new(Arc::clone(&counted)));
        // Lets the task begin.
        tokio::task::yield_now().await;
        tokio::time::advance(AFTER_RESET - Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&counted), 2);
        tokio::time::advance(Duration::from_millis(2)).await;
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
