//! The administrator's changes of the objects.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use pinniped_test_support::rng::Rng;
use serde_json::json;

use super::things;

/// Pause between two changes.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changed {
    created: usize,
    updated: usize,
    deleted: usize,
}

/// Creates the objects, then changes one after the other until `end`.
pub(super) async fn run(api: &Api<DynamicObject>, objects: usize, end: Instant) -> anyhow::Result<Changed> {
    let mut changed = Changed::default();
    for index in 0..objects {
        create(api, &name(index)).await?;
        changed.created += 1;
    }
    // The changes are equal in each run.
    let mut rng = Rng::new(0);
    let mut turn = 0;
    while Instant::now() < end {
        let random = rng.number();
        let name = name((random % objects as u64) as usize);
        // A child of a deleted object must not pass for that of its successor. The finalizer may
        // take as long as the proxy is away, so an object is recreated in a later turn.
        if (random >> 32).is_multiple_of(10) {
            changed.deleted += usize::from(delete(api, &name).await?);
        } else if update(api, &name, turn).await? {
            changed.updated += 1;
        } else {
            changed.created += usize::from(create(api, &name).await?);
        }
        turn += 1;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(changed)
}

fn name(index: usize) -> String {
    format!("thing-{index:03}")
}

/// Returns whether the object was created; a predecessor of that name may still be terminating.
async fn create(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<bool> {
    let thing = DynamicObject::new(name, &things()).data(json!({"spec": {"value": 0}}));
    match api.create(&PostParams::default(), &thing).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error).context("could not create an object"),
    }
}

/// Returns whether the object existed.
async fn update(api: &Api<DynamicObject>, name: &str, value: u64) -> anyhow::Result<bool> {
    let patch = Patch::Merge(json!({"spec": {"value": value}}));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).context("could not update an object"),
    }
}

/// Returns whether the object existed.
async fn delete(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<bool> {
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).context("could not delete an object"),
    }
}
