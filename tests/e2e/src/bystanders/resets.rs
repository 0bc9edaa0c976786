//! Streams that are opened and reset at a steady pace, each after it was accepted.

use std::time::Duration;

use anyhow::Context as _;
use h2::Reason;
use http::Request;

use super::{Client, PATIENCE, Target};
use crate::walkthrough::EXTERNAL_NAME;

/// How the streams go.
#[derive(Clone, Debug)]
pub struct Resets {
    /// What each asks for.
    pub path: String,
    /// Streams that are open at the same time.
    pub batch: usize,
    /// Streams in all.
    pub count: usize,
    /// From the last stream of a batch to its resets: long enough for the proxy to have sent them on.
    pub pause: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Streams that were reset.
    pub reset: usize,
    /// Times that the proxy ended the attacker's connection.
    pub sent_away: usize,
}

/// Does it, over one connection after the other when the proxy ends them.
///
/// # Errors
/// When the proxy takes no connection.
pub async fn resets(target: &Target, resets: &Resets) -> anyhow::Result<Done> {
    let mut done = Done::default();
    while done.reset < resets.count {
        let mut client = Client::open(target, Some(&target.attacker)).await?;
        while done.reset < resets.count {
            let batch = tokio::time::timeout(PATIENCE, batch(&mut client, resets));
            match batch.await.context("no stream can be opened")? {
                Ok(count) => done.reset += count,
                Err(_ended) => {
                    done.sent_away += 1;
                    break;
                }
            }
        }
    }
    Ok(done)
}

async fn batch(client: &mut Client, resets: &Resets) -> anyhow::Result<usize> {
    let mut streams = Vec::with_capacity(resets.batch);
    for _ in 0..resets.batch {
        let request = Request::get(format!("https://{EXTERNAL_NAME}{}", resets.path)).body(())?;
        // Kept, or it would be reset at once.
        streams.push(client.begin(request, true).await?);
    }
    tokio::time::sleep(resets.pause).await;
    for (_, stream) in &mut streams {
        stream.send_reset(Reason::CANCEL);
    }
    Ok(streams.len())
}
