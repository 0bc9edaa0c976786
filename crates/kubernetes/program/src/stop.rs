//! How the Concierge ends: signals, and how much time what has.
//!
//! ```text
//! signal    readiness red; controllers and token client end, the Lease is given back
//!   delay   both servers go on as if nothing were: for a moment Services still lead here
//!   grace   ports closed, clients told to go (GOAWAY, `Connection: close`), requests finish
//! end       what is still open is reset
//! ```
//!
//! Kubernetes takes a pod out of its Services at the same time as it signals it, so clients come until that is known
//! on every node. A port that closes at once would refuse them. A second signal ends the process on the spot.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What of the pod's time is left for everything but delay and grace: the last pass of a controller, and the Lease.
const RESERVE: Duration = Duration::from_secs(5);

/// What clients get once the process was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long the servers go on, while clients find another pod.
    pub delay: Duration,
    /// How long requests and streams that are open then may take.
    pub grace: Duration,
}

impl Shutdown {
    /// The same, cut to what fits into the time after which the kubelet ends the pod.
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
    /// Takes both from now on.
    pub fn install() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("could not listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("could not listen for SIGINT")?,
        })
    }

    /// The next of either.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The future's output, or `None` when a signal came first.
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
    fn delay_and_grace_stay_below_the_pods_own_grace() {
        let configured = Shutdown { delay: Duration::from_secs(3), grace: Duration::from_secs(10) };
        for (pod, delay, grace) in [(30, 3, 10), (18, 3, 10), (15, 3, 7), (8, 3, 0), (6, 1, 0), (0, 0, 0)] {
            let wanted = Shutdown { delay: Duration::from_secs(delay), grace: Duration::from_secs(grace) };
            assert_eq!(configured.within(Duration::from_secs(pod)), wanted, "pod's grace {pod} s");
        }
    }
}
