//! Tests of each check, with inputs that pass and inputs that fail.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// Returns the names that are advertised to clients: one DNS name, or addresses.
fn advertised(hosts: &[&str]) -> CertificateNames {
    let ips: Vec<IpAddr> = hosts.iter().filter_map(|host| host.parse().ok()).collect();
    let hostname = hosts.iter().find(|host| host.parse::<IpAddr>().is_err()).map(|&host| host.to_owned());
    CertificateNames { hostname, ips, endpoint: "https://unused".to_owned() }
}

/// Returns the inspection of a certificate that is valid except perhaps for its names.
fn details(sans: &[&str]) -> CertificateDetails {
    CertificateDetails {
        ips: sans.iter().filter_map(|san| san.parse().ok()).collect(),
        dns_names: sans.iter().filter(|san| san.parse::<IpAddr>().is_err()).map(|&s| s.to_owned()).collect(),
        not_before: now() - DAY,
        not_after: now() + 90 * DAY,
        may_serve: true,
        weaknesses: Vec::new(),
        chain: Chain::Verified,
        loadable: true,
    }
}

fn problems_for(
    certificate: &CertificateDetails,
    hosts: &[&str],
    load_balancer_ip: Option<&str>,
) -> Vec<String> {
    let names = advertised(hosts);
    let load_balancer_ip = load_balancer_ip.map(|ip| ip.parse().unwrap());
    check(certificate, &Expected { secret: "mine", names: &names, load_balancer_ip }, now()).problems
}

#[test]
fn the_advertised_host_must_be_among_the_names() {
    // Names of the certificate, host, whether the host is covered.
    let rows: &[(&[&str], &str, bool)] = &[
        (&["proxy.example.com"], "proxy.example.com", true),
        (&["other.example.com", "proxy.example.com"], "proxy.example.com", true),
        (&["PROXY.example.com"], "proxy.EXAMPLE.com", true),
        (&["proxy.example.com."], "proxy.example.com", true),
        (&["proxy.example.com"], "proxy.example.com.", true),
        (&["proxy.example.com.."], "proxy.example.com", false),
        (&["*.example.com"], "proxy.example.com", true),
        (&["*.Example.com"], "PROXY.example.com", true),
        (&["*.example.com"], "example.com", false),
        (&["*.example.com"], "a.proxy.example.com", false),
        (&["*.example.com"], ".example.com", false),
        (&["p*.example.com"], "proxy.example.com", false),
        (&["proxy.*.com"], "proxy.example.com", false),
        (&["*"], "proxy", false),
        (&["*."], "proxy", false),
        (&[""], "proxy", false),
        (&[], "proxy.example.com", false),
        (&["other.example.com"], "proxy.example.com", false),
        (&["10.0.0.1"], "10.0.0.1", true),
        (&["10.0.0.2", "10.0.0.1"], "10.0.0.1", true),
        (&["10.0.0.2"], "10.0.0.1", false),
        (&["fd00::5"], "fd00:0::0:5", true),
        (&["::ffff:10.0.0.1"], "10.0.0.1", false),
        (&["proxy.example.com"], "10.0.0.1", false),
    ];
    for (sans, host, covered) in rows {
        let problems = problems_for(&details(sans), &[host], None);
        assert_eq!(problems.is_empty(), *covered, "{sans:?} {host}: {problems:?}");
    }
    // An address in a DNS name is not an address.
    let mut odd = details(&[]);
    odd.dns_names = vec!["10.0.0.1".to_owned()];
    assert!(!problems_for(&odd, &["10.0.0.1"], None).is_empty());
}

#[test]
fn a_wrong_host_is_reported_with_the_names_of_the_certificate() {
    assert_eq!(
        problems_for(&details(&["a.example.com", "*.b.example.com", "10.0.0.1"]), &["c.example.com"], None),
        [
            r#"certificate in secret "mine" is valid for [a.example.com, *.b.example.com, 10.0.0.1], not "c.example.com""#
        ]
    );
    assert_eq!(
        problems_for(&details(&[]), &["c.example.com"], None),
        [r#"certificate in secret "mine" is valid for [], not "c.example.com""#]
    );
}

#[test]
fn reported_names_are_escaped_and_limited() {
    let mut odd = details(&[]);
    odd.dns_names = vec!["a\n\u{1b}[2J".to_owned(), "x".repeat(70_000)];
    odd.dns_names.extend((0..100_000).map(|number| format!("n{number}.example.com")));
    let problems = problems_for(&odd, &["c"], None);
    assert!(problems[0].contains(r"[a\n\u{1b}[2J, xxx"), "{}", problems[0]);
    assert!(problems[0].ends_with(r#"n29.example.com, … 100002 in all], not "c""#), "{}", problems[0]);
    assert!(problems[0].len() < 2000);
}

#[test]
fn an_address_requested_from_the_load_balancer_must_be_among_the_addresses() {
    // Names of the certificate, requested address, address of the load balancer, missing host.
    let rows: &[(&[&str], &str, &str, Option<&str>)] = &[
        (&["1.2.3.4"], "1.2.3.4", "1.2.3.4", None),
        (&["1.2.3.4", "5.6.7.8"], "5.6.7.8", "1.2.3.4", None),
        (&["1.2.3.4"], "5.6.7.8", "1.2.3.4", Some("5.6.7.8")),
        (&["lb.example.com"], "5.6.7.8", "lb.example.com", None),
        (&["lb.example.com", "1.2.3.4"], "5.6.7.8", "lb.example.com", Some("5.6.7.8")),
    ];
    for (sans, requested, host, missing) in rows {
        let problems = problems_for(&details(sans), &[host], Some(requested));
        match missing {
            Some(missing) => assert!(problems[0].ends_with(&format!("not \"{missing}\"")), "{problems:?}"),
            None => assert_eq!(problems, [""; 0], "{sans:?}"),
        }
    }
}

#[test]
fn every_address_of_a_cluster_ip_service_must_be_among_the_names() {
    for (sans, missing) in [
        (&["10.0.0.1", "fd00::5"][..], None),
        (&["fd00::5", "10.0.0.1", "10.0.0.9"], None),
        (&["10.0.0.1"], Some("fd00::5")),
        (&["fd00::5"], Some("10.0.0.1")),
        (&["x"], Some("10.0.0.1")),
    ] {
        let problems = problems_for(&details(sans), &["10.0.0.1", "fd00::5"], None);
        match missing {
            Some(missing) => assert!(problems[0].ends_with(&format!("not \"{missing}\"")), "{problems:?}"),
            None => assert_eq!(problems, [""; 0], "{sans:?}"),
        }
        assert!(problems.len() <= 1, "only the first one is reported: {problems:?}");
    }
}

#[test]
fn a_certificate_passes_within_its_validity_and_its_last_week_is_reported() {
    let second = Duration::from_secs(1);
    let begins = now() + DAY;
    let ends = begins + 90 * DAY;
    // Time, problem, concern, time until the next check.
    let millisecond = Duration::from_millis(1);
    let rows = [
        (now(), Some("not valid before 2026-11-22T12:00:00Z"), None, Some(DAY)),
        (begins - second, Some("not valid before 2026-11-22T12:00:00Z"), None, Some(second)),
        (begins, None, None, Some(Duration::ZERO)),
        (begins + second, None, None, Some(83 * DAY - second)),
        (ends - 7 * DAY - second, None, None, Some(second)),
        (ends - 7 * DAY, None, Some("expires at 2027-02-20T12:00:00Z"), Some(Duration::ZERO)),
        (ends - second, None, Some("expires at 2027-02-20T12:00:00Z"), Some(second)),
        (ends, None, Some("expires at 2027-02-20T12:00:00Z"), Some(Duration::ZERO)),
        (ends + millisecond, Some("expired at 2027-02-20T12:00:00Z"), None, None),
        (ends + DAY, Some("expired at 2027-02-20T12:00:00Z"), None, None),
    ];
    for (time, problem, concern, again) in rows {
        let certificate = CertificateDetails { not_before: begins, not_after: ends, ..details(&["h"]) };
        let names = advertised(&["h"]);
        let found =
            check(&certificate, &Expected { secret: "mine", names: &names, load_balancer_ip: None }, time);
        let full = |text: Option<&str>| match text {
            Some(text) if text.starts_with("not") => format!("certificate in secret \"mine\" is {text}"),
            Some(text) => format!("certificate in secret \"mine\" {text}"),
            None => String::new(),
        };
        assert_eq!(found.problems.concat(), full(problem), "{time}");
        assert_eq!(found.ends_soon.unwrap_or_default(), full(concern), "{time}");
        assert_eq!(found.changes_after, again.map(|after| after + millisecond), "{time}");
    }
}

#[test]
fn a_validity_below_a_week_is_reported_from_its_start() {
    let certificate =
        CertificateDetails { not_before: now() - DAY, not_after: now() + DAY, ..details(&["h"]) };
    let names = advertised(&["h"]);
    let found =
        check(&certificate, &Expected { secret: "mine", names: &names, load_balancer_ip: None }, now());
    assert!(found.problems.is_empty() && found.ends_soon.is_some());
    assert_eq!(found.changes_after, Some(DAY + Duration::from_millis(1)));
}

#[test]
fn each_other_failure_has_its_text() {
    let good = || details(&["h"]);
    let rows = [
        (good(), ""),
        (CertificateDetails { chain: Chain::NoBundle, ..good() }, ""),
        (
            CertificateDetails { may_serve: false, ..good() },
            "certificate in secret \"mine\" is not usable for server authentication",
        ),
        (
            CertificateDetails { chain: Chain::Failed("why".into()), ..good() },
            "certificate in secret \"mine\" does not verify with the advertised CA bundle: why",
        ),
        (
            CertificateDetails { chain: Chain::BadBundle(3, "why".into()), ..good() },
            "advertised CA bundle contains invalid certificate at position 3: why",
        ),
        (
            CertificateDetails {
                weaknesses: vec!["RSA key of 1024 bits".into(), "SHA-1 signature".into()],
                ..good()
            },
            "certificate in secret \"mine\" has a weak key or signature: RSA key of 1024 bits, SHA-1 signature",
        ),
    ];
    for (certificate, wanted) in rows {
        assert_eq!(problems_for(&certificate, &["h"], None).concat(), wanted);
    }
}

#[test]
fn several_failures_have_the_order_of_the_checks() {
    let bad = CertificateDetails {
        not_after: now() - DAY,
        may_serve: false,
        weaknesses: vec!["w".into()],
        chain: Chain::Failed("c".into()),
        ..details(&["a"])
    };
    let problems = problems_for(&bad, &["b"], None).join("; ");
    let at = |word: &str| problems.find(word).unwrap_or_else(|| panic!("{word} in {problems}"));
    let positions = ["valid for", "expired", "not usable", "does not verify", "weak"].map(at);
    assert!(positions.is_sorted(), "{problems}");
}

#[test]
fn the_field_selects_the_mode_and_defaults_to_warn() {
    for (value, wanted) in [
        (None, Mode::Warn),
        (Some(""), Mode::Warn),
        (Some("Warn"), Mode::Warn),
        (Some("Enforce"), Mode::Enforce),
        (Some("Off"), Mode::Off),
    ] {
        assert_eq!(Mode::of_field(value), wanted);
    }
}

#[test]
fn concerns_are_failures_and_an_expiration_in_the_near_future() {
    let findings = Findings { problems: vec!["a".into()], ends_soon: Some("b".into()), changes_after: None };
    let checked = |findings| ValidationReport::Checked { secret_name: "s".into(), findings };
    for (report, concerns, valid) in [
        (ValidationReport::Nothing, vec![], None),
        (ValidationReport::NotChecked("x".into()), vec![], None),
        (checked(Findings::default()), vec![], Some(true)),
        (checked(Findings { problems: Vec::new(), ..findings.clone() }), vec!["b"], Some(true)),
        (checked(findings), vec!["a", "b"], Some(false)),
    ] {
        assert_eq!(
            (report.concerns(), report.is_valid()),
            (concerns.iter().map(|&c| c.to_owned()).collect(), valid)
        );
    }
}

fn checked(problems: &[&str], ends_soon: Option<&str>) -> ValidationReport {
    let findings = Findings {
        problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        ends_soon: ends_soon.map(str::to_owned),
        changes_after: None,
    };
    ValidationReport::Checked { secret_name: "mine".to_owned(), findings }
}

#[test]
fn each_list_of_concerns_is_reported_once() {
    let mut reported = ReportedConcerns::default();
    let nothing = ValidationReport::NotChecked("x".to_owned());
    for (step, report, is_new) in [
        ("no concern", checked(&[], None), false),
        ("a problem", checked(&["a"], None), true),
        ("the same", checked(&["a"], None), false),
        ("not checked for a moment", nothing, false),
        ("the same", checked(&["a"], None), false),
        ("one more", checked(&["a", "b"], None), true),
        ("only an expiration in the near future", checked(&[], Some("c")), true),
        ("solved", checked(&[], None), false),
        ("there again", checked(&["a"], None), true),
    ] {
        assert_eq!(reported.record(&report, false), is_new, "{step}");
    }
}

#[test]
fn an_event_is_due_until_it_is_written_or_if_the_status_lacks_the_report() {
    let mut reported = ReportedConcerns::default();
    assert_eq!(reported.due_event(), None);
    reported.record(&checked(&["a", "b"], Some("c")), false);
    reported.record(&checked(&["a", "b"], Some("c")), true);
    assert_eq!(reported.due_event().as_deref(), Some("a; b; c"), "a failed write is repeated");
    reported.complete_event();
    assert_eq!(reported.due_event(), None);
    assert!(reported.record(&checked(&["a"], None), true), "logged by this pod too");
    assert_eq!(reported.due_event(), None, "another pod has written the Event");
    reported.record(&checked(&["d"], None), false);
    reported.record(&checked(&[], None), false);
    assert_eq!(reported.due_event(), None, "solved");
}
