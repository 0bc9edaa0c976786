//! Objects of several namespaces that request the same host.

use pinniped_gateway_routing::{HostOwnership, Settings};
use serde_json::{Value, json};

use crate::world::{BuildResult, World, ports, route, up};

/// A kind of object that can request a host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Proxy,
    Route,
    Ingress,
}

use Kind::{Ingress, Proxy, Route};

const KINDS: [Kind; 3] = [Proxy, Route, Ingress];

/// An object: its kind, its name, its creation time in seconds, and its host. Its requests go to
/// the Service `web` of its own namespace, and its certificate is the Secret `w-<namespace>`.
type Object<'a> = (Kind, &'a str, u8, &'a str);

fn world_with(settings: Settings, objects: &[Object<'_>]) -> World {
    let mut world = World::with(settings);
    for namespace in ["a", "b", "c"] {
        world.service(&format!("{namespace}/web")).secret(&format!("{namespace}/w-{namespace}"));
    }
    for object in objects {
        add(&mut world, *object);
    }
    world
}

fn world(objects: &[Object<'_>]) -> World {
    world_with(Settings::default(), objects)
}

fn metadata(name: &str, second: u8) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let created = format!("2026-01-01T00:00:{second:02}Z");
    json!({"namespace": namespace, "name": name, "generation": 1, "creationTimestamp": created})
}

fn add(world: &mut World, (kind, name, second, host): Object<'_>) {
    let metadata = metadata(name, second);
    let secret = format!("w-{}", name.split_once('/').unwrap().0);
    let tls = json!({"secretName": secret});
    match kind {
        Proxy => {
            let spec = json!({"virtualhost": {"fqdn": host, "tls": tls}, "routes": [route("/", "web")]});
            world.proxy_object(json!({"metadata": metadata, "spec": spec}));
        }
        Route => {
            let routes = json!([{"match": "/", "services": [{"name": "web", "port": 80}]}]);
            let spec = json!({"virtualhost": {"fqdn": host, "tls": tls}, "routes": routes});
            let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec}));
            world.objects.ingress_routes.push(std::sync::Arc::new(object.unwrap()));
        }
        Ingress => add_ingress(world, metadata, ingress_spec(host, &secret)),
    }
}

fn backend() -> Value {
    json!({"service": {"name": "web", "port": {"number": 80}}})
}

fn ingress_spec(host: &str, secret: &str) -> Value {
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend()});
    let host = if host.is_empty() { Value::Null } else { host.into() };
    let tls = if host.is_null() { json!([]) } else { json!([{"hosts": [host], "secretName": secret}]) };
    json!({"rules": [{"host": host, "http": {"paths": [path]}}], "tls": tls})
}

fn add_ingress(world: &mut World, metadata: Value, spec: Value) {
    let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec}));
    world.objects.ingresses.push(std::sync::Arc::new(object.unwrap()));
}

/// Returns the reason why an object is refused; empty if it is not.
fn refusal(seen: &BuildResult, kind: Kind, name: &str) -> String {
    let word = match kind {
        Proxy => seen.validation(name),
        Route => seen.ingress_route_validation(name),
        Ingress => {
            let (namespace, name) = name.split_once('/').unwrap();
            let known = seen.0.refused_ingresses.iter();
            let mut of_it = known.filter(|(known, _)| known.namespace == namespace && known.name == name);
            of_it.next().map(|(_, why)| why.clone()).unwrap_or_default()
        }
    };
    if word == "valid" { String::new() } else { word.replace("VirtualHostError HostNotOwned: ", "") }
}

/// Returns the namespace whose certificate and Service a client gets on port 443.
fn served(seen: &BuildResult, host: &str) -> String {
    let certificate = seen.connection(host);
    let backend = seen.tls(host, &format!("{host}/"));
    match (certificate.split_once(", "), backend.split_once('/')) {
        (Some((certificate, "http")), Some((namespace, _))) if certificate == format!("w-{namespace}") => {
            namespace.to_owned()
        }
        _ => format!("{certificate}; {backend}"),
    }
}

fn named(kind: Kind) -> &'static str {
    match kind {
        Proxy => "HTTPProxy",
        Route => "IngressRoute",
        Ingress => "Ingress",
    }
}

#[test]
fn the_oldest_object_of_any_kind_owns_the_host_and_other_namespaces_are_refused() {
    for older in KINDS {
        for younger in KINDS {
            // The order by name does not matter.
            for (one, other) in [("a", "b"), ("b", "a")] {
                let (first, second) = (format!("{one}/o"), format!("{other}/o"));
                let seen =
                    world(&[(younger, &second, 2, "H.Example"), (older, &first, 1, "h.example")]).build();
                assert_eq!(served(&seen, "h.example"), one, "{older:?} before {younger:?}");
                assert_eq!(refusal(&seen, older, &first), "");
                let wanted = format!(
                    "host \"h.example\" belongs to namespace \"{one}\": {} {first} is older",
                    named(older)
                );
                assert_eq!(refusal(&seen, younger, &second), wanted, "{older:?} before {younger:?}");
                let plain = seen.plain("h.example/");
                let own = if older == Ingress { format!("{one}/web:80") } else { "301".to_owned() };
                assert_eq!(plain, own, "{older:?} before {younger:?}");
            }
        }
    }
}

#[test]
fn namespace_name_and_kind_decide_between_objects_of_the_same_age() {
    for kinds in [[Proxy, Ingress], [Ingress, Proxy], [Route, Route]] {
        let seen = world(&[(kinds[0], "b/a", 1, "h"), (kinds[1], "a/z", 1, "h")]).build();
        assert_eq!(served(&seen, "h"), "a", "{kinds:?}");
    }
}

#[test]
fn the_next_oldest_object_owns_the_host_after_the_owner_is_deleted() {
    let objects = [(Proxy, "c/o", 1, "h"), (Ingress, "b/o", 2, "h"), (Route, "a/o", 3, "h")];
    for (gone, wanted) in [(0, "c"), (1, "b"), (2, "a")] {
        let seen = world(&objects[gone..]).build();
        assert_eq!(served(&seen, "h"), wanted);
        for (kind, name, ..) in &objects[gone + 1..] {
            assert!(refusal(&seen, *kind, name).contains(&format!("namespace \"{wanted}\"")), "{name}");
        }
    }
}

#[test]
fn an_owner_that_cannot_be_served_is_still_the_owner() {
    for owner in KINDS {
        for other in KINDS {
            let mut world = world(&[(owner, "a/o", 1, "h"), (other, "b/o", 2, "h")]);
            world.objects.secrets.retain(|secret| secret.metadata.namespace.as_deref() != Some("a"));
            let seen = world.build();
            assert_eq!(seen.connection("h"), "closed", "{owner:?} {other:?}");
            assert!(refusal(&seen, other, "b/o").contains("namespace \"a\""), "{owner:?} {other:?}");
        }
    }
}

#[test]
fn a_second_root_of_another_namespace_does_not_affect_the_owner() {
    for kind in [Proxy, Route] {
        let seen = world(&[(kind, "a/o", 1, "h"), (kind, "b/o", 2, "h")]).build();
        assert_eq!((refusal(&seen, kind, "a/o"), served(&seen, "h")), (String::new(), "a".to_owned()));
        // Two objects of one namespace are both refused, as without ownership, and the host stays
        // with the namespace.
        let seen = world(&[(kind, "a/o", 1, "h"), (kind, "a/p", 2, "h"), (kind, "b/o", 3, "h")]).build();
        assert!(refusal(&seen, kind, "a/o").contains("used in multiple"), "{}", refusal(&seen, kind, "a/o"));
        assert!(!refusal(&seen, kind, "a/o").contains("b/o"));
        assert_eq!(seen.connection("h"), "closed");
    }
}

#[test]
fn objects_of_one_namespace_share_their_host() {
    let mut world = world(&[(Ingress, "a/i", 1, "h"), (Proxy, "a/p", 2, "h"), (Ingress, "b/i", 3, "h")]);
    let paths = json!([{"path": "/more", "pathType": "Prefix", "backend": backend()}]);
    let rules = json!({"rules": [{"host": "h", "http": {"paths": paths}}]});
    add_ingress(&mut world, metadata("a/more", 4), rules.clone());
    let mut foreign = rules;
    foreign["rules"][0]["http"]["paths"][0]["path"] = json!("/foreign");
    add_ingress(&mut world, metadata("b/more", 5), foreign);
    let seen = world.build();
    assert_eq!(seen.host("h"), up("w-a"));
    assert_eq!((seen.plain("h/more"), seen.plain("h/foreign")), ("a/web:80".into(), "301".into()));
}

#[test]
fn names_below_a_wildcard_belong_to_its_namespace_unless_they_are_older() {
    // The wildcard is the second-oldest object.
    let others = [(Proxy, "b/old", 1, "old.h"), (Proxy, "b/new", 3, "new.h"), (Proxy, "a/own", 4, "own.h")];
    for wildcard in [Proxy, Ingress] {
        let mut objects = vec![(wildcard, "a/w", 2, "*.h")];
        objects.extend(others);
        objects.extend([(Ingress, "b/deep", 5, "x.deep.h"), (Ingress, "b/wild", 6, "*.deep.h")]);
        objects.push((Proxy, "b/apex", 7, "h"));
        let seen = world(&objects).build();
        for (host, wanted) in [("old.h", "b"), ("new.h", "a"), ("own.h", "a"), ("any.h", "a"), ("h", "b")] {
            assert_eq!(served(&seen, host), wanted, "{wildcard:?} {host}");
        }
        let by = format!("belongs to namespace \"a\": {} a/w with host \"*.h\" is older", named(wildcard));
        assert_eq!(refusal(&seen, Proxy, "b/new"), format!("host \"new.h\" {by}"));
        assert_eq!(refusal(&seen, Ingress, "b/deep"), format!("host \"x.deep.h\" {by}"));
        assert_eq!(refusal(&seen, Ingress, "b/wild"), format!("host \"*.deep.h\" {by}"));
        assert_eq!(refusal(&seen, Proxy, "b/old"), "");
        // A younger object of the wildcard's namespace does not affect the owner of an older name.
        objects.push((Ingress, "a/grab", 8, "old.h"));
        let seen = world(&objects).build();
        assert_eq!(served(&seen, "old.h"), "b");
        assert!(refusal(&seen, Ingress, "a/grab").contains("namespace \"b\""));
    }
}

#[test]
fn the_longer_of_two_wildcards_owns_a_name() {
    let seen = world(&[
        (Proxy, "b/w", 1, "*.x.h"),
        (Proxy, "a/w", 2, "*.h"),
        (Proxy, "b/n", 3, "n.x.h"),
        (Ingress, "a/n", 4, "m.x.h"),
    ])
    .build();
    assert_eq!(served(&seen, "n.x.h"), "b");
    assert_eq!(refusal(&seen, Proxy, "b/n"), "");
    assert!(refusal(&seen, Ingress, "a/n").contains("namespace \"b\""));
}

#[test]
fn the_default_host_belongs_to_one_namespace_and_claims_no_names() {
    let mut world = world(&[(Ingress, "a/any", 1, ""), (Ingress, "b/any", 2, ""), (Proxy, "b/o", 3, "h")]);
    add_ingress(&mut world, metadata("b/default", 4), json!({"defaultBackend": backend()}));
    let seen = world.build();
    assert_eq!((seen.plain("anything/"), seen.plain("h/")), ("a/web:80".into(), "301".into()));
    assert_eq!(refusal(&seen, Proxy, "b/o"), "");
    for name in ["b/any", "b/default"] {
        assert_eq!(
            refusal(&seen, Ingress, name),
            "host \"*\" belongs to namespace \"a\": Ingress a/any is older"
        );
    }
    let mut world = world_with(Settings::default(), &[(Ingress, "b/any", 2, "")]);
    add_ingress(&mut world, metadata("a/default", 1), json!({"defaultBackend": backend()}));
    assert_eq!(world.build().plain("anything/"), "a/web:80");
}

#[test]
fn a_certificate_for_the_host_of_another_namespace_is_not_served() {
    let mut world = world(&[]);
    let mut plain = ingress_spec("h", "none");
    plain["tls"] = json!([]);
    add_ingress(&mut world, metadata("a/o", 2), plain);
    // The object is older, but it has no rule for the host.
    let tls = json!([{"hosts": ["h"], "secretName": "w-b"}]);
    add_ingress(&mut world, metadata("b/o", 1), json!({"rules": [], "tls": tls}));
    let seen = world.build();
    assert_eq!(seen.host("h"), ports("closed", "a/web:80"));
    assert!(refusal(&seen, Ingress, "b/o").contains("namespace \"a\""));
}

#[test]
fn an_ingress_is_refused_only_for_hosts_of_other_namespaces() {
    let mut world = world(&[(Proxy, "a/o", 1, "h")]);
    let mut spec = ingress_spec("h", "w-b");
    let mut other = spec["rules"][0].clone();
    other["host"] = json!("own");
    spec["rules"].as_array_mut().unwrap().push(other);
    add_ingress(&mut world, metadata("b/o", 2), spec);
    let seen = world.build();
    assert_eq!((served(&seen, "h"), seen.plain("own/")), ("a".into(), "b/web:80".into()));
    assert_eq!(
        seen.notices(),
        ["Ingress b/o: host \"h\" belongs to namespace \"a\": HTTPProxy a/o is older"]
    );
}

#[test]
fn a_trailing_dot_does_not_make_a_different_host() {
    let seen = world(&[(Proxy, "a/o", 1, "h.example"), (Route, "b/o", 2, "h.example.")]).build();
    assert!(refusal(&seen, Route, "b/o").contains("namespace \"a\""));
}

#[test]
fn shared_hosts_are_merged_as_in_contour() {
    let settings = || Settings { host_ownership: HostOwnership::Shared, ..Settings::default() };
    let objects = [(Ingress, "a/o", 1, "h"), (Route, "b/o", 2, "h"), (Proxy, "c/o", 3, "h")];
    let seen = world_with(settings(), &objects).build();
    assert_eq!(served(&seen, "h"), "c");
    for (kind, name, ..) in objects {
        assert_eq!(refusal(&seen, kind, name), "");
    }
    let seen = world_with(settings(), &[(Proxy, "a/o", 1, "h"), (Proxy, "b/o", 2, "h")]).build();
    assert_eq!(
        refusal(&seen, Proxy, "a/o"),
        "VirtualHostError DuplicateVhost: fqdn \"h\" is used in multiple HTTPProxies: a/o, b/o"
    );
}

#[test]
fn namespaces_without_roots_serve_no_ingresses_and_own_no_hosts() {
    for host_ownership in [HostOwnership::Namespace, HostOwnership::Shared] {
        let settings =
            || Settings { root_namespaces: vec!["a".into()], host_ownership, ..Settings::default() };
        for other in KINDS {
            for own in KINDS {
                let seen = world_with(settings(), &[(other, "b/o", 1, "h"), (own, "a/o", 2, "h")]).build();
                assert_eq!(served(&seen, "h"), "a", "{other:?} {own:?}");
                assert!(refusal(&seen, other, "b/o").contains("cannot be defined in this namespace"));
            }
        }
        let seen = world_with(settings(), &[(Ingress, "b/o", 1, "h"), (Ingress, "b/any", 1, "")]).build();
        assert_eq!((seen.connection("h"), seen.plain("h/")), ("closed".into(), "404".into()));
        assert!(seen.0.ingresses.is_empty());
    }
}
