//! Kinds that are not installed, are installed later, and are removed.

use pinniped_test_support::wait;
use serde_json::json;

use super::objects::{GRANT, Namespace, ROUTE, issue};
use super::replica::{PATIENCE, Replica, Table, params};
use super::{CRDS, DELEGATION, LEGACY, bare_plane, gateway};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_that_are_not_installed_contribute_nothing_until_they_are() -> anyhow::Result<()> {
    let plane = bare_plane().await?;
    let client = plane.client().await?;
    let app = Namespace::new(&client, "app").await?;
    let certs = Namespace::new(&client, "certs").await?;
    app.service("web").await?;
    app.ingress("i", "i.example").await?;
    let pair = issue("p.example")?;
    certs.secret("w", &pair).await?;

    // Watches the whole cluster, in which Contour is not installed.
    let replica = Replica::start(params(gateway(&plane, "kinds").await?, &[]));
    replica.await_table("the Ingress", |table| table.plain("i.example")).await?;

    plane.kubectl().apply(CRDS).await?;
    app.host("p", "p.example", Some("certs/w")).await?;
    app.host("plain", "plain.example", None).await?;
    let took = replica.await_table("a proxy", |table| table.plain("plain.example")).await?;
    println!("HTTPProxy was noticed after {took:?}");
    app.await_word("p", "invalid").await?;
    plane.kubectl().apply(DELEGATION).await?;
    certs.grant("w", &["app"]).await?;
    let up = |table: &Table| table.certificate("p.example").as_ref() == Some(&pair.certificate_pem);
    replica.await_table("a granted host", up).await?;
    plane.kubectl().apply(LEGACY).await?;
    let spec = json!({
        "virtualhost": {"fqdn": "r.example", "tls": {"secretName": "certs/w"}},
        "routes": [{"match": "/", "services": [{"name": "web", "port": 80}]}],
    });
    app.put(ROUTE, "r", json!({"spec": spec})).await?;
    replica.await_table("an IngressRoute", |table| table.certificate("r.example").is_some()).await?;
    // A grant of an old group remains effective when the grant of the current group is removed
    // together with its CRD. A host without another grant shows that the control plane has read it.
    let old = Namespace::new(&client, "old").await?;
    old.secret("w", &issue("old.example")?).await?;
    let vmware = ("contour.vmware.com/v1", GRANT.1);
    certs.grant_in(vmware, "w", &["*"]).await?;
    old.grant_in(vmware, "w", &["app"]).await?;
    app.host("old", "old.example", Some("old/w")).await?;
    replica.await_table("the old grant", |table| table.certificate("old.example").is_some()).await?;
    let drop_kind = async |kind: &str| -> anyhow::Result<()> {
        plane.kubectl().output(&["delete", "crd", kind, "--wait=false"]).await.map(drop)
    };
    drop_kind("tlscertificatedelegations.projectcontour.io").await?;
    wait::until_ok(PATIENCE, "the definition to be gone", async || {
        let known = plane.kubectl().output(&["get", "crd", "--output=name"]).await?;
        anyhow::ensure!(!known.contains("tlscertificatedelegations.projectcontour.io"), "{known}");
        Ok(())
    })
    .await?;
    app.host("later", "later.example", None).await?;
    replica.await_table("another host", |table| table.plain("later.example")).await?;
    assert!(up(&replica.table()?));
    drop_kind("tlscertificatedelegations.contour.vmware.com").await?;
    replica
        .await_table("no host that needs a grant", |table| table.certificate("p.example").is_none())
        .await?;
    drop_kind("httpproxies.projectcontour.io").await?;
    replica.await_table("no proxy", |table| !table.plain("plain.example")).await?;
    assert!(replica.table()?.plain("i.example"));
    replica.end().await
}
