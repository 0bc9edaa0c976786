//! Leader election on a real Lease. The unit tests of the election cover its timing.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use pinniped_controller::lease::{
    LEASE_DURATION, LeaderElection, Leadership, LeaseParams, RENEW_DEADLINE, Timing,
};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::install::PATIENCE;

struct Candidate {
    leadership: Leadership,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

/// Frequent attempts with the default durations, so that a busy machine loses no leadership.
const PATIENT: Timing =
    Timing { lease: LEASE_DURATION, renew_deadline: RENEW_DEADLINE, retry: Duration::from_millis(200) };
/// The timing of a candidate that takes over an abandoned Lease soon.
const HASTY: Timing = Timing { lease: Duration::from_secs(3), ..PATIENT };

fn candidate(client: &kube::Client, lease: &str, identity: &str, timing: Timing) -> Candidate {
    let election = LeaderElection::new(
        client.clone(),
        LeaseParams {
            namespace: "default".into(),
            name: lease.into(),
            identity: identity.into(),
            owner: None,
            labels: Default::default(),
            timing,
        },
    );
    let (leadership, cancel) = (election.leadership(), CancellationToken::new());
    Candidate { leadership, task: tokio::spawn(election.run(cancel.clone())), cancel }
}

async fn leads(candidate: &Candidate) -> anyhow::Result<()> {
    let mut changes = candidate.leadership.subscribe();
    tokio::time::timeout(PATIENCE, changes.wait_for(|leader| *leader)).await.context("never leader")??;
    Ok(())
}

async fn spec(leases: &Api<Lease>, name: &str) -> anyhow::Result<LeaseSpec> {
    leases.get(name).await?.spec.context("no spec")
}

#[tokio::test]
async fn a_released_lease_is_acquired_immediately_and_an_abandoned_one_after_its_duration()
-> anyhow::Result<()> {
    pinniped_pki::install_crypto_provider();
    let client = World::shared()?.client().await?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
    let name = "takeover";

    let first = candidate(&client, name, "first", PATIENT);
    leads(&first).await?;
    let held = spec(&leases, name).await?;
    assert_eq!((held.holder_identity.as_deref(), held.lease_transitions), (Some("first"), Some(0)));

    let second = candidate(&client, name, "second", PATIENT);
    // The leader renews while the other pod only observes.
    wait::until_ok(PATIENCE, "a renewal", async || {
        anyhow::ensure!(spec(&leases, name).await?.renew_time != held.renew_time, "not renewed");
        Ok(())
    })
    .await?;
    assert!(first.leadership.is_leader() && !second.leadership.is_leader());

    first.cancel.cancel();
    first.task.await?;
    assert!(!first.leadership.is_leader());
    leads(&second).await?;
    let taken = spec(&leases, name).await?;
    assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("second"), Some(1)));

    // A pod that dies does not release its Lease.
    second.task.abort();
    assert!(second.task.await.is_err_and(|error| error.is_cancelled()));
    let abandoned = spec(&leases, name).await?;
    assert_eq!(abandoned.holder_identity.as_deref(), Some("second"));
    let third = candidate(&client, name, "third", HASTY);
    leads(&third).await?;
    let taken = spec(&leases, name).await?;
    assert_eq!((taken.holder_identity.as_deref(), taken.lease_transitions), (Some("third"), Some(2)));

    third.cancel.cancel();
    third.task.await?;
    let free = spec(&leases, name).await?;
    assert_eq!((free.holder_identity.as_deref(), free.lease_duration_seconds), (Some(""), Some(1)));
    assert_eq!(free.lease_transitions, Some(2));
    Ok(())
}
