//! The table of situations with external certificates, and the steps and status that each one
//! requires.

use super::*;

#[test]
fn each_situation_of_an_external_certificate_has_its_steps_and_status() {
    let spec = |tls: Value| with_tls(enabled("None", "example.com"), tls);
    let named = || spec(json!({"secretName": "mine"}));
    let data = "LS0tLS1CRUdJTiBYLS0tLS0KYUdraAotLS0tLUVORCBYLS0tLS0K";
    let decoded = "-----BEGIN X-----\naGkh\n-----END X-----\n";
    let load_failed = "could not load the externally provided TLS secret for the impersonation proxy";
    let is_managed = failed(
        "impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller",
    );
    let rows: Vec<(&str, Observed, &[&str], ExpectedStatus)> = vec![
        (
            "fresh, no CA anywhere",
            observed(named()).external(""),
            &["start proxy", "load external TLS", "load signer"],
            listening_with("https://example.com", ""),
        ),
        (
            "with ca.crt, over a generated certificate: deleted last",
            observed(named()).ca().tls(&["example.com"]).serving(Some("t1")).external(PEM),
            &["load external TLS", "delete TLS"],
            listening_with("https://example.com", PEM),
        ),
        (
            "the bundle of the spec wins over ca.crt",
            observed(spec(json!({"secretName": "mine", "certificateAuthorityData": data})))
                .serving(Some("e1"))
                .external(PEM),
            &[],
            listening_with("https://example.com", decoded),
        ),
        (
            "missing: the generated certificate stays",
            observed(named()).ca().tls(&["example.com"]).serving(Some("t1")),
            &[],
            failed(&format!("{load_failed}: secret \"mine\" not found")),
        ),
        (
            "ca.crt is no PEM: the pair is served all the same",
            observed(named()).ca().tls(&["example.com"]).serving(Some("t1")).external("x"),
            &["load external TLS"],
            failed(&format!("{load_failed}: unable to read provided ca.crt: data is not a certificate")),
        ),
        (
            "the spec's bundle is not base64",
            observed(spec(json!({"secretName": "mine", "certificateAuthorityData": "aGkh!"}))).external(""),
            &["start proxy", "load external TLS"],
            failed(
                "could not decode impersonationSpec.TLS.certificateAuthorityData: illegal base64 data at input byte 4",
            ),
        ),
        (
            "the spec's bundle is no PEM",
            observed(spec(json!({"secretName": "mine", "certificateAuthorityData": "aGkh"}))).external(""),
            &["start proxy", "load external TLS"],
            failed(
                "could not decode impersonationSpec.TLS.certificateAuthorityData: data is not a certificate",
            ),
        ),
        (
            "no name",
            observed(spec(json!({}))),
            &["start proxy"],
            failed("must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided"),
        ),
        (
            "a Secret of the Concierge",
            observed(spec(json!({"secretName": "tls"}))).tls(&["x"]),
            &["start proxy"],
            is_managed.clone(),
        ),
        (
            "with a slash",
            observed(spec(json!({"secretName": "/ca"}))).tls(&["x"]),
            &["start proxy"],
            is_managed.clone(),
        ),
        (
            "by namespace",
            observed(spec(json!({"secretName": "ns/signer"}))).tls(&["x"]),
            &["start proxy"],
            is_managed,
        ),
        (
            "a Secret of the Concierge, disabled: still not deleted",
            observed(with_tls(disabled(), json!({"secretName": "ns/tls"}))).tls(&["x"]).serving(Some("t1")),
            &["stop proxy", "clear TLS", "clear signer"],
            ExpectedStatus::Disabled(strategies::DISABLED),
        ),
        (
            "disabled: the generated certificate goes, the external Secret stays",
            observed(with_tls(disabled(), json!({"secretName": "mine"})))
                .tls(&["x"])
                .serving(Some("e1"))
                .external(PEM),
            &["stop proxy", "delete TLS", "clear TLS", "clear signer"],
            ExpectedStatus::Disabled(strategies::DISABLED),
        ),
        (
            "external -> generated: the original CA is used",
            observed(enabled("None", "example.com")).ca().serving(Some("e1")),
            &["create TLS for example.com"],
            listening("https://example.com"),
        ),
    ];
    check(rows);
}
