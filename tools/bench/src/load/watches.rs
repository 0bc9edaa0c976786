//! A large number of open watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::target::{Sender, Target};

/// How many watches, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WatchesOptions {
    /// Watches.
    #[arg(long)]
    count: usize,
    /// Watches that share a connection.
    #[arg(long)]
    per_connection: usize,
    /// Connections that are made at the same time.
    #[arg(long, default_value_t = 8)]
    openers: usize,
}

/// The result of the load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Number of watches with a response and their first event.
    pub(crate) opened: usize,
    /// Number of these watches that were still open at the end.
    pub(crate) held: usize,
}

/// Time limit of the first event.
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens watches, calls `opened` when each has received its first event or failed, and keeps them
/// open until `release` completes.
pub(crate) async fn watches(
    target: &Target,
    load: &WatchesOptions,
    opened: impl FnOnce(Opened) -> anyhow::Result<()>,
    release: impl Future<Output = ()>,
) -> anyhow::Result<Opened> {
    let tls = target.tls()?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut openers = JoinSet::new();
    for _ in 0..load.openers {
        let (target, tls, next, load) = (target.clone(), Arc::clone(&tls), Arc::clone(&next), load.clone());
        openers.spawn(async move {
            let mut crowd = Crowd::default();
            loop {
                let first = next.fetch_add(load.per_connection, Ordering::Relaxed);
                if first >= load.count {
                    return crowd;
                }
                let here = load.per_connection.min(load.count - first);
                if let Err(error) = crowd.connection(&target, &tls, here).await {
                    crowd.errors.push(format!("{error:#}"));
                }
            }
        });
    }
    let mut crowds = Vec::with_capacity(load.openers);
    while let Some(crowd) = openers.join_next().await {
        crowds.push(crowd?);
    }
    let errors: Vec<&String> = crowds.iter().flat_map(|crowd| &crowd.errors).collect();
    if let Some(first) = errors.first() {
        eprintln!("{} connections' watches could not be opened, one of them: {first}", errors.len());
    }
    let mut all = Opened { opened: crowds.iter().map(|crowd| crowd.bodies.len()).sum(), held: 0 };
    opened(all)?;
    release.await;
    all.held = crowds.iter_mut().map(Crowd::still_open).sum();
    Ok(all)
}

/// Watches, and their connections.
#[derive(Default)]
struct Crowd {
    drivers: JoinSet<()>,
    senders: Vec<Sender>,
    bodies: Vec<Incoming>,
    errors: Vec<String>,
}

impl Crowd {
    async fn connection(
        &mut self,
        target: &Target,
        tls: &Arc<rustls::ClientConfig>,
        count: usize,
    ) -> anyhow::Result<()> {
        let mut sender = target.sender(tls, &mut self.drivers).await?;
        for _ in 0..count {
            let open = async {
                let response = sender.send(target.request(0)?).await?;
                ensure!(response.status() == 200, "status {}", response.status());
                let mut body = response.into_body();
                body.frame().await.context("it ended before its first event")??;
                anyhow::Ok(body)
            };
            let body = tokio::time::timeout(PATIENCE, open).await;
            self.bodies.push(body.with_context(|| format!("no response within {PATIENCE:?}"))??);
        }
        self.senders.push(sender);
        Ok(())
    }

    /// Returns the number of open watches. Reads later events, such as bookmarks.
    fn still_open(&mut self) -> usize {
        let open = |body: &mut Incoming| loop {
            match body.frame().now_or_never() {
                None => return true,
                Some(Some(Ok(_event))) => {}
                Some(None | Some(Err(_))) => return false,
            }
        };
        self.bodies.iter_mut().map(open).filter(|open| *open).count()
    }
}
