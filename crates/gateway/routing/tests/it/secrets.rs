//! Rows S: the content of Secrets.

use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde_json::json;

use crate::world::{World, certificate, down, up};

/// Returns the validation result of a root with this Secret, without the common start of the
/// message; `valid` if the root is served.
fn validation_of(type_: &str, data: &[(&str, &str)]) -> String {
    let mut world = World::default();
    world.service("app/web").secret_of("app/s", type_, data);
    let seen = world.root("app/p", "h", Some(json!({"secretName": "s"}))).build();
    let validation = seen.validation("app/p");
    assert_eq!(validation == "valid", seen.host("h") != down());
    let prefix = "TLSError SecretNotValid: Spec.VirtualHost.TLS Secret \"s\" is invalid: ";
    validation.strip_prefix(prefix).unwrap_or(&validation).to_owned()
}

/// Returns a certificate without any name.
fn nameless(key: &KeyPair) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.self_signed(key).unwrap().pem()
}

// An EC key in three formats, and its certificate: `openssl ecparam -name prime256v1 -genkey`,
// which writes the parameters first, `openssl req -x509 -subj /CN=ec`, `openssl pkcs8 -topk8
// -nocrypt`.
const EC_CERTIFICATE: &str = include_str!("data/ec.crt");
const EC_WITH_PARAMETERS: &str = include_str!("data/ec-parameters.key");
const EC_PKCS8: &str = include_str!("data/ec-pkcs8.key");

#[test]
fn s1_chains_all_key_formats_and_surrounding_text_are_accepted() {
    let (good, key) = certificate("s1");
    let nameless = nameless(&KeyPair::generate().unwrap());
    let around = |text: &str| format!("first words\n{text}and\nlast words");
    for (what, type_, tls, key, ca) in [
        ("plain", "kubernetes.io/tls", good.clone(), key.clone(), None),
        ("opaque", "Opaque", good.clone(), key.clone(), None),
        ("a second certificate without a name", "Opaque", format!("{good}{nameless}"), key.clone(), None),
        ("text around", "Opaque", around(&good), around(&key), None),
        ("EC with parameters", "Opaque", EC_CERTIFICATE.into(), EC_WITH_PARAMETERS.into(), None),
        ("PKCS#8", "Opaque", EC_CERTIFICATE.into(), EC_PKCS8.into(), None),
        ("an empty CA beside it", "kubernetes.io/tls", good.clone(), key.clone(), Some("")),
        ("a broken CA beside it", "kubernetes.io/tls", good.clone(), key.clone(), Some("wrong")),
    ] {
        let mut data = vec![("tls.crt", tls.as_str()), ("tls.key", key.as_str())];
        data.extend(ca.map(|ca| ("ca.crt", ca)));
        assert_eq!(validation_of(type_, &data), "valid", "{what}");
    }
}

#[test]
fn s2_errors_have_the_texts_of_contour() {
    let (good, key) = certificate("s2");
    let (_, other_key) = certificate("s2-other");
    let own = KeyPair::generate().unwrap();
    let nameless = nameless(&own);
    let own_key = own.serialize_pem();
    let (parameters, _) = EC_WITH_PARAMETERS.split_once("-----BEGIN EC PRIVATE KEY").unwrap();
    let public = "-----BEGIN PUBLIC KEY-----\nYWJj\n-----END PUBLIC KEY-----\n";
    let broken = "-----BEGIN CERTIFICATE-----\n***\n-----END CERTIFICATE-----\n";
    let not_x509 = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
    let two_keys = format!("{key}{other_key}");
    let good_and_broken = format!("{good}{broken}");
    let no_key = "-----BEGIN PRIVATE KEY-----\nYWJj\n-----END PRIVATE KEY-----\n";
    for (crt, key, wanted) in [
        (None, Some(key.as_str()), "missing TLS certificate"),
        (Some(""), Some(&key), "invalid TLS certificate: failed to locate certificate"),
        (Some("words"), Some(&key), "invalid TLS certificate: failed to locate certificate"),
        (Some(broken), Some(&key), "invalid TLS certificate: failed to parse PEM block"),
        (Some(&good_and_broken), Some(&key), "invalid TLS certificate: failed to parse PEM block"),
        (Some(public), Some(&key), "invalid TLS certificate: unexpected block type 'PUBLIC KEY'"),
        (Some(not_x509), Some(&key), "invalid TLS certificate: x509: malformed certificate"),
        (
            Some(&nameless),
            Some(&own_key),
            "invalid TLS certificate: certificate has no common name or subject alt name",
        ),
        (Some(&good), None, "missing TLS private key"),
        (Some(&good), Some(parameters), "invalid TLS private key: failed to locate private key"),
        (Some(&good), Some(&two_keys), "invalid TLS private key: multiple private keys"),
        (Some(&good), Some(public), "invalid TLS private key: unexpected block type 'PUBLIC KEY'"),
        (Some(&good), Some(broken), "invalid TLS private key: failed to parse PEM block"),
        (Some(&good), Some(no_key), "invalid TLS private key: tls: failed to parse private key"),
        (
            Some(&good),
            Some(&other_key),
            "invalid TLS private key: tls: private key does not match public key",
        ),
    ] {
        let data: Vec<(&str, &str)> =
            crt.map(|crt| ("tls.crt", crt)).into_iter().chain(key.map(|key| ("tls.key", key))).collect();
        assert_eq!(validation_of("kubernetes.io/tls", &data), wanted);
    }
    let data = [("tls.crt", good.as_str()), ("tls.key", key.as_str())];
    assert_eq!(
        validation_of("kubernetes.io/dockerconfigjson", &data),
        "secret type is not \"kubernetes.io/tls\" or \"Opaque\""
    );
}

/// Returns the validation result of a root with client validation by this Secret.
fn validation_status(data: &[(&str, &str)], validation: serde_json::Value) -> String {
    let mut world = World::default();
    world.service("app/web").secret("app/w").ca("app/ca").secret_of("app/s", "Opaque", data);
    world.root("app/p", "h", Some(json!({"secretName": "w", "clientValidation": validation})));
    let seen = world.build();
    let wanted = if seen.validation("app/p") == "valid" { up("w") } else { down() };
    assert_eq!(seen.host("h"), wanted);
    seen.validation("app/p")
}

#[test]
fn ca_bundles_and_revocation_lists_have_their_own_error_texts() {
    let (ca, _) = certificate("ca");
    let not_x509 = "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
    let list = "-----BEGIN X509 CRL-----\nYWJj\n-----END X509 CRL-----\n";
    let broken_list = format!("{list}-----BEGIN X509 CRL-----\n***\n-----END X509 CRL-----\n");
    let two = format!("{ca}{not_x509}");
    for (field, kind, key, text, wanted) in [
        ("caSecret", "CA", "ca.crt", Some(ca.as_str()), None),
        ("caSecret", "CA", "ca.crt", Some(&two), None),
        ("caSecret", "CA", "ca.crt", None, Some("empty \"ca.crt\" key")),
        ("caSecret", "CA", "ca.crt", Some(""), Some("empty \"ca.crt\" key")),
        (
            "caSecret",
            "CA",
            "ca.crt",
            Some("x"),
            Some("invalid CA certificate bundle: failed to locate certificate"),
        ),
        (
            "caSecret",
            "CA",
            "ca.crt",
            Some(list),
            Some("invalid CA certificate bundle: unexpected block type 'X509 CRL'"),
        ),
        (
            "caSecret",
            "CA",
            "ca.crt",
            Some(not_x509),
            Some("invalid CA certificate bundle: no PEM-encoded certificates found"),
        ),
        ("crlSecret", "CRL", "crl.pem", Some(list), None),
        ("crlSecret", "CRL", "crl.pem", Some(""), Some("empty \"crl.pem\" key")),
        ("crlSecret", "CRL", "crl.pem", Some(&ca), Some("failed to locate CRL")),
        ("crlSecret", "CRL", "crl.pem", Some(&broken_list), Some("failed to parse PEM block")),
    ] {
        let data: Vec<(&str, &str)> = text.into_iter().map(|text| (key, text)).collect();
        let mut validation = json!({"caSecret": "ca"});
        validation[field] = json!("s");
        let wanted = wanted.map_or_else(
            || "valid".to_owned(),
            |why| {
                format!(
                    "TLSError ClientValidationInvalid: Spec.VirtualHost.TLS client validation is invalid: invalid {kind} \
                     Secret \"app/s\": {why}"
                )
            },
        );
        assert_eq!(validation_status(&data, validation), wanted, "{text:?}");
    }
}
