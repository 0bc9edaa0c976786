//! The TLS block of a root, except for the permission to use its certificate.

use pinniped_gateway_routing::{
    Settings,
    table::{ForwardedCertificate, TlsVersion, TlsVersions},
};
use serde_json::{Value, json};

use crate::world::{World, down, up};

fn world(tls: Value) -> World {
    let mut world = World::default();
    world.service("app/web").secret("app/w").ca("app/ca").root("app/p", "h", Some(tls));
    world
}

#[test]
fn t5_tls_is_either_terminated_or_passed_through() {
    let incompatible = "TLSError TLSIncompatibleFeatures: Spec.VirtualHost.TLS";
    let invalid = "TLSError TLSConfigNotValid: Spec.VirtualHost.TLS";
    let both_fallback =
        format!("{incompatible}: both Passthrough and enableFallbackCertificate were specified");
    for (tls, wanted) in [
        (
            json!({"passthrough": true, "secretName": "w"}),
            format!("{invalid}: both Passthrough and SecretName were specified"),
        ),
        (json!({}), format!("{invalid}: neither Passthrough nor SecretName were specified")),
        (json!({"secretName": " "}), format!("{invalid}: neither Passthrough nor SecretName were specified")),
        (
            json!({"passthrough": true, "clientValidation": {"caSecret": "ca"}}),
            format!("{incompatible} passthrough cannot be combined with tls.clientValidation"),
        ),
        (json!({"passthrough": true, "enableFallbackCertificate": true}), both_fallback.clone()),
        (
            json!({"passthrough": true, "enableFallbackCertificate": true, "secretName": "w"}),
            format!("{both_fallback}\n{invalid}: both Passthrough and SecretName were specified"),
        ),
        (
            json!({"secretName": "w", "enableFallbackCertificate": true, "clientValidation": {"caSecret": "ca"}}),
            "TLSError TLSIncompatibleFeatures: Spec.Virtualhost.TLS fallback & client validation are incompatible"
                .to_owned(),
        ),
    ] {
        let seen = world(tls.clone()).build();
        assert_eq!((seen.validation("app/p"), seen.host("h")), (wanted, down()), "{tls}");
    }
}

#[test]
fn r9_versions_are_those_of_the_host_within_those_of_the_gateway() {
    use TlsVersion::{V1_2, V1_3};
    let everything = TlsVersions::default();
    let new_only = TlsVersions { min: V1_3, max: V1_3 };
    let too_high = "TLSError TLSConfigNotValid: Spec.Virtualhost.TLS the minimum protocol version is greater than the maximum \
         protocol version";
    for (allowed, min, max, wanted) in [
        (everything, "1.3", "", Some((V1_3, V1_3))),
        (everything, "9", "", Some((V1_2, V1_3))),
        (everything, "", "1.2", Some((V1_2, V1_2))),
        (everything, "1.3", "1.2", None),
        (new_only, "1.2", "", Some((V1_3, V1_3))),
        (new_only, "", "1.2", None),
    ] {
        let mut world =
            world(json!({"secretName": "w", "minimumProtocolVersion": min, "maximumProtocolVersion": max}));
        let seen = world.again(Settings { versions: allowed, ..Settings::default() }).build();
        match wanted {
            Some((min, max)) => assert_eq!(seen.termination("h").versions, TlsVersions { min, max }),
            None => assert_eq!((seen.validation("app/p"), seen.host("h")), (too_high.to_owned(), down())),
        }
    }
}

#[test]
fn client_validation_is_copied_to_the_table() {
    let seen = world(json!({"secretName": "w", "clientValidation": {
        "caSecret": "ca",
        "optionalClientCertificate": true,
        "crlOnlyVerifyLeafCert": true,
        "forwardClientCertificate": {"subject": true, "uri": true},
    }}))
    .build();
    assert_eq!(seen.host("h"), up("w"));
    let validation = seen.termination("h").client_validation.unwrap();
    assert_eq!(validation.ca.distinct_count(), 1);
    assert!(validation.optional && validation.revocations.is_none() && validation.revocations_of_leaf_only);
    let forward = ForwardedCertificate { subject: true, uri_names: true, ..ForwardedCertificate::default() };
    assert_eq!(validation.forward, Some(forward));
}

#[test]
fn client_validation_without_a_ca_disables_the_host() {
    let seen = world(json!({"secretName": "w", "clientValidation": {}})).build();
    assert_eq!(
        seen.validation("app/p"),
        "TLSError ClientValidationInvalid: Spec.VirtualHost.TLS client validation is invalid: CA Secret must be specified"
    );
    assert_eq!(seen.host("h"), down());
    let seen = world(json!({"secretName": "w", "clientValidation": {
        "caSecret": "ca", "skipClientCertValidation": true,
    }}))
    .build();
    assert_eq!(
        seen.validation("app/p"),
        "SpecError UnsupportedFeature: field \"Spec.VirtualHost.TLS.ClientValidation.skipClientCertValidation\" is not \
         supported"
    );
    assert_eq!(seen.host("h"), down());
}

#[test]
fn r1_over_tls_the_request_host_must_equal_the_server_name() {
    let mut world = world(json!({"secretName": "w"}));
    world.root("app/q", "other", Some(json!({"secretName": "w"})));
    let seen = world.build();
    for (sni, url, wanted) in [
        ("h", "other/", "421"),
        ("h", "unknown/", "421"),
        ("h", "h:8443/", "app/web:80"),
        ("h", "H/", "app/web:80"),
        ("H", "h/", "app/web:80"),
        ("other", "other/", "app/web:80"),
        ("unknown", "h/", "closed"),
        ("", "h/", "closed"),
    ] {
        assert_eq!(seen.tls(sni, url), wanted, "{sni} {url}");
    }
}
