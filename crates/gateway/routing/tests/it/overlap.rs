//! Objects that request the same host, and consecutive builds.

use std::sync::Arc;

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_routing::{
    Settings,
    table::{Action, Terminated, Upstream},
};
use serde_json::{Value, json};

use crate::world::{BuildResult, World, ports, route, up};

fn ingress(host: &str, paths: &[(&str, &str)]) -> Value {
    let paths: Vec<Value> = paths
        .iter()
        .map(|(path, service)| {
            let backend = json!({"service": {"name": service, "port": {"number": 80}}});
            json!({"path": path, "pathType": "ImplementationSpecific", "backend": backend})
        })
        .collect();
    json!({"rules": [{"host": host, "http": {"paths": paths}}], "tls": [{"hosts": [host], "secretName": "w"}]})
}

fn ingress_route(routes: Value) -> Value {
    json!({"virtualhost": {"fqdn": "h", "tls": {"secretName": "x"}}, "routes": routes})
}

fn world() -> World {
    let mut world = World::default();
    for service in ["app/a", "app/b", "app/c", "app/web"] {
        world.service(service);
    }
    for secret in ["app/w", "app/x", "app/y"] {
        world.secret(secret);
    }
    world
}

#[test]
fn a_later_kind_replaces_equal_routes_and_the_certificate_and_adds_the_rest() {
    let mut world = world();
    world.ingress("app/i", json!({}), ingress("h", &[("/", "a"), ("/i", "a")]));
    let seen = world.build();
    assert_eq!((seen.host("h"), seen.tls("h", "h/i")), (ports("w, http", "app/a:80"), "app/a:80".into()));

    let routes = json!([
        {"match": "/", "services": [{"name": "b", "port": 80}]},
        {"match": "/r", "services": [{"name": "b", "port": 80}]},
    ]);
    let seen = world.ingress_route("app/r", ingress_route(routes)).build();
    assert_eq!(seen.host("h"), up("x"));

    let seen = world.root("app/p", "h", Some(json!({"secretName": "y"}))).build();
    assert_eq!(seen.host("h"), up("y"));
    for (path, wanted) in [("", "app/web:80"), ("i", "app/a:80"), ("r", "app/b:80")] {
        assert_eq!(seen.tls("h", &format!("h/{path}")), wanted, "{path}");
    }
}

#[test]
fn a_refused_object_has_no_effect_on_a_shared_host() {
    let mut world = world();
    world.ingress("app/i", json!({}), ingress("h", &[("/", "a")]));
    let before = world.build();
    assert_eq!(before.host("h"), ports("w, http", "app/a:80"));
    for (tls, tcp) in [
        (json!({"secretName": "none"}), None),
        (json!({"secretName": "y", "minimumProtocolVersion": "1.3", "maximumProtocolVersion": "1.2"}), None),
        // The certificate is valid; the service, which is checked last, does not exist.
        (json!({"secretName": "y"}), Some(json!({"services": [{"name": "nobody", "port": 80}]}))),
    ] {
        world.objects.http_proxies.clear();
        let mut spec = json!({"virtualhost": {"fqdn": "h", "tls": tls}, "routes": [route("/", "web")]});
        if let Some(tcp) = tcp {
            spec["tcpproxy"] = tcp;
        }
        let seen = world.proxy("app/p", spec).build();
        assert_ne!(seen.validation("app/p"), "valid");
        assert_eq!(seen.host("h"), before.host("h"));
    }
}

#[test]
fn a_passthrough_host_ignores_routes_of_other_objects() {
    let mut world = world();
    world.ingress("app/i", json!({}), ingress("h", &[("/", "a")]));
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h", "tls": {"passthrough": true}},
            "tcpproxy": {"services": [{"name": "b", "port": 80}]},
        }),
    );
    assert_eq!(world.build().host("h"), ports("raw app/b:80", "app/a:80"));
}

#[test]
fn the_oldest_ingress_has_the_path_and_the_certificate() {
    let mut younger = ingress("h", &[("/", "b"), ("/b", "b")]);
    younger["tls"][0]["secretName"] = json!("x");
    let mut world = world();
    world.ingress("app/z-older", json!({}), ingress("h", &[("/", "a")])).ingress(
        "app/a-younger",
        json!({}),
        younger,
    );
    let seen = world.build();
    assert_eq!(seen.host("h"), ports("w, http", "app/a:80"));
    assert_eq!(seen.plain("h/b"), "app/b:80");
    // Objects of the same age are ordered by name.
    for object in &mut world.objects.ingresses {
        Arc::make_mut(object).metadata.creation_timestamp = None;
    }
    let seen = world.build();
    assert_eq!(seen.host("h"), ports("x, http", "app/b:80"));
}

#[test]
fn both_ports_share_equal_routes() {
    let mut world = world();
    world.root("app/p", "h", Some(json!({"secretName": "y"})));
    for shares in [true, false] {
        let seen = world.build();
        let Terminated::Http(routes) = seen.termination("h").inside else { panic!("no requests") };
        let plain = seen.0.table.plain.hosts.by_host("h").unwrap();
        assert_eq!(Arc::ptr_eq(&routes, plain), shares);
        assert_eq!(plain.len(), if shares { 1 } else { 2 });
        // On port 80 only.
        let mut more = ingress("h", &[("/i", "a")]);
        more["tls"] = json!([]);
        world.ingress("app/i", json!({}), more);
    }
}

fn upstream(seen: &BuildResult, url: &str) -> Arc<Upstream> {
    let route = seen.route(url);
    let Action::Forward(forward) = &route.action else { panic!("{url}") };
    Arc::clone(&forward.backends.choices()[0].upstream)
}

#[test]
fn a_backend_is_the_same_value_until_it_changes() {
    let mut world = world();
    world.root("app/p", "h", None).root("app/q", "q", None);
    let first = world.build();
    assert!(Arc::ptr_eq(&upstream(&first, "h/"), &upstream(&first, "q/")));
    world.objects.http_proxies.pop();
    let second = world.build();
    assert!(Arc::ptr_eq(&upstream(&first, "h/"), &upstream(&second, "h/")));
    world.slice("app/web", json!([{"addresses": ["10.0.0.2"]}]), json!([{"name": "http", "port": 8080}]));
    let third = upstream(&world.build(), "h/");
    assert_eq!((third.endpoints.len(), &third.id), (2, &upstream(&first, "h/").id));
}

#[test]
fn backends_with_tls_receive_the_configured_client_certificate() {
    let settings = || Settings {
        client_certificate: Some(SecretReference { namespace: "gateway".into(), name: "own".into() }),
        ..Settings::default()
    };
    let mut world = World::with(settings());
    world
        .service("app/plain")
        .service_of("app/web", json!({"ports": [{"port": 80, "appProtocol": "https"}]}));
    world.root("app/p", "h", None).proxy(
        "app/q",
        json!({
            "virtualhost": {"fqdn": "q"}, "routes": [route("/", "plain")],
        }),
    );
    let seen = world.build();
    assert_eq!(
        seen.validation("app/p"),
        "TLSError SecretNotValid: tls.envoy-client-certificate Secret \"gateway/own\" is invalid: Secret not found"
    );
    assert_eq!((seen.plain("h/"), seen.plain("q/")), ("404".into(), "app/plain:80".into()));
    let seen = world.secret("gateway/own").build();
    let certificate = upstream(&seen, "h/").client_certificate.clone().unwrap();
    assert_eq!(certificate.leaf().subject_cn, "own");
    assert!(upstream(&seen, "q/").client_certificate.is_none());
}
