//! Large numbers of objects, and hostile objects.

use std::time::Instant;

use serde_json::{Value, json};

use crate::world::{World, route, up};

#[test]
fn ten_thousand_hosts_are_built_and_found() {
    const HOSTS: usize = 10_000;
    let mut world = World::default();
    world.secret("certs/w").grant("certs", "w", &["*"]);
    for number in 0..HOSTS {
        let namespace = format!("n{}", number % 100);
        world.service(&format!("{namespace}/s{number}"));
        world.proxy(
            &format!("{namespace}/p{number}"),
            json!({
                "virtualhost": {"fqdn": format!("h{number}.example.com"), "tls": {"secretName": "certs/w"}},
                "routes": [route("/", &format!("s{number}"))],
            }),
        );
    }
    for build in ["first", "again"] {
        let start = Instant::now();
        let seen = world.build();
        println!("{build} build of {HOSTS} hosts: {:?}", start.elapsed());
        assert_eq!(seen.0.table.tls.hosts.len(), HOSTS);
        assert_eq!(seen.host("h4711.example.com"), up("w"));
        assert_eq!(seen.tls("h4711.example.com", "h4711.example.com/x"), "n11/s4711:80");
    }
    let start = Instant::now();
    world.without_grants().build();
    println!("build without the grant: {:?}", start.elapsed());
}

#[test]
fn ten_thousand_routes_of_one_host_are_built_and_found() {
    const ROUTES: usize = 10_000;
    let mut world = World::default();
    world.service("app/web").service("app/last");
    let mut routes: Vec<Value> = (0..ROUTES).map(|number| route(&format!("/r{number}/"), "web")).collect();
    routes.push(route(&format!("/r{}/deeper", ROUTES / 2), "last"));
    world.proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": routes}));
    let start = Instant::now();
    let seen = world.build();
    println!("build of {ROUTES} routes of one host: {:?}", start.elapsed());
    let start = Instant::now();
    for number in 0..ROUTES {
        assert_eq!(seen.plain(&format!("h/r{number}/x")), "app/web:80");
    }
    println!("{ROUTES} requests: {:?}", start.elapsed());
    assert_eq!(seen.plain("h/r5000/deeper"), "app/last:80");
    assert_eq!(seen.plain("h/r5000"), "404");
}

/// Returns a chain of objects, each of which includes the next one.
fn include_chain(length: usize, includes: usize) -> World {
    let mut world = World::default();
    world.service("app/web");
    let include = |next: usize| {
        let one =
            |number| json!({"name": format!("c{next}"), "conditions": [{"prefix": format!("/{number}")}]});
        (0..includes).map(one).collect::<Vec<Value>>()
    };
    world.proxy(
        "app/p",
        json!({"virtualhost": {"fqdn": "h"}, "includes": include(0), "routes": [route("/", "web")]}),
    );
    for number in 0..length {
        let mut spec = json!({"routes": [route("/", "web")]});
        if number + 1 < length {
            spec["includes"] = json!(include(number + 1));
        }
        world.proxy(&format!("app/c{number}"), spec);
    }
    world
}

#[test]
fn the_depth_of_includes_is_limited() {
    let seen = include_chain(60, 1).build();
    assert_eq!(seen.validation("app/p"), "valid");
    assert_eq!(seen.validation("app/c59"), "valid");
    let seen = include_chain(5_000, 1).build();
    assert_eq!(seen.validation("app/p"), "valid");
    assert_eq!(
        seen.validation("app/c63"),
        "IncludeError IncludeTooDeep: include app/c64 is inside more than 64 others"
    );
    assert!(seen.validation("app/c64").starts_with("Orphaned"));
}

#[test]
fn multiplying_includes_are_refused() {
    let seen = include_chain(40, 3).build();
    assert_eq!(
        seen.validation("app/p"),
        "IncludeError TooManyIncludes: includes come to more than 50000 includes and routes"
    );
    assert_eq!(seen.plain("h/"), "404");
}

#[test]
fn the_depth_of_delegations_is_limited() {
    for (length, delegations, root, inner) in [
        (60, 1, "valid", "valid"),
        (5_000, 1, "valid", "route delegates to app/c64 inside more than 64 others"),
        (40, 3, "delegations come to more than 50000 routes", "valid"),
    ] {
        let mut world = World::default();
        world.service("app/web");
        let delegate = |next: usize| {
            let one = json!({"match": "/", "delegate": {"name": format!("c{next}")}});
            vec![one; delegations]
        };
        world.ingress_route("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": delegate(0)}));
        for number in 0..length {
            let mut routes = vec![json!({"match": "/", "services": [{"name": "web", "port": 80}]})];
            routes.extend(if number + 1 < length { delegate(number + 1) } else { Vec::new() });
            world.ingress_route(&format!("app/c{number}"), json!({ "routes": routes }));
        }
        let seen = world.build();
        assert_eq!(seen.ingress_route_validation("app/p"), root);
        assert_eq!(seen.ingress_route_validation(&format!("app/c{}", 63.min(length - 1))), inner);
    }
}

#[test]
fn a_status_contains_a_limited_number_of_errors() {
    let mut world = World::default();
    let routes: Vec<Value> =
        (0..1_000).map(|number| route(&format!("/{number}"), &format!("s{number}"))).collect();
    let seen = world.proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": routes})).build();
    assert_eq!(seen.validation("app/p").lines().count(), 64);
    assert_eq!(seen.plain("h/999"), "503");
}

#[test]
fn many_claims_to_one_host_share_one_message() {
    let mut world = World::default();
    for number in 0..3_000 {
        world.root(&format!("app/{number:04}"), "h", None);
    }
    let seen = world.build();
    let messages: Vec<_> =
        seen.0.http_proxies.values().map(|validation| validation.errors[0].message.as_ptr()).collect();
    assert_eq!(messages.len(), 3_000);
    assert!(messages.iter().all(|message| *message == messages[0]));
}
