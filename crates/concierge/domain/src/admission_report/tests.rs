use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, ValidatingAdmissionPolicy};
use serde::Serialize;
use serde_json::{Value, json};

use super::*;

const TOKENS: &str = "tokencredentialrequests.login.concierge.pinniped.dev";
const WHOAMI: &str = "whoamirequests.identity.concierge.pinniped.dev";

fn decided(
    observed: &ObservedAdmission,
    suffix: &str,
    handling: UnappliedAdmission,
) -> (DesiredCondition, Refusals) {
    let decision = decide(observed, &GroupSuffix::parse(suffix).unwrap(), handling);
    match decision.condition {
        ConditionChange::Set(condition) => (condition, decision.refusals),
        ConditionChange::Remove(_) => panic!("the condition is always present"),
    }
}

fn policy(constraints: &Value) -> AdmissionObject {
    named_policy("p", constraints)
}

fn named_policy(name: &str, constraints: &Value) -> AdmissionObject {
    let spec = serde_json::from_value(json!({"matchConstraints": constraints})).unwrap();
    AdmissionObject::policy(AdmissionPlugin::ValidatingAdmissionPolicy, name, &spec)
}

/// Returns a policy from the specification that an API server sends.
fn policy_of(plugin: AdmissionPlugin, object: &impl Serialize) -> AdmissionObject {
    let spec: PolicySpec =
        serde_json::from_value(serde_json::to_value(object).unwrap()["spec"].take()).unwrap();
    AdmissionObject::policy(plugin, "m", &spec)
}

fn rule(change: &Value) -> Value {
    let mut rule = json!({"apiGroups": ["login.concierge.pinniped.dev"], "apiVersions": ["v1alpha1"],
        "operations": ["CREATE"], "resources": ["tokencredentialrequests"]});
    for (key, value) in change.as_object().unwrap() {
        rule[key] = value.clone();
    }
    rule
}

#[test]
fn rules_match_as_in_the_api_server() {
    for (change, expected) in [
        (json!({}), &[TOKENS][..]),
        (json!({"apiGroups": ["*"]}), &[TOKENS]),
        (json!({"apiGroups": ["*"], "resources": ["*"]}), &[TOKENS, WHOAMI]),
        (json!({"apiGroups": ["*"], "resources": ["*/*"]}), &[TOKENS, WHOAMI]),
        (json!({"resources": ["*"]}), &[TOKENS]),
        (json!({"resources": ["tokencredentialrequests/*"]}), &[TOKENS]),
        (json!({"resources": ["tokencredentialrequests/status"]}), &[]),
        (json!({"resources": ["*/status"]}), &[]),
        (json!({"resources": ["pods", "tokencredentialrequests"]}), &[TOKENS]),
        (json!({"resources": ["pods"]}), &[]),
        (json!({"apiGroups": ["", "apps"]}), &[]),
        (json!({"apiGroups": ["login.concierge.other.example"]}), &[]),
        (json!({"apiVersions": ["*"]}), &[TOKENS]),
        (json!({"apiVersions": ["v1"]}), &[]),
        (json!({"operations": ["*"]}), &[TOKENS]),
        (json!({"operations": ["UPDATE", "DELETE", "CONNECT"]}), &[]),
        (json!({"operations": ["UPDATE", "CREATE"]}), &[TOKENS]),
        (json!({"scope": "*"}), &[TOKENS]),
        (json!({"scope": "Cluster"}), &[TOKENS]),
        (json!({"scope": "Namespaced"}), &[]),
    ] {
        let rule = rule(&change);
        let webhooks = json!({"metadata": {"name": "w"}, "webhooks": [{"name": "a.b.c", "rules": [rule],
            "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None"}]});
        let validating: ValidatingWebhookConfiguration = serde_json::from_value(webhooks.clone()).unwrap();
        let mutating: MutatingWebhookConfiguration = serde_json::from_value(webhooks).unwrap();
        let spec = json!({"metadata": {"name": "m"}, "spec": {"failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]}}});
        let mutating_policy: MutatingAdmissionPolicy = serde_json::from_value(spec.clone()).unwrap();
        let validating_policy: ValidatingAdmissionPolicy = serde_json::from_value(spec).unwrap();
        let objects = [
            AdmissionObject::from(&validating),
            AdmissionObject::from(&mutating),
            policy_of(AdmissionPlugin::MutatingAdmissionPolicy, &mutating_policy),
            policy_of(AdmissionPlugin::ValidatingAdmissionPolicy, &validating_policy),
        ];
        for object in objects {
            let found: Vec<String> = RESOURCES
                .iter()
                .filter(|(group, resource)| object.may_match(group, resource))
                .map(|(group, resource)| format!("{resource}.{group}"))
                .collect();
            assert_eq!(found, expected, "{change} {:?}", object.plugin);
        }
    }
}

#[test]
fn the_constraints_of_policies_include_and_exclude() {
    let rule = rule(&json!({}));
    let named = self::rule(&json!({"resourceNames": ["a"]}));
    for (constraints, expected) in [
        (json!({"resourceRules": [rule]}), true),
        (json!({"resourceRules": [named]}), true),
        (json!({"resourceRules": [rule], "objectSelector": {"matchLabels": {"a": "b"}}}), true),
        (json!({"resourceRules": [rule], "matchPolicy": "Exact"}), true),
        (json!({"resourceRules": [rule], "excludeResourceRules": [rule]}), false),
        (json!({"resourceRules": [rule], "excludeResourceRules": [named]}), true),
        (json!({}), true),
    ] {
        let found = policy(&constraints).may_match(RESOURCES[0].0, RESOURCES[0].1);
        assert_eq!(found, expected, "{constraints}");
    }
}

/// Objects, unreadable plug-ins, and what is decided for each handling: status, reason and message
/// of the condition, and the refusals of logins and of whoami requests.
struct Case {
    objects: Vec<AdmissionObject>,
    unreadable: &'static [AdmissionPlugin],
    reported: (&'static str, &'static str, String),
    refused: (&'static str, &'static str, String),
    refusals: [Option<CreateRefusal>; 2],
}

fn cases() -> Vec<Case> {
    let tokens = || policy(&json!({"resourceRules": [rule(&json!({}))]}));
    let whoami = || {
        let rule = rule(&json!({"apiGroups": ["*"], "resources": ["whoamirequests"]}));
        named_policy("who", &json!({"resourceRules": [rule]}))
    };
    let none = || policy(&json!({"resourceRules": [rule(&json!({"resources": ["pods"]}))]}));
    let nothing = "no admission policy or webhook of the cluster matches the aggregated API".to_owned();
    let p = || "ValidatingAdmissionPolicy \"p\"".to_owned();
    let who = || "ValidatingAdmissionPolicy \"who\"".to_owned();
    let policies = || Some(CreateRefusal::Unapplied("ValidatingAdmissionPolicy".to_owned()));
    let unread = |text: &str| Some(CreateRefusal::Unread(text.to_owned()));
    let hooks = "MutatingWebhookConfiguration";
    let cannot_read = format!("cannot read {hooks}: forbidden");
    let cannot_read_all = format!("cannot read {hooks}, so all requests are refused: forbidden");
    let refused = |resource: &str, objects: String| {
        format!("not applied to {resource}, so its creation is refused: {objects}")
    };
    vec![
        Case {
            objects: vec![],
            unreadable: &[],
            reported: ("True", "NothingMatches", nothing.clone()),
            refused: ("True", "NothingMatches", nothing.clone()),
            refusals: [None, None],
        },
        Case {
            objects: vec![none()],
            unreadable: &[],
            reported: ("True", "NothingMatches", nothing.clone()),
            refused: ("True", "NothingMatches", nothing),
            refusals: [None, None],
        },
        Case {
            objects: vec![tokens()],
            unreadable: &[],
            reported: ("False", "NotApplied", format!("not applied to {TOKENS}: {}", p())),
            refused: ("False", "Refused", refused(TOKENS, p())),
            refusals: [policies(), None],
        },
        Case {
            objects: vec![whoami(), none()],
            unreadable: &[],
            reported: ("False", "NotApplied", format!("not applied to {WHOAMI}: {}", who())),
            refused: ("False", "Refused", refused(WHOAMI, who())),
            refusals: [None, policies()],
        },
        // The same object in two versions of the API is one object.
        Case {
            objects: vec![policy(&json!({})), whoami(), policy(&json!({}))],
            unreadable: &[],
            reported: (
                "False",
                "NotApplied",
                format!("not applied to {TOKENS}: {}; not applied to {WHOAMI}: {}, {}", p(), p(), who()),
            ),
            refused: (
                "False",
                "Refused",
                [refused(TOKENS, p()), refused(WHOAMI, format!("{}, {}", p(), who()))].join("; "),
            ),
            refusals: [policies(), policies()],
        },
        Case {
            objects: vec![none()],
            unreadable: &[AdmissionPlugin::MutatingAdmissionWebhook],
            reported: ("Unknown", "NotRead", cannot_read.clone()),
            refused: ("Unknown", "Refused", cannot_read_all.clone()),
            refusals: [unread(hooks), unread(hooks)],
        },
        Case {
            objects: vec![tokens()],
            unreadable: &[AdmissionPlugin::MutatingAdmissionWebhook],
            reported: ("False", "NotApplied", format!("not applied to {TOKENS}: {}; {cannot_read}", p())),
            refused: ("False", "Refused", format!("{}; {cannot_read_all}", refused(TOKENS, p()))),
            refusals: [policies(), unread(hooks)],
        },
    ]
}

#[test]
fn objects_that_are_not_applied_are_reported_and_refused_if_configured() {
    for Case { objects, unreadable, reported, refused, refusals } in cases() {
        let unreadable = unreadable.iter().map(|plugin| (*plugin, "forbidden".to_owned())).collect();
        let observed = ObservedAdmission { objects, unreadable };
        for (handling, (status, reason, message), refusals) in [
            (UnappliedAdmission::Report, &reported, &[None, None]),
            (UnappliedAdmission::Refuse, &refused, &refusals),
        ] {
            let (condition, found) = decided(&observed, "pinniped.dev", handling);
            let wanted = DesiredCondition::new(ADMISSION_APPLIED, status, *reason, message);
            assert_eq!(condition, wanted, "{handling:?}");
            let found = RESOURCES.map(|(_, resource)| found.of(resource).cloned());
            assert_eq!(&found, refusals, "{handling:?} {message}");
        }
    }
}

#[test]
fn only_rules_for_the_groups_of_this_installation_match() {
    let objects = vec![policy(&json!({"resourceRules": [rule(&json!({}))]}))];
    let observed = ObservedAdmission { objects, ..ObservedAdmission::default() };
    for (suffix, status, is_refused) in [("pinniped.dev", "False", true), ("other.example", "True", false)] {
        let (condition, refusals) = decided(&observed, suffix, UnappliedAdmission::Refuse);
        assert_eq!(condition.status, status);
        assert_eq!(refusals.of("tokencredentialrequests").is_some(), is_refused, "{suffix}");
    }
}

#[test]
fn all_requests_are_refused_before_the_first_decision_if_configured() {
    for (handling, wanted) in [
        (UnappliedAdmission::Report, None),
        (UnappliedAdmission::Refuse, Some(&CreateRefusal::Unread(String::new()))),
    ] {
        let refusals = Refusals::at_start(handling);
        for (_, resource) in RESOURCES {
            assert_eq!(refusals.of(resource), wanted, "{handling:?} {resource}");
        }
    }
}

#[test]
fn a_refusal_has_the_kinds_of_the_objects_and_not_their_names() {
    let hook = json!({"metadata": {"name": "hook"}, "webhooks": [{"name": "a.b.c",
        "rules": [rule(&json!({"apiGroups": ["*"], "resources": ["*"]}))],
        "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None"}]});
    let hook: MutatingWebhookConfiguration = serde_json::from_value(hook).unwrap();
    let mut objects: Vec<_> =
        (0..100).map(|number| named_policy(&format!("policy-{number}"), &json!({}))).collect();
    objects.push(AdmissionObject::from(&hook));
    let observed = ObservedAdmission { objects, ..ObservedAdmission::default() };
    let (condition, refusals) = decided(&observed, "pinniped.dev", UnappliedAdmission::Refuse);
    assert!(condition.message.contains("\"policy-99\""), "{}", condition.message);
    let kinds = "MutatingWebhookConfiguration, ValidatingAdmissionPolicy".to_owned();
    for (_, resource) in RESOURCES {
        assert_eq!(refusals.of(resource), Some(&CreateRefusal::Unapplied(kinds.clone())));
    }
}

#[test]
fn the_handling_is_read_from_its_name() {
    for handling in UnappliedAdmission::ALL {
        assert_eq!(UnappliedAdmission::parse(handling.name()), Some(handling));
    }
    assert_eq!(UnappliedAdmission::parse("Refuse"), None);
}
