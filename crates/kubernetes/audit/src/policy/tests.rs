use http::{Method, Uri};
use pinniped_kube_request::request_info::RequestInfo;

use super::*;

fn policy(rules: &str) -> Policy {
    Policy::parse(&format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}")).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    Policy::parse(text).unwrap_err().texts().to_vec()
}

fn attributes(request: &str) -> Attributes {
    let (method, target) = request.split_once(' ').unwrap();
    let (method, uri): (Method, Uri) = (method.parse().unwrap(), target.parse().unwrap());
    RequestInfo::parse(&method, &uri).unwrap().into()
}

fn pinny() -> User {
    let groups = ["developers", "system:authenticated"].map(str::to_owned).to_vec();
    User { name: "pinny".to_owned(), groups, ..User::default() }
}

#[test]
fn a_rule_matches_when_all_its_lists_match() {
    const GET: &str = "GET /api/v1/namespaces/ns/pods/p";
    const LOG: &str = "GET /api/v1/namespaces/ns/pods/p/log";
    const SCALE: &str = "GET /apis/apps/v1/namespaces/ns/deployments/d/scale";
    const NODES: &str = "GET /api/v1/nodes";
    const VERSION: &str = "GET /version";
    for (rule, request, matches) in [
        ("{}", GET, true),
        ("{}", VERSION, true),
        ("{users: [pinny]}", GET, true),
        ("{users: [other, pinny]}", GET, true),
        ("{users: [pin]}", GET, false),
        ("{userGroups: [developers]}", GET, true),
        ("{userGroups: [others, 'system:authenticated']}", VERSION, true),
        ("{userGroups: [pinny]}", GET, false),
        ("{users: [pinny], userGroups: [others]}", GET, false),
        ("{verbs: [get]}", GET, true),
        ("{verbs: [list, watch]}", GET, false),
        ("{verbs: ['*']}", GET, false),
        ("{verbs: [list]}", NODES, true),
        ("{verbs: [get]}", VERSION, true),
        ("{namespaces: [ns]}", GET, true),
        ("{namespaces: [nss]}", GET, false),
        ("{namespaces: ['']}", NODES, true),
        ("{namespaces: ['']}", GET, false),
        ("{namespaces: ['']}", VERSION, false),
        ("{resources: [{}]}", GET, true),
        ("{resources: [{}]}", SCALE, false),
        ("{resources: [{group: '*'}]}", SCALE, true),
        ("{resources: [{group: '*'}]}", VERSION, false),
        ("{resources: [{group: apps}]}", SCALE, true),
        ("{resources: [{group: apps}]}", GET, false),
        ("{resources: [{resources: [pods]}]}", GET, true),
        ("{resources: [{resources: [pods]}]}", LOG, false),
        ("{resources: [{resources: [pods/log]}]}", LOG, true),
        ("{resources: [{resources: [pods/log]}]}", GET, false),
        ("{resources: [{resources: [pods/exec, pods/log]}]}", LOG, true),
        ("{resources: [{resources: ['*']}]}", LOG, true),
        ("{resources: [{resources: ['*/log']}]}", LOG, true),
        ("{resources: [{resources: ['*/log']}]}", GET, false),
        ("{resources: [{resources: ['*/*']}]}", LOG, false),
        ("{resources: [{resources: ['pods/*']}]}", LOG, true),
        ("{resources: [{resources: ['pods/*']}]}", GET, true),
        ("{resources: [{resources: ['pod/*']}]}", GET, false),
        ("{resources: [{group: apps, resources: ['*/scale']}]}", SCALE, true),
        ("{resources: [{group: apps, resources: ['*/scale']}]}", LOG, false),
        ("{resources: [{resources: [pods], resourceNames: [p]}]}", GET, true),
        ("{resources: [{resources: [pods], resourceNames: [q]}]}", GET, false),
        ("{resources: [{resources: [nodes], resourceNames: ['']}]}", NODES, true),
        ("{resources: [{group: apps}, {resources: [pods]}]}", GET, true),
        ("{resources: [{resources: [pods]}], namespaces: [other]}", GET, false),
        ("{nonResourceURLs: ['/version']}", VERSION, true),
        ("{nonResourceURLs: ['/versions', '/vers*']}", VERSION, true),
        ("{nonResourceURLs: ['/vers']}", VERSION, false),
        ("{nonResourceURLs: ['*']}", VERSION, true),
        ("{nonResourceURLs: ['*']}", GET, false),
        ("{nonResourceURLs: ['/api*']}", GET, false),
        ("{nonResourceURLs: ['/api*']}", "GET /api/v1", true),
    ] {
        let policy = policy(&format!(
            "- level: None\n  users: [nobody]\n- {}",
            rule.replacen('{', "{level: Metadata, ", 1)
        ));
        let decision = policy.decide(Some(&pinny()), &attributes(request));
        assert_eq!(decision.level == Level::Metadata, matches, "{rule}: {request}");
    }
}

#[test]
fn the_first_rule_that_matches_decides_and_without_one_nothing_is_logged() {
    let policy = policy(
        "- {level: Request, verbs: [create]}\n- {level: None, users: [pinny]}\n- {level: Metadata, verbs: [get]}\n",
    );
    let other = User { name: "other".to_owned(), ..User::default() };
    for (user, request, level) in [
        (Some(&pinny()), "POST /api/v1/nodes", Level::Request),
        (Some(&pinny()), "GET /version", Level::None),
        (Some(&other), "GET /version", Level::Metadata),
        (Some(&other), "GET /api/v1/nodes", Level::None),
        // A client that is not identified is in no rule with users.
        (None, "GET /version", Level::Metadata),
    ] {
        assert_eq!(policy.decide(user, &attributes(request)).level, level, "{user:?} {request}");
    }
}

#[test]
fn a_rule_adds_to_the_stages_that_the_policy_omits_and_overrides_its_managed_fields() {
    let policy = Policy::parse(
        "
apiVersion: audit.k8s.io/v1
kind: Policy
metadata: {name: any, labels: null}
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: Metadata, verbs: [get], omitStages: [Panic], omitManagedFields: false}
- {level: Metadata, verbs: [post], omitStages: null}
",
    )
    .unwrap();
    let decide = |request| policy.decide(None, &attributes(request));
    let logged =
        |decision: Decision| Stage::ALL.into_iter().filter(|stage| decision.logs(*stage)).collect::<Vec<_>>();
    let first = decide("GET /version");
    assert!(!first.omit_managed_fields);
    assert_eq!(logged(first), [Stage::ResponseStarted, Stage::ResponseComplete]);
    let second = decide("POST /version");
    assert!(second.omit_managed_fields);
    assert_eq!(logged(second), [Stage::ResponseStarted, Stage::ResponseComplete, Stage::Panic]);
    let none = decide("PUT /version");
    assert_eq!((none.level, logged(none)), (Level::None, vec![]));
    assert_eq!(format!("{:?}", none.omit_stages), "{RequestReceived}");
}

#[test]
fn each_problem_names_the_field_and_a_remedy() {
    const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
    const LEVELS: &str = "use one of None, Metadata, Request, RequestResponse";
    const STAGES: &str = "allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic";
    let rule = |rule: &str| format!("{HEAD}rules:\n- level: None\n- {rule}\n");
    for (text, wanted) in [
        ("rules: [{level: None}]".to_owned(), vec![
            "apiVersion: must be audit.k8s.io/v1 (instead of \"\")".to_owned(),
            "kind: must be Policy (instead of \"\")".to_owned(),
        ]),
        ("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]".to_owned(), vec![
            "apiVersion: must be audit.k8s.io/v1 (instead of \"audit.k8s.io/v1beta1\")".to_owned(),
        ]),
        (HEAD.to_owned(), vec![
            "rules: must have a rule, such as `- level: Metadata`, which logs all requests".to_owned(),
        ]),
        (rule("{}"), vec![format!("rules[1].level: required value: {LEVELS}")]),
        (rule("{level: metadata}"), vec![format!("rules[1].level: unsupported value \"metadata\": {LEVELS}")]),
        (rule("{level: None, omitStages: [Panic, All]}"), vec![
            format!("rules[1].omitStages[1]: invalid value \"All\": {STAGES}"),
        ]),
        (format!("{HEAD}omitStages: [x]\nrules: [{{level: None}}]"), vec![
            format!("omitStages[0]: invalid value \"x\": {STAGES}"),
        ]),
        (rule("{level: None, nonResourceURLs: [/a, b*, '/a*/b', '']}"), vec![
            "rules[1].nonResourceURLs[1]: invalid value \"b*\": non-resource URL rules must begin with a '/' character".to_owned(),
            "rules[1].nonResourceURLs[2]: invalid value \"/a*/b\": non-resource URL wildcards '*' must be the final character of the rule".to_owned(),
            "rules[1].nonResourceURLs[3]: invalid value \"\": non-resource URL rules must begin with a '/' character".to_owned(),
        ]),
        (rule("{level: None, nonResourceURLs: ['*'], namespaces: [a]}"), vec![
            "rules[1].nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs: split the rule".to_owned(),
        ]),
        (rule("{level: None, resources: [{}, {group: apps/v1}]}"), vec![
            "rules[1].resources[1].group: invalid value \"apps/v1\": must be the name of an API group without a version, such as rbac.authorization.k8s.io, \"\" for the core group, or * for all groups".to_owned(),
        ]),
        (rule("{level: None, resources: [{resourceNames: [a]}]}"), vec![
            "rules[1].resources[0].resourceNames: using resourceNames requires at least one resource: add it to resources".to_owned(),
        ]),
    ] {
        assert_eq!(problems(&text), wanted, "{text}");
    }
}

#[test]
fn unknown_repeated_and_mistyped_keys_are_errors_with_the_index_of_the_rule() {
    const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";
    for (text, wanted) in [
        (
            format!("{HEAD}rules: [{{level: None, verb: [get]}}]"),
            "rules[0]: unknown field `verb`, expected one of `level`, ",
        ),
        (
            format!("{HEAD}rule: [{{level: None}}]"),
            "the file: unknown field `rule`, expected one of `apiVersion`, ",
        ),
        (
            format!("{HEAD}rules: [{{level: None, resources: [{{resource: [a]}}]}}]"),
            "rules[0].resources[0]: unknown field `resource`",
        ),
        (
            format!("{HEAD}rules: [{{level: None, verbs: get}}]"),
            "rules[0]: invalid type: string \"get\", expected a sequence",
        ),
        (
            format!("{HEAD}rules: [{{level: None, users: [1]}}]"),
            "rules[0]: invalid type: integer `1`, expected a string",
        ),
        (format!("{HEAD}rules: [[None]]"), "rules[0]: must be a mapping of keys to values"),
        (format!("{HEAD}rules: [{{level: None, level: Metadata}}]"), "the file: is not YAML: "),
        (format!("{HEAD}rules: {{level: None}}"), "the file: invalid type: map, expected a sequence"),
        ("[]".to_owned(), "the file: must be a mapping of keys to values"),
        (String::new(), "the file: must be a mapping of keys to values"),
        ("rules: [".to_owned(), "the file: is not YAML: "),
    ] {
        let problems = problems(&text);
        assert!(problems.iter().any(|problem| problem.starts_with(wanted)), "{text}: {problems:#?}");
    }
}

#[test]
fn errors_name_the_file_and_are_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let error = Policy::load(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("could not read the audit policy {}", path.display()));
    std::fs::write(&path, format!("rules:\n{}", "- {}\n".repeat(1000))).unwrap();
    let text = Policy::load(&path).unwrap_err().to_string();
    assert!(
        text.starts_with(&format!("the audit policy {} is invalid: apiVersion: must", path.display())),
        "{text}"
    );
    assert!(text.ends_with("; and 992 more") && text.len() < 2000, "{text}");
    std::fs::write(&path, " ".repeat(1 << 21)).unwrap();
    assert!(matches!(Policy::load(&path), Err(PolicyError::Read { .. })));
    std::fs::write(&path, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n").unwrap();
    assert_eq!(Policy::load(&path).unwrap().decide(None, &attributes("GET /")).level, Level::Metadata);
}
