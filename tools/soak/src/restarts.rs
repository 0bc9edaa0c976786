//! Restarts of the proxy: alternately a rolling update of all pods, and a crash of all pods at
//! once.

use std::time::Duration;

use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::wait;
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::install::{DEPLOYMENT, Installed, TIME_LIMIT};

/// The number of restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Rolling updates.
    pub(crate) rollouts: usize,
    /// Crashes of all pods.
    pub(crate) crashes: usize,
}

/// Restarts the proxy at this interval until cancelled; afterwards it is running.
pub(crate) async fn run(
    installed: &Installed,
    every: Duration,
    end: &CancellationToken,
) -> anyhow::Result<Count> {
    let mut count = Count::default();
    while end.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        if count.rollouts <= count.crashes {
            roll(installed).await?;
            count.rollouts += 1;
        } else {
            installed.pods()?.signal(CONCIERGE, Signal::KILL);
            count.crashes += 1;
        }
        eprintln!("restarted: {count:?}");
    }
    wait::until(2 * TIME_LIMIT, "the proxy to run again", async || {
        let running = installed.running().ok()?;
        (running.len() == 2 && running.iter().all(|(_, pod)| pod.ready)).then_some(())
    })
    .await?;
    Ok(count)
}

async fn roll(installed: &Installed) -> anyhow::Result<()> {
    let kubectl = installed.world.kubectl();
    kubectl.output(&["rollout", "restart", DEPLOYMENT, "-n", CONCIERGE]).await?;
    kubectl.output(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, "--timeout=180s"]).await?;
    Ok(())
}
