//! Rows T: TCP connections instead of requests.

use pinniped_gateway_routing::table::{
    Action, Balance, Protocol, Terminated, TlsAction, TlsTarget, Upstream,
};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::world::{BuildResult, World, down, ports, route};

const HOST: &str = "impersonation-proxy-mtls.local";
const SERVICE: &str = "pinniped-concierge/pinniped-concierge-impersonation-proxy-cluster-ip";

/// Returns the object of the release announcement, unchanged.
fn walkthrough() -> World {
    let mut world = World::default();
    world.proxy_object(json!({
        "apiVersion": "projectcontour.io/v1",
        "kind": "HTTPProxy",
        "metadata": {"name": "impersonation-proxy", "namespace": "pinniped-concierge"},
        "spec": {
            "virtualhost": {"fqdn": HOST, "tls": {"passthrough": true}},
            "tcpproxy": {"services": [
                {"name": "pinniped-concierge-impersonation-proxy-cluster-ip", "port": 443},
            ]},
        },
    }));
    world
}

fn with_service(world: &mut World, endpoints: Value) -> &mut World {
    world.service_of(SERVICE, json!({"ports": [{"port": 443, "targetPort": 8444, "protocol": "TCP"}]})).slice(
        SERVICE,
        endpoints,
        json!([{"name": "", "port": 8444, "protocol": "TCP"}]),
    )
}

fn upstream(seen: &BuildResult, sni: &str) -> Arc<Upstream> {
    let Some(TlsTarget::Host(host)) = seen.0.table.tls.by_sni(Some(sni)) else { panic!("{sni} is no host") };
    let TlsAction::Passthrough(tcp) = &host.action else { panic!("{sni} is not passed through") };
    Arc::clone(&tcp.backends.choices()[0].upstream)
}

#[test]
fn t1_the_walkthrough_is_passed_through_and_port_80_does_not_serve_the_host() {
    let mut world = walkthrough();
    let seen = with_service(&mut world, json!([{"addresses": ["10.0.0.1"]}])).build();
    assert_eq!(seen.validation("pinniped-concierge/impersonation-proxy"), "valid");
    assert_eq!(seen.host(HOST), ports(&format!("raw {SERVICE}:443"), "404"));
    assert_eq!(*upstream(&seen, HOST).endpoints, ["10.0.0.1:8444".parse().unwrap()]);
    // An HTTP request for the host finds nothing.
    assert_eq!(seen.tls(HOST, &format!("{HOST}/")), "404");
}

#[test]
fn t2_an_unknown_or_missing_server_name_is_closed() {
    let mut world = walkthrough();
    let seen = with_service(&mut world, json!([])).build();
    for sni in ["", "local", "other.local", "a.impersonation-proxy-mtls.local"] {
        assert_eq!(seen.connection(sni), "closed", "{sni}");
    }
    assert_ne!(seen.connection("Impersonation-Proxy-MTLS.local"), "closed");
}

#[test]
fn t4_endpoints_follow_the_service() {
    let mut world = walkthrough();
    let seen = world.build();
    assert_eq!(
        seen.validation("pinniped-concierge/impersonation-proxy"),
        format!(
            "TCPProxyError ServiceUnresolvedReference: Spec.TCPProxy unresolved service reference: service \"{SERVICE}\" \
             not found"
        )
    );
    assert_eq!(seen.host(HOST), down());
    let not_ready = json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]);
    let seen = with_service(&mut world, not_ready).build();
    assert_eq!(seen.validation("pinniped-concierge/impersonation-proxy"), "valid");
    assert!(upstream(&seen, HOST).endpoints.is_empty());
}

#[test]
fn t5_a_tcp_proxy_needs_tls() {
    let mut world = World::default();
    let tcp = json!({"services": [{"name": "web", "port": 80}]});
    let seen = world
        .service("app/web")
        .proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "tcpproxy": tcp}))
        .build();
    assert_eq!(
        seen.validation("app/p"),
        "TCPProxyError TLSMustBeConfigured: Spec.TCPProxy requires that either Spec.TLS.Passthrough or \
         Spec.TLS.SecretName be set"
    );
    assert_eq!(seen.host("h"), down());
}

/// Returns the result for a root with this TCP proxy and these other objects.
fn chain(tcp: Value, others: &[(&str, Value)]) -> BuildResult {
    let mut world = World::default();
    world.service("app/web").service("z/web");
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h", "tls": {"passthrough": true}},
            "tcpproxy": tcp,
            "routes": [route("/", "web")],
        }),
    );
    for (name, spec) in others {
        world.proxy(name, spec.clone());
    }
    world.build()
}

#[test]
fn t6_the_object_or_an_included_one_defines_the_tcp_proxy() {
    let services = json!({"services": [{"name": "web", "port": 80}]});
    let include = |name: &str, namespace: &str| json!({"include": {"name": name, "namespace": namespace}});
    let both = json!({"services": [{"name": "web", "port": 80}], "include": {"name": "c"}});
    let child = |tcp: Value| json!({ "tcpproxy": tcp });
    let root = json!({"virtualhost": {"fqdn": "r", "tls": {"passthrough": true}}, "tcpproxy": services});
    let valid = |namespace: &str| ports(&format!("raw {namespace}/web:80"), "301");

    let seen = chain(services.clone(), &[]);
    assert_eq!((seen.host("h"), seen.validation("app/p")), (valid("app"), "valid".into()));

    for spelling in ["include", "includes"] {
        let tcp = json!({spelling: {"name": "c", "namespace": "z"}});
        let seen = chain(tcp, &[("z/c", child(include("d", ""))), ("z/d", child(services.clone()))]);
        assert_eq!(seen.host("h"), valid("z"), "{spelling}");
        for name in ["app/p", "z/c", "z/d"] {
            assert_eq!(seen.validation(name), "valid");
        }
    }
    let singular_wins = json!({"include": {"name": "c", "namespace": "z"}, "includes": {"name": "nobody"}});
    assert_eq!(chain(singular_wins, &[("z/c", child(services))]).host("h"), valid("z"));

    let include_error = "TCPProxyIncludeError";
    let table = [
        (json!({}), vec![], "app/p", "TCPProxyError NothingDefined: either services or inclusion must be specified".to_owned()),
        (
            both.clone(),
            vec![],
            "app/p",
            "TCPProxyError NoServicesAndInclude: cannot specify services and include in the same httpproxy".to_owned(),
        ),
        (include("c", ""), vec![], "app/p", format!("{include_error} IncludeNotFound: include app/c not found")),
        (
            include("c", "z"),
            vec![("z/c", root)],
            "app/p",
            format!("{include_error} RootIncludesRoot: root httpproxy cannot include another root httpproxy (z/c)"),
        ),
        (
            include("c", "z"),
            vec![("z/c", child(include("p", "app")))],
            "z/c",
            format!("{include_error} RootIncludesRoot: root httpproxy cannot include another root httpproxy (app/p)"),
        ),
        (
            include("c", "z"),
            vec![("z/c", child(include("d", "z"))), ("z/d", child(include("c", "z")))],
            "z/d",
            format!("{include_error} IncludeCreatesCycle: include creates a cycle: app/p -> z/c -> z/d -> z/c"),
        ),
        (
            include("c", "z"),
            vec![("z/c", child(both))],
            "z/c",
            "TCPProxyError NoServicesAndInclude: cannot specify services and include in the same httpproxy".to_owned(),
        ),
        (
            include("c", "z"),
            vec![("z/c", child(json!({"services": [{"name": "web", "port": 81}]})))],
            "z/c",
            "TCPProxyError ServiceUnresolvedReference: Spec.TCPProxy unresolved service reference: port \"81\" on service \
             \"z/web\" not matched"
                .to_owned(),
        ),
    ];
    for (tcp, others, name, wanted) in table {
        let seen = chain(tcp.clone(), &others);
        assert_eq!((seen.validation(name), seen.host("h")), (wanted, down()), "{tcp}");
    }
}

#[test]
fn t7_terminated_bytes_have_no_routes_and_port_80_has_its_own() {
    let tcp = json!({"services": [{"name": "web", "port": 80}]});
    let insecure = json!({"permitInsecure": true, "services": [{"name": "web", "port": 80}]});
    for (routes, plain) in
        [(json!([]), "404"), (json!([route("/", "web")]), "301"), (json!([insecure]), "app/web:80")]
    {
        let mut world = World::default();
        world.service("app/web").secret("app/w").proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h", "tls": {"secretName": "w"}},
                "tcpproxy": tcp,
                "routes": routes,
            }),
        );
        let seen = world.build();
        assert_eq!(seen.host("h"), ports("w, bytes app/web:80", plain));
        assert_eq!(seen.tls("h", "h/"), "404");
    }
}

#[test]
fn t7_bytes_are_encrypted_again_for_a_service_with_tls() {
    for (protocol, wanted) in [("tls", Protocol::Tls), ("h2", Protocol::H2), ("h2c", Protocol::H2c)] {
        let mut world = World::default();
        world.service("app/web").secret("app/w").ca("app/ca").proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h", "tls": {"secretName": "w"}},
                "tcpproxy": {"services": [{
                    "name": "web",
                    "port": 80,
                    "protocol": protocol,
                    "validation": {"caSecret": "ca", "subjectName": "a", "subjectNames": ["a", "b"]},
                }]},
            }),
        );
        let Terminated::Tcp(tcp) = world.build().termination("h").inside else { panic!("no bytes") };
        let id = &tcp.backends.choices()[0].upstream.id;
        assert_eq!(id.protocol, wanted);
        let names = id.validation.as_ref().map(|validation| validation.names.join(" "));
        assert_eq!(names.as_deref(), wanted.is_tls().then_some("a b"));
    }
}

#[test]
fn t8_connections_are_distributed_by_weight() {
    for (weights, wanted) in [
        (json!([70]), "raw app/a:80"),
        (json!([7, 77]), "raw app/a:80*7 app/b:80*77"),
        (json!([0, 0, 0]), "raw app/a:80*1 app/b:80*1 app/c:80*1"),
        (json!([77, 0, 7]), "raw app/a:80*77 app/c:80*7"),
    ] {
        let mut world = World::default();
        world.service("app/a").service("app/b").service("app/c");
        let services: Vec<Value> = ["a", "b", "c"]
            .iter()
            .zip(weights.as_array().unwrap())
            .map(|(name, weight)| json!({"name": name, "port": 80, "weight": weight}))
            .collect();
        world.proxy(
            "app/p",
            json!({
                "virtualhost": {"fqdn": "h", "tls": {"passthrough": true}},
                "tcpproxy": {"services": services},
            }),
        );
        assert_eq!(world.build().connection("h"), wanted);
    }
}

#[test]
fn passthrough_without_a_tcp_proxy_is_valid_and_port_80_redirects() {
    let mut world = World::default();
    let seen = world.service("app/web").root("app/p", "h", Some(json!({"passthrough": true}))).build();
    assert_eq!((seen.validation("app/p"), seen.host("h")), ("valid".into(), ports("closed", "301")));
}

#[test]
fn passthrough_is_raw_for_every_service_protocol() {
    let mut world = World::default();
    world.annotated_service(
        "app/web",
        json!({"projectcontour.io/upstream-protocol.tls": "80"}),
        json!({"ports": [{"port": 80, "appProtocol": "https"}]}),
    );
    let services = json!([{"name": "web", "port": 80, "protocol": "tls"}]);
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h", "tls": {"passthrough": true}},
            "tcpproxy": {"services": services, "loadBalancerPolicy": {"strategy": "Cookie"}},
        }),
    );
    let seen = world.build();
    assert_eq!(upstream(&seen, "h").id.protocol, Protocol::Http1);
    assert_eq!(upstream(&seen, "h").id.balance, Balance::RoundRobin);
    assert_eq!(
        seen.warnings("app/p"),
        "TCPProxyError IgnoredField: ignoring field \"Spec.TCPProxy.LoadBalancerPolicy\"; Cookie load balancer policy is \
         not supported for TCPProxies"
    );
    assert_eq!(seen.validation("app/p"), "valid");
}

#[test]
fn a_service_annotation_sets_the_protocol() {
    let annotations = json!({
        "projectcontour.io/upstream-protocol.h2": "named, 8081",
        "contour.heptio.com/upstream-protocol.tls": "8082",
    });
    let mut world = World::default();
    world.annotated_service(
        "app/web",
        annotations,
        json!({"ports": [
            {"name": "named", "port": 8080},
            {"name": "b", "port": 8081},
            {"name": "c", "port": 8082},
            {"name": "d", "port": 8083, "appProtocol": "https"},
            {"name": "e", "port": 8084, "appProtocol": "kubernetes.io/h2c"},
            {"name": "f", "port": 8085},
        ]}),
    );
    world.service_of("app/other", json!({"ports": [{"name": "named", "port": 8081, "appProtocol": "http"}]}));
    for (port, printed, wanted) in [
        (8080, None, Protocol::H2),
        (8081, None, Protocol::H2),
        (8082, None, Protocol::Tls),
        (8083, None, Protocol::Tls),
        (8084, None, Protocol::H2c),
        (8085, None, Protocol::Http1),
        (8083, Some("h2c"), Protocol::H2c),
        (8085, Some("tls"), Protocol::Tls),
    ] {
        let mut service = json!({"name": "web", "port": port});
        if let Some(printed) = printed {
            service["protocol"] = json!(printed);
        }
        world.objects.http_proxies.clear();
        world.proxy("app/p", json!({"virtualhost": {"fqdn": "h"}, "routes": [{"services": [service]}]}));
        let route = world.build().route("h/");
        let Action::Forward(forward) = &route.action else { panic!("{port}") };
        assert_eq!(forward.backends.choices()[0].upstream.id.protocol, wanted, "{port} {printed:?}");
    }
}
