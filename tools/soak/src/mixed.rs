//! Sends all kinds of requests concurrently to one pod, and measures its process.

mod client;
mod load;
mod streams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use pinniped_test_support::wait;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::install::{self, Installed, TIME_LIMIT};
use crate::usage::{Series, Usage, usage};

const NAMESPACE: &str = "soak";
/// Number of active users.
const USERS: usize = 20;
/// Number of existing objects.
const OBJECTS: usize = 300;
/// Tolerance for descriptors that do not belong to requests: a watch of the pod's own that is
/// renewed, a probe.
const SPARE: u64 = 12;

/// Flags of `mixed`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
}

/// Runs the load, prints the series, and fails when one of them grows.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    install::run(runtime, async |installed| soak(installed, options).await)
}

async fn soak(installed: &Installed, options: &Options) -> anyhow::Result<()> {
    prepare(installed).await?;
    let users: Vec<String> = (0..USERS).map(|index| format!("soak-{index}")).collect();
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "patch", "delete"]}]);
    installed.allow(&users, &rules).await?;
    let pairs = users.iter().map(|user| installed.certificate(user)).collect::<anyhow::Result<Vec<_>>>()?;
    let (pid, ip) = installed.one()?;
    let address = SocketAddr::from((ip, 8444));
    let rest = at_rest(pid).await?;
    eprintln!("at rest {rest:?}; {} minutes of mixed load on {address}", options.minutes);

    let time = Duration::from_secs(60 * options.minutes);
    let load = load::Load::start(&Arc::new(load::Target { address, pairs }));
    let samples = sample(pid, time).await;
    let done = load.end().await;
    let samples = samples?;
    let given_up = watchers_given_up(installed).await?;
    println!("{done}; watchers that the API server gave up {given_up}");
    let series = Series::of_process(&samples);
    for one in &series {
        println!("{}", one.print());
    }

    // All resources of the load must be released.
    let mut left = rest;
    let calm = wait::until(2 * TIME_LIMIT, "descriptors to be closed", async || {
        left = usage(pid).ok()?;
        (left.descriptors <= rest.descriptors + SPARE).then_some(())
    })
    .await;
    println!("at rest before: {rest:?}, afterwards: {left:?}");
    calm?;
    ensure!(done.problems.is_empty(), "not all responses were as expected: {:#?}", done.problems);
    ensure!(done.ended <= given_up, "streams were terminated that the API server had not closed");
    let growing: Vec<&str> = series.iter().filter(|one| one.grows()).map(|one| one.name).collect();
    ensure!(growing.is_empty(), "growing: {}", growing.join(", "));
    Ok(())
}

async fn prepare(installed: &Installed) -> anyhow::Result<()> {
    installed.namespace(NAMESPACE).await?;
    let maps = Api::<ConfigMap>::namespaced(installed.world.client().await?, NAMESPACE);
    let made = futures::stream::iter(0..OBJECTS).map(|index| {
        let map = json!({"metadata": {"name": load::name(index)}, "data": {"value": "x".repeat(2000)}});
        let maps = maps.clone();
        async move {
            maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
            anyhow::Ok(())
        }
    });
    let made: Vec<anyhow::Result<()>> = made.buffer_unordered(16).collect().await;
    made.into_iter().collect()
}

/// Returns how many watchers the API server closed because they were too slow, which happens where
/// the load leaves it no processor time.
async fn watchers_given_up(installed: &Installed) -> anyhow::Result<usize> {
    let metrics = installed.world.kubectl().output(&["get", "--raw", "/metrics"]).await?;
    let counters = metrics.lines().filter(|line| line.starts_with("apiserver_terminated_watchers_total"));
    let numbers = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(numbers.sum::<f64>() as usize)
}

/// Returns the usage at rest, with the lowest number of descriptors within ten seconds.
async fn at_rest(pid: u32) -> anyhow::Result<Usage> {
    let mut lowest = usage(pid)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = usage(pid)?;
        lowest = Usage { descriptors: lowest.descriptors.min(now.descriptors), ..now };
    }
    Ok(lowest)
}

async fn sample(pid: u32, time: Duration) -> anyhow::Result<Vec<Usage>> {
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut samples = Vec::new();
    while began.elapsed() < time {
        ticks.tick().await;
        samples.push(usage(pid).context("the proxy terminated under the load")?);
    }
    Ok(samples)
}
