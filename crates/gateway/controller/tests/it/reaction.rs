//! Reactions to changes: the rows of "reaction to change". The unit tests of the rebuilder cover
//! the times.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::objects::{GRANT, Namespace, PROXY, SECRET, direct_response, issue, reason};
use super::replica::{Replica, params};
use super::{gateway, plane};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_enables_a_host_and_its_removal_disables_it_immediately() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let app = Namespace::new(&client, "grant-app").await?;
    let certs = Namespace::new(&client, "grant-certs").await?;
    let pair = issue("h.example")?;
    certs.secret("w", &pair).await?;
    app.host("p", "h.example", Some("grant-certs/w")).await?;
    let replica = Replica::start(params(gateway(plane, "grants").await?, &[&app.name, &certs.name]));
    let up = |table: &super::replica::Table| {
        table.certificate("h.example").as_ref() == Some(&pair.certificate_pem)
    };
    let down =
        |table: &super::replica::Table| table.certificate("h.example").is_none() && !table.plain("h.example");

    replica.ready().await?;
    assert!(down(&replica.table()?));
    assert_eq!(reason(&app.await_word("p", "invalid").await?), "DelegationNotPermitted");

    let rows: [(&str, &[&str]); 4] =
        [("w", &["other"]), ("different", &["grant-app"]), ("w", &[]), ("w", &["*", "grant-app-2"])];
    for (secret, targets) in rows {
        certs.grant("w", &["grant-app"]).await?;
        let took = replica.await_table("the host, granted", up).await?;
        println!("granted: up after {took:?}");
        app.await_word("p", "valid").await?;
        certs.grant(secret, targets).await?;
        let took = replica.await_table("the host gone", down).await?;
        println!("{secret} for {targets:?}: down after {took:?}");
        assert_eq!(reason(&app.await_word("p", "invalid").await?), "DelegationNotPermitted");
    }
    for group in ["contour.heptio.com/v1beta1", "contour.vmware.com/v1"] {
        certs.grant_in((group, GRANT.1), "w", &["*"]).await?;
        replica.await_table("the host, granted by an old group", up).await?;
        certs.delete((group, GRANT.1), "grant").await?;
        let took = replica.await_table("the host gone", down).await?;
        println!("deleted in {group}: down after {took:?}");
    }
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_renewed_corrupted_deleted_and_restored_without_a_restart() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "secret").await?;
    app.host("p", "s.example", Some("w")).await?;
    let replica = Replica::start(params(gateway(plane, "secrets").await?, &[&app.name]));
    replica.ready().await?;
    let missing = app.await_word("p", "invalid").await?;
    assert_eq!(reason(&missing), "SecretNotValid");

    let (first, second) = (issue("s.example")?, issue("s.example")?);
    for pair in [&first, &second] {
        app.secret("w", pair).await?;
        let certificate = Some(pair.certificate_pem.clone());
        replica.await_table("its certificate", |table| table.certificate("s.example") == certificate).await?;
    }
    let broken = Patch::Merge(json!({"data": {"tls.crt": STANDARD.encode("garbage")}}));
    app.api(SECRET).patch("w", &PatchParams::default(), &broken).await?;
    replica.await_table("no certificate", |table| table.certificate("s.example").is_none()).await?;
    app.secret("w", &first).await?;
    replica.await_table("a certificate again", |table| table.certificate("s.example").is_some()).await?;
    app.delete(SECRET, "w").await?;
    let took =
        replica.await_table("no certificate", |table| table.certificate("s.example").is_none()).await?;
    println!("deleted: down after {took:?}");
    assert!(!replica.table()?.plain("s.example"));
    let status = app.await_word("p", "invalid").await?;
    let message = "Spec.VirtualHost.TLS Secret \"w\" is invalid: Secret not found";
    assert_eq!(status["conditions"][0]["errors"][0]["message"], message);
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn irrelevant_changes_cause_no_new_table() -> anyhow::Result<()> {
    // Enough for several maximum delays of half a second.
    const ROUNDS: usize = 100;
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "quiet").await?;
    app.secret("used", &issue("q.example")?).await?;
    app.service("unused").await?;
    app.host("p", "q.example", Some("used")).await?;
    let replica = Replica::start(params(gateway(plane, "quiet").await?, &[&app.name]));
    replica.await_table("the host", |table| table.certificate("q.example").is_some()).await?;
    app.await_word("p", "valid").await?;

    let before = replica.published();
    for round in 1..=ROUNDS {
        // Changes a Secret without references, and an unused key of a Secret with a reference.
        app.put(
            SECRET,
            "unused",
            json!({"type": "Opaque", "data": {"ca.crt": STANDARD.encode(round.to_string())}}),
        )
        .await?;
        app.endpoints("unused", &[(&format!("10.1.0.{}", round % 200 + 1), true)]).await?;
        let label = |kind, name| {
            let api = app.api(kind);
            let patch = Patch::Merge(json!({"metadata": {"labels": {"round": round.to_string()}}}));
            async move { api.patch(name, &PatchParams::default(), &patch).await }
        };
        label(SECRET, "used").await?;
        label(PROXY, "p").await?;
    }
    app.host("last", "last.example", None).await?;
    replica.await_table("the last one", |table| table.plain("last.example")).await?;
    assert_eq!(replica.published(), before + 1, "after {ROUNDS} rounds");
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_changes_cause_few_tables() -> anyhow::Result<()> {
    const HOSTS: usize = 200;
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "burst").await?;
    let replica = Replica::start(params(gateway(plane, "burst").await?, &[&app.name]));
    replica.ready().await?;
    let before = replica.published();
    try_join_all((0..HOSTS).map(|n| {
        let app = &app;
        async move { app.host(&format!("p{n}"), &format!("h{n}.burst.example"), None).await }
    }))
    .await?;
    let all = |table: &super::replica::Table| (0..HOSTS).all(|n| table.plain(&format!("h{n}.burst.example")));
    replica.await_table("all of them", all).await?;
    let tables = replica.published() - before;
    println!("{HOSTS} hosts: {tables} tables");
    // A table for each host would be one for each change.
    assert!(tables <= HOSTS / 2, "{tables} tables");
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_are_added_and_removed() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "endpoints").await?;
    let route = json!({"services": [{"name": "web", "port": 80}]});
    let spec = json!({"virtualhost": {"fqdn": "e.example"}, "routes": [route]});
    app.put(PROXY, "p", json!({"spec": spec})).await?;
    app.ingress("i", "i.example").await?;
    let replica = Replica::start(params(gateway(plane, "endpoints").await?, &[&app.name]));
    replica.ready().await?;
    let status = app.await_word("p", "invalid").await?;
    assert_eq!(reason(&status), "ServiceUnresolvedReference");
    app.service("web").await?;
    app.await_word("p", "valid").await?;
    type Endpoints = &'static [(&'static str, bool)];
    let rows: [(Endpoints, &[&str]); 4] = [
        (&[("10.1.0.1", true)], &["10.1.0.1:8080"]),
        (&[("10.1.0.2", true), ("10.1.0.1", true)], &["10.1.0.1:8080", "10.1.0.2:8080"]),
        (&[("10.1.0.2", true), ("10.1.0.1", false)], &["10.1.0.2:8080"]),
        (&[], &[]),
    ];
    for (endpoints, wanted) in rows {
        app.endpoints("web", endpoints).await?;
        let there = |table: &super::replica::Table| {
            ["e.example", "i.example"].iter().all(|host| table.plain(host) && table.endpoints(host) == wanted)
        };
        replica.await_table(&format!("{wanted:?}"), there).await?;
    }
    // The object moves to another class.
    let spec = json!({
        "virtualhost": {"fqdn": "e.example"}, "routes": [direct_response()], "ingressClassName": "other",
    });
    app.put(PROXY, "p", json!({"spec": spec})).await?;
    replica.await_table("no such host", |table| !table.plain("e.example")).await?;
    replica.end().await
}
