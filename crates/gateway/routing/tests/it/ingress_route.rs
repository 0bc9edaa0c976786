//! Rows L: IngressRoute.

use pinniped_gateway_routing::{Settings, table::Action};
use serde_json::{Value, json};

use crate::world::{World, down, ports, up};

fn route(prefix: &str, service: &str) -> Value {
    json!({"match": prefix, "services": [{"name": service, "port": 80}]})
}

fn delegate(prefix: &str, name: &str) -> Value {
    json!({"match": prefix, "delegate": {"name": name}})
}

fn root(tls: Option<Value>, routes: Value) -> Value {
    let mut virtualhost = json!({"fqdn": "h"});
    if let Some(tls) = tls {
        virtualhost["tls"] = tls;
    }
    json!({"virtualhost": virtualhost, "routes": routes})
}

fn world() -> World {
    let mut world = World::default();
    world.service("app/web").service("app/blog");
    world
}

#[test]
fn l1_grants_apply_as_for_other_kinds() {
    let mut world = world();
    let tls = json!({"secretName": "certs/w"});
    world.secret("certs/w").ingress_route("app/r", root(Some(tls), json!([route("/", "web")])));
    let refused = "Spec.VirtualHost.TLS Secret \"certs/w\" certificate delegation not permitted";
    for (owner, secret, targets, granted) in [
        ("certs", "w", &["app"][..], true),
        ("certs", "w", &["*"], true),
        ("certs", "w", &["*", "other"], false),
        ("certs", "w", &[], false),
        ("certs", "w", &["other"], false),
        ("certs", "different", &["*"], false),
        ("certs", "*", &["*"], false),
        ("certs", "certs/w", &["*"], false),
        ("app", "w", &["app"], false),
    ] {
        let seen = world.without_grants().grant(owner, secret, targets).build();
        let wanted = if granted { (up("w"), "valid") } else { (down(), refused) };
        assert_eq!(
            (seen.host("h"), seen.ingress_route_validation("app/r").as_str()),
            wanted,
            "{owner} {secret} {targets:?}"
        );
    }
    world.without_grants();
    assert_eq!(world.build().ingress_route_validation("app/r"), refused);
    let seen = world.without_secrets().build();
    assert_eq!(seen.ingress_route_validation("app/r"), refused);
    let seen = world.grant("certs", "w", &["app"]).build();
    assert_eq!(
        (seen.ingress_route_validation("app/r"), seen.host("h")),
        ("Spec.VirtualHost.TLS Secret \"certs/w\" is invalid: Secret not found".into(), down())
    );
}

#[test]
fn l2_a_delegate_repeats_the_path_of_its_parent() {
    let with_child = |child: Value| {
        let mut world = world();
        world.ingress_route("app/r", root(None, json!([delegate("/foo", "child"), route("/", "web")])));
        world.ingress_route("app/child", child);
        world.build()
    };
    let seen = with_child(json!({"routes": [route("/foo", "blog"), route("/foo/bar", "blog")]}));
    assert_eq!(
        (seen.ingress_route_validation("app/r"), seen.ingress_route_validation("app/child")),
        ("valid".into(), "valid".into())
    );
    assert_eq!((seen.plain("h/foo/bar"), seen.plain("h/")), ("app/blog:80".into(), "app/web:80".into()));

    let seen = with_child(json!({"routes": [route("/foobar", "blog")]}));
    assert_eq!(
        seen.ingress_route_validation("app/child"),
        "the path prefix \"/foobar\" does not match the parent's path prefix \"/foo\""
    );
    assert_eq!(
        (seen.ingress_route_validation("app/r"), seen.plain("h/foobar")),
        ("valid".into(), "app/web:80".into())
    );

    let mut world = world();
    world.ingress_route("app/r", root(None, json!([delegate("/foo", "nobody"), route("/bar", "web")])));
    let seen = world.build();
    assert_eq!((seen.ingress_route_validation("app/r"), seen.plain("h/foo")), ("valid".into(), "404".into()));
    assert_eq!(seen.plain("h/bar"), "app/web:80");

    for (name, wanted) in [
        ("r", "root ingressroute cannot delegate to another root ingressroute"),
        ("other", "root ingressroute cannot delegate to another root ingressroute"),
    ] {
        world.objects.ingress_routes.clear();
        world.ingress_route("app/r", root(None, json!([delegate("/foo", name)])));
        world.ingress_route(
            "app/other",
            json!({"virtualhost": {"fqdn": "other"}, "routes": [route("/", "web")]}),
        );
        assert_eq!(world.build().ingress_route_validation("app/r"), wanted, "{name}");
    }
}

#[test]
fn nested_delegations_stay_under_the_path() {
    let mut world = world();
    world.ingress_route("app/r", root(None, json!([delegate("/foo", "child"), route("/", "web")])));
    world.ingress_route("app/child", json!({"routes": [delegate("/bar", "grandchild")]}));
    world.ingress_route("app/grandchild", json!({"routes": [route("/bar", "blog")]}));
    let seen = world.build();
    assert_eq!(
        seen.ingress_route_validation("app/child"),
        "the path prefix \"/bar\" does not match the parent's path prefix \"/foo\""
    );
    assert_eq!(
        (seen.ingress_route_validation("app/grandchild"), seen.plain("h/bar")),
        ("orphaned".into(), "app/web:80".into())
    );
}

#[test]
fn l3_passthrough_relays_port_443_and_leaves_port_80_plain() {
    let tcp = json!({"services": [{"name": "web", "port": 80}]});
    for (routes, plain) in [(json!([]), "404"), (json!([route("/", "blog")]), "app/blog:80")] {
        let mut spec = root(Some(json!({"passthrough": true})), routes);
        spec["tcpproxy"] = tcp.clone();
        let seen = world().ingress_route("app/r", spec).build();
        assert_eq!(
            (seen.host("h"), seen.ingress_route_validation("app/r")),
            (ports("raw app/web:80", plain), "valid".into())
        );
    }
}

#[test]
fn with_tls_and_a_tcp_proxy_port_80_is_plain() {
    let mut world = world();
    let mut spec = root(Some(json!({"secretName": "w", "passthrough": true})), json!([route("/", "blog")]));
    spec["tcpproxy"] = json!({"services": [
        {"name": "web", "port": 80, "weight": 1}, {"name": "blog", "port": 80, "weight": 3},
    ]});
    let seen = world.secret("app/w").ingress_route("app/r", spec).build();
    assert_eq!(seen.host("h"), ports("w, bytes app/web:80*1 app/blog:80*3", "app/blog:80"));
}

#[test]
fn an_error_of_a_tcp_proxy_is_reported_while_the_routes_are_served() {
    for (tcp, wanted) in [
        (json!({"services": [{"name": "nobody", "port": 80}]}), "tcpproxy: service app/nobody/80: not found"),
        (
            json!({"services": [{"name": "web", "port": 80}], "delegate": {"name": "x"}}),
            "tcpproxy: cannot specify services and delegate in the same tcpproxy",
        ),
        (
            json!({"delegate": {"name": "r"}}),
            "root ingressroute cannot delegate to another root ingressroute",
        ),
        (json!({}), "valid"),
        (json!({"delegate": {"name": "nobody"}}), "valid"),
    ] {
        let mut spec = root(Some(json!({"passthrough": true})), json!([route("/", "blog")]));
        spec["tcpproxy"] = tcp;
        let seen = world().ingress_route("app/r", spec).build();
        assert_eq!(
            (seen.ingress_route_validation("app/r"), seen.host("h")),
            (wanted.into(), ports("closed", "app/blog:80"))
        );
    }
    let mut world = world();
    let mut spec = root(Some(json!({"passthrough": true})), json!([]));
    spec["tcpproxy"] = json!({"delegate": {"name": "a"}});
    world.ingress_route("app/r", spec);
    world.ingress_route("app/a", json!({"tcpproxy": {"delegate": {"name": "b"}}}));
    world.ingress_route("app/b", json!({"tcpproxy": {"delegate": {"name": "a"}}}));
    let seen = world.build();
    assert_eq!(
        seen.ingress_route_validation("app/b"),
        "tcpproxy creates a delegation cycle: app/r -> app/a -> app/b -> app/a"
    );
}

#[test]
fn an_error_stops_the_object_and_earlier_routes_stay() {
    for (bad, wanted) in [
        (route("/bad", "nobody"), "Service [nobody:80] is invalid or missing"),
        (
            json!({"match": "/x", "services": [{"name": "web", "port": 0}]}),
            "route \"/x\": service \"web\": port must be in the range 1-65535",
        ),
        (
            json!({"match": "/x", "services": [{"name": "web", "port": 80}], "delegate": {"name": "y"}}),
            "route \"/x\": cannot specify services and delegate in the same route",
        ),
    ] {
        let mut world = world();
        world.ingress_route("app/r", root(None, json!([route("/a", "web"), bad, route("/c", "web")])));
        let seen = world.build();
        assert_eq!(
            (seen.ingress_route_validation("app/r"), seen.plain("h/a"), seen.plain("h/c")),
            (wanted.into(), "app/web:80".into(), "404".into())
        );
    }
}

#[test]
fn refused_roots_and_orphans_have_their_own_descriptions() {
    for (spec, wanted) in [
        (json!({"virtualhost": {"fqdn": "*.h"}}), "Spec.VirtualHost.Fqdn \"*.h\" cannot use wildcards"),
        (json!({"virtualhost": {"fqdn": ""}}), "Spec.VirtualHost.Fqdn must be specified"),
        (
            json!({"virtualhost": {"fqdn": "twice"}}),
            "fqdn \"twice\" is used in multiple IngressRoutes: app/r, app/twin",
        ),
        (
            json!({"virtualhost": {"fqdn": "h", "novel": 1}}),
            "field \"Spec.VirtualHost.novel\" is not supported",
        ),
        (json!({"routes": []}), "orphaned"),
        (json!({"routes": [], "novel": 1}), "orphaned"),
    ] {
        let mut world = world();
        world
            .ingress_route("app/r", spec)
            .ingress_route("app/twin", json!({"virtualhost": {"fqdn": "Twice"}}));
        assert_eq!(world.build().ingress_route_validation("app/r"), wanted);
    }
    let mut world = world();
    world.ingress_route("app/r", root(None, json!([delegate("/", "child")])));
    world.ingress_route("app/child", json!({"routes": [delegate("/", "child")]}));
    let seen = world.build();
    assert_eq!(
        seen.ingress_route_validation("app/child"),
        "route creates a delegation cycle: app/r -> app/child -> app/child"
    );
    let settings = Settings { root_namespaces: vec!["roots".into()], ..Settings::default() };
    let seen = world.again(settings).build();
    assert_eq!(
        seen.ingress_route_validation("app/r"),
        "root IngressRoute cannot be defined in this namespace"
    );
    assert_eq!(seen.ingress_route_validation("app/child"), "orphaned");
    world.objects.ingress_routes.clear();
    world.ingress_route("app/r", json!({"virtualhost": 1}));
    let validation = world.build().ingress_route_validation("app/r");
    assert!(validation.starts_with("Spec cannot be read: "), "{validation}");
}

#[test]
fn a_route_sets_timeout_rewrite_and_websockets() {
    let mut full = route("/a", "web");
    full["timeoutPolicy"] = json!({"request": "1m"});
    full["prefixRewrite"] = json!("/b");
    full["enableWebsockets"] = json!(true);
    full["retryPolicy"] = json!({"count": 1});
    let mut unreadable = route("/x", "web");
    unreadable["timeoutPolicy"] = json!({"request": "soon"});
    let mut world = world();
    let seen = world.ingress_route("app/r", root(None, json!([full, unreadable]))).build();
    for (url, response, rewritten) in [("h/a/1", Some(60), Some("/b/1")), ("h/x", None, None)] {
        let route = seen.route(url);
        let Action::Forward(forward) = &route.action else { panic!("{url}") };
        assert_eq!(forward.timeouts.response.map(|time| time.as_secs()), response);
        assert_eq!(forward.rewrite.as_ref().map(|rewrite| rewrite.apply("/a/1")).as_deref(), rewritten);
        assert_eq!(forward.websockets, rewritten.is_some());
    }
    assert_eq!(
        seen.notices(),
        ["IngressRoute app/r: ignoring field \"Spec.Routes.retryPolicy\"; it is not supported"]
    );
}

#[test]
fn a_ca_is_always_in_the_namespace_of_the_object() {
    let with_ca = |secret: &str| {
        let mut world = World::default();
        world
            .service_of("app/web", json!({"ports": [{"port": 80, "appProtocol": "https"}]}))
            .ca("app/ca")
            .ca("z/ca");
        world.grant("z", "ca", &["*"]);
        let services = json!([{
            "name": "web", "port": 80, "validation": {"caSecret": secret, "subjectName": "backend"},
        }]);
        world.ingress_route("app/r", root(None, json!([{"match": "/", "services": services}])));
        world.build().ingress_route_validation("app/r")
    };
    assert_eq!(with_ca("ca"), "valid");
    assert_eq!(with_ca("z/ca"), "Service [web:80] TLS upstream validation policy error: Secret not found");
}

#[test]
fn a_delegate_without_the_trailing_slash_of_its_parent_matches_no_longer_names() {
    let mut world = world();
    world.ingress_route("app/r", root(None, json!([delegate("/foo/", "child"), route("/", "web")])));
    world.service("app/blog");
    world.ingress_route("app/child", json!({"routes": [route("/foo", "blog"), delegate("/foo", "deeper")]}));
    world.ingress_route("app/deeper", json!({"routes": [route("/foo", "blog")]}));
    let seen = world.build();
    for (path, wanted) in
        [("foo", "app/blog:80"), ("foo/x", "app/blog:80"), ("foobar", "app/web:80"), ("x", "app/web:80")]
    {
        assert_eq!(seen.plain(&format!("h/{path}")), wanted, "{path}");
    }
}
