//! The contents of statuses, and the replicas that write them.

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pinniped_gateway_controller::{Election, StatusAddresses};
use pinniped_test_support::control_plane::ControlPlane;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::objects::{INGRESS, Namespace, PROXY, ROUTE, SERVICE, direct_response, issue};
use super::replica::{PATIENCE, Replica, lease, params};
use super::{GATEWAYS, gateway, plane};

/// Returns the number of writes by `user` to objects of this namespace.
fn writes(plane: &ControlPlane, user: &str, namespace: &str) -> anyhow::Result<usize> {
    let is_write = |event: &Value| {
        event["impersonatedUser"]["username"] == user
            && event["objectRef"]["namespace"] == namespace
            && ["update", "patch", "create", "delete"].iter().any(|verb| event["verb"] == *verb)
    };
    Ok(plane.audit_events(user)?.iter().filter(|event| is_write(event)).count())
}

/// Waits until the two replicas have written statuses this often. The API server records a request
/// after its response, so the last write can be missing from the audit log at first.
async fn await_writes(plane: &ControlPlane, wanted: (usize, usize)) -> anyhow::Result<()> {
    wait::until_ok(PATIENCE, format!("{wanted:?} writes by the two replicas"), async || {
        let found = (writes(plane, "leader-one", "leader")?, writes(plane, "leader-two", "leader")?);
        anyhow::ensure!(found == wanted, "found {found:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_writes_statuses_and_another_replica_takes_over() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "leader").await?;
    let start = async |user: &str| -> anyhow::Result<Replica> {
        let mut params = params(gateway(plane, user).await?, &[&app.name]);
        params.election = lease("leader-test", user);
        Ok(Replica::start(params))
    };
    app.host("first", "first.leader.example", None).await?;
    // The object already has a condition of another controller.
    let foreign = json!({
        "type": "Ready", "status": "Unknown", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let patch = Patch::Merge(json!({"status": {"conditions": [foreign]}}));
    app.api(PROXY).patch_status("first", &PatchParams::default(), &patch).await?;
    let one = start("leader-one").await?;
    let status = app.await_word("first", "valid").await?;
    let two = start("leader-two").await?;
    two.await_table("the host, as a follower", |table| table.plain("first.leader.example")).await?;
    assert_eq!(status["description"], "Valid HTTPProxy");
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    assert_eq!(conditions[0]["type"], "Ready", "{status}");
    let valid = (&conditions[1]["type"], &conditions[1]["status"], &conditions[1]["reason"]);
    assert_eq!(valid, (&json!("Valid"), &json!("True"), &json!("Valid")));
    assert_eq!(conditions[1]["observedGeneration"], 1);
    assert_eq!(status["loadBalancer"], Value::Null, "the addresses are not known");

    // An unchanged status is not written again: the write for another object is the third and last
    // one.
    app.host("second", "second.leader.example", None).await?;
    app.await_word("second", "valid").await?;
    let spec = json!({"virtualhost": {"fqdn": "second.leader.example", "tls": {"secretName": "w"}}, "routes": [direct_response()]});
    app.put(PROXY, "second", json!({"spec": spec})).await?;
    let status = app.await_word("second", "invalid").await?;
    assert_eq!(status["conditions"][0]["observedGeneration"], 2);
    await_writes(plane, (3, 0)).await?;

    one.end().await?;
    app.secret("w", &issue("second.leader.example")?).await?;
    app.await_word("second", "valid").await?;
    await_writes(plane, (3, 1)).await?;

    // A status that another client removes is restored.
    let patch = Patch::Merge(json!({"status": {"currentStatus": "x", "conditions": []}}));
    app.api(PROXY).patch_status("first", &PatchParams::default(), &patch).await?;
    app.await_word("first", "valid").await?;
    two.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_contain_the_addresses_of_the_gateway() -> anyhow::Result<()> {
    let plane = plane().await?;
    let client = plane.client().await?;
    let app = Namespace::new(&client, "addresses").await?;
    let home = Namespace::new(&client, "addresses-home").await?;
    app.host("p", "p.addresses.example", None).await?;
    app.ingress("i", "i.addresses.example").await?;
    app.put(
        INGRESS,
        "other",
        json!({"spec": {"ingressClassName": "other", "defaultBackend":
        {"service": {"name": "web", "port": {"number": 80}}}}}),
    )
    .await?;
    let annotation = json!({"metadata": {"annotations": {"example.com/mine": "kept"}}});
    app.api(INGRESS).patch("i", &PatchParams::default(), &Patch::Merge(annotation)).await?;
    let places = |status: &Value| status["loadBalancer"]["ingress"].clone();
    let are = |wanted: Value| move |status: &Value| places(status) == wanted;

    let configured = json!([{"ip": "10.0.0.1"}, {"hostname": "lb.example"}]);
    let mut setup = params(gateway(plane, "addresses-1").await?, &[&app.name]);
    setup.addresses = StatusAddresses::Configured("10.0.0.1, lb.example".to_owned());
    let replica = Replica::start(setup.clone());
    for (kind, name) in [(PROXY, "p"), (INGRESS, "i")] {
        app.await_status(kind, name, "written", are(configured.clone())).await?;
    }
    assert_eq!(places(&app.status(INGRESS, "other").await?), Value::Null);
    let kept = app.api(INGRESS).get("i").await?.metadata.annotations.unwrap_or_default();
    assert_eq!(kept.get("example.com/mine").map(String::as_str), Some("kept"));
    replica.end().await?;

    // The Service has no address yet: existing addresses stay until it gets one.
    home.service("envoy").await?;
    let service: Api<Service> = Api::namespaced(client, &home.name);
    let patch = Patch::Merge(json!({"spec": {"type": "LoadBalancer"}}));
    service.patch("envoy", &PatchParams::default(), &patch).await?;
    setup.addresses = StatusAddresses::OfService { namespace: home.name.clone(), name: "envoy".to_owned() };
    let replica = Replica::start(setup);
    app.host("q", "q.addresses.example", None).await?;
    app.await_word("q", "valid").await?;
    for (kind, name, wanted) in
        [(PROXY, "p", configured.clone()), (INGRESS, "i", configured), (PROXY, "q", Value::Null)]
    {
        assert_eq!(places(&app.status(kind, name).await?), wanted, "{name}");
    }
    let given = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9", "ipMode": "VIP"}]}}});
    service.patch_status("envoy", &PatchParams::default(), &Patch::Merge(given)).await?;
    for (kind, name) in [(PROXY, "p"), (INGRESS, "i"), (PROXY, "q")] {
        app.await_status(kind, name, "updated", are(json!([{"ip": "10.0.0.9"}]))).await?;
    }
    home.delete(SERVICE, "envoy").await?;
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_an_ingress_route_is_written_to_the_object_itself() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "routes").await?;
    let route =
        |prefix: &str, service: &str| json!({"match": prefix, "services": [{"name": service, "port": 80}]});
    let spec = |host: &str| json!({"virtualhost": {"fqdn": host}, "routes": [route("/", "web")]});
    app.service("web").await?;
    app.put(ROUTE, "good", json!({"spec": spec("r.example")})).await?;
    app.put(ROUTE, "bad", json!({"spec": spec("*.r.example")})).await?;
    app.put(ROUTE, "orphan", json!({"spec": {"routes": [route("/x", "web")]}})).await?;
    let replica = Replica::start(params(gateway(plane, "routes").await?, &[&app.name]));
    replica.await_table("the host", |table| table.plain("r.example")).await?;
    let rows = [
        ("good", "valid", "valid IngressRoute"),
        ("bad", "invalid", "Spec.VirtualHost.Fqdn \"*.r.example\" cannot use wildcards"),
        (
            "orphan",
            "orphaned",
            "this IngressRoute is not part of a delegation chain from a root IngressRoute",
        ),
    ];
    for (name, word, description) in rows {
        let status = app.await_status(ROUTE, name, word, |status| status["currentStatus"] == word).await?;
        assert_eq!(status["description"], description);
        assert!(app.api(ROUTE).get(name).await?.data["spec"]["routes"].is_array(), "{name} is as it was");
    }
    assert_eq!(writes(plane, "routes", "routes")?, rows.len());
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_permission_affects_only_the_features_that_need_it() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "rights").await?;
    app.service("web").await?;
    app.secret("w", &issue("rights.example")?).await?;
    app.host("p", "rights.example", Some("w")).await?;
    app.ingress("i", "i.rights.example").await?;
    // All permissions except those for Secrets and the statuses of proxies.
    let rule = |group: &str, resources: Value, verbs: Value| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let read = json!(["get", "list", "watch"]);
    let mut rules = json!([
        rule("", json!(["services"]), read.clone()),
        rule("discovery.k8s.io", json!(["endpointslices"]), read.clone()),
        rule("networking.k8s.io", json!(["ingresses"]), read.clone()),
        rule("networking.k8s.io", json!(["ingresses/status"]), json!(["update"])),
        rule("projectcontour.io", json!(["httpproxies", "tlscertificatedelegations"]), read.clone()),
    ]);
    let group = "gateway-without-rights";
    let role = |rules: &Value| {
        json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": group}, "rules": rules},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": group},
                "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group}],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": group},
            },
        ]})
    };
    plane.kubectl().apply(&role(&rules).to_string()).await?;
    let client = plane.client_as("rights", &[group, "system:authenticated"]).await?;
    let mut setup = params(client, &[&app.name]);
    setup.addresses = StatusAddresses::Configured("10.0.0.1".to_owned());
    let replica = Replica::start(setup);
    replica.await_table("the plain host", |table| table.plain("i.rights.example")).await?;
    assert!(replica.table()?.certificate("rights.example").is_none());
    app.await_status(INGRESS, "i", "written", |status| {
        status["loadBalancer"]["ingress"][0]["ip"] == "10.0.0.1"
    })
    .await?;
    assert_eq!(app.status(PROXY, "p").await?["currentStatus"], "NotReconciled");

    let more = [
        rule("", json!(["secrets"]), read.clone()),
        rule("projectcontour.io", json!(["httpproxies/status"]), json!(["update"])),
    ];
    rules.as_array_mut().into_iter().for_each(|rules| rules.extend(more.clone()));
    plane.kubectl().apply(&role(&rules).to_string()).await?;
    let took = replica
        .await_table("the host, with the permission", |table| table.certificate("rights.example").is_some())
        .await?;
    println!("the permission to read Secrets was noticed after {took:?}");
    // The writer retries after one minute, a restarted replica immediately.
    replica.end().await?;
    let client = plane.client_as("rights", &[group, "system:authenticated"]).await?;
    let replica = Replica::start(params(client, &[&app.name]));
    app.await_word("p", "valid").await?;
    replica.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_may_not_lead_serves_and_writes_nothing() -> anyhow::Result<()> {
    let plane = plane().await?;
    let app = Namespace::new(&plane.client().await?, "follower").await?;
    app.host("p", "follower.example", None).await?;
    let client = plane.client_as("follower", &[GATEWAYS, "system:authenticated"]).await?;
    let mut setup = params(client, &[&app.name]);
    let Election::Lease(mut nowhere) = lease("follower", "follower") else { anyhow::bail!("a lease") };
    "default".clone_into(&mut nowhere.namespace);
    setup.election = Election::Lease(nowhere);
    let replica = Replica::start(setup);
    replica.await_table("the host", |table| table.plain("follower.example")).await?;
    let is_attempt = |event: &Value| {
        event["impersonatedUser"]["username"] == "follower" && event["objectRef"]["resource"] == "leases"
    };
    wait::until_ok(PATIENCE, "several tries to lead", async || {
        anyhow::ensure!(plane.audit_events("leases")?.iter().filter(|event| is_attempt(event)).count() > 3);
        Ok(())
    })
    .await?;
    assert_eq!(writes(plane, "follower", "follower")?, 0);
    replica.end().await
}
