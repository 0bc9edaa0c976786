//! Rows D: the permission of an HTTPProxy to use a certificate.

use std::sync::Arc;

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_routing::{Name, Settings};
use serde_json::json;

use crate::world::{World, certificate, down, ports, route, up};

const REFUSED: &str = "TLSError DelegationNotPermitted: Spec.VirtualHost.TLS Secret \"certs/w\" certificate delegation not permitted";

/// Returns a world with a root in `app` that refers to the existing Secret `certs/w`.
fn d1() -> World {
    let mut world = World::default();
    world.service("app/web").secret("certs/w").root("app/p", "h", Some(json!({"secretName": "certs/w"})));
    world
}

#[test]
fn d1_without_a_grant_the_host_is_down() {
    let seen = d1().build();
    assert_eq!(seen.host("h"), down());
    assert_eq!(seen.validation("app/p"), REFUSED);
}

#[test]
fn d2_d3_a_grant_to_the_namespace_or_to_all_namespaces_enables_the_host() {
    for targets in [&["app"][..], &["x", "app"], &["*"]] {
        let seen = d1().grant("certs", "w", targets).build();
        assert_eq!((seen.host("h"), seen.validation("app/p")), (up("w"), "valid".to_owned()), "{targets:?}");
        assert_eq!(seen.tls("h", "h/x"), "app/web:80");
    }
}

#[test]
fn d4_a_changed_or_removed_grant_disables_the_host() {
    let mut world = d1();
    type Change = fn(&mut World);
    let changes: [Change; 3] = [
        |world| _ = world.grant("certs", "different", &["*"]),
        |world| _ = world.grant("certs", "w", &["other"]),
        |_| {},
    ];
    for change in changes {
        world.without_grants().grant("certs", "w", &["app"]);
        assert_eq!(world.build().host("h"), up("w"));
        world.without_grants();
        change(&mut world);
        let seen = world.build();
        assert_eq!((seen.host("h"), seen.validation("app/p")), (down(), REFUSED.to_owned()));
    }
}

#[test]
fn d5_a_near_match_is_not_a_grant() {
    for (secret, targets) in [("w", &["*", "other"][..]), ("w", &[]), ("*", &["*"]), ("certs/w", &["*"])] {
        let seen = d1().grant("certs", secret, targets).build();
        assert_eq!(seen.host("h"), down(), "{secret} {targets:?}");
        assert_eq!(seen.validation("app/p"), REFUSED, "{secret} {targets:?}");
    }
    let seen = d1().grant("certs", "w", &["*", "other"]).build();
    assert_eq!(
        seen.notices(),
        [
            "TLSCertificateDelegation certs/grant-0: \"*\" together with other namespaces does not delegate Secret \"w\" to \
             all of them: use it as the only entry"
        ]
    );
}

#[test]
fn d6_a_grant_is_in_the_namespace_of_the_secret_and_one_of_several_is_sufficient() {
    assert_eq!(d1().grant("app", "w", &["app"]).build().host("h"), down());
    let mut world = d1();
    world.grant("certs", "w", &["app"]).grant("certs", "w", &["other"]);
    assert_eq!(world.build().host("h"), up("w"));
    world.objects.delegations.pop();
    assert_eq!(world.build().host("h"), up("w"));
}

#[test]
fn d7_a_missing_granted_secret_is_reported_and_its_creation_enables_the_host() {
    let mut world = d1();
    let seen = world.without_secrets().grant("certs", "w", &["app"]).build();
    assert_eq!(seen.host("h"), down());
    let missing =
        "TLSError SecretNotValid: Spec.VirtualHost.TLS Secret \"certs/w\" is invalid: Secret not found";
    assert_eq!(seen.validation("app/p"), missing);
    assert_eq!(world.secret("certs/w").build().host("h"), up("w"));
}

#[test]
fn d8_without_a_grant_the_status_does_not_reveal_whether_the_secret_exists() {
    let seen = d1().without_secrets().build();
    assert_eq!((seen.host("h"), seen.validation("app/p")), (down(), REFUSED.to_owned()));
}

#[test]
fn d9_a_secret_in_the_same_namespace_needs_no_grant_in_either_notation() {
    for written in ["w", "app/w", "/w"] {
        let mut world = World::default();
        world.service("app/web").secret("app/w").root("app/p", "h", Some(json!({"secretName": written})));
        let seen = world.build();
        assert_eq!((seen.host("h"), seen.validation("app/p")), (up("w"), "valid".to_owned()), "{written}");
    }
    for written in ["app/", "app/a/b"] {
        let mut world = World::default();
        world.service("app/web").root("app/p", "h", Some(json!({"secretName": written})));
        let message = format!(
            "TLSError SecretNotValid: Spec.VirtualHost.TLS Secret \"{written}\" is invalid: Secret not found"
        );
        assert_eq!(world.build().validation("app/p"), message);
    }
}

#[test]
fn d10_a_renewed_secret_is_served_and_an_invalid_one_is_not() {
    let mut world = d1();
    world.grant("certs", "w", &["app"]);
    let first = Arc::clone(&world.build().termination("h").certificate);
    // With other metadata and the same content, the certificate is the same value.
    let mut touched = (*world.objects.secrets[0]).clone();
    touched.metadata.resource_version = Some("2".into());
    world.objects.secrets = vec![Arc::new(touched)];
    assert!(Arc::ptr_eq(&first, &world.build().termination("h").certificate));

    let (renewed, key) = certificate("renewed");
    world.secret_of("certs/w", "kubernetes.io/tls", &[("tls.crt", &renewed), ("tls.key", &key)]);
    assert_eq!(world.build().host("h"), up("renewed"));

    world.secret_of("certs/w", "kubernetes.io/tls", &[("tls.crt", "wrong"), ("tls.key", &key)]);
    let seen = world.build();
    assert_eq!(seen.host("h"), down());
    assert_eq!(
        seen.validation("app/p"),
        "TLSError SecretNotValid: Spec.VirtualHost.TLS Secret \"certs/w\" is invalid: invalid TLS certificate: failed \
         to locate certificate"
    );
    assert_eq!(world.without_secrets().build().host("h"), down());
    assert_eq!(world.secret("certs/w").build().host("h"), up("w"));
}

#[test]
fn d11_grants_of_all_groups_count_alike() {
    for version in ["projectcontour.io/v1", "contour.heptio.com/v1beta1", "contour.vmware.com/v1"] {
        let mut world = d1();
        world.objects.delegations.push(Arc::new(
            serde_json::from_value(json!({
                "apiVersion": version,
                "kind": "TLSCertificateDelegation",
                "metadata": {"namespace": "certs", "name": "grant"},
                "spec": {"delegations": [{"secretName": "w", "targetNamespaces": ["app"]}]},
            }))
            .unwrap(),
        ));
        assert_eq!(world.build().host("h"), up("w"), "{version}");
    }
}

#[test]
fn d12_the_seed_manifest_grants_its_secrets() {
    let mut world = World::default();
    world.objects.delegations.push(Arc::new(
        serde_json::from_value(json!({
            "apiVersion": "contour.vmware.com/v1",
            "kind": "TLSCertificateDelegation",
            "metadata": {"namespace": "kube-system", "name": "wildcards"},
            "spec": {"delegations": [
                {"secretName": "example-com-wildcard", "targetNamespaces": ["dev-example", "www-example"]},
                {"secretName": "google-com", "targetNamespaces": ["finance"]},
                {"secretName": "dev-wildcard", "targetNamespaces": ["*"]},
            ]},
        }))
        .unwrap(),
    ));
    for secret in ["example-com-wildcard", "google-com", "dev-wildcard"] {
        world.secret(&format!("kube-system/{secret}"));
        for namespace in ["dev-example", "www-example", "finance", "anywhere"] {
            world.service(&format!("{namespace}/web"));
            let tls = json!({"secretName": format!("kube-system/{secret}")});
            world.root(&format!("{namespace}/{secret}"), &format!("{secret}.{namespace}"), Some(tls));
        }
    }
    let seen = world.build();
    for (secret, may) in [
        ("example-com-wildcard", &["dev-example", "www-example"][..]),
        ("google-com", &["finance"]),
        ("dev-wildcard", &["dev-example", "www-example", "finance", "anywhere"]),
    ] {
        for namespace in ["dev-example", "www-example", "finance", "anywhere"] {
            let wanted = if may.contains(&namespace) { up(secret) } else { down() };
            assert_eq!(seen.host(&format!("{secret}.{namespace}")), wanted, "{secret} {namespace}");
        }
    }
}

#[test]
fn d13_a_tcp_proxy_needs_the_grant_too() {
    let mut world = World::default();
    world.service("app/web").secret("certs/w").proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h", "tls": {"secretName": "certs/w"}},
            "tcpproxy": {"services": [{"name": "web", "port": 80}]},
        }),
    );
    let seen = world.build();
    assert_eq!((seen.host("h"), seen.validation("app/p")), (down(), REFUSED.to_owned()));
    assert_eq!(world.grant("certs", "w", &["app"]).build().connection("h"), "w, bytes app/web:80");
}

#[test]
fn d14_a_ca_is_granted_to_the_namespace_of_the_object_that_refers_to_it() {
    let validation = json!({"caSecret": "app/ca", "subjectName": "backend"});
    let mut world = World::default();
    world.ca("app/ca").service("app/web").service("z/web").proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "child", "namespace": "z", "conditions": [{"prefix": "/z"}]}],
            "routes": [route("/", "web")],
        }),
    );
    world.proxy(
        "z/child",
        json!({"routes": [{"services": [{"name": "web", "port": 80, "protocol": "tls", "validation": validation}]}]}),
    );
    let seen = world.build();
    assert_eq!(
        seen.validation("z/child"),
        "TLSError CACertificateNotDelegated: service.UpstreamValidation.CACertificate Secret \"app/ca\" is not configured \
         for certificate delegation"
    );
    assert_eq!(seen.validation("app/p"), "valid");
    assert_eq!((seen.plain("h/z"), seen.plain("h/")), ("app/web:80".into(), "app/web:80".into()));

    let seen = world.grant("app", "ca", &["z"]).build();
    assert_eq!((seen.validation("z/child"), seen.plain("h/z")), ("valid".into(), "z/web:80".into()));

    world.without_secrets();
    assert_eq!(
        world.build().validation("z/child"),
        "ServiceError TLSUpstreamValidation: Service [web:80] TLS upstream validation policy error: invalid CA Secret \
         \"app/ca\": Secret not found"
    );
}

#[test]
fn d15_client_validation_needs_grants_for_its_ca_and_its_revocation_lists() {
    let invalid =
        "TLSError ClientValidationInvalid: Spec.VirtualHost.TLS client validation is invalid: invalid";
    for (field, kind, secret) in [("caSecret", "CA", "ca"), ("crlSecret", "CRL", "crl")] {
        let mut world = World::default();
        let mut validation = json!({"caSecret": "own-ca"});
        validation[field] = json!(format!("certs/{secret}"));
        world.service("app/web").secret("app/w").ca("app/own-ca");
        world.root("app/p", "h", Some(json!({"secretName": "w", "clientValidation": validation})));
        let seen = world.build();
        assert_eq!(
            seen.validation("app/p"),
            format!(
                "TLSError DelegationNotPermitted: Spec.VirtualHost.TLS {kind} Secret \"certs/{secret}\" is invalid: \
                 certificate delegation not permitted"
            )
        );
        assert_eq!(seen.host("h"), down());
        let seen = world.grant("certs", secret, &["app"]).build();
        assert_eq!(
            seen.validation("app/p"),
            format!("{invalid} {kind} Secret \"certs/{secret}\": Secret not found")
        );
        assert_eq!(seen.host("h"), down());
    }
}

#[test]
fn d16_the_fallback_certificate_must_be_granted_to_each_host_that_requests_it() {
    let configured = || Settings {
        fallback_certificate: Some(SecretReference { namespace: "certs".into(), name: "fb".into() }),
        ..Settings::default()
    };
    let mut world = World::with(configured());
    let tls = json!({"secretName": "w", "enableFallbackCertificate": true});
    world.service("app/web").secret("app/w").secret("certs/fb").root("app/p", "h", Some(tls));
    let seen = world.build();
    assert_eq!(
        seen.validation("app/p"),
        "TLSError FallbackNotDelegated: Spec.VirtualHost.TLS Secret \"certs/fb\" is not configured for certificate \
         delegation"
    );
    assert_eq!((seen.host("h"), seen.connection("")), (down(), "closed".into()));

    let seen = world.grant("certs", "fb", &["app"]).build();
    assert_eq!((seen.host("h"), seen.validation("app/p")), (up("w"), "valid".into()));
    for unknown in ["", "unknown"] {
        assert_eq!(seen.connection(unknown), "fb, any host");
        assert_eq!(seen.tls(unknown, "h/"), "app/web:80");
        assert_eq!(seen.tls(unknown, "other/"), "404");
    }

    assert_eq!(world.without_grants().build().connection("unknown"), "closed");
    world.grant("certs", "fb", &["app"]).objects.secrets.retain(|s| s.metadata.name.as_deref() == Some("w"));
    assert_eq!(
        world.build().validation("app/p"),
        "TLSError FallbackNotValid: Spec.Virtualhost.TLS Secret \"certs/fb\" fallback certificate is invalid: Secret not \
         found"
    );
    let seen = world.again(Settings::default()).build();
    assert_eq!(
        seen.validation("app/p"),
        "TLSError FallbackNotPresent: Spec.Virtualhost.TLS enabled fallback but the fallback Certificate Secret is not \
         configured in Contour configuration file"
    );
    assert_eq!(seen.host("h"), down());
}

#[test]
fn a_host_without_tls_needs_no_secret() {
    let mut world = World::default();
    assert_eq!(
        world.service("app/web").root("app/p", "h", None).build().host("h"),
        ports("closed", "app/web:80")
    );
}

#[test]
fn the_result_lists_exactly_the_objects_that_it_depends_on() {
    let names = |names: &[&str]| -> std::collections::HashSet<Name> {
        let split = |name: &&str| {
            let (namespace, name) = name.split_once('/').unwrap();
            Name { namespace: namespace.to_owned(), name: name.to_owned() }
        };
        names.iter().map(split).collect()
    };
    let mut world = d1();
    world.secret("certs/other").service("app/other");
    let referenced = world.build().0.referenced;
    // The builder does not read a Secret that the object may not use.
    assert_eq!((referenced.secrets, referenced.services), (names(&[]), names(&[])));
    let referenced = world.grant("certs", "w", &["app"]).build().0.referenced;
    assert_eq!((referenced.secrets, referenced.services), (names(&["certs/w"]), names(&["app/web"])));
    // A missing Secret is part of the dependencies.
    let mut world = World::default();
    world.root("app/p", "h", Some(json!({"secretName": "w"}))).root("app/q", "i", None);
    let referenced = world.build().0.referenced;
    assert_eq!((referenced.secrets, referenced.services), (names(&["app/w"]), names(&["app/web"])));
}
