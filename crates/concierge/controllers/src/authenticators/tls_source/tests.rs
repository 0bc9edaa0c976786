use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use pinniped_kube_types::condition;
use pinniped_pki::{CertificateAuthority, Validity};

use super::*;

#[derive(Default)]
struct Objects {
    secrets: BTreeMap<&'static str, Arc<Secret>>,
    config_maps: BTreeMap<&'static str, Arc<ConfigMap>>,
}

impl CaObjects for Objects {
    fn namespace(&self) -> &str {
        "ns"
    }
    fn secret(&self, name: &str) -> Option<Arc<Secret>> {
        self.secrets.get(name).cloned()
    }
    fn config_map(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.get(name).cloned()
    }
}

fn pem() -> String {
    let validity = Validity::starting(jiff::Timestamp::now(), std::time::Duration::from_secs(3600));
    CertificateAuthority::generate("ca", &validity).unwrap().certificate_pem().to_owned()
}

fn secret(type_: Option<&str>, key: &str, value: &str) -> Arc<Secret> {
    Arc::new(Secret {
        type_: type_.map(str::to_owned),
        data: Some(BTreeMap::from([(key.to_owned(), ByteString(value.as_bytes().to_vec()))])),
        ..Secret::default()
    })
}

fn config_map(key: &str, value: &str) -> Arc<ConfigMap> {
    Arc::new(ConfigMap {
        data: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    })
}

fn inline(data: &str) -> TlsSpec {
    TlsSpec { certificate_authority_data: Some(data.to_owned()), certificate_authority_data_source: None }
}

fn source(kind: &str, name: &str) -> TlsSpec {
    TlsSpec {
        certificate_authority_data: None,
        certificate_authority_data_source: Some(CertificateAuthorityDataSource {
            kind: kind.to_owned(),
            name: name.to_owned(),
            key: "bar".to_owned(),
        }),
    }
}

#[test]
fn each_case_has_upstreams_message() {
    let pem = pem();
    let encoded = base64::encode(pem.as_bytes());
    let objects = Objects {
        secrets: BTreeMap::from([
            ("opaque", secret(Some("Opaque"), "bar", &pem)),
            ("untyped", secret(None, "bar", &pem)),
            ("tls", secret(Some("kubernetes.io/tls"), "bar", &pem)),
            ("token", secret(Some("kubernetes.io/service-account-token"), "bar", &pem)),
            ("other-key", secret(Some("Opaque"), "foo", &pem)),
            ("not-pem", secret(Some("Opaque"), "bar", "this is not a real PEM")),
        ]),
        config_maps: BTreeMap::from([
            ("good", config_map("bar", &pem)),
            ("empty", config_map("bar", "")),
            ("other-key", config_map("foo", &pem)),
        ]),
    };
    let configured = "spec.tls is valid: using configured CA bundle";
    let default =
        "spec.tls is valid: no TLS configuration provided: using default root CA bundle from container image";
    let both = TlsSpec { certificate_authority_data: Some(encoded.clone()), ..source("Secret", "opaque") };
    let prefix = "spec.tls.certificateAuthorityDataSource is invalid: ";
    let begin = r#"(PEM certificates must begin with "-----BEGIN CERTIFICATE-----")"#;
    for (tls, expected) in [
        (None, default.to_owned()),
        (Some(TlsSpec::default()), default.to_owned()),
        (Some(inline("")), default.to_owned()),
        (Some(inline(&encoded)), configured.to_owned()),
        (Some(source("Secret", "opaque")), configured.to_owned()),
        (Some(source("Secret", "untyped")), configured.to_owned()),
        (Some(source("Secret", "tls")), configured.to_owned()),
        (Some(source("ConfigMap", "good")), configured.to_owned()),
        (
            Some(both),
            "spec.tls is invalid: both tls.certificateAuthorityDataSource and tls.certificateAuthorityData provided"
                .to_owned(),
        ),
        (
            Some(inline("invalid base64-encoded data")),
            "spec.tls.certificateAuthorityData is invalid: illegal base64 data at input byte 7".to_owned(),
        ),
        (
            Some(inline("aGVsbG8=")),
            format!(
                "spec.tls.certificateAuthorityData is invalid: no base64-encoded PEM certificates found in 8 bytes of \
                 data {begin}"
            ),
        ),
        (
            Some(source("ConfigMap", "x")),
            format!(r#"{prefix}failed to get configmap "ns/x": configmap "x" not found"#),
        ),
        (Some(source("Secret", "x")), format!(r#"{prefix}failed to get secret "ns/x": secret "x" not found"#)),
        (
            Some(source("Secret", "token")),
            format!(
                r#"{prefix}secret "ns/token" of type "kubernetes.io/service-account-token" cannot be used as a certificate authority data source"#
            ),
        ),
        (Some(source("Secret", "other-key")), format!(r#"{prefix}key "bar" not found in secret "ns/other-key""#)),
        (
            Some(source("ConfigMap", "other-key")),
            format!(r#"{prefix}key "bar" not found in configmap "ns/other-key""#),
        ),
        (Some(source("ConfigMap", "empty")), format!(r#"{prefix}key "bar" has empty value in configmap "ns/empty""#)),
        (
            Some(source("Secret", "not-pem")),
            format!(
                r#"{prefix}key "bar" with 22 bytes of data in secret "ns/not-pem" is not a PEM-encoded certificate {begin}"#
            ),
        ),
        (Some(source("sorcery", "x")), format!("{prefix}unsupported CA bundle source kind: sorcery")),
    ] {
        let (condition, trusted) = resolve(tls.as_ref(), &objects);
        let is_valid = expected.starts_with("spec.tls is valid");
        let wanted = if is_valid {
            DesiredCondition::success("TLSConfigurationValid", expected)
        } else {
            DesiredCondition::failure("TLSConfigurationValid", "InvalidTLSConfig", expected)
        };
        assert_eq!(trusted.is_some(), condition.status == condition::TRUE);
        assert_eq!(condition, wanted, "{tls:?}");
    }
}

#[test]
fn the_fingerprint_does_not_depend_on_the_source_of_the_bundle() {
    let (one, other) = (pem(), pem());
    let objects = Objects {
        secrets: BTreeMap::from([("one", secret(None, "bar", &one)), ("other", secret(None, "bar", &other))]),
        config_maps: BTreeMap::from([("one", config_map("bar", &one))]),
    };
    let fingerprint = |tls: &TlsSpec| resolve(Some(tls), &objects).1.unwrap().fingerprint;
    let expected = fingerprint(&source("Secret", "one"));
    assert_eq!(fingerprint(&source("ConfigMap", "one")), expected);
    assert_eq!(fingerprint(&inline(&base64::encode(one.as_bytes()))), expected);
    assert_ne!(fingerprint(&source("Secret", "other")), expected);
    assert_ne!(fingerprint(&TlsSpec::default()), expected);
}
