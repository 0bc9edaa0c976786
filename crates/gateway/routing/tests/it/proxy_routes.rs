//! Rows R: request routing by an HTTPProxy.

use http::HeaderMap;
use pinniped_gateway_routing::{
    Settings,
    table::{Action, Balance, PathEdit},
};
use serde_json::{Value, json};

use crate::world::{BuildResult, World, down, ports, route};

fn world() -> World {
    let mut world = World::default();
    world.service("app/web").service("app/blog").secret("app/w");
    world
}

/// Returns the result for a root of `h` with these routes.
fn with_routes(routes: Value) -> BuildResult {
    let mut world = world();
    world.proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": routes})).build()
}

#[test]
fn r2_port_80_redirects_unless_the_route_permits_plain_http() {
    for (disable, blog) in [(false, "app/blog:80"), (true, "301")] {
        let mut world = World::with(Settings { disable_permit_insecure: disable, ..Settings::default() });
        world.service("app/web").service("app/blog").secret("app/w");
        let mut open = route("/blog", "blog");
        open["permitInsecure"] = json!(true);
        world.proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h", "tls": {"secretName": "w"}},
                "routes": [route("/", "web"), open],
            }),
        );
        let seen = world.build();
        assert_eq!((seen.plain("h/"), seen.plain("h/blog")), ("301".into(), blog.into()));
        assert_eq!(
            (seen.tls("h", "h/"), seen.tls("h", "h/blog")),
            ("app/web:80".into(), "app/blog:80".into())
        );
    }
}

#[test]
fn r3_a_missing_service_is_503_unless_other_services_exist() {
    let missing = "ServiceError ServiceUnresolvedReference: Spec.Routes unresolved service reference: service \
                   \"app/nobody\" not found";
    let seen = with_routes(json!([route("/", "web"), route("/gone", "nobody")]));
    assert_eq!((seen.plain("h/"), seen.plain("h/gone")), ("app/web:80".into(), "503".into()));
    assert_eq!(seen.validation("app/p"), missing);
    let two = json!([{"services": [{"name": "web", "port": 80, "weight": 1}, {"name": "nobody", "port": 80, "weight": 99}]}]);
    let seen = with_routes(two);
    assert_eq!((seen.plain("h/"), seen.validation("app/p")), ("app/web:80".into(), missing.to_owned()));
}

#[test]
fn an_invalid_service_is_reported_with_the_reason() {
    let prefix = "ServiceError ServiceUnresolvedReference: Spec.Routes unresolved service reference: ";
    for (spec, port, wanted) in [
        (json!({"ports": [{"port": 81}]}), 80, "port \"80\" on service \"app/s\" not matched"),
        (json!({"ports": [{"port": 80, "protocol": "UDP"}]}), 80, "unsupported service protocol \"UDP\""),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "ports": [{"port": 80}]}),
            80,
            "app/s is an ExternalName service, these are not currently enabled. See the \
             config.enableExternalNameService config file setting",
        ),
    ] {
        let mut world = world();
        world.service_of("app/s", spec);
        let services = json!([{"name": "s", "port": port}]);
        let seen = world
            .proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": [{"services": services}]}))
            .build();
        assert_eq!((seen.validation("app/p"), seen.plain("h/")), (format!("{prefix}{wanted}"), "503".into()));
    }
    let both = json!({"ports": [{"port": 80, "protocol": "UDP"}, {"port": 80, "protocol": "TCP"}]});
    let mut world = world();
    let seen = world
        .service_of("app/s", both)
        .proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h"}, "routes": [route("/", "s")],
            }),
        )
        .build();
    assert_eq!(seen.plain("h/"), "app/s:80");
}

#[test]
fn endpoints_are_ready_unique_and_have_the_selected_port() {
    let mut world = World::default();
    world.service_of(
        "app/web",
        json!({"ports": [{"name": "http", "port": 80}, {"name": "other", "port": 81}]}),
    );
    world.slice(
        "app/web",
        json!([
            {"addresses": ["10.0.0.2", "10.9.9.9"]},
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
            {"addresses": ["not.an.address"]},
        ]),
        json!([
            {"name": "http", "port": 8080},
            {"name": "other", "port": 8081},
            {"name": "http", "port": 8082, "protocol": "UDP"},
        ]),
    );
    world.slice(
        "app/web",
        json!([{"addresses": ["10.0.0.2"]}, {"addresses": ["::1"]}]),
        json!([{"name": "http", "port": 8080}]),
    );
    world.slice("z/web", json!([{"addresses": ["10.8.8.8"]}]), json!([{"name": "http", "port": 8080}]));
    world.root("app/p", "h", None);
    let route = world.build().route("h/");
    let Action::Forward(forward) = &route.action else { panic!("no backend") };
    let endpoints: Vec<String> =
        forward.backends.choices()[0].upstream.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(endpoints, ["10.0.0.1:8080", "10.0.0.2:8080", "[::1]:8080"]);
}

#[test]
fn r4_a_missing_include_is_502_and_an_invalid_route_removes_all_routes_of_its_object() {
    let mut world = world();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [
                {"name": "gone", "namespace": "z", "conditions": [{"prefix": "/finance"}]},
                {"name": "nobody"},
            ],
            "routes": [route("/", "web")],
        }),
    );
    let seen = world.build();
    assert_eq!(
        seen.validation("app/p"),
        "IncludeError IncludeNotFound: include z/gone not found\nIncludeError IncludeNotFound: include app/nobody not \
         found"
    );
    assert_eq!((seen.plain("h/finance/x"), seen.plain("h/")), ("502".into(), "app/web:80".into()));

    let seen = with_routes(json!([route("/", "web"), route("x", "web")]));
    assert_eq!(
        seen.validation("app/p"),
        "RouteError PathMatchConditionsNotValid: route: prefix conditions must start with /, x was supplied"
    );
    assert_eq!(seen.host("h"), down());
}

#[test]
fn a_missing_nested_include_is_502_only_under_its_path() {
    let mut world = world();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "child", "namespace": "z", "conditions": [{"prefix": "/a"}]}],
            "routes": [route("/", "web")],
        }),
    );
    world.proxy("z/child", json!({"includes": [{"name": "gone", "conditions": [{"prefix": "/b"}]}]}));
    let seen = world.build();
    assert_eq!((seen.plain("h/a/b"), seen.plain("h/b")), ("502".into(), "app/web:80".into()));
    assert_eq!(seen.validation("z/child"), "IncludeError IncludeNotFound: include z/gone not found");
}

#[test]
fn r5_two_roots_with_the_same_host_are_both_refused() {
    let mut world = world();
    world.root("app/p", "h", None).root("app/q", "H", None).root("app/fine", "fine", None);
    let seen = world.build();
    for name in ["app/p", "app/q"] {
        assert_eq!(
            seen.validation(name),
            "VirtualHostError DuplicateVhost: fqdn \"h\" is used in multiple HTTPProxies: app/p, app/q"
        );
    }
    assert_eq!((seen.plain("h/"), seen.plain("fine/")), ("404".into(), "app/web:80".into()));
}

#[test]
fn r6_orphans_cycles_included_roots_and_roots_in_other_namespaces_are_reported() {
    let orphan = "Orphaned Orphaned: this HTTPProxy is not part of a delegation chain from a root HTTPProxy";
    let mut world = world();
    world.proxy("z/orphan", json!({"routes": [route("/", "web")]}));
    let seen = world.build();
    assert_eq!(seen.validation("z/orphan"), orphan);
    assert_eq!(seen.0.http_proxies.values().next().unwrap().current_status(), "orphaned");

    world.objects.http_proxies.clear();
    let include = |name: &str| json!({"name": name, "conditions": [{"prefix": "/in"}]});
    world.proxy(
        "app/p",
        json!({"virtualhost": {"fqdn": "h"}, "includes": [include("child")], "routes": [route("/", "web")]}),
    );
    world.proxy("app/child", json!({"includes": [include("child")], "routes": [route("/", "blog")]}));
    let seen = world.build();
    assert_eq!(
        seen.validation("app/child"),
        "IncludeError IncludeCreatesCycle: include creates an include cycle: app/p -> app/child -> app/child"
    );
    assert_eq!((seen.plain("h/in/"), seen.plain("h/")), ("app/blog:80".into(), "app/web:80".into()));

    world.objects.http_proxies.clear();
    world.root("app/other", "other", None).proxy(
        "app/p",
        json!({"virtualhost": {"fqdn": "h"}, "includes": [include("other")], "routes": [route("/", "web")]}),
    );
    let seen = world.build();
    assert_eq!(
        seen.validation("app/p"),
        "IncludeError RootIncludesRoot: root httpproxy cannot include another root httpproxy (app/other)"
    );
    assert_eq!(
        (seen.plain("h/in"), seen.plain("h/"), seen.plain("other/")),
        ("502".into(), "app/web:80".into(), "app/web:80".into())
    );

    let settings = Settings { root_namespaces: vec!["roots".into()], ..Settings::default() };
    let seen = world.again(settings).build();
    assert_eq!(
        seen.validation("app/other"),
        "RootNamespaceError RootProxyNotAllowedInNamespace: root HTTPProxy cannot be defined in this namespace"
    );
    assert_eq!(seen.host("other"), down());
}

#[test]
fn an_object_is_an_orphan_only_if_no_valid_root_leads_to_it() {
    let include = json!([{"name": "child"}]);
    let mut world = world();
    world.proxy("app/child", json!({"routes": [route("/", "web")]}));
    world.proxy(
        "app/bad",
        json!({"virtualhost": {"fqdn": "bad", "tls": {"secretName": "none"}}, "includes": include}),
    );
    let seen = world.build();
    assert!(seen.validation("app/child").starts_with("Orphaned"), "{}", seen.validation("app/child"));
    world.proxy("app/good", json!({"virtualhost": {"fqdn": "good"}, "includes": include}));
    let seen = world.build();
    assert_eq!((seen.validation("app/child"), seen.plain("good/")), ("valid".into(), "app/web:80".into()));
}

#[test]
fn r7_an_included_object_is_served_under_the_path_of_its_include() {
    let mut world = world();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "child", "conditions": [{"prefix": "/blog"}, {"header": {"name": "a", "present": true}}]}],
            "routes": [route("/", "web")],
        }),
    );
    let exact = json!({"conditions": [{"exact": "/main.js"}], "services": [{"name": "blog", "port": 80}]});
    world.proxy("app/child", json!({"routes": [route("/infotech", "blog"), exact]}));
    let seen = world.build();
    let mut headers = HeaderMap::new();
    headers.insert("a", "x".parse().unwrap());
    for (url, with, without) in [
        ("h/blog/infotech/x", "app/blog:80", "app/web:80"),
        ("h/blog/main.js", "app/blog:80", "app/web:80"),
        ("h/blog/main.js/x", "app/web:80", "app/web:80"),
        ("h//blog/./x/../infotech", "app/blog:80", "app/web:80"),
        ("h/infotech", "app/web:80", "app/web:80"),
    ] {
        assert_eq!((seen.plain_with(url, &headers), seen.plain(url)), (with.into(), without.into()), "{url}");
    }
}

#[test]
fn r8_each_root_serves_its_own_host() {
    let mut world = world();
    for (name, host) in [("app/a", "domain.io"), ("app/b", "*.domain.io"), ("app/c", "bar.domain.io")] {
        let service = name.replace("app/", "s-");
        world.service(&format!("app/{service}"));
        world.proxy(name, json!({"virtualhost": {"fqdn": host}, "routes": [route("/", &service)]}));
    }
    let seen = world.build();
    for (host, wanted) in [
        ("domain.io", "app/s-a:80"),
        ("foo.domain.io", "app/s-b:80"),
        ("bar.domain.io", "app/s-c:80"),
        ("bar.foo.domain.io", "404"),
    ] {
        assert_eq!(seen.plain(&format!("{host}/")), wanted);
    }
}

#[test]
fn a_root_needs_a_host_and_an_action() {
    for (spec, wanted) in [
        (
            json!({"virtualhost": {"fqdn": "h"}}),
            "SpecError NothingDefined: HTTPProxy.Spec must have at least one Route, Include, or a TCPProxy",
        ),
        (
            json!({"virtualhost": {"fqdn": " "}, "routes": [route("/", "web")]}),
            "VirtualHostError FQDNNotSpecified: Spec.VirtualHost.Fqdn must be specified",
        ),
        (
            json!({"virtualhost": {"fqdn": "*"}, "routes": [route("/", "web")]}),
            "VirtualHostError FQDNNotSpecified: Spec.VirtualHost.Fqdn must be specified",
        ),
    ] {
        let seen = world().proxy("app/p", spec).build();
        assert_eq!((seen.validation("app/p"), seen.plain("anything/")), (wanted.to_owned(), "404".into()));
    }
}

#[test]
fn an_error_in_a_route_removes_all_routes_of_its_object() {
    let services = || json!([{"name": "web", "port": 80}]);
    let header = |name: &str, value: &str| json!({"header": {"name": name, "exact": value}});
    let rewriting = |replacements: Value, condition: Value| {
        json!({
            "conditions": [condition],
            "services": services(),
            "pathRewritePolicy": {"replacePrefix": replacements},
        })
    };
    let to = |prefix: &str| json!({"prefix": prefix, "replacement": "/"});
    for (bad, wanted) in [
        (
            json!({}),
            "RouteError RouteActionCountNotValid: must set exactly one of route.services or \
             route.requestRedirectPolicy or route.directResponsePolicy",
        ),
        (
            json!({"services": services(), "directResponsePolicy": {"statusCode": 200}}),
            "RouteError RouteActionCountNotValid: must set exactly one of route.services or \
             route.requestRedirectPolicy or route.directResponsePolicy",
        ),
        (
            json!({"services": services(), "conditions": [{"prefix": "/a"}, {"exact": "/b"}]}),
            "RouteError PathMatchConditionsNotValid: route: more than one prefix, exact or regex is not allowed in a \
             condition block",
        ),
        (
            json!({"services": services(), "conditions": [header("a", "x"), header("A", "y")]}),
            "RouteError HeaderMatchConditionsNotValid: cannot specify duplicate header 'exact match' conditions in the \
             same route",
        ),
        (
            json!({"services": services(), "conditions": [{"queryParameter": {"name": "q"}}]}),
            "RouteError QueryParameterMatchConditionsNotValid: must specify at least one query parameter condition",
        ),
        (
            json!({"services": services(), "timeoutPolicy": {"response": "soon"}}),
            "RouteError TimeoutPolicyNotValid: route.timeoutPolicy failed to parse: error parsing response timeout: \
             unable to parse timeout string \"soon\": time: invalid duration \"soon\"",
        ),
        (
            json!({"services": [{"name": "web", "port": 65536}]}),
            "ServiceError ServicePortInvalid: service \"web\": port must be in the range 1-65535",
        ),
        (
            json!({"services": [{"name": "web", "port": 80, "protocol": "quic"}]}),
            "ServiceError UnsupportedProtocol: unsupported protocol: quic",
        ),
        (
            rewriting(json!([to("")]), json!({"exact": "/a"})),
            "PrefixReplaceError MustHavePrefix: cannot specify prefix replacements without a prefix condition",
        ),
        (
            rewriting(json!([to("/x"), to("/x")]), json!({"prefix": "/x"})),
            "PrefixReplaceError DuplicateReplacement: duplicate replacement prefix '/x'",
        ),
        (
            rewriting(json!([to(""), to("")]), json!({"prefix": "/x"})),
            "PrefixReplaceError AmbiguousReplacement: ambiguous prefix replacement",
        ),
        (
            json!({"requestRedirectPolicy": {"path": "/a", "prefix": "/b"}}),
            "RouteError RequestRedirectPolicy: route.requestRedirectPolicy is invalid: cannot specify both redirect path \
             and redirect prefix",
        ),
    ] {
        let seen = with_routes(json!([route("/fine", "web"), bad]));
        assert_eq!(seen.validation("app/p"), wanted);
        assert_eq!(seen.plain("h/fine"), "404", "{wanted}");
    }
}

#[test]
fn an_error_in_an_include_removes_that_include() {
    let include = |conditions: Value| json!({"name": "child", "conditions": conditions});
    let path = "IncludeError PathMatchConditionsNotValid: include:";
    for (conditions, wanted) in [
        (json!([{"exact": "/x"}]), format!("{path} exact conditions are not allowed in includes block")),
        (json!([{"regex": "/x"}]), format!("{path} regex conditions are not allowed in includes block")),
        (json!([{"prefix": "x"}]), format!("{path} prefix conditions must start with /, x was supplied")),
        (
            json!([{"prefix": "/fine"}]),
            "IncludeError DuplicateMatchConditions: duplicate conditions defined on an include".to_owned(),
        ),
    ] {
        let mut world = world();
        world.proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h"},
                "includes": [include(json!([{"prefix": "/fine"}])), include(conditions)],
            }),
        );
        let seen = world.proxy("app/child", json!({"routes": [route("/", "web")]})).build();
        assert_eq!(
            (seen.validation("app/p"), seen.plain("h/fine/"), seen.plain("h/x/")),
            (wanted, "app/web:80".into(), "404".into())
        );
    }
    let mut world = world();
    let everywhere = json!([include(json!([])), include(json!([{"prefix": "/"}])), include(json!([]))]);
    world.proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "includes": everywhere}));
    let seen = world.proxy("app/child", json!({"routes": [route("/", "web")]})).build();
    assert_eq!((seen.validation("app/p"), seen.plain("h/")), ("valid".into(), "app/web:80".into()));
}

#[test]
fn a_route_sets_timeouts_websockets_load_balancing_and_rewrites() {
    let seen = with_routes(json!([{
        "conditions": [{"prefix": "/foo/"}],
        "services": [{"name": "web", "port": 80}],
        "enableWebsockets": true,
        "loadBalancerPolicy": {"strategy": "WeightedLeastRequest"},
        "timeoutPolicy": {"response": "infinity", "idle": "1m", "idleConnection": "2m"},
        "pathRewritePolicy": {"replacePrefix": [
            {"replacement": "/any"}, {"prefix": "/foo/", "replacement": "/bar/"},
        ]},
    }]));
    assert_eq!(seen.validation("app/p"), "valid");
    for (path, wanted) in [("/foo", "/bar"), ("/foo/a", "/bar/a"), ("/foosball", "/barsball")] {
        let route = seen.route(&format!("h{path}"));
        let Action::Forward(forward) = &route.action else { panic!("{path}") };
        assert_eq!(forward.rewrite.as_ref().unwrap().apply(path), wanted);
        assert!(forward.websockets);
        assert_eq!(forward.timeouts.response, None);
        assert_eq!(forward.timeouts.idle.unwrap().as_secs(), 60);
        let id = &forward.backends.choices()[0].upstream.id;
        assert_eq!((id.balance, id.idle_connection.unwrap().as_secs()), (Balance::LeastRequest, 120));
    }
}

#[test]
fn a_prefix_with_routes_for_both_slash_forms_is_not_merged() {
    let rewriting = |prefix: &str, replacement: &str| {
        let mut route = route(prefix, "web");
        route["pathRewritePolicy"] = json!({"replacePrefix": [{"replacement": replacement}]});
        route
    };
    let seen = with_routes(json!([rewriting("/foo", "/a"), rewriting("/foo/", "/b/")]));
    for (path, wanted) in [("/foo", "/a"), ("/foo/x", "/b/x"), ("/foosball", "/asball")] {
        let route = seen.route(&format!("h{path}"));
        let Action::Forward(forward) = &route.action else { panic!("{path}") };
        assert_eq!(forward.rewrite.as_ref().unwrap().apply(path), wanted);
    }
}

#[test]
fn a_route_may_redirect_or_return_a_direct_response() {
    let seen = with_routes(json!([
        {"conditions": [{"prefix": "/answer"}], "directResponsePolicy": {"statusCode": 418, "body": "tea"}},
        {"conditions": [{"prefix": "/old"}], "requestRedirectPolicy": {"prefix": "/new", "statusCode": 308}},
        {"conditions": [{"prefix": "/away"}], "requestRedirectPolicy": {
            "scheme": "https", "hostname": "b", "port": 8443, "path": "/x",
        }},
    ]));
    assert_eq!(
        (seen.plain("h/answer"), seen.plain("h/old/a"), seen.plain("h/away")),
        ("418".into(), "redirect 308".into(), "redirect 302".into())
    );
    let route = seen.route("h/old/a");
    let Action::Redirect(redirect) = &route.action else { panic!("no redirect") };
    let Some(PathEdit::Prefix(rewrite)) = &redirect.path else { panic!("no prefix") };
    assert_eq!(rewrite.apply("/old/a"), "/new/a");
    let route = seen.route("h/away");
    let Action::Redirect(redirect) = &route.action else { panic!("no redirect") };
    assert_eq!(
        (redirect.scheme.as_deref(), redirect.host.as_deref(), redirect.port),
        (Some("https"), Some("b"), Some(8443))
    );
}

#[test]
fn own_and_later_routes_replace_routes_with_the_same_conditions() {
    let mut world = world();
    world.service("app/third").proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "child"}],
            "routes": [route("/", "blog"), route("/", "third")],
        }),
    );
    let seen = world.proxy("app/child", json!({"routes": [route("/", "web")]})).build();
    assert_eq!(seen.host("h"), ports("closed", "app/third:80"));
}
