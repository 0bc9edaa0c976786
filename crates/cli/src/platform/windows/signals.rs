//! Ctrl-C in the console.

use std::io;

use tokio::process::Child;

/// The events of the console that request termination, for another process.
pub(crate) struct ForwardedSignals;

impl ForwardedSignals {
    /// Does nothing.
    #[expect(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
    pub(crate) fn watch() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for Ctrl-C. The console sends its events to the child as well; this process must only
    /// not exit before the child.
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Does nothing.
    pub(crate) fn pass_on((): (), _: &Child) {}
}

/// Ctrl-C.
pub(crate) struct StopSignals;

impl StopSignals {
    /// Does nothing.
    #[expect(clippy::unnecessary_wraps, reason = "it can fail on Unix")]
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for Ctrl-C.
    pub(crate) async fn requested(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
