//! External certificates: configuration and removal, rotation, and every kind of error.

use std::sync::atomic::Ordering;

use kube::ResourceExt as _;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_replace_the_generated_leaf_and_keep_its_ca() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("there-and-back", enabled("ClusterIP", HOST)).await?;
    let ready = format!("https://{HOST}");
    let generated =
        scenario.ready("generated", &["create ClusterIP", "create CA", "create TLS"], &ready).await?;
    let ca_before = scenario.install.secret("concierge-ca", |_| true).await?;
    let signer_before = scenario.install.secret("concierge-signer", |_| true).await?;

    let ca = authority("external")?;
    let first = issue(&ca, &[HOST])?;
    scenario.put_pair("mine", &first, ca.certificate_pem()).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    let bundle = scenario
        .expect("external", &["delete TLS"], |entry| {
            bundle(entry).is_ok_and(|pem| pem == ca.certificate_pem().as_bytes())
        })
        .await?;
    assert_eq!(endpoint(&bundle), Some(ready.as_str()));
    scenario.serves("external", &first.certificate_pem).await?;
    scenario.absent("concierge-tls").await?;
    scenario.condition("external", "True", "").await?;

    // Rotation in place, in a Secret of either type, affects the next handshake and nothing else.
    let second = issue(&ca, &[HOST])?;
    scenario.put_pair("mine", &second, ca.certificate_pem()).await?;
    scenario.serves("rotated", &second.certificate_pem).await?;
    let third = issue(&ca, &[HOST])?;
    let values = [
        ("tls.crt", third.certificate_pem.as_str()),
        ("tls.key", third.private_key_pem.as_str()),
        ("ca.crt", ca.certificate_pem()),
    ];
    scenario.put("mine", "Opaque", &values).await?;
    scenario.serves("another type", &third.certificate_pem).await?;

    // Several CAs are advertised exactly as written.
    let old_and_new =
        format!("# old\n{}# new\n{}", authority("old")?.certificate_pem(), ca.certificate_pem());
    let data = STANDARD.encode(&old_and_new);
    scenario.tls(json!({"secretName": "mine", "certificateAuthorityData": data})).await?;
    let verbatim = |entry: &CredentialIssuerStrategy| {
        super::bundle(entry).is_ok_and(|pem| pem == old_and_new.as_bytes())
    };
    scenario.expect("two CAs", &[], verbatim).await?;
    scenario.condition("two CAs", "True", "").await?;

    // The forms of the name with a slash that refer to the own namespace.
    for name in ["/mine".to_owned(), format!("{}/mine", scenario.install.namespace)] {
        scenario.tls(json!({"secretName": name, "certificateAuthorityData": data})).await?;
        scenario.expect(&name, &[], verbatim).await?;
    }

    scenario.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
    scenario.expect("disabled", &["delete ClusterIP"], off).await?;
    scenario.condition("disabled", "Unknown", "the impersonation proxy does not run").await?;
    assert!(scenario.served().is_none() && !scenario.pod.proxy_runs.load(Ordering::SeqCst));
    scenario.install.configure(json!({"mode": "enabled"})).await?;
    scenario.expect("enabled", &["create ClusterIP"], verbatim).await?;

    scenario.tls(Value::Null).await?;
    scenario
        .expect("back", &["create TLS"], |entry| super::bundle(entry).is_ok_and(|pem| pem == generated))
        .await?;
    assert!(conditions(&scenario.install).await?.is_empty(), "nothing is said about a generated certificate");
    assert!(scenario.install.secrets().get_opt("mine").await?.is_some(), "the Secret is somebody else's");
    let after = |name: &'static str| scenario.install.secret(name, |_| true);
    assert_eq!(after("concierge-ca").await?.resource_version(), ca_before.resource_version());
    assert_eq!(after("concierge-signer").await?.resource_version(), signer_before.resource_version());
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_that_are_invalid_have_their_message() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("wrong", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    let ca = authority("external")?;
    let (good, other) = (issue(&ca, &[HOST])?, issue(&ca, &[HOST])?);
    scenario.ready("generated", &["create CA", "create TLS"], &ready).await?;
    let generated = scenario.served().context("nothing is served")?;
    let pem = |pair: &IssuedPair| (pair.certificate_pem.clone(), pair.private_key_pem.as_str().to_owned());
    let ((cert, key), (_, other_key)) = (pem(&good), pem(&other));
    let (ca_cert, ca_key) = (ca.certificate_pem().to_owned(), ca.private_key_pem().as_str().to_owned());

    let invalid = "could not parse TLS cert PEM data from Secret: impersonation-proxy-serving-cert: attempt to set \
                   invalid key pair: tls: ";
    let is_ca = "could not parse TLS cert PEM data from Secret: impersonation-proxy-serving-cert: attempt to set x509 \
                 cert with unexpected IsCA=true";
    // The content of the Secret (none means no Secret), and the expected message. The generated
    // pair is kept and served.
    let rows: [(&str, Option<[&str; 3]>, String); 9] = [
        ("missing", None, "secret \"mine\" not found".to_owned()),
        ("empty", Some(["", "", ""]), format!("{invalid}failed to find any PEM data in certificate input")),
        ("no key", Some([&cert, "", ""]), format!("{invalid}failed to find any PEM data in key input")),
        (
            "no certificate",
            Some(["", &key, ""]),
            format!("{invalid}failed to find any PEM data in certificate input"),
        ),
        (
            "switched",
            Some([&key, &cert, ""]),
            format!(
                "{invalid}failed to find certificate PEM data in certificate input, but did find a private key; PEM \
                 inputs may have been switched"
            ),
        ),
        (
            "another key",
            Some([&cert, &other_key, ""]),
            format!("{invalid}private key does not match public key"),
        ),
        (
            "garbage",
            Some(["x", "x", ""]),
            format!("{invalid}failed to find any PEM data in certificate input"),
        ),
        (
            "two certificates",
            Some([&cert, &cert, ""]),
            format!("{invalid}found a certificate rather than a key in the PEM for the private key"),
        ),
        ("a CA", Some([&ca_cert, &ca_key, ""]), is_ca.to_owned()),
    ];
    scenario.tls(json!({"secretName": "mine"})).await?;
    for (what, values, text) in rows {
        if let Some([certificate, key, ca]) = values {
            let values = [("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)];
            scenario.put("mine", "Opaque", &values).await?;
        }
        scenario.error(what, &[], &format!("{LOAD_FAILED}{text}")).await?;
        assert_eq!(scenario.served().as_deref(), Some(generated.as_str()), "{what}");
    }
    scenario
        .condition("wrong", "Unknown", "the certificate could not be loaded, see status.strategies")
        .await?;
    assert!(scenario.install.secrets().get_opt("concierge-tls").await?.is_some(), "nothing was lost");

    // The pair is valid and served; only the bundle to advertise is invalid.
    let values = [("tls.crt", cert.as_str()), ("tls.key", &key), ("ca.crt", "not PEM")];
    scenario.put("mine", "Opaque", &values).await?;
    let message = format!("{LOAD_FAILED}unable to read provided ca.crt: data is not a certificate");
    scenario.error("ca.crt", &[], &message).await?;
    scenario.serves("ca.crt", &cert).await?;
    scenario.put("mine", "Opaque", &values[..2]).await?;
    scenario.ready("no ca.crt", &["delete TLS"], &ready).await?;
    let prefix = "could not decode impersonationSpec.TLS.certificateAuthorityData: ";
    for (data, text) in [
        ("aGkh!".to_owned(), "illegal base64 data at input byte 4"),
        (STANDARD.encode("hi!"), "data is not a certificate"),
    ] {
        scenario.tls(json!({"secretName": "mine", "certificateAuthorityData": data})).await?;
        scenario.error(text, &[], &format!("{prefix}{text}")).await?;
    }

    // Names that cannot refer to an external Secret.
    let own =
        "impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller";
    let namespace = scenario.install.namespace.clone();
    let in_own = |name: &str| format!("{namespace}/{name}");
    scenario.tls(json!({"secretName": "concierge-tls"})).await?;
    scenario.error("our own", &[], own).await?;
    scenario.put("concierge-tls", "kubernetes.io/tls", &values[..2]).await?;
    for name in [
        "concierge-tls".to_owned(),
        "concierge-ca".to_owned(),
        "concierge-signer".to_owned(),
        "/concierge-tls".to_owned(),
        in_own("concierge-tls"),
    ] {
        scenario.tls(json!({"secretName": name})).await?;
        scenario.install.strategy(&name, |entry| entry.message == own).await?;
    }
    scenario.tls(json!({"certificateAuthorityData": "x"})).await?;
    let message = "must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided";
    scenario.error("no name", &[], message).await?;
    let refused =
        scenario.tls(json!({"secretName": ""})).await.expect_err("the schema refuses an empty name");
    assert!(refused.to_string().contains("should be at least 1 chars long"), "{refused}");
    assert_eq!(scenario.written()?, scenario.writes, "no object of the Concierge changed");

    // The Secret is not deleted even if the proxy is disabled.
    scenario.tls(json!({"secretName": in_own("concierge-tls")})).await?;
    scenario.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
    scenario.expect("disabled", &[], off).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    scenario.expect("another name", &["delete TLS"], off).await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_are_served_after_their_secret_was_deleted() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("gone", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    scenario.ready("generated", &["create CA", "create TLS"], &ready).await?;
    let ca = authority("external")?;
    let pair = issue(&ca, &[HOST])?;
    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    scenario.serves("external", &pair.certificate_pem).await?;
    scenario.expect("external", &["delete TLS"], |entry| endpoint(entry).is_some()).await?;
    scenario.install.secrets().delete("mine", &DeleteParams::default()).await?;
    scenario.error("gone", &[], &format!("{LOAD_FAILED}secret \"mine\" not found")).await?;
    assert_eq!(scenario.served().as_deref(), Some(pair.certificate_pem.as_str()));
    assert!(scenario.pod.controllers.impersonator().is_ready(), "it still serves");

    // The certificate is served until the pod terminates; a new pod serves nothing until there is a
    // certificate.
    scenario.pod.controllers.shutdown().await;
    scenario.pod = scenario.install.pod("pod-2");
    wait::until(PATIENCE, "the new pod to run its proxy", async || {
        let health = scenario.pod.controllers.impersonator().current();
        (health.observed && scenario.pod.proxy_runs.load(Ordering::SeqCst)).then_some(())
    })
    .await?;
    assert!(scenario.served().is_none() && scenario.pod.signer.current().is_none());
    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    scenario.ready("restored", &[], &ready).await?;
    scenario.serves("restored", &pair.certificate_pem).await?;
    scenario.end().await;
    Ok(())
}
