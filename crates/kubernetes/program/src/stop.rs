//! Graceful shutdown: signals and the phases that follow them.
//!
//! ```text
//! signal    readiness fails; controllers and token client stop, the Lease is released
//!   delay   both servers continue as before: Services still route requests to this pod
//!   grace   ports are closed, clients get GOAWAY or `Connection: close`, requests finish
//! end       everything that is still open is reset
//! ```
//!
//! Kubernetes removes a pod from its Services at the same time as it signals the pod, so new
//! connections arrive until every node has processed the change. A port that closes immediately
//! would refuse them. A second signal terminates the process immediately.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The part of the pod's termination grace period that is reserved for the last pass of a
/// controller and the release of the Lease.
const RESERVE: Duration = Duration::from_secs(5);

/// The phases of a shutdown that clients observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long the servers continue after the signal, while clients are routed to other pods.
    pub delay: Duration,
    /// How long open requests and streams may continue after the delay.
    pub grace: Duration,
}

impl Shutdown {
    /// Returns the same phases, shortened to fit into the pod's termination grace period.
    #[must_use]
    pub fn within(self, termination_grace: Duration) -> Self {
        let most = termination_grace.saturating_sub(RESERVE);
        let delay = self.delay.min(most);
        Self { delay, grace: self.grace.min(most - delay) }
    }
}

/// SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs handlers for both signals.
    pub fn install() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("could not listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("could not listen for SIGINT")?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Returns the output of the future, or `None` when a signal arrives first.
    pub async fn or_interrupted<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            output = future => Some(output),
            () = self.next() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_and_grace_fit_into_the_termination_grace_period() {
        let configured = Shutdown { delay: Duration::from_secs(3), grace: Duration::from_secs(10) };
        for (pod, delay, grace) in [(30, 3, 10), (18, 3, 10), (15, 3, 7), (8, 3, 0), (6, 1, 0), (0, 0, 0)] {
            let wanted = Shutdown { delay: Duration::from_secs(delay), grace: Duration::from_secs(grace) };
            assert_eq!(configured.within(Duration::from_secs(pod)), wanted, "pod's grace {pod} s");
        }
    }
}
