//! Checks of an external certificate: where the result is reported, and its consequences.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::*;

const OTHER_HOST: &str =
    "certificate in secret \"mine\" is valid for [other.example.com], not \"proxy.example.com\"";

impl Scenario {
    /// Returns the Events about the certificate.
    async fn events(&self) -> anyhow::Result<Vec<Event>> {
        let uid = self.install.issuers().get("concierge-config").await?.uid();
        let events: Api<Event> = Api::namespaced(self.install.client.clone(), "default");
        let mut found = events.list(&ListParams::default()).await?.items;
        let is_ours = |event: &Event| {
            event.involved_object.uid == uid && event.reason.as_deref() == Some("TLSValidation")
        };
        found.retain(is_ours);
        Ok(found)
    }

    /// Waits for Events with exactly these messages, in any order. The occurrences of an Event are
    /// its series.
    async fn await_events(&self, messages: &[&str]) -> anyhow::Result<()> {
        wait::until_ok(PATIENCE, "the Events", async || {
            let events = self.events().await?;
            let occurrences =
                |event: &Event| event.series.as_ref().and_then(|series| series.count).unwrap_or(1);
            let mut found: Vec<&str> = events
                .iter()
                .flat_map(|event| (0..occurrences(event)).filter_map(|_| event.message.as_deref()))
                .collect();
            let mut wanted = messages.to_vec();
            found.sort_unstable();
            wanted.sort_unstable();
            anyhow::ensure!(found == wanted, "{found:#?}");
            Ok(())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_for_another_host_have_the_consequence_of_the_mode() -> anyhow::Result<()> {
    let mut scenario = Scenario::new("modes", enabled("None", HOST)).await?;
    let ready = format!("https://{HOST}");
    scenario.ready("generated", &["create CA", "create TLS"], &ready).await?;
    let generated = scenario.served().context("nothing is served")?;
    let ca = authority("external")?;
    let (good, bad) = (issue(&ca, &[HOST])?, issue(&ca, &["other.example.com"])?);
    scenario.put_pair("mine", &bad, ca.certificate_pem()).await?;

    // Enforced: the generated certificate is kept in its Secret and in memory.
    scenario.tls(json!({"secretName": "mine", "validation": "Enforce"})).await?;
    scenario.error("enforced", &[], &format!("{VALIDATE_FAILED}{OTHER_HOST}")).await?;
    let condition = scenario.condition("enforced", "False", OTHER_HOST).await?;
    assert_eq!(condition.reason, "Invalid");
    let generation = scenario.install.issuers().get("concierge-config").await?.metadata.generation;
    assert_eq!(condition.observed_generation, generation);
    assert_eq!(scenario.served().as_deref(), Some(generated.as_str()));
    assert_eq!(scenario.pod.metrics.certificate_valid(), Some(false));
    scenario.await_events(&[OTHER_HOST]).await?;
    let event = scenario.events().await?.remove(0);
    assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("TLSValidation")));
    assert_eq!(event.involved_object.kind.as_deref(), Some("CredentialIssuer"));

    // By default the certificate is served, and the strategy does not report the failure.
    scenario.tls(json!({"secretName": "mine"})).await?;
    let bundle = scenario.ready("warn", &["delete TLS"], &ready).await?;
    assert_eq!(bundle, ca.certificate_pem().as_bytes());
    scenario.serves("warn", &bad.certificate_pem).await?;
    let same = scenario.condition("warn", "False", OTHER_HOST).await?;
    assert_eq!(same.last_transition_time, condition.last_transition_time);

    scenario.tls(json!({"secretName": "mine", "validation": "Off"})).await?;
    let off = "spec.impersonationProxy.tls.validation is Off";
    assert_eq!(scenario.condition("off", "Unknown", off).await?.reason, "NotChecked");
    scenario.ready("off", &[], &ready).await?;
    assert_eq!(scenario.pod.metrics.certificate_valid(), None);

    // A valid one is enforced; then an invalid one replaces it in the Secret and is not loaded.
    scenario.tls(json!({"secretName": "mine", "validation": "Enforce"})).await?;
    scenario.install.strategy("enforced", |entry| entry.message.starts_with(VALIDATE_FAILED)).await?;
    assert_eq!(scenario.served().as_deref(), Some(bad.certificate_pem.as_str()), "what is served stays");
    scenario.put_pair("mine", &good, ca.certificate_pem()).await?;
    scenario.ready("good", &[], &ready).await?;
    scenario.serves("good", &good.certificate_pem).await?;
    assert_eq!(scenario.condition("good", "True", "").await?.reason, "Valid");
    scenario.put_pair("mine", &bad, ca.certificate_pem()).await?;
    scenario.error("bad again", &[], &format!("{VALIDATE_FAILED}{OTHER_HOST}")).await?;
    assert_eq!(scenario.served().as_deref(), Some(good.certificate_pem.as_str()));
    // One Event for the first failure, and one for the repeated failure.
    scenario.await_events(&[OTHER_HOST, OTHER_HOST]).await?;

    // The endpoint changes to a host that the certificate covers.
    scenario.install.configure(json!({"externalEndpoint": "other.example.com"})).await?;
    scenario.ready("moved", &[], "https://other.example.com").await?;
    scenario.serves("moved", &bad.certificate_pem).await?;
    scenario.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_must_pass_each_check() -> anyhow::Result<()> {
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine"});
    let scenario = Scenario::new("checks", proxy).await?;
    // Valid earlier than the certificates that it issues.
    let validity = Validity::starting(Timestamp::now() - PATIENCE * 200, PATIENCE * 100_000);
    let ca = CertificateAuthority::generate("external", &validity)?;
    let foreign = authority("foreign")?;
    let expired = Validity::starting(Timestamp::now() - PATIENCE * 100, PATIENCE);
    let future = Validity::starting(Timestamp::now() + PATIENCE * 1000, PATIENCE * 100_000);
    let (expired, future) = (issue_for(&ca, &[HOST], &expired)?, issue_for(&ca, &[HOST], &future)?);
    let leaf = |pair: &IssuedPair| pinniped_pki::Certificate::parse_pem(pair.certificate_pem.as_bytes());
    let (expired_at, begins_at) = (leaf(&expired)?.not_after, leaf(&future)?.not_before);
    let good = issue(&ca, &[HOST])?;
    let ca_pem = ca.certificate_pem();
    let old_ca = CertificateAuthority::generate(
        "old",
        &Validity::starting(Timestamp::now() - PATIENCE * 100, PATIENCE),
    )?;
    let under_old = issue(&old_ca, &[HOST])?;
    let unknown = "certificate in secret \"mine\" does not verify with the advertised CA bundle: x509: certificate \
                   signed by unknown authority";
    let (for_clients, clients_ca) = for_clients()?;
    let bad_bundle = format!("{ca_pem}{}", pinniped_pki::pem::encode("CERTIFICATE", b"x"));
    let rows = [
        ("good", &good, ca_pem.to_owned(), String::new()),
        ("wildcard", &issue(&ca, &["*.example.com"])?, ca_pem.to_owned(), String::new()),
        ("no bundle", &good, String::new(), String::new()),
        ("expired", &expired, ca_pem.to_owned(), format!("certificate in secret \"mine\" expired at {expired_at}")),
        (
            "not yet",
            &future,
            ca_pem.to_owned(),
            format!("certificate in secret \"mine\" is not valid before {begins_at}"),
        ),
        ("another CA", &good, foreign.certificate_pem().to_owned(), unknown.to_owned()),
        ("an expired CA", &under_old, old_ca.certificate_pem().to_owned(), unknown.to_owned()),
        (
            "a bundle with something else in it",
            &good,
            bad_bundle,
            "advertised CA bundle contains invalid certificate at position 2: x509: malformed certificate".to_owned(),
        ),
        (
            "for clients",
            &for_clients,
            clients_ca,
            "certificate in secret \"mine\" is valid for [], not \"proxy.example.com\"; certificate in secret \"mine\" is \
             not usable for server authentication"
                .to_owned(),
        ),
    ];
    for (what, pair, bundle, problem) in rows {
        scenario.put_pair("mine", pair, &bundle).await?;
        scenario.serves(what, &pair.certificate_pem).await?;
        let status = if problem.is_empty() { "True" } else { "False" };
        scenario.condition(what, status, &problem).await?;
        scenario.install.strategy(what, |entry| endpoint(entry).is_some()).await?;
        assert_eq!(scenario.pod.metrics.certificate_valid(), Some(problem.is_empty()), "{what}");
    }

    // Addresses of a load balancer: the requested one and the assigned one.
    let service = json!({"type": "LoadBalancer", "loadBalancerIP": "5.6.7.8"});
    scenario.install.configure(json!({"externalEndpoint": null, "service": service})).await?;
    scenario.condition("no address", "Unknown", "the address for clients is not known yet").await?;
    let (params, ingress) = merge(json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}));
    scenario.install.services().patch_status("concierge-lb", &params, &ingress).await?;
    for (names, missing) in
        [(&["1.2.3.4", "5.6.7.8"][..], ""), (&["1.2.3.4"], "5.6.7.8"), (&["5.6.7.8"], "1.2.3.4")]
    {
        let pair = issue(&ca, names)?;
        scenario.put_pair("mine", &pair, ca_pem).await?;
        let problem =
            format!("certificate in secret \"mine\" is valid for [{}], not \"{missing}\"", names.join(", "));
        let (status, message) = if missing.is_empty() { ("True", "") } else { ("False", problem.as_str()) };
        scenario.condition("addresses", status, message).await?;
    }

    // Addresses of a Service of type ClusterIP.
    scenario.install.configure(json!({"service": {"type": "ClusterIP", "loadBalancerIP": null}})).await?;
    let service = wait::until_ok(PATIENCE, "the Service", async || {
        Ok(scenario.install.services().get("concierge-cip").await?)
    })
    .await?;
    let ip = service.spec.and_then(|spec| spec.cluster_ip).context("no address")?;
    let problem = format!("certificate in secret \"mine\" is valid for [5.6.7.8], not \"{ip}\"");
    scenario.condition("cluster IP", "False", &problem).await?;
    scenario.put_pair("mine", &issue(&ca, &[&ip])?, ca_pem).await?;
    scenario.condition("cluster IP", "True", "").await?;
    scenario.end().await;
    Ok(())
}

/// Returns a certificate with client authentication only, and its CA.
fn for_clients() -> anyhow::Result<(IssuedPair, String)> {
    let ca = pinniped_test_support::certs::Authority::new("clients")?;
    let made = ca.client("somebody", None)?;
    let private_key_pem = pinniped_pki::PrivateKeyPem::new(made.private_key_pem);
    let validity = Validity::starting(Timestamp::now(), PATIENCE);
    Ok((IssuedPair { certificate_pem: made.certificate_pem, private_key_pem, validity }, ca.certificate_pem))
}

/// The unit tests of the validation cover the exact times at which a certificate is checked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_change_their_state_as_time_passes() -> anyhow::Result<()> {
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine", "validation": "Enforce"});
    let scenario = Scenario::new("time", proxy).await?;
    let ca = authority("external")?;
    wait::until(PATIENCE, "the pod to lead", async || {
        let health = scenario.pod.controllers.impersonator().current();
        (health.observed && scenario.pod.controllers.leadership().is_leader()).then_some(())
    })
    .await?;
    // A busy machine may need longer for a pass than a state lasts, so that a state is never seen.
    // Then the next attempt has more time.
    let (mut seen, mut all) = (Vec::new(), Vec::new());
    for seconds in [6, 12, 24, 48] {
        seen = states_of_a_short_lived_certificate(&scenario, &ca, Duration::from_secs(seconds)).await?;
        all.extend(seen.clone());
        if seen.len() == 3 {
            break;
        }
    }
    let [_, _, late] = &seen[..] else { anyhow::bail!("only {seen:?}") };
    let failed = format!("{VALIDATE_FAILED}{late}");
    scenario.install.strategy("late", |entry| entry.message == failed).await?;
    scenario.await_events(&all.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    scenario.end().await;
    Ok(())
}

/// Serves a certificate that is valid after `pause` and for the same time, and returns the messages
/// of the conditions, in order, until it has expired. Nothing changes in between except the time.
async fn states_of_a_short_lived_certificate(
    scenario: &Scenario,
    ca: &CertificateAuthority,
    pause: Duration,
) -> anyhow::Result<Vec<String>> {
    let begins = Timestamp::from_second(Timestamp::now().as_second())? + pause;
    let validity = Validity { not_before: begins, not_after: begins + pause };
    let pair = issue_for(ca, &[HOST], &validity)?;
    let served_before = scenario.served();
    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    let states = [
        ("False", format!("certificate in secret \"mine\" is not valid before {}", validity.not_before)),
        ("True", format!("certificate in secret \"mine\" expires at {}", validity.not_after)),
        ("False", format!("certificate in secret \"mine\" expired at {}", validity.not_after)),
    ];
    let mut seen: Vec<String> = Vec::new();
    let mut at = 0;
    while at < states.len() {
        // The state after the last seen one, or a later one.
        let found = wait::until_ok(pause * 2 + PATIENCE, "the next state", async || {
            let conditions = conditions(&scenario.install).await?;
            let is_so = |state: &(&str, String)| {
                let mut conditions = conditions.iter();
                conditions.any(|found| found.status == state.0 && found.message == state.1)
            };
            (at..states.len()).find(|&at| is_so(&states[at])).with_context(|| format!("{conditions:?}"))
        })
        .await?;
        seen.push(states[found].1.clone());
        match found {
            0 => assert_eq!(scenario.served(), served_before, "enforced before its time"),
            1 => {
                scenario.serves("in time", &pair.certificate_pem).await?;
                let late = format!("{VALIDATE_FAILED}{}", states[2].1);
                let in_time = |entry: &CredentialIssuerStrategy| endpoint(entry).is_some();
                let entry =
                    scenario.install.strategy("in time", |entry| in_time(entry) || entry.message == late);
                if !in_time(&entry.await?) {
                    seen.pop();
                }
            }
            _ => {}
        }
        at = found + 1;
    }
    Ok(seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_under_upstreams_definition_too() -> anyhow::Result<()> {
    let disabled = json!({"mode": "disabled", "service": {"type": "None"}});
    let control_plane = World::shared()?.control_plane();
    let install = Install::on(control_plane, "certificates-older", disabled).await?;
    let file = "testdata/upstream/crds/config.concierge.pinniped.dev_credentialissuers.yaml";
    let definition =
        std::fs::read_to_string(pinniped_test_support::tools::repository().join(file)).context(file)?;
    control_plane.kubectl().apply(&definition.replace("pinniped.dev", install.suffix.as_str())).await?;
    // The definition is served once unknown fields are pruned.
    let probe = json!({"impersonationProxy": {"tls": {"secretName": "x", "validation": "Off"}}});
    wait::until_ok(PATIENCE, "upstream's definition to be served", async || {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": probe}));
        let kept = install.issuers().patch("concierge-config", &params, &patch).await?;
        let tls = kept.spec.and_then(|spec| spec.impersonation_proxy?.tls).context("no tls")?;
        anyhow::ensure!(tls.validation.is_none(), "not pruned");
        Ok(())
    })
    .await?;
    let pod = install.pod("pod-1");
    let scenario = Scenario { control_plane, install, pod, writes: Vec::new() };
    let ca = authority("external")?;
    let pair = issue(&ca, &["other.example.com"])?;
    scenario.put_pair("mine", &pair, ca.certificate_pem()).await?;
    let mut proxy = enabled("None", HOST);
    proxy["tls"] = json!({"secretName": "mine", "validation": "Enforce"});
    scenario.install.configure(proxy).await?;
    scenario.install.strategy("Warn, as the field was pruned", |entry| endpoint(entry).is_some()).await?;
    scenario.serves("Warn", &pair.certificate_pem).await?;
    scenario.await_events(&[OTHER_HOST]).await?;
    assert_eq!(scenario.pod.metrics.certificate_valid(), Some(false));
    assert!(conditions(&scenario.install).await?.is_empty());

    // A condition that is dropped is not written in every pass.
    let status_writes = || -> anyhow::Result<usize> {
        let events = scenario.control_plane.audit_events(&scenario.install.account)?;
        let own = |event: &&Value| {
            event["impersonatedUser"]["username"] == *scenario.install.account
                && event["objectRef"]["resource"] == "credentialissuers"
                && event["objectRef"]["subresource"] == "status"
        };
        Ok(events.iter().filter(own).count())
    };
    let before = status_writes()?;
    for round in 0..5 {
        let (params, patch) = merge(json!({"metadata": {"annotations": {"round": round.to_string()}}}));
        scenario.install.secrets().patch("mine", &params, &patch).await?;
    }
    // When this pass is over, the last of the triggered passes is over as well.
    let last = issue(&ca, &["other.example.com"])?;
    scenario.put_pair("mine", &last, ca.certificate_pem()).await?;
    scenario.serves("last", &last.certificate_pem).await?;
    let more = status_writes()? - before;
    assert!(more <= 1, "{more} status writes");

    // Without a bundle the entry is rejected, and the message names the remedy.
    scenario.put_pair("mine", &last, "").await?;
    let remedy = "the installed CredentialIssuer CRD does not allow an empty certificateAuthorityData: apply the CRD of \
                  this release, or set spec.impersonationProxy.tls.certificateAuthorityData";
    scenario.install.strategy("no bundle", |entry| entry.message == remedy).await?;

    // The definition of this release accepts the empty bundle and the condition.
    control_plane.kubectl().apply(&crate::install::definition(&scenario.install.suffix)).await?;
    wait::until_ok(PATIENCE, "our definition to be served, and the proxy to be ready", async || {
        let (params, patch) =
            merge(json!({"metadata": {"annotations": {"x": Timestamp::now().to_string()}}}));
        scenario.install.issuers().patch("concierge-config", &params, &patch).await?;
        let strategies = scenario.install.strategies().await?;
        let entry = strategies.iter().find(|entry| endpoint(entry).is_some()).context("not ready")?;
        anyhow::ensure!(bundle(entry)?.is_empty(), "a bundle");
        Ok(())
    })
    .await?;
    scenario.condition("our definition", "False", OTHER_HOST).await?;
    scenario.end().await;
    Ok(())
}
