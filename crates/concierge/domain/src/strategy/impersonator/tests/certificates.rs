//! Consequences of the checks of an external certificate in each mode.

use super::*;
use crate::strategy::certificate_validation::Findings;

const WRONG_HOST: &str =
    r#"certificate in secret "mine" is valid for [other.example.com], not "example.com""#;

fn spec(validation: Option<&str>) -> Value {
    let mut tls = json!({"secretName": "mine"});
    if let Some(validation) = validation {
        tls["validation"] = validation.into();
    }
    with_tls(enabled("None", "example.com"), tls)
}

impl Observed {
    fn certificate(mut self, change: impl FnOnce(&mut CertificateDetails)) -> Self {
        let mut certificate = details(&["example.com"]);
        change(&mut certificate);
        self.external =
            Some(ExternalSecret { id: id("e1"), ca_crt: Vec::new(), certificate: Some(certificate) });
        self
    }

    fn for_another_host(self) -> Self {
        self.certificate(|certificate| certificate.dns_names = vec!["other.example.com".to_owned()])
    }
}

fn checked(problems: &[&str]) -> ValidationReport {
    let findings = Findings {
        problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        ends_soon: None,
        changes_after: Some(Duration::from_secs(83 * 24 * 60 * 60) + Duration::from_millis(1)),
    };
    ValidationReport::Checked { secret_name: "mine".into(), findings }
}

fn enforced(problem: &str) -> ExpectedStatus {
    failed(&format!(
        "could not validate the externally provided TLS secret for the impersonation proxy: {problem}"
    ))
}

#[test]
fn a_failed_check_has_the_consequence_of_its_mode() {
    let ready = || listening_with("https://example.com", "");
    let off = || not_checked("spec.impersonationProxy.tls.validation is Off");
    let rows: Vec<(&str, Observed, &[&str], ExpectedStatus, ValidationReport)> = vec![
        (
            "good, by default",
            observed(spec(None)).external(""),
            &["start proxy", "load external TLS", "load signer"],
            ready(),
            checked(&[]),
        ),
        (
            "good, enforced",
            observed(spec(Some("Enforce"))).ca().tls(&["example.com"]).external(""),
            &["start proxy", "load external TLS", "delete TLS", "load signer"],
            ready(),
            checked(&[]),
        ),
        (
            "another host, by default: served, and the strategy reports success",
            observed(spec(None)).ca().tls(&["example.com"]).serving(Some("t1")).for_another_host(),
            &["load external TLS", "delete TLS"],
            ready(),
            checked(&[WRONG_HOST]),
        ),
        (
            "another host, Warn",
            observed(spec(Some("Warn"))).serving(Some("e1")).for_another_host(),
            &[],
            ready(),
            checked(&[WRONG_HOST]),
        ),
        (
            "another host, enforced, none was loaded: none is served",
            observed(spec(Some("Enforce"))).for_another_host(),
            &["start proxy"],
            enforced(WRONG_HOST),
            checked(&[WRONG_HOST]),
        ),
        (
            "another host, enforced, over a generated certificate: that one stays in the Secret and in memory",
            observed(spec(Some("Enforce"))).ca().tls(&["example.com"]).serving(Some("t1")).for_another_host(),
            &[],
            enforced(WRONG_HOST),
            checked(&[WRONG_HOST]),
        ),
        (
            "another host, enforced, after a good one: that stays in memory",
            observed(spec(Some("Enforce"))).serving(Some("e0")).for_another_host(),
            &[],
            enforced(WRONG_HOST),
            checked(&[WRONG_HOST]),
        ),
        (
            "another host, Off",
            observed(spec(Some("Off"))).for_another_host(),
            &["start proxy", "load external TLS", "load signer"],
            ready(),
            off(),
        ),
        (
            "enforced again after it was good: back to normal",
            observed(spec(Some("Enforce"))).serving(Some("e0")).external(""),
            &["load external TLS"],
            ready(),
            checked(&[]),
        ),
    ];
    for (case, observed, steps, status, report) in rows {
        let plan = decide(&observed, now());
        assert_eq!(plan.summary(), steps, "{case}");
        assert_eq!(ExpectedStatus::from(plan.status), status, "{case}");
        assert_eq!(plan.validation, report, "{case}");
    }
}

#[test]
fn several_failures_are_joined() {
    let observed = observed(spec(Some("Enforce"))).certificate(|certificate| {
        certificate.may_serve = false;
        certificate.weaknesses = vec!["SHA-1 signature".into()];
    });
    let wanted = "certificate in secret \"mine\" is not usable for server authentication; certificate in secret \"mine\" \
                  has a weak key or signature: SHA-1 signature";
    assert_eq!(ExpectedStatus::from(decide(&observed, now()).status), enforced(wanted));
}

#[test]
fn a_certificate_that_expires_soon_passes_in_every_mode() {
    let ends = now() + Duration::from_secs(3600);
    for mode in [None, Some("Warn"), Some("Enforce")] {
        let plan =
            decide(&observed(spec(mode)).certificate(|certificate| certificate.not_after = ends), now());
        assert_eq!(ExpectedStatus::from(plan.status.clone()), listening_with("https://example.com", ""));
        assert_eq!(plan.summary(), ["start proxy", "load external TLS", "load signer"]);
        assert_eq!(plan.validation.concerns().len(), 1, "{:?}", plan.validation);
        assert_eq!(plan.validation.is_valid(), Some(true));
        assert_eq!(plan.recheck_after, Some(Duration::from_secs(3600) + Duration::from_millis(1)));
    }
    let plan =
        decide(&observed(spec(Some("Off"))).certificate(|certificate| certificate.not_after = ends), now());
    assert_eq!((plan.validation.concerns(), plan.recheck_after), (Vec::new(), None));
}

#[test]
fn nothing_is_checked_without_a_loadable_certificate_and_names() {
    let nowhere = "the address for clients is not known yet";
    let no_address = |mode: &str| {
        let tls = json!({"secretName": "mine", "validation": mode});
        observed(with_tls(enabled("ClusterIP", ""), tls)).cip(&[])
    };
    let rows: Vec<(&str, Observed, &[&str], ValidationReport)> = vec![
        (
            "no address yet, Warn: loaded",
            no_address("Warn").for_another_host(),
            &["start proxy", "load external TLS", "load signer"],
            not_checked(nowhere),
        ),
        (
            "no address yet, enforced: not loaded before it is checked, and nothing is cleaned up",
            no_address("Enforce").ca().tls(&["x"]).for_another_host(),
            &["start proxy", "load signer"],
            not_checked(nowhere),
        ),
        ("the Secret is missing", observed(spec(None)), &["start proxy"], not_checked(NOT_LOADED)),
        (
            "no bundle that can be read",
            observed(with_tls(
                enabled("None", "example.com"),
                json!({"secretName": "mine", "certificateAuthorityData": "!"}),
            ))
            .external(""),
            &["start proxy", "load external TLS"],
            not_checked(NOT_LOADED),
        ),
        (
            "no pair, enforced: loading reports the error",
            observed(spec(Some("Enforce"))).certificate(|certificate| certificate.loadable = false),
            &["start proxy", "load external TLS", "load signer"],
            not_checked(NOT_LOADED),
        ),
        (
            "switched off",
            observed(with_tls(disabled(), json!({"secretName": "mine"}))).for_another_host(),
            &[],
            not_checked("the impersonation proxy does not run"),
        ),
        (
            "no external certificate",
            observed(enabled("None", "example.com")).ca(),
            &["start proxy", "create TLS for example.com", "load signer"],
            ValidationReport::Nothing,
        ),
    ];
    for (case, observed, steps, report) in rows {
        let plan = decide(&observed, now());
        assert_eq!(plan.summary(), steps, "{case}");
        assert_eq!(plan.validation, report, "{case}");
    }
}

#[test]
fn a_weak_key_that_cannot_be_loaded_is_reported() {
    let observed = observed(spec(Some("Enforce"))).certificate(|certificate| {
        certificate.loadable = false;
        certificate.weaknesses = vec!["RSA key of 1024 bits".into()];
    });
    let plan = decide(&observed, now());
    assert_eq!(plan.summary()[1], "load external TLS", "the step reports the error");
    let wanted = "certificate in secret \"mine\" has a weak key or signature: RSA key of 1024 bits";
    assert_eq!(plan.validation, checked(&[wanted]));
}

#[test]
fn the_requested_address_counts_only_if_clients_use_the_load_balancer() {
    let requesting_address = |kind: &str, endpoint: &str| {
        let mut spec = with_tls(enabled(kind, endpoint), json!({"secretName": "mine"}));
        spec["service"]["loadBalancerIP"] = "5.6.7.8".into();
        spec
    };
    let certificate = |certificate: &mut CertificateDetails| {
        certificate.ips = vec!["1.2.3.4".parse().unwrap()];
        certificate.dns_names = vec!["example.com".into()];
    };
    for (observed, wanted) in [
        (observed(requesting_address("LoadBalancer", "")).lb(json!([{"ip": "1.2.3.4"}])), false),
        (observed(requesting_address("LoadBalancer", "example.com")).lb(json!([{"ip": "1.2.3.4"}])), true),
        (observed(requesting_address("ClusterIP", "")).cip(&["1.2.3.4"]), true),
    ] {
        assert_eq!(decide(&observed.certificate(certificate), now()).validation.is_valid(), Some(wanted));
    }
}

#[test]
fn a_load_balancer_class_that_would_change_is_an_error() {
    let with_class = |class: &str| {
        let mut spec = enabled("LoadBalancer", "example.com");
        spec["service"]["loadBalancerClass"] = class.into();
        spec
    };
    let before = observed(with_class("example.com/a")).lb(json!([]));
    let mut after = observed(with_class("example.com/b"));
    after.load_balancer = before.load_balancer;
    let plan = decide(&after, now());
    assert!(
        matches!(&plan.status, ProxyStatus::Failed(error) if error.to_string().contains("loadBalancerClass of service \"made\""))
    );
    assert_eq!(plan.summary(), ["start proxy"]);
}
