use serde_json::{Value, json};

use super::super::fixtures::{observed, problems, strategy};
use super::super::observed::{Authenticators, ServiceState, UnreadyAuthenticator, UnservedAuthenticator};
use super::*;

fn check(observed: &Observed) -> Vec<Checked> {
    super::check(observed, None)
}

const KEY: &str = "KubeClusterSigningCertificate";
const PROXY: &str = "ImpersonationProxy";
const REQUEST: &str = "KubeCertificateSigningRequest";

#[test]
fn strategies_that_work_or_are_switched_off_are_fine() {
    let works = strategy(KEY, "Success", "FetchedKey", "key was fetched successfully");
    let off = strategy(PROXY, "Error", "Disabled", "it is off");
    let no_key = strategy(KEY, "Error", "CouldNotFetchKey", "no pods");
    let listens = strategy(PROXY, "Success", "Listening", "ready");
    for strategies in [vec![works.clone(), off.clone()], vec![no_key.clone(), listens], vec![works]] {
        assert_eq!(problems(check(&observed(json!({"mode": "auto"}), &strategies))), []);
    }
    // Without another working strategy it is a problem.
    let found = problems(check(&observed(json!({"mode": "auto"}), &[no_key, off])));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].0.contains("fails: no pods") && found[1].0.contains("users cannot log in"), "{found:?}");
}

#[test]
fn certificates_of_the_clusters_signer_have_a_remedy_unless_another_strategy_works() {
    let failing = |message: &str| strategy(REQUEST, "Error", "ErrorDuringSetup", message);
    let not_signed = failing(
        "the signer kubernetes.io/kube-apiserver-client did not sign a CertificateSigningRequest within 15 seconds",
    );
    let works = strategy("ServiceAccountToken", "Success", "Listening", "ready");
    let with = |mode: &str, strategies: &[Value]| {
        let mut observed = observed(json!({"mode": "auto"}), strategies);
        let requests = json!({"mode": mode});
        observed.issuer.spec.as_mut().unwrap().certificate_signing_requests =
            serde_json::from_value(requests).unwrap();
        problems(check(&observed))
    };
    let both = [not_signed.clone(), works];
    assert_eq!(with("auto", &both), []);
    let [(what, remedy)] = &with("enabled", &both)[..] else { panic!("one problem") };
    assert!(what.starts_with("strategy KubeCertificateSigningRequest fails: the signer"), "{what}");
    assert!(remedy.contains("mode to disabled"), "{remedy}");
    let found = with("auto", &[not_signed]);
    assert!(found.len() == 2 && found[0].1.contains("service account tokens"), "{found:?}");
    for (message, advice) in [
        (
            "could not create a CertificateSigningRequest: forbidden: apply install-pinniped-concierge-resources.yaml",
            "kubectl apply",
        ),
        ("the signer x ignores the requested lifetime: y", "too long"),
        ("the CertificateSigningRequest was denied: x", "approver"),
        (
            "could not load CredentialIssuer spec.certificateSigningRequests: invalid mode",
            "auto, enabled or disabled",
        ),
        (
            "the address of the API server is not known (x): set discovery.url in the Concierge's configuration",
            "restart",
        ),
    ] {
        let found = with("enabled", &[failing(message)]);
        assert!(found[0].1.contains(advice), "{found:?}");
    }
}

/// The columns are a message of the proxy and a part of the remedy.
#[test]
fn each_message_has_a_remedy() {
    let prefix = "could not load the externally provided TLS secret for the impersonation proxy";
    let decode = "could not decode impersonationSpec.TLS.certificateAuthorityData";
    let load = "could not load CredentialIssuer spec.impersonationProxy";
    for (message, advice) in [
        (format!("{prefix}: secret \"x\" not found"), "create the Secret"),
        (
            format!("{prefix}: certificate delegation not permitted for Secret \"a/b\""),
            "TLSCertificateDelegation",
        ),
        (format!("{prefix}: could not read Secret \"a/b\": forbidden"), "resourceNames"),
        (format!("{prefix}: malformed secretName \"a/b/c\" (expected …)"), "name or namespace/name"),
        (
            format!(
                "{prefix}: could not parse TLS cert PEM data from Secret: x: attempt to set invalid key pair: y"
            ),
            "tls.key",
        ),
        (
            format!(
                "{prefix}: could not parse TLS cert PEM data from Secret: x: attempt to set x509 cert with unexpected IsCA=true"
            ),
            "not a CA's",
        ),
        (format!("{prefix}: unable to read provided ca.crt: data is not a certificate"), "ca.crt"),
        (format!("{decode}: illegal base64 data at input byte 4"), "base64 -w0"),
        (
            "must provide impersonationSpec.TLS.secretName if impersonationSpec.TLS is provided".into(),
            "remove the tls block",
        ),
        (
            "impersonationSpec.TLS.secretName must not be the name of the Secret managed by this controller"
                .into(),
            "a name of its own",
        ),
        (
            "could not validate the externally provided TLS secret for the impersonation proxy: x".into(),
            "Warn",
        ),
        (format!("{load}: invalid ExternalEndpoint \"x/y\": z"), "without https://"),
        (format!("{load}: externalEndpoint must be set when service.type is None"), "set spec"),
        (format!("{load}: invalid LoadBalancerIP \"x\""), "IP address"),
        ("could not load CredentialIssuer: spec.impersonationProxy is nil".into(), "mode"),
        ("waiting for load balancer Service to be assigned IP or hostname".into(), "without load balancers"),
        ("could not load CA: tls: x: delete secret \"y\"".into(), "distributed again"),
        ("something new".into(), "kubectl logs --namespace concierge"),
    ] {
        let found = problems(check(&observed(
            json!({"mode": "enabled"}),
            &[
                strategy(KEY, "Success", "FetchedKey", "k"),
                strategy(PROXY, "Error", "ErrorDuringSetup", &message),
            ],
        )));
        let [(what, remedy)] = found.as_slice() else { panic!("{message}: {found:?}") };
        assert_eq!(*what, format!("strategy ImpersonationProxy fails: {message}"));
        assert!(remedy.contains(advice), "{message}: {remedy}");
    }
}

#[test]
fn an_installation_without_a_running_controller_is_a_problem() {
    let found = problems(check(&observed(json!({"mode": "auto"}), &[])));
    assert_eq!(found.len(), 1);
    assert!(found[0].0.contains("has no status") && found[0].1.contains("get pods --namespace concierge"));
}

#[test]
fn the_condition_the_api_and_the_authenticators_are_reported() {
    let good = observed(json!({"mode": "auto"}), &[strategy(KEY, "Success", "FetchedKey", "k")]);
    let condition = |status: &str| {
        let mut observed = good.clone();
        let condition = json!([{"type": "ServingCertificateValid", "status": status, "reason": "r", "message": "m",
            "lastTransitionTime": "2026-11-21T10:00:00Z"}]);
        let status = observed.issuer.status.as_mut().unwrap();
        status.conditions = serde_json::from_value(condition).unwrap();
        check(&observed)
    };
    assert_eq!(problems(condition("True")), []);
    assert_eq!(problems(condition("Unknown")), []);
    assert_eq!(problems(condition("False"))[0].0, "ServingCertificateValid is False: m");
    let refuse = "set aggregatedAPIServerUnappliedAdmission to report";
    for (status, reason, is_warning, is_problem) in [
        ("True", "NothingMatches", false, false),
        ("False", "NotApplied", true, false),
        ("Unknown", "NotRead", false, false),
        ("False", "Refused", false, true),
        ("Unknown", "Refused", false, true),
        // A reason of a later version.
        ("False", "Other", false, true),
    ] {
        let mut observed = good.clone();
        let condition = json!([{"type": "AdmissionApplied", "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-11-21T10:00:00Z"}]);
        let found = observed.issuer.status.as_mut().unwrap();
        found.conditions = serde_json::from_value(condition).unwrap();
        let findings = check(&observed);
        let text = format!("AdmissionApplied is {status}: m");
        let warning = |(check, finding): &Checked| {
            *check == Check::Strategies && matches!(finding, Finding::Warning { what, .. } if *what == text)
        };
        assert_eq!(findings.iter().any(warning), is_warning, "{findings:?}");
        let problem = findings.iter().find_map(|(check, finding)| match finding {
            Finding::Problem { what, remedy } if *what == text => Some((*check, remedy)),
            _ => None,
        });
        assert_eq!(problem.is_some(), is_problem, "{findings:?}");
        if reason == "Refused" {
            // A login that fails is a consequence of it.
            assert!(problem.is_some_and(|(check, remedy)| check == Check::Api && remedy.contains(refuse)));
        }
    }
    let mut failing = good.clone();
    let ready = json!([{"type": "Ready", "status": "False", "reason": "NoWorkingStrategy", "message": "m",
        "lastTransitionTime": "2026-11-21T10:00:00Z"}]);
    failing.issuer.status.as_mut().unwrap().conditions = serde_json::from_value(ready).unwrap();
    assert_eq!(problems(check(&failing)), [], "the strategies are reported instead");

    let api = |result| check(&Observed { api_trouble: result, ..good.clone() });
    assert!(
        problems(api(ReadResult::Found("no endpoints".into())))[0].0.ends_with("not available: no endpoints")
    );
    assert!(problems(api(ReadResult::Missing))[0].0.ends_with("does not exist"));
    assert_eq!(problems(api(ReadResult::Hidden("forbidden".into()))), []);

    let authenticators = |result| check(&Observed { authenticators: result, ..good.clone() });
    let unready = vec![unready("webhookauthenticator.x/y", "UnableToDialServer")];
    for (result, wanted) in [
        (
            ReadResult::Found(Authenticators::default()),
            Some("there is no authenticator, so users cannot log in"),
        ),
        (
            ReadResult::Found(Authenticators {
                names: vec!["webhookauthenticator.x/y".to_owned(); 2],
                unready,
                ..Authenticators::default()
            }),
            Some("webhookauthenticator.x/y is not ready: no route"),
        ),
        (ReadResult::Hidden("forbidden".into()), None),
        (ReadResult::Failed("no route".into()), None),
    ] {
        let found = problems(authenticators(result));
        assert_eq!(found.first().map(|(what, _)| what.as_str()), wanted);
    }
    let hidden = authenticators(ReadResult::Hidden("forbidden".into()));
    assert!(
        hidden.contains(&(Check::Authenticator, Finding::unseen("authenticators", "forbidden"))),
        "a read without permission is reported"
    );
}

fn unready(name: &str, reason: &str) -> UnreadyAuthenticator {
    UnreadyAuthenticator { name: name.into(), why: "no route".into(), reason: reason.into() }
}

#[test]
fn the_remedy_of_an_authenticator_is_that_of_its_reason() {
    let mut all = observed(json!({"mode": "auto"}), &[strategy(KEY, "Success", "FetchedKey", "k")]);
    for (reason, expected) in [
        ("UnableToDialServer", "see whether the address responds from the cluster, and whether spec.tls"),
        ("FromTheFuture", "its conditions say more: kubectl describe webhookauthenticator.x/y"),
    ] {
        let name = "webhookauthenticator.x/y";
        all.authenticators = ReadResult::Found(Authenticators {
            names: vec![name.to_owned()],
            unready: vec![unready(name, reason)],
            ..Authenticators::default()
        });
        let found = problems(check(&all));
        assert!(found[0].1.starts_with(expected), "{found:?}");
    }
}

#[test]
fn the_authenticator_of_the_kubeconfig_is_distinguished_from_others() {
    let mut all = observed(json!({"mode": "auto"}), &[strategy(KEY, "Success", "FetchedKey", "k")]);
    all.authenticators = ReadResult::Found(Authenticators {
        names: vec!["webhookauthenticator.x/a".to_owned(), "jwtauthenticator.x/b".to_owned()],
        unready: vec![unready("jwtauthenticator.x/b", "")],
        ..Authenticators::default()
    });
    for (kind, name, expected) in [
        ("jwt", "b", (Check::Authenticator, "jwtauthenticator.x/b is not ready")),
        ("webhook", "a", (Check::OtherAuthenticators, "jwtauthenticator.x/b is not ready")),
        ("webhook", "c", (Check::Authenticator, "the kubeconfig logs in with webhook authenticator c")),
    ] {
        let findings = super::check(&all, Some(&(kind.to_owned(), name.to_owned())));
        let found = findings.iter().find_map(|(check, finding)| match finding {
            Finding::Problem { what, .. } => Some((*check, what.as_str())),
            _ => None,
        });
        let (check, what) = found.unwrap();
        assert!(check == expected.0 && what.starts_with(expected.1), "{kind} {name}: {findings:?}");
    }
}

#[test]
fn a_webhook_without_pods_is_a_problem_although_its_authenticator_is_ready() {
    let mut all = observed(json!({"mode": "auto"}), &[strategy(KEY, "Success", "FetchedKey", "k")]);
    let name = "webhookauthenticator.x/a";
    let no_pod = "the webhook of webhookauthenticator.x/a does not respond: Service ns/s has no ready pod";
    let no_service = "the webhook of webhookauthenticator.x/a does not exist: there is no Service ns/s";
    let not_ready = "webhookauthenticator.x/a is not ready: no route";
    let (down, missing) = (ServiceState::NoEndpoint, ServiceState::Missing);
    for (state, reason, wanted) in [
        (down.clone(), None, &[no_pod][..]),
        (down.clone(), Some("UnableToDialServer"), &[no_pod]),
        // Another problem of the authenticator is not a consequence.
        (down, Some("InvalidTLSConfiguration"), &[not_ready, no_pod]),
        (missing, None, &[no_service]),
        (ServiceState::Unread("forbidden".to_owned()), None, &[]),
        (ServiceState::Unread("forbidden".to_owned()), Some("UnableToDialServer"), &[not_ready]),
    ] {
        let (namespace, service) = ("ns".to_owned(), "s".to_owned());
        all.authenticators = ReadResult::Found(Authenticators {
            names: vec![name.to_owned()],
            unready: reason.map(|reason| unready(name, reason)).into_iter().collect(),
            unserved: vec![UnservedAuthenticator { name: name.to_owned(), namespace, service, state }],
        });
        for (used, check) in [("a", Check::Webhook), ("b", Check::OtherAuthenticators)] {
            let findings = super::check(&all, Some(&("webhook".to_owned(), used.to_owned())));
            let about = findings.iter().filter_map(|(check, finding)| match finding {
                Finding::Problem { what, .. } if what.contains("webhookauthenticator.x/a") => {
                    Some((*check, what.as_str()))
                }
                _ => None,
            });
            let about: Vec<_> = about.collect();
            assert_eq!(about.iter().map(|(_, what)| *what).collect::<Vec<_>>(), wanted, "{findings:?}");
            assert!(about.iter().all(|(of, what)| *what == not_ready || *of == check), "{about:?}");
        }
    }
}

#[test]
fn pods_that_are_not_ready_are_reported_with_the_reason() {
    let mut all = observed(json!({"mode": "auto"}), &[strategy(KEY, "Success", "FetchedKey", "k")]);
    assert_eq!(check_pods(&all), [], "the Concierge runs elsewhere");
    all.api_trouble = ReadResult::Found("no endpoints".to_owned());
    assert!(
        problems(check_pods(&all))[0].0.starts_with("no pod of the Concierge exists in namespace concierge")
    );
    let image = format!("i:{}", pinniped_version::VERSION);
    let ready =
        ObservedPod { name: "a".into(), ready: true, images: vec![image.clone()], ..ObservedPod::default() };
    let waiting = ObservedPod {
        name: "b".into(),
        waiting: Some("ImagePullBackOff: no such image".into()),
        restarts: 2,
        ..ObservedPod::default()
    };
    all.pods = ReadResult::Found(vec![ready.clone(), waiting]);
    assert_eq!(
        problems(check_pods(&all))[0].0,
        "pod b is not ready: ImagePullBackOff: no such image, restarts: 2"
    );
    all.pods = ReadResult::Found(vec![ready]);
    let findings = check_pods(&all);
    assert_eq!(findings[0].1, Finding::Fine("the Concierge's pods: 1, all of them ready".into()));
    let fine = matches!(&findings[1].1, Finding::Fine(text) if text.contains(&format!("image is {image}")));
    assert!(fine, "{findings:?}");
}

#[test]
fn the_page_about_troubleshooting_has_all_remedies_in_this_order() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/howto/troubleshooting.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.split("| Message | Remedy |\n|---|---|\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = strategy_messages::ALL
        .iter()
        .flat_map(|row| row.texts.iter().map(move |text| format!("| `{text}` | {} |", row.remedy)));
    let wanted: Vec<String> = rows.collect();
    assert_eq!(table.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn the_version_of_the_concierge_is_that_of_the_tag_of_its_image() {
    let own = pinniped_version::VERSION;
    let (major, minor) = pinniped_version::numbers();
    let same = format!("localhost:5000/a/server:{major}.{minor}.99");
    assert_eq!(
        version(&same),
        Finding::Fine(format!("the Concierge's image is {same}; this program is {own}"))
    );
    let same = format!("server:v{major}.{minor}.0@sha256:ab");
    assert!(matches!(version(&same), Finding::Fine(_)));
    for other in ["ghcr.io/a/server:999.1.0", "server:v999.1.0@sha256:ab"] {
        let finding = version(other);
        assert!(matches!(&finding, Finding::Warning { what, .. } if what.contains(other)), "{finding:?}");
    }
    for unknown in ["server", "localhost:5000/server", "server:latest", "server@sha256:ab"] {
        assert_eq!(
            version(unknown),
            Finding::unseen("the version of the Concierge", format!("its image {unknown} names none"))
        );
    }
}

#[test]
fn unready_pods_explain_problems_only_if_none_is_ready_or_the_api_is_not_available() {
    let pod = |ready| ObservedPod { ready, ..ObservedPod::default() };
    for (pods, trouble, expected) in [
        (vec![pod(true), pod(false)], "", false),
        (vec![pod(true), pod(false)], "down", true),
        (vec![pod(false), pod(false)], "", true),
        (vec![], "", true),
    ] {
        let observed = Observed {
            pods: ReadResult::Found(pods.clone()),
            api_trouble: ReadResult::Found(trouble.to_owned()),
            ..observed(json!(null), &[])
        };
        assert_eq!(pods_explain(&observed), expected, "{pods:?} {trouble:?}");
    }
}

#[test]
fn a_hidden_credential_issuer_is_skipped_and_the_rest_is_checked() {
    let observed = Observed {
        hidden: Some("forbidden".into()),
        api_trouble: ReadResult::Found("down".into()),
        ..observed(json!(null), &[])
    };
    let findings = check(&observed);
    let skipped = (Check::Installation, Finding::unseen("the CredentialIssuer", "forbidden"));
    assert!(findings.contains(&skipped), "{findings:?}");
    let found = problems(findings);
    assert!(found.len() == 1 && found[0].0.ends_with("is not available: down"), "{found:?}");
}
