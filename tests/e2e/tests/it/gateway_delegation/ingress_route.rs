//! Rows L: IngressRoute of Contour's first releases, for clusters that still contain such objects.

use serde_json::{Value, json};

use super::cluster::{CURRENT, LEGACY, grant, object};
use super::environment::{self, CLASS, Seen, down, ports, up};

fn ingress_route(namespace: &str, name: &str, spec: Value) -> Value {
    let annotations = json!({"annotations": {"kubernetes.io/ingress.class": CLASS}});
    let mut object = object(LEGACY, "IngressRoute", namespace, name, annotations);
    object["spec"] = spec;
    object
}

fn root(namespace: &str, name: &str, host: &str, tls: Value, routes: Value) -> Value {
    let mut spec = json!({"virtualhost": {"fqdn": host}, "routes": []});
    if !tls.is_null() {
        spec["virtualhost"]["tls"] = tls;
    }
    spec["routes"] = routes;
    ingress_route(namespace, name, spec)
}

fn web(prefix: &str) -> Value {
    json!({"match": prefix, "services": [{"name": "web", "port": 80}]})
}

#[tokio::test]
async fn l1_an_ingress_route_is_served_while_a_grant_of_any_group_exists() {
    let Some(environment) = environment::shared("l1").await else { return };
    let cluster = &environment.cluster;
    let (app, certs) = (cluster.namespace("app").await, cluster.namespace("certs").await);
    let (host, written) = (cluster.host("h"), format!("{certs}/w"));
    cluster.certificate(&certs, "w", "w").await;
    let object = root(&app, "r", &host, json!({"secretName": written}), json!([web("/")]));
    cluster.put(object.clone()).await;
    let refused =
        format!("invalid: Spec.VirtualHost.TLS Secret \"{written}\" certificate delegation not permitted");
    let is = async |seen: Seen, validation: &str| {
        environment.await_seen(&host, seen).await;
        cluster.await_validation(&object, validation).await;
    };
    is(down(), &refused).await;
    for version in [LEGACY, CURRENT] {
        let granted = |entries: &[(&str, &[&str])]| grant(version, &certs, "grant", entries);
        cluster.put(granted(&[("w", &[&app])])).await;
        is(up("w"), "valid").await;
        cluster.put(granted(&[("w", &["other"])])).await;
        is(down(), &refused).await;
        cluster.put(granted(&[("w", &["*"])])).await;
        is(up("w"), "valid").await;
        cluster.delete(&granted(&[])).await;
        is(down(), &refused).await;
    }
    let get = ["get", "ingressroutes.contour.heptio.com", "r", "-n", &app];
    let table = environment.kubectl(&get).await.unwrap();
    assert!(table.lines().any(|line| line.contains(&host) && line.contains(" invalid ")), "{table}");
}

#[tokio::test]
async fn l2_a_delegated_path_is_repeated_and_an_invalid_one_is_reported() {
    let Some(environment) = environment::shared("l2").await else { return };
    let cluster = &environment.cluster;
    let app = cluster.namespace("app").await;
    let to = |prefix: &str, name: &str| json!({"match": prefix, "delegate": {"name": name}});
    let child = ingress_route(&app, "child", json!({"routes": [web("/foobar")]}));
    let own = ingress_route(&app, "own", json!({"routes": [web("/foo/bar"), to("/foo", "own")]}));
    cluster.put(child.clone()).await;
    cluster.put(own.clone()).await;
    let rows = [
        ("prefix", to("/foo", "child"), "valid"),
        ("nothing", to("/foo", "nobody"), "valid"),
        (
            "another",
            to("/", "prefix"),
            "invalid: root ingressroute cannot delegate to another root ingressroute",
        ),
        ("cycle", to("/foo", "own"), "valid"),
    ];
    for (name, route, validation) in rows {
        let object = root(&app, name, &cluster.host(name), Value::Null, json!([route]));
        cluster.put(object.clone()).await;
        cluster.await_validation(&object, validation).await;
        environment.await_seen(&cluster.host(name), down()).await;
    }
    cluster
        .await_validation(
            &child,
            "invalid: the path prefix \"/foobar\" does not match the parent's path prefix \"/foo\"",
        )
        .await;
    let cycle = cluster.validation(&own).await.unwrap();
    assert!(cycle.contains("creates a delegation cycle"), "{cycle}");
}

#[tokio::test]
async fn l3_a_passed_through_host_presents_the_backends_certificate_and_port_80_serves_only_routes() {
    let Some(environment) = environment::shared("l3").await else { return };
    let cluster = &environment.cluster;
    let app = cluster.namespace("app").await;
    cluster.service(&app, "secure", environment::backend().tls.port(), json!({})).await;
    for (name, routes, plain) in [("with", json!([web("/")]), "200"), ("without", json!([]), "404")] {
        let host = cluster.host(name);
        let mut object = root(&app, name, &host, json!({"passthrough": true}), routes);
        object["spec"]["tcpproxy"] = json!({"services": [{"name": "secure", "port": 80}]});
        cluster.put(object.clone()).await;
        environment.await_seen(&host, ports("backend 200", plain)).await;
        cluster.await_validation(&object, "valid").await;
    }
}
