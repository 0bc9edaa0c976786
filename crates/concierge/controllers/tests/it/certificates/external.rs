//! External certificates: configuration and removal, rotation, and every kind of error.

use std::sync::atomic::Ordering;

use kube::ResourceExt as _;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_replace_the_generated_leaf_and_keep_its_ca() -> anyhow::Result<()> {
    let mut story = Story::new("there-and-back", enabled("ClusterIP", HOST)).await?;
    let ready = format!("https://{HOST}");
    let generated =
        story.ready("generated", &["create ClusterIP", "create CA", "create TLS"], &ready).await?;
    let ca_before = story.install.secret("concierge-ca", |_| true).await?;
    let signer_before = story.install.secret("concierge-signer", |_| true).await?;

    let ca = authority("external")?;
    let first = issue(&ca, &[HOST])?;
    story.put_pair("mine", &first, ca.certificate_pem()).await?;
    story.tls(json!({"secretName": "mine"})).await?;
    let bundle = story
        .expect("external", &["delete TLS"], |entry| {
            bundle(entry).is_ok_and(|pem| pem == ca.certificate_pem().as_bytes())
        })
        .await?;
    assert_eq!(endpoint(&bundle), Some(ready.as_str()));
    story.serves("external", &first.certificate_pem).await?;
    story.absent("concierge-tls").await?;
    story.condition("external", "True", "").await?;

    // Rotation in place, in a Secret of either type, affects the next handshake and nothing else.
    let second = issue(&ca, &[HOST])?;
    story.put_pair("mine", &second, ca.certificate_pem()).await?;
    story.serves("rotated", &second.certificate_pem).await?;
    let third = issue(&ca, &[HOST])?;
    let values = [
        ("tls.crt", third.certificate_pem.as_str()),
        ("tls.key", third.private_key_pem.as_str()),
        ("ca.crt", ca.certificate_pem()),
    ];
    story.put("mine", "Opaque", &values).await?;
    story.serves("another type", &third.certificate_pem).await?;

    // Several CAs are advertised exactly as written.
    let old_and_new =
        format!("# old\n{}# new\n{}", authority("old")?.certificate_pem(), ca.certificate_pem());
    let data = STANDARD.encode(&old_and_new);
    story.tls(json!({"secretName": "mine", "certificateAuthorityData": data})).await?;
    let verbatim = |entry: &CredentialIssuerStrategy| {
        super::bundle(entry).is_ok_and(|pem| pem == old_and_new.as_bytes())
    };
    story.expect("two CAs", &[], verbatim).await?;
    story.condition("two CAs", "True", "").await?;

    // The forms of the name with a slash that refer to the own namespace.
    for name in ["/mine".to_owned(), format!("{}/mine", story.install.namespace)] {
        story.tls(json!({"secretName": name, "certificateAuthorityData": data})).await?;
        story.expect(&name, &[], verbatim).await?;
    }

    story.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
    story.expect("disabled", &["delete ClusterIP"], off).await?;
    story.condition("disabled", "Unknown", "the impersonation proxy does not run").await?;
    assert!(story.served().is_none() && !story.pod.proxy_runs.load(Ordering::SeqCst));
    story.install.configure(json!({"mode": "enabled"})).await?;
    story.expect("enabled", &["create ClusterIP"], verbatim).await?;

    story.tls(Value::Null).await?;
    story
        .expect("back", &["create TLS"], |entry| super::bundle(entry).is_ok_and(|pem| pem == generated))
        .await?;
    assert!(conditions(&story.install).await?.is_empty(), "nothing is said about a generated certificate");
    assert!(story.install.secrets().get_opt("mine").await?.is_some(), "the Secret is somebody else's");
    let after = |name: &'static str| story.install.secret(name, |_| true);
    assert_eq!(after("concierge-ca").await?.resource_version(), ca_before.resource_version());
    assert_eq!(after("concierge-signer").await?.resource_version(), signer_before.resource_version());
    story.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_that_are_invalid_have_their_message() -> anyhow::Result<()> {
    let mut story = Story::new("wrong", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    let ca = authority("external")?;
    let (good, other) = (issue(&ca, &[HOST])?, issue(&ca, &[HOST])?);
    story.ready("generated", &["create CA", "create TLS"], &ready).await?;
    let generated = story.served().context("nothing is served")?;
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
    story.tls(json!({"secretName": "mine"})).await?;
    for (what, values, text) in rows {
        if let Some([certificate, key, ca]) = values {
            let values = [("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)];
            story.put("mine", "Opaque", &values).await?;
        }
        story.error(what, &[], &format!("{LOAD_FAILED}{text}")).await?;
        assert_eq!(story.served().as_deref(), Some(generated.as_str()), "{what}");
    }
    story.condition("wrong", "Unknown", "the certificate could not be loaded, see status.strategies").await?;
    assert!(story.install.secrets().get_opt("concierge-tls").await?.is_some(), "nothing was lost");

    // The pair is valid and served; only the bundle to advertise is invalid.
    let values = [("tls.crt", cert.as_str()), ("tls.key", &key), ("ca.crt", "not PEM")];
    story.put("mine", "Opaque", &values).await?;
    let message = format!("{LOAD_FAILED}unable to read provided ca.crt: data is not a certificate");
    story.error("ca.crt", &[], &message).await?;
    story.serves("ca.crt", &cert).await?;
    story.put("mine", "Opaque", &values[..2]).await?;
    story.ready("no ca.crt", &["delete TLS"], &ready).await?;
    let prefix = "could not decode impersonationSpec.TLS.certificateAuthorityData: ";
    for (data, text) in [
        ("aGkh!".to_owned(), "illegal base64 data at input byte 4"),
        (STANDARD.encode("hi!"), "data is not a certificate"),
    ] {
        story.tls(json!({"secretName": "mine", "certificateAuthorityData": data})).await?;
        story.error(text, &[], &format!("{prefix}{text}")).await?;
    }

    // Names that cannot refer to an external Secret.
    let own =
        "impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller";
    let namespace = story.install.namespace.clone();
    let in_own = |name: &str| format!("{namespace}/{name}");
    story.tls(json!({"secretName": "concierge-tls"})).await?;
    story.error("our own", &[], own).await?;
    story.put("concierge-tls", "kubernetes.io/tls", &values[..2]).await?;
    for name in [
        "concierge-tls".to_owned(),
        "concierge-ca".to_owned(),
        "concierge-signer".to_owned(),
        "/concierge-tls".to_owned(),
        in_own("concierge-tls"),
    ] {
        story.tls(json!({"secretName": name})).await?;
        story.install.strategy(&name, |entry| entry.message == own).await?;
    }
    story.tls(json!({"certificateAuthorityData": "x"})).await?;
    let message = "must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided";
    story.error("no name", &[], message).await?;
    let refused = story.tls(json!({"secretName": ""})).await.expect_err("the schema refuses an empty name");
    assert!(refused.to_string().contains("should be at least 1 chars long"), "{refused}");
    assert_eq!(story.written()?, story.writes, "no object of the Concierge changed");

    // The Secret is not deleted even if the proxy is disabled.
    story.tls(json!({"secretName": in_own("concierge-tls")})).await?;
    story.install.configure(json!({"mode": "disabled"})).await?;
    let off = |entry: &CredentialIssuerStrategy| entry.reason == StrategyReason::Disabled;
    story.expect("disabled", &[], off).await?;
    story.tls(json!({"secretName": "mine"})).await?;
    story.expect("another name", &["delete TLS"], off).await?;
    story.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_from_outside_are_served_after_their_secret_was_deleted() -> anyhow::Result<()> {
    let mut story = Story::new("gone", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    story.ready("generated", &["create CA", "create TLS"], &ready).await?;
    let ca = authority("external")?;
    let pair = issue(&ca, &[HOST])?;
    story.put_pair("mine", &pair, ca.certificate_pem()).await?;
    story.tls(json!({"secretName": "mine"})).await?;
    story.serves("external", &pair.certificate_pem).await?;
    story.expect("external", &["delete TLS"], |entry| endpoint(entry).is_some()).await?;
    story.install.secrets().delete("mine", &DeleteParams::default()).await?;
    story.error("gone", &[], &format!("{LOAD_FAILED}secret \"mine\" not found")).await?;
    assert_eq!(story.served().as_deref(), Some(pair.certificate_pem.as_str()));
    assert!(story.pod.controllers.impersonator().is_ready(), "it still serves");

    // The certificate is served until the pod terminates; a new pod serves nothing until there is a
    // certificate.
    story.pod.controllers.shutdown().await;
    story.pod = story.install.pod("pod-2");
    wait::until(PATIENCE, "the new pod to run its proxy", async || {
        let health = story.pod.controllers.impersonator().current();
        (health.observed && story.pod.proxy_runs.load(Ordering::SeqCst)).then_some(())
    })
    .await?;
    assert!(story.served().is_none() && story.pod.signer.current().is_none());
    story.put_pair("mine", &pair, ca.certificate_pem()).await?;
    story.ready("restored", &[], &ready).await?;
    story.serves("restored", &pair.certificate_pem).await?;
    story.end().await;
    Ok(())
}
