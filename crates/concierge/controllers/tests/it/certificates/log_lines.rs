//! The log lines of each situation, with the messages and levels for which users search.

use pinniped_test_support::log_events::{LogEvent, LogEvents};
use tracing::Level;

use super::*;

/// Lines of the controllers at level info and above: `LEVEL message`, and the text of errors.
struct Lines(LogEvents);

fn line(event: &LogEvent) -> String {
    let error = event.fields.get("error").map(|error| format!(" {{{error}}}")).unwrap_or_default();
    format!("{} {}{error}", event.level, event.field("message"))
}

impl Lines {
    /// Waits for these lines in this order, with any other lines in between; the next call
    /// continues after them.
    async fn are(&self, what: &str, wanted: &[&str]) -> anyhow::Result<()> {
        wait::until_ok(PATIENCE, format!("the lines: {what}"), async || {
            let lines: Vec<String> = self.0.all().iter().map(line).collect();
            let mut rest = wanted.iter();
            let mut next = rest.next();
            for line in lines.iter() {
                if next == Some(&line.as_str()) {
                    next = rest.next();
                }
            }
            anyhow::ensure!(next.is_none(), "{next:?} is missing in {lines:#?}");
            self.0.clear();
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn certificates_have_the_log_lines_of_each_situation() -> anyhow::Result<()> {
    let targets = &["pinniped_concierge_controllers", "pinniped_controller"];
    let lines = Lines(LogEvents::record(targets, Level::INFO));
    let mut proxy = enabled("LoadBalancer", HOST);
    let scenario = Scenario::new("lines", proxy.clone()).await?;
    let generates = [
        "INFO starting impersonation proxy",
        "INFO creating service for impersonation proxy",
        "INFO creating CA certificates for impersonation proxy",
        "INFO creating TLS certificates for impersonation proxy",
        "INFO loading TLS certificates for impersonation proxy",
        "INFO loading credential signing certificate for impersonation proxy",
    ];
    lines.are("it generates certificates", &generates).await?;

    scenario.tls(json!({"secretName": "mine"})).await?;
    let using = "INFO configuring the impersonation proxy to use an externally provided TLS secret";
    let found = "INFO found externally provided TLS secret for the impersonation proxy";
    let unhandled = |text: &str| {
        format!("ERROR Unhandled Error {{impersonator-config-controller: {{ }} failed with: {text}}}")
    };
    let missing = [
        using,
        "INFO could not find externally provided TLS secret for the impersonation proxy",
        &unhandled(&format!("{LOAD_FAILED}secret \"mine\" not found")),
    ];
    lines.are("the Secret is not found", &missing).await?;

    scenario.put("mine", "Opaque", &[("tls.crt", "x"), ("tls.key", "x")]).await?;
    let text = "could not parse TLS cert PEM data from Secret: impersonation-proxy-serving-cert: attempt to set \
                invalid key pair: tls: failed to find any PEM data in certificate input";
    let loading = "INFO loading TLS certificates for impersonation proxy";
    let error = "error loading cert from externally provided TLS secret for the impersonation proxy";
    let failed = format!("ERROR {error} {{{text}}}");
    let bad = [found, loading, &failed, &unhandled(&format!("{LOAD_FAILED}{text}"))];
    lines.are("tls.crt is bad", &bad).await?;

    let ca = authority("external")?;
    let pair = issue(&ca, &[HOST])?;
    scenario.put_pair("mine", &pair, "x").await?;
    let ca_crt =
        "INFO found a ca.crt field in the externally provided TLS secret for the impersonation proxy";
    let warning = format!("WARN {error}: data is not a certificate");
    let text = format!("{LOAD_FAILED}unable to read provided ca.crt: data is not a certificate");
    lines.are("ca.crt is bad", &[loading, ca_crt, &warning, &unhandled(&text)]).await?;

    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    let deleting = "INFO deleting TLS serving certificate for impersonation proxy";
    lines.are("all is well, and it cleans up", &[ca_crt, deleting]).await?;

    scenario.tls(json!({"secretName": "mine", "certificateAuthorityData": "x!"})).await?;
    let text = "could not decode impersonationSpec.TLS.certificateAuthorityData: illegal base64 data at input byte 1";
    lines.are("the spec's bundle is bad", &[&unhandled(text)]).await?;

    let other = issue(&ca, &["other.example.com"])?;
    scenario.put_pair("mine", &other, ca.certificate_pem()).await?;
    scenario.tls(json!({"secretName": "mine"})).await?;
    let reported = ["WARN externally provided TLS certificate may not work for clients"];
    lines.are("another host", &reported).await?;

    scenario.install.configure(json!({"mode": "disabled"})).await?;
    let stops = ["INFO stopping impersonation proxy", "INFO deleting load balancer for impersonation proxy"];
    lines.are("it is switched off", &stops).await?;

    // Enabled with an external certificate, as in upstream's release post.
    scenario.put_pair("yours", &pair, ca.certificate_pem()).await?;
    let data = STANDARD.encode(ca.certificate_pem());
    proxy["service"] = json!({"type": "ClusterIP"});
    proxy["tls"] = json!({"secretName": "yours", "certificateAuthorityData": data});
    scenario.install.configure(proxy).await?;
    let external = [
        "INFO starting impersonation proxy",
        "INFO creating service for impersonation proxy",
        using,
        found,
        loading,
        ca_crt,
        "INFO the impersonation proxy will advertise its CA Bundle from \
         impersonationSpec.TLS.CertificateAuthorityData",
        "INFO loading credential signing certificate for impersonation proxy",
    ];
    lines.are("an external certificate", &external).await?;
    scenario.install.configure(json!({"mode": "disabled"})).await?;
    lines.are("and off", &["INFO deleting cluster ip for impersonation proxy"]).await?;
    scenario.end().await;
    Ok(())
}
