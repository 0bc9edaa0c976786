//! A test with ten thousand hosts.

use std::time::Instant;

use futures::TryStreamExt as _;
use pinniped_gateway_controller::Election;

use super::objects::{Namespace, issue};
use super::replica::{Replica, lease, params};
use super::{gateway, plane};

const HOSTS: usize = 10_000;

/// The number of objects that are created concurrently.
const MAX_CONCURRENT_WRITES: usize = 16;

/// The design goal is one second. This test measures and prints the time on any machine with an
/// unoptimized build; it only asserts that no change is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_among_ten_thousand_hosts_is_published() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "scale").await?;
    app.secret("w", &issue("*.scale.example")?).await?;
    let name = |n: usize| (format!("p{n:05}"), format!("h{n:05}.scale.example"));
    let began = Instant::now();
    futures::stream::iter((0..HOSTS).map(Ok))
        .try_for_each_concurrent(MAX_CONCURRENT_WRITES, |n| {
            let (app, (name, host)) = (&app, name(n));
            async move { app.host(&name, &host, Some("w")).await }
        })
        .await?;
    println!("{HOSTS} proxies made in {:?}", began.elapsed());

    // This replica never becomes the leader, because the test measures only the time to the table.
    let mut setup = params(gateway(plane, "scale").await?, &[&app.name]);
    let Election::Lease(mut nowhere) = lease("scale", "scale") else { anyhow::bail!("a lease") };
    "default".clone_into(&mut nowhere.namespace);
    setup.election = Election::Lease(nowhere);
    let replica = Replica::start(setup);
    let last = name(HOSTS - 1).1;
    let took = replica.await_table("all of them", |table| table.certificate(&last).is_some()).await?;
    println!("the first table after {took:?}");
    for n in 0..HOSTS {
        let host = name(n).1;
        assert!(replica.table()?.certificate(&host).is_some(), "{host}");
    }
    for (round, secret) in [None, Some("w"), None].into_iter().enumerate() {
        let (name, host) = name(HOSTS / 2);
        app.host(&name, &host, secret).await?;
        let is_so = |table: &super::replica::Table| table.certificate(&host).is_some() == secret.is_some();
        let took = replica.await_table("one change", is_so).await?;
        println!("change {round} among {HOSTS}: live after {took:?}");
    }
    let (before, renewed) = (Instant::now(), issue("*.scale.example")?);
    app.secret("w", &renewed).await?;
    let last_has =
        |table: &super::replica::Table| table.certificate(&last).as_ref() == Some(&renewed.certificate_pem);
    replica.await_table("the renewed certificate", last_has).await?;
    println!("a Secret of all hosts renewed: live after {:?}", before.elapsed());
    replica.end().await
}
