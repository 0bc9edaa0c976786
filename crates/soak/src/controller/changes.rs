//! What an administrator does to the objects meanwhile.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use super::things;

/// Between two changes.
const PAUSE: Duration = Duration::from_millis(50);

/// How many there were.
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
    let mut turn = 0usize;
    while Instant::now() < end {
        // Goes through all of them in an order that looks random: 7919 is prime.
        let name = name((turn * 7919) % objects);
        if turn % 10 == 9 {
            // A child of the first one of that name must not pass for the second one's. The finalizer may take as long
            // as the proxy is away, so the object comes back in a later turn.
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

/// Whether it was made: one of that name may still be on its way out.
async fn create(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<bool> {
    let thing = DynamicObject::new(name, &things()).data(json!({"spec": {"value": 0}}));
    match api.create(&PostParams::default(), &thing).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error).context("could not create an object"),
    }
}

/// Whether it was there.
async fn update(api: &Api<DynamicObject>, name: &str, value: usize) -> anyhow::Result<bool> {
    let patch = Patch::Merge(json!({"spec": {"value": value}}));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).context("could not update an object"),
    }
}

/// Whether it was there.
async fn delete(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<bool> {
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error).context("could not delete an object"),
    }
}
