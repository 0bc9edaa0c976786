//! Unusual Secrets: which ones work, which ones do not, and which ones must not be expensive.

use std::time::Duration;

use super::*;

/// A self-signed certificate for `proxy.example.com` with a 1024-bit RSA key, and the key.
const SHORT_RSA: (&str, &str) = (include_str!("short-rsa.crt"), include_str!("short-rsa.key"));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_in_unusual_secrets_are_served_or_refused_with_a_reason() -> anyhow::Result<()> {
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine"});
    let mut scenario = Scenario::new("odd", proxy).await?;
    let ca = authority("external")?;
    let ca_pem = ca.certificate_pem();
    let (pair, second) = (issue(&ca, &[HOST])?, issue(&ca, &["second.example.com"])?);
    let (cert, key) = (pair.certificate_pem.as_str(), pair.private_key_pem.as_str());
    let dos = |text: &str| text.replace('\n', "\r\n");
    let around = |text: &str| format!("Bag Attributes\n  friendlyName: x\n{text}\nthe end\n");
    let two_leaves = format!("{cert}{}", second.certificate_pem);
    let with_ca = format!("{cert}{ca_pem}");

    // These work: the type of the Secret and its values.
    let rows = [
        ("another type", "example.com/odd", [cert.to_owned(), key.to_owned(), ca_pem.to_owned()]),
        ("text around", "Opaque", [around(cert), around(key), around(ca_pem)]),
        ("CRLF", "kubernetes.io/tls", [dos(cert), dos(key), dos(ca_pem)]),
        ("two leaves", "Opaque", [two_leaves, key.to_owned(), ca_pem.to_owned()]),
        ("the CA in the chain", "Opaque", [with_ca, key.to_owned(), ca_pem.to_owned()]),
    ];
    for (what, type_, [certificate, key, ca_crt]) in rows {
        let values = [("tls.crt", certificate.as_str()), ("tls.key", &key), ("ca.crt", &ca_crt)];
        scenario.put("mine", type_, &values).await?;
        scenario.serves(what, &certificate).await?;
        let verbatim =
            |entry: &CredentialIssuerStrategy| bundle(entry).is_ok_and(|pem| pem == ca_crt.as_bytes());
        scenario.expect(what, &[], verbatim).await?;
        scenario.condition(what, "True", "").await?;
        assert_eq!(scenario.pod.metrics.certificate_valid(), Some(true), "{what}");
    }

    // A key that is too short cannot be served, and the reason is reported.
    let values = [("tls.crt", SHORT_RSA.0), ("tls.key", SHORT_RSA.1)];
    scenario.put("mine", "Opaque", &values).await?;
    let message = "could not parse TLS cert PEM data from Secret: impersonation-proxy-serving-cert: attempt to set \
                   invalid key pair: tls: failed to parse private key";
    scenario.error("RSA 1024", &[], &format!("{LOAD_FAILED}{message}")).await?;
    let weak = "certificate in secret \"mine\" has a weak key or signature: RSA key of 1024 bits";
    scenario.condition("RSA 1024", "False", weak).await?;
    assert_eq!(scenario.pod.metrics.certificate_valid(), Some(false));
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_change_ten_times_a_second_end_with_the_last_one() -> anyhow::Result<()> {
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine"});
    let scenario = Scenario::new("flapping", proxy).await?;
    let ca = authority("external")?;
    let pairs = [issue(&ca, &[HOST])?, issue(&ca, &["other.example.com"])?, issue(&ca, &[HOST])?];
    let mut interval = tokio::time::interval(Duration::from_millis(100));
    for round in 0..50 {
        interval.tick().await;
        scenario.put_pair("mine", &pairs[round % 3], ca.certificate_pem()).await?;
    }
    let last = &pairs[2];
    scenario.put_pair("mine", last, ca.certificate_pem()).await?;
    scenario.serves("the last one", &last.certificate_pem).await?;
    scenario.condition("the last one", "True", "").await?;
    scenario.install.strategy("Listening", |entry| endpoint(entry).is_some()).await?;
    assert_eq!(scenario.written()?, [""; 0], "Secrets and Services of the Concierge do not change");
    let status_writes = scenario
        .control_plane
        .audit_events(&scenario.install.account)?
        .iter()
        .filter(|event| {
            event["impersonatedUser"]["username"] == *scenario.install.account
                && event["objectRef"]["resource"] == "credentialissuers"
                && event["objectRef"]["subresource"] == "status"
        })
        .count();
    // At most one write per change, and a few more for the first entries of other strategies and
    // for conflicts.
    assert!(status_writes <= 70, "{status_writes} status writes");
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_with_a_huge_bundle_are_served_and_the_status_reports_the_size() -> anyhow::Result<()> {
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine"});
    let mut scenario = Scenario::new("huge", proxy).await?;
    let ca = authority("external")?;
    let pair = issue(&ca, &[HOST])?;
    let filler = |bytes: usize| {
        let mut text = ca.certificate_pem().to_owned();
        while text.len() < bytes {
            text.push_str(
                "# what is between certificates is passed on as it is, all of it, even this line of it\n",
            );
        }
        text
    };
    // The maximum size of a Secret.
    let huge = filler(1000 * 1024);
    scenario.put_pair("mine", &pair, &huge).await?;
    scenario.serves("huge", &pair.certificate_pem).await?;
    let verbatim = |entry: &CredentialIssuerStrategy| bundle(entry).is_ok_and(|pem| pem == huge.as_bytes());
    scenario.expect("huge", &[], verbatim).await?;
    scenario.condition("huge", "True", "").await?;

    // The spec has the bundle twice, which exceeds the maximum size of an object.
    scenario.put_pair("mine", &pair, "").await?;
    scenario.expect("none", &[], |entry| bundle(entry).is_ok_and(|pem| pem.is_empty())).await?;
    let data = STANDARD.encode(filler(700 * 1024));
    scenario.tls(json!({"secretName": "mine", "certificateAuthorityData": data})).await?;
    let refused = scenario
        .install
        .strategy("too large", |entry| entry.message.starts_with("the CA bundle to advertise is too large"))
        .await?;
    assert_eq!(refused.reason, StrategyReason::ErrorDuringSetup);
    scenario.condition("too large", "True", "").await?;
    scenario.serves("too large", &pair.certificate_pem).await?;
    scenario.end().await;
    Ok(())
}
