//! Fields that are not implemented.

use serde_json::{Value, json};

use crate::world::{World, down, route};

fn world() -> World {
    let mut world = World::default();
    world.service("app/web").secret("app/w");
    world
}

/// Returns a valid root with a value set at a JSON pointer whose parent exists.
fn root_with(pointer: &str, value: Value) -> World {
    let mut spec = json!({
        "virtualhost": {"fqdn": "h", "tls": {"secretName": "w"}},
        "includes": [{"name": "nobody", "conditions": [{"prefix": "/nobody"}]}],
        "routes": [route("/", "web")],
    });
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    spec.pointer_mut(parent).unwrap()[field] = value;
    let mut world = world();
    world.proxy("app/p", spec);
    world
}

#[test]
fn a_field_that_could_restrict_access_refuses_the_object() {
    for (pointer, value, name) in [
        ("/virtualhost/authorization", json!({}), "Spec.VirtualHost.authorization"),
        ("/virtualhost/jwtProviders", json!([{"name": "x"}]), "Spec.VirtualHost.jwtProviders"),
        ("/virtualhost/ipAllowPolicy", json!([{"cidr": "::/0"}]), "Spec.VirtualHost.ipAllowPolicy"),
        ("/virtualhost/ipDenyPolicy", json!([{"cidr": "::/0"}]), "Spec.VirtualHost.ipDenyPolicy"),
        ("/virtualhost/rateLimitPolicy", json!({}), "Spec.VirtualHost.rateLimitPolicy"),
        ("/virtualhost/corsPolicy", json!({}), "Spec.VirtualHost.corsPolicy"),
        ("/routes/0/authPolicy", json!({}), "Spec.Routes.authPolicy"),
        ("/routes/0/jwtVerificationPolicy", json!({}), "Spec.Routes.jwtVerificationPolicy"),
        ("/routes/0/ipAllowPolicy", json!([{"cidr": "::/0"}]), "Spec.Routes.ipAllowPolicy"),
        ("/routes/0/requestHeadersPolicy", json!({}), "Spec.Routes.requestHeadersPolicy"),
        ("/routes/0/services/0/responseHeadersPolicy", json!({}), "Spec.Services.responseHeadersPolicy"),
        ("/routes/0/conditions/0/novel", json!("x"), "Spec.Routes.Conditions.novel"),
        ("/includes/0/novel", json!(false), "Spec.Includes.novel"),
        ("/virtualhost/tls/novel", json!(1), "Spec.VirtualHost.TLS.novel"),
        ("/novel", json!({}), "Spec.novel"),
    ] {
        let seen = root_with(pointer, value).build();
        let wanted = format!("SpecError UnsupportedFeature: field \"{name}\" is not supported");
        assert_eq!((seen.validation("app/p"), seen.host("h")), (wanted, down()), "{pointer}");
    }
}

#[test]
fn an_empty_field_is_ignored() {
    for value in [json!(null), json!([])] {
        let seen = root_with("/virtualhost/ipAllowPolicy", value).build();
        assert_eq!(seen.connection("h"), "w, http");
    }
}

#[test]
fn a_convenience_field_is_ignored_with_a_warning() {
    for (pointer, value, wanted) in [
        (
            "/routes/0/retryPolicy",
            json!({"count": 2}),
            "field \"Spec.Routes.retryPolicy\"; it is not supported",
        ),
        (
            "/routes/0/healthCheckPolicy",
            json!({}),
            "field \"Spec.Routes.healthCheckPolicy\"; it is not supported",
        ),
        (
            "/routes/0/services/0/healthPort",
            json!(1),
            "field \"Spec.Services.healthPort\"; it is not supported",
        ),
        (
            "/routes/0/services/0/mirror",
            json!(true),
            "field \"Spec.Services.mirror\"; the service gets no requests",
        ),
        (
            "/routes/0/services/0/validation",
            json!({"caSecret": "ca", "subjectName": "x"}),
            "field \"Spec.Services.Validation\"; the gateway speaks no TLS to the service",
        ),
        (
            "/routes/0/loadBalancerPolicy",
            json!({"strategy": "Cookie"}),
            "field \"Spec.Routes.LoadBalancerPolicy\"; Cookie load balancer policy is not supported for Routes",
        ),
    ] {
        let seen = root_with(pointer, value).build();
        assert_eq!(seen.warnings("app/p"), format!("SpecError IgnoredField: ignoring {wanted}"));
        assert_eq!(seen.connection("h"), "w, http", "{pointer}");
    }
}

#[test]
fn an_included_object_with_an_unsupported_field_is_refused_alone() {
    let mut world = world();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "child", "conditions": [{"prefix": "/child"}]}],
            "routes": [route("/", "web")],
        }),
    );
    let mut guarded = route("/", "web");
    guarded["ipDenyPolicy"] = json!([{"cidr": "::/0"}]);
    world.proxy("app/child", json!({"routes": [guarded, route("/open", "web")]}));
    let seen = world.build();
    assert_eq!(
        seen.validation("app/child"),
        "SpecError UnsupportedFeature: field \"Spec.Routes.ipDenyPolicy\" is not supported"
    );
    assert_eq!(seen.validation("app/p"), "valid");
    let Ok(routes) = seen.0.table.plain.hosts.by_host("h").map(|routes| routes.len()).ok_or(()) else {
        panic!("no host")
    };
    assert_eq!(routes, 1);
}

#[test]
fn a_spec_that_cannot_be_parsed_is_reported_and_affects_no_other_object() {
    let mut world = world();
    world.proxy("app/bad", json!({"virtualhost": {"fqdn": 1}})).root("app/good", "h", None);
    world.proxy(
        "app/worse",
        json!({
            "virtualhost": {"fqdn": "w"},
            "routes": [{"services": [{"name": "web", "port": 80}], "pathRewritePolicy": {
                "replacePrefix": [{"replacement": "/", "novel": true}],
            }}],
        }),
    );
    let seen = world.build();
    assert!(seen.validation("app/bad").starts_with("SpecError SpecNotReadable: Spec cannot be read: "));
    assert!(
        seen.validation("app/worse").contains("unknown field `novel`"),
        "{}",
        seen.validation("app/worse")
    );
    assert_eq!((seen.plain("h/"), seen.plain("w/")), ("app/web:80".into(), "404".into()));
}
