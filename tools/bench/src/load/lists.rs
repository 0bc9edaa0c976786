//! A short request at regular intervals during another load.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::ensure;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;

use super::result::{Done, LoadResult};
use super::target::Target;

/// Pause between two requests.
const EVERY: Duration = Duration::from_millis(100);
/// Time limit of a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends requests, each over a new connection, until `release` completes. `begun` is called after
/// the first response.
pub(crate) async fn lists(
    target: &Target,
    begun: impl FnOnce(),
    release: impl Future<Output = ()>,
) -> anyhow::Result<LoadResult> {
    let tls = target.tls()?;
    let mut release = pin!(release);
    let mut begun = Some(begun);
    let (mut done, mut failed) = (Vec::new(), 0);
    let started = Instant::now();
    loop {
        let start = Instant::now();
        let one = async {
            let mut driver = JoinSet::new();
            let mut sender = target.sender(&tls, &mut driver).await?;
            let response = sender.send(target.request(0)?).await?;
            ensure!(response.status() == 200, "status {}", response.status());
            response.into_body().collect().await?;
            anyhow::Ok(())
        };
        match tokio::time::timeout(PATIENCE, one).await {
            Ok(Ok(())) => done.push(Done { latency: start.elapsed(), at: started.elapsed() }),
            Ok(Err(error)) => {
                failed += 1;
                eprintln!("a list failed: {error:#}");
            }
            Err(_elapsed) => {
                failed += 1;
                eprintln!("a list had no response within {PATIENCE:?}");
            }
        }
        if let Some(begun) = begun.take() {
            begun();
        }
        tokio::select! {
            () = &mut release => break,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    Ok(LoadResult { failed, ..LoadResult::new(done) })
}
