//! Rows I: Ingress.

use pinniped_gateway_routing::{
    Name, Settings,
    table::{Action, TlsVersion},
};
use serde_json::{Value, json};

use crate::world::{World, certificate, down, ports};

fn backend(service: &str) -> Value {
    json!({"service": {"name": service, "port": {"number": 80}}})
}

fn path(path: &str, path_type: &str, service: &str) -> Value {
    json!({"path": path, "pathType": path_type, "backend": backend(service)})
}

fn rule(host: &str, paths: &[Value]) -> Value {
    json!({"host": host, "http": {"paths": paths}})
}

/// Returns a rule that forwards all requests of one host to `web`.
fn simple(host: &str) -> Value {
    rule(host, &[path("/", "Prefix", "web")])
}

fn with_tls(secret: &str, host: &str) -> Value {
    json!({"rules": [simple(host)], "tls": [{"hosts": [host], "secretName": secret}]})
}

fn annotated() -> Value {
    json!({"projectcontour.io/tls-cert-namespace": "certs"})
}

fn world() -> World {
    let mut world = World::default();
    world.service("app/web").service("app/other").secret("certs/w");
    world
}

#[test]
fn i1_i2_https_needs_a_grant_and_http_does_not() {
    let mut world = world();
    let seen = world.ingress("app/i", annotated(), with_tls("w", "h")).build();
    assert_eq!(seen.host("h"), ports("closed", "app/web:80"));
    assert_eq!(
        seen.notices(),
        ["Ingress app/i: certificate delegation not permitted for Secret \"certs/w\""]
    );
    let seen = world.grant("certs", "w", &["app"]).build();
    assert_eq!(seen.host("h"), ports("w, http", "app/web:80"));
    assert_eq!(seen.tls("h", "h/x"), "app/web:80");
    assert_eq!(seen.notices(), [""; 0]);
    assert_eq!(seen.0.ingresses, [Name { namespace: "app".into(), name: "i".into() }]);
}

#[test]
fn i3_without_the_certificate_redirects_stay_and_disallowed_http_stays_disallowed() {
    for (name, value, plain, plain_with_grant) in [
        ("ingress.kubernetes.io/force-ssl-redirect", "true", "301", "301"),
        ("kubernetes.io/ingress.allow-http", "false", "404", "404"),
    ] {
        let mut annotations = annotated();
        annotations[name] = json!(value);
        let mut world = world();
        let seen = world.ingress("app/i", annotations, with_tls("w", "h")).build();
        assert_eq!(seen.host("h"), ports("closed", plain), "{name}");
        let seen = world.grant("certs", "w", &["app"]).build();
        assert_eq!(seen.host("h"), ports("w, http", plain_with_grant), "{name}");
        assert_eq!(seen.tls("h", "h/"), "app/web:80");
    }
    let both = json!({
        "ingress.kubernetes.io/force-ssl-redirect": "true",
        "kubernetes.io/ingress.allow-http": "false",
    });
    assert_eq!(world().ingress("app/i", both, with_tls("w", "h")).build().plain("h/"), "301");
}

#[test]
fn i4_the_slash_notation_works_and_takes_precedence_over_the_annotation() {
    for annotations in [json!({}), json!({"projectcontour.io/tls-cert-namespace": "elsewhere"})] {
        let mut world = world();
        world.grant("certs", "w", &["app"]).ingress("app/i", annotations, with_tls("certs/w", "h"));
        assert_eq!(world.build().host("h"), ports("w, http", "app/web:80"));
    }
}

#[test]
fn i5_a_certificate_applies_to_listed_hosts_that_have_a_rule() {
    let mut world = world();
    world.grant("certs", "w", &["app"]);
    world.ingress(
        "app/i",
        annotated(),
        json!({"rules": [simple("a")], "tls": [{"hosts": ["b"], "secretName": "w"}]}),
    );
    let seen = world.build();
    assert_eq!((seen.host("a"), seen.host("b")), (ports("closed", "app/web:80"), down()));
    world.objects.ingresses.clear();
    world.ingress(
        "app/i",
        annotated(),
        json!({"rules": [simple("a"), simple("b")], "tls": [{"hosts": ["B"], "secretName": "w"}]}),
    );
    let seen = world.build();
    assert_eq!(seen.host("a"), ports("closed", "app/web:80"));
    assert_eq!(seen.host("b"), ports("w, http", "app/web:80"));
    world.objects.ingresses.clear();
    world.ingress("app/i", annotated(), json!({"rules": [simple("a")], "tls": [{"secretName": "w"}]}));
    assert_eq!(world.build().connection("a"), "closed");
}

#[test]
fn i6_a_rule_for_every_host_takes_precedence_over_the_default_backend_which_is_http_only() {
    let mut world = world();
    let everywhere = json!({"http": {"paths": [path("/", "Prefix", "web")]}});
    world.ingress("app/i", json!({}), json!({"defaultBackend": backend("other"), "rules": [everywhere]}));
    assert_eq!(world.build().plain("any/x"), "app/web:80");
    world.objects.ingresses.clear();
    world.grant("certs", "w", &["app"]).ingress(
        "app/i",
        annotated(),
        json!({"defaultBackend": backend("other"), "tls": [{"hosts": ["h", "*"], "secretName": "w"}]}),
    );
    let seen = world.build();
    assert_eq!((seen.host("h"), seen.connection("*")), (ports("closed", "app/other:80"), "closed".into()));
    // The rule of a younger object takes precedence, too.
    world.ingress("app/younger", json!({}), json!({"rules": [everywhere]}));
    assert_eq!(world.build().plain("any/x"), "app/web:80");
}

#[test]
fn i7_paths_match_by_their_type() {
    let mut world = world();
    for (host, written, path_type) in [
        ("prefix", "/foo", "Prefix"),
        ("slash", "/foo/", "Prefix"),
        ("exact", "/foo", "Exact"),
        ("string", "/foo", "ImplementationSpecific"),
        ("regex", "/x.*", "ImplementationSpecific"),
        ("root", "/", "Prefix"),
        ("empty", "", "ImplementationSpecific"),
    ] {
        let name = format!("app/{host}");
        world.ingress(&name, json!({}), json!({"rules": [rule(host, &[path(written, path_type, "web")])]}));
    }
    let seen = world.build();
    for (url, wanted) in [
        ("prefix/foo", true),
        ("prefix/foo/", true),
        ("prefix/foo/bar", true),
        ("prefix/foobar", false),
        ("slash/foo", true),
        ("slash/foo/bar", true),
        ("slash/foobar", false),
        ("exact/foo", true),
        ("exact/foo/", false),
        ("string/foobar", true),
        ("regex/xyz", true),
        ("regex/x", true),
        ("regex/y/x", false),
        ("root/anything", true),
        ("empty/anything", true),
    ] {
        assert_eq!(seen.plain(url), if wanted { "app/web:80" } else { "404" }, "{url}");
    }
}

#[test]
fn i8_only_objects_of_the_configured_classes_are_served() {
    for (classes, class, wanted) in [
        (&[][..], None, true),
        (&[], Some("contour"), true),
        (&[], Some("other"), false),
        (&["mine", "yours"], Some("yours"), true),
        (&["mine"], Some("contour"), false),
        (&["mine"], None, false),
    ] {
        let classes: Vec<String> = classes.iter().map(|class| (*class).to_owned()).collect();
        let mut world = World::with(Settings { classes, ..Settings::default() });
        let mut spec = json!({"rules": [simple("i")]});
        let mut proxy = json!({
            "virtualhost": {"fqdn": "p"},
            "routes": [{"services": [{"name": "web", "port": 80}]}],
        });
        if let Some(class) = class {
            spec["ingressClassName"] = json!(class);
            proxy["ingressClassName"] = json!(class);
        }
        let seen = world.service("app/web").ingress("app/i", json!({}), spec).proxy("app/p", proxy).build();
        let response = if wanted { "app/web:80" } else { "404" };
        assert_eq!((seen.plain("i/"), seen.plain("p/")), (response.into(), response.into()), "{class:?}");
        assert_eq!((seen.0.ingresses.len(), seen.0.http_proxies.len()), (wanted.into(), wanted.into()));
    }
}

#[test]
fn i9_a_wildcard_is_one_label_for_requests_and_both_names_must_agree() {
    let mut world = world();
    world.grant("certs", "w", &["app"]).ingress("app/i", annotated(), with_tls("w", "*.w"));
    let seen = world.build();
    for (host, sni, wanted) in [
        ("a.w", "a.w", "app/web:80"),
        ("a.b.w", "a.b.w", "404"),
        ("a.w", "c.w", "421"),
        ("a.w:9999", "a.w", "app/web:80"),
        ("A.W", "a.w", "app/web:80"),
    ] {
        assert_eq!(seen.tls(sni, &format!("{host}/")), wanted, "{host} {sni}");
    }
    assert_eq!(
        (seen.plain("a.w/"), seen.plain("a.b.w/"), seen.plain("w/")),
        ("app/web:80".into(), "404".into(), "404".into())
    );
}

#[test]
fn i10_an_invalid_secret_leaves_http_only_until_it_is_fixed() {
    let (good, key) = certificate("w");
    let mut world = world();
    world.grant("certs", "w", &["app"]).ingress("app/i", annotated(), with_tls("w", "h"));
    for (type_, text, why) in [
        (
            "kubernetes.io/dockerconfigjson",
            good.as_str(),
            "secret type is not \"kubernetes.io/tls\" or \"Opaque\"",
        ),
        ("kubernetes.io/tls", "wrong", "invalid TLS certificate: failed to locate certificate"),
    ] {
        let seen = world.secret_of("certs/w", type_, &[("tls.crt", text), ("tls.key", &key)]).build();
        assert_eq!(seen.host("h"), ports("closed", "app/web:80"), "{type_}");
        assert_eq!(
            seen.notices(),
            [format!("Ingress app/i: unresolved reference to Secret \"certs/w\": {why}")]
        );
    }
    assert_eq!(world.secret("certs/w").build().host("h"), ports("w, http", "app/web:80"));
}

#[test]
fn unsatisfiable_tls_versions_disable_https_only() {
    let mut annotations = annotated();
    annotations["projectcontour.io/tls-minimum-protocol-version"] = json!("1.3");
    let mut world = world();
    world.grant("certs", "w", &["app"]).ingress("app/a", annotations.clone(), with_tls("w", "a"));
    annotations["projectcontour.io/tls-maximum-protocol-version"] = json!("1.2");
    world.ingress("app/b", annotations, with_tls("w", "b")).ingress("app/c", annotated(), with_tls("w", "c"));
    let seen = world.build();
    assert_eq!(seen.termination("a").versions.min, TlsVersion::V1_3);
    assert_eq!(seen.host("b"), ports("closed", "app/web:80"));
    assert_eq!(seen.termination("c").versions.min, TlsVersion::V1_2);
    assert_eq!(
        seen.notices(),
        ["Ingress app/b: the minimum TLS protocol version is greater than the maximum one: no HTTPS"]
    );
}

#[test]
fn an_invalid_backend_is_skipped_and_reported() {
    let mut world = world();
    let resource =
        json!({"path": "/r", "pathType": "Exact", "backend": {"resource": {"kind": "X", "name": "x"}}});
    let named = |name: &str| json!({"service": {"name": "web", "port": {"name": name}}});
    world.ingress(
        "app/i",
        json!({}),
        json!({"rules": [
            rule("h", &[
                resource,
                path("/missing", "Exact", "nobody"),
                json!({"path": "/named", "pathType": "Exact", "backend": named("http")}),
                json!({"path": "/misnamed", "pathType": "Exact", "backend": named("smtp")}),
                path("/before", "Exact", "web"),
                path("/[", "ImplementationSpecific", "web"),
                path("/after", "Exact", "web"),
            ]),
            simple("other"),
        ]}),
    );
    let seen = world.build();
    for (url, wanted) in [
        ("h/r", "404"),
        ("h/missing", "404"),
        ("h/named", "app/web:80"),
        ("h/misnamed", "404"),
        ("h/before", "app/web:80"),
        ("h/after", "404"),
        ("other/", "app/web:80"),
    ] {
        assert_eq!(seen.plain(url), wanted, "{url}");
    }
    let notices = seen.notices();
    assert!(
        notices[0].starts_with("Ingress app/i: path \"/[\" is not a valid regular expression: "),
        "{notices:?}"
    );
    assert_eq!(
        notices[1..],
        [
            "Ingress app/i: skipping path \"/misnamed\": port \"smtp\" on service \"app/web\" not matched",
            "Ingress app/i: skipping path \"/missing\": service \"app/nobody\" not found",
            "Ingress app/i: skipping path \"/r\": only Services can be backends",
        ]
    );
}

#[test]
fn annotations_set_timeouts_and_websockets() {
    let mut world = world();
    let annotations = json!({
        "projectcontour.io/websocket-routes": "/ws, /other",
        "projectcontour.io/response-timeout": "infinity",
        "projectcontour.io/retry-on": "5xx",
    });
    let paths = [path("/ws", "Exact", "web"), path("/", "Prefix", "web")];
    world.ingress("app/i", annotations, json!({"rules": [rule("h", &paths)]}));
    let bad = json!({"projectcontour.io/request-timeout": "soon"});
    world.ingress("app/bad", bad, json!({"rules": [simple("bad")]}));
    let seen = world.build();
    for (url, websockets, response) in [("h/ws", true, None), ("h/", false, None), ("bad/", false, Some(15))]
    {
        let Action::Forward(forward) = &seen.route(url).action else { panic!("{url}") };
        assert_eq!(forward.websockets, websockets, "{url}");
        assert_eq!(forward.timeouts.response.map(|time| time.as_secs()), response, "{url}");
    }
    assert_eq!(
        seen.notices(),
        [
            "Ingress app/bad: using the default response timeout: unable to parse timeout string \"soon\": time: invalid \
         duration \"soon\"",
            "Ingress app/i: ignoring annotation \"projectcontour.io/retry-on\"; it is not supported",
        ]
    );
}
