//! Hosts that objects of several namespaces request.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::objects::{INGRESS, Namespace, PROXY, ROUTE, issue, reason};
use super::replica::{PATIENCE, Replica, params};
use super::{gateway, plane};

const EVENT: (&str, &str) = ("v1", "Event");

/// Creates an object and waits until the clock of the API server has advanced: creation times have
/// a resolution of one second.
async fn made(namespace: &Namespace, kind: (&str, &str), name: &str) -> anyhow::Result<()> {
    let created = namespace.api(kind).get(name).await?.metadata.creation_timestamp;
    wait::until(PATIENCE, "another second".to_owned(), async || {
        let now = jiff::Timestamp::now().as_second();
        (created.as_ref().is_none_or(|created| created.0.as_second() < now)).then_some(())
    })
    .await
}

/// Returns the messages of the Events about an Ingress.
async fn events(namespace: &Namespace, ingress: &str) -> anyhow::Result<Vec<String>> {
    let uid = namespace.api(INGRESS).get(ingress).await?.metadata.uid;
    let all = namespace.api(EVENT).list(&Default::default()).await?;
    let about = all.items.into_iter().filter(|event| event.data["involvedObject"]["uid"] == json!(uid));
    Ok(about.map(|event| event.data["message"].as_str().unwrap_or_default().to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_served_for_its_oldest_namespace_and_refused_for_others() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let own = Namespace::new(&client, "owner-own").await?;
    let other = Namespace::new(&client, "owner-other").await?;
    let (mine, theirs) = (issue("h.owner.example")?, issue("h.owner.example")?);
    own.secret("w", &mine).await?;
    other.secret("w", &theirs).await?;
    other.service("web").await?;
    own.host("p", "h.owner.example", Some("w")).await?;
    made(&own, PROXY, "p").await?;
    other.host("p", "h.owner.example", Some("w")).await?;
    other.ingress("i", "h.owner.example").await?;
    let route = json!({
        "virtualhost": {"fqdn": "h.owner.example", "tls": {"secretName": "w"}},
        "routes": [{"match": "/", "services": [{"name": "web", "port": 80}]}],
    });
    other.put(ROUTE, "r", json!({"spec": route})).await?;

    let replica = Replica::start(params(gateway(plane, "owner").await?, &[&own.name, &other.name]));
    let serves = |pem: &str, table: &super::replica::Table| {
        table.certificate("h.owner.example").as_deref() == Some(pem)
    };
    replica.await_table("the owner's host", |table| serves(&mine.certificate_pem, table)).await?;
    own.await_word("p", "valid").await?;
    assert_eq!(reason(&other.await_word("p", "invalid").await?), "HostNotOwned");
    let why = "host \"h.owner.example\" belongs to namespace \"owner-own\": HTTPProxy owner-own/p is older";
    let is_told = |status: &Value| status["description"] == why;
    other.await_status(ROUTE, "r", "refused", is_told).await?;
    wait::until_ok(PATIENCE, "the Event".to_owned(), async || {
        let events = events(&other, "i").await?;
        anyhow::ensure!(events == [why], "{events:?}");
        Ok(())
    })
    .await?;

    // The owner releases the host, and the next oldest object owns it.
    own.delete(PROXY, "p").await?;
    replica.await_table("the other's host", |table| serves(&theirs.certificate_pem, table)).await?;
    other.await_word("p", "valid").await?;
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingress_in_a_namespace_without_roots_is_refused_with_an_event() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let roots = Namespace::new(&client, "roots-only").await?;
    let other = Namespace::new(&client, "roots-other").await?;
    for namespace in [&roots, &other] {
        namespace.service("web").await?;
        namespace.ingress("i", &format!("{}.example", namespace.name)).await?;
    }
    let mut params = params(gateway(plane, "roots").await?, &[&roots.name, &other.name]);
    params.settings.root_namespaces = vec![roots.name.clone()];
    let replica = Replica::start(params);
    replica.await_table("the permitted Ingress", |table| table.plain("roots-only.example")).await?;
    assert!(!replica.table()?.plain("roots-other.example"));
    wait::until_ok(PATIENCE, "the Event".to_owned(), async || {
        let events = events(&other, "i").await?;
        anyhow::ensure!(events.iter().any(|why| why.contains("--root-namespaces")), "{events:?}");
        Ok(())
    })
    .await?;
    assert!(events(&roots, "i").await?.is_empty());
    replica.end().await
}
