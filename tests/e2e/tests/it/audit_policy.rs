//! Checks that audit policies have the meaning that they have in the API server. The test sends
//! about a thousand requests to real API servers with generated policies, and compares the levels
//! and stages in their audit logs, and whether objects have managed fields, with the decisions of
//! `pinniped-kube-audit`.
//!
//! Clients are an administrator, users without permissions, one of them with a header that
//! impersonates another user, and a client that is not identified. Each has a connection of its
//! own, and ends with a request that every policy logs, so that events of earlier requests are in
//! the log when that one is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use http::{Method, Uri};
use pinniped_kube_audit::policy::{Level, Policy, Stage};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::User;
use pinniped_kube_request::request_info::RequestInfo;
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::rng::Rng;
use pinniped_test_support::{audit_log, wait};
use serde_json::{Value, json};

use crate::request_info::wire::Client;

/// Number of policies, each in an API server of its own.
const POLICIES: usize = 5;
/// Number of requests for each policy.
const REQUESTS: usize = 210;
/// Environment variable that overrides the seed; a failure prints the seed.
const SEED: &str = "PINNIPED_AUDIT_POLICY_SEED";
/// Every policy logs requests for this path.
const LAST: &str = "/last-request-of-a-client";

/// The levels and stages of one request in the log.
type Logged = BTreeSet<(String, String)>;

/// One request in the log.
#[derive(Default)]
struct Found {
    logged: Logged,
    /// Whether the objects of the response have managed fields; `None` without objects.
    managed_fields: Option<bool>,
}

/// A client, and the user that it is for the API server.
struct Sender {
    client: Client,
    user: Option<User>,
    /// A header that impersonates another user. The policy applies to `user` nevertheless.
    impersonates: bool,
    is_admin: bool,
}

#[tokio::test]
async fn policies_have_the_same_meaning_as_in_the_api_server() {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => 20_261_127,
    };
    eprintln!("{POLICIES} policies and {REQUESTS} requests for each with seed {seed}");
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let (policy_file, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    let mut kinds: BTreeMap<Logged, usize> = BTreeMap::new();
    let mut with_managed_fields = [0, 0];
    let mut control_plane = None;
    for number in 0..POLICIES {
        let text = policy(&mut rng, number);
        std::fs::write(&policy_file, &text).unwrap();
        let policy = Policy::load(&policy_file).unwrap();
        match &control_plane {
            None => {
                let started = control_plane.insert(start(&policy_file, &log).await.unwrap());
                started.kubectl().apply(OBJECTS).await.unwrap();
            }
            Some(control_plane) => ControlPlane::restart_api_server(control_plane).await.unwrap(),
        }
        let control_plane = control_plane.as_ref().unwrap();
        let expected = send(&mut rng, control_plane, &policy, number).await.unwrap();
        let found = wait::until(Duration::from_secs(30), "all requests to be in the log", async || {
            let found = read(&log, number).ok()?;
            let is_last = |id: &&String| id.ends_with("-last");
            let is_there = |id| found.get(id).is_some_and(|found| found.logged == expected[id].0);
            expected.keys().filter(is_last).all(is_there).then_some(found)
        })
        .await
        .unwrap();
        let mut found = found;
        for (id, (logged, omit_managed_fields)) in &expected {
            let seen = found.remove(id).unwrap_or_default();
            assert_eq!(&seen.logged, logged, "seed {seed}, request {id} with the policy {text}");
            if let Some(has_some) = seen.managed_fields {
                assert_eq!(has_some, !omit_managed_fields, "seed {seed}, request {id}, policy {text}");
                with_managed_fields[usize::from(has_some)] += 1;
            }
            *kinds.entry(seen.logged).or_default() += 1;
        }
    }
    eprintln!("responses without and with managed fields: {with_managed_fields:?}");
    assert!(with_managed_fields.iter().all(|count| *count > 3), "{with_managed_fields:?}");
    eprintln!("{kinds:#?}");
    // A generator that no longer reaches a branch would weaken this test without a failure.
    let count =
        |fits: &dyn Fn(&Logged) -> bool| kinds.iter().filter(|(l, _)| fits(l)).map(|(_, n)| n).sum::<usize>();
    assert!(count(&|_| true) > 1000, "{kinds:?}");
    assert!(count(&Logged::is_empty) > 50, "{kinds:?}");
    for name in Level::ALL.map(Level::name).into_iter().skip(1).chain(["RequestReceived", "ResponseStarted"])
    {
        let has = |logged: &Logged| logged.iter().any(|(level, stage)| level == name || stage == name);
        assert!(count(&has) > 30, "{name}: {kinds:?}");
    }
}

async fn start(policy: &Path, log: &Path) -> anyhow::Result<ControlPlane> {
    let extra_apiserver_args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ];
    ControlPlane::start(ControlPlaneParams { extra_apiserver_args, ..ControlPlaneParams::default() }).await
}

/// Sends the requests, and returns what the log must have about each, by audit ID: the levels and
/// stages, and whether objects have no managed fields.
async fn send(
    rng: &mut Rng,
    control_plane: &ControlPlane,
    policy: &Policy,
    number: usize,
) -> anyhow::Result<BTreeMap<String, (Logged, bool)>> {
    let server: SocketAddr = control_plane.server().trim_start_matches("https://").parse()?;
    let known = |name: &str, group: &str, impersonates, is_admin| -> anyhow::Result<Sender> {
        let pair = control_plane.ca().client(name, Some(group))?;
        let groups = [group, "system:authenticated"].map(str::to_owned).to_vec();
        let user = User { name: name.to_owned(), groups, ..User::default() };
        Ok(Sender {
            client: Client::new(server, "localhost", Some(&pair)),
            user: Some(user),
            impersonates,
            is_admin,
        })
    };
    let mut senders = [
        known("admin", "system:masters", false, true)?,
        known("admin", "system:masters", true, true)?,
        known("alice", "developers", false, false)?,
        known("bob", "auditors", false, false)?,
        known("alice", "auditors", true, false)?,
        Sender {
            client: Client::new(server, "localhost", None),
            user: None,
            impersonates: false,
            is_admin: false,
        },
    ];
    let mut expected = BTreeMap::new();
    for (at, sender) in senders.iter_mut().enumerate() {
        let count = REQUESTS / 6;
        for request in 0..=count {
            let is_last = request == count;
            let id =
                format!("{number}-{at}-{}", if is_last { "last".to_owned() } else { request.to_string() });
            let method = method(rng, sender.is_admin || is_last);
            let target = match request {
                _ if is_last => LAST.to_owned(),
                _ if request % 5 == 0 && sender.is_admin => rng.one_of(&WITH_OBJECTS).to_owned(),
                _ => target(rng),
            };
            let mut head =
                format!("{method} {target} HTTP/1.1\r\nhost: a\r\naudit-id: {id}\r\ncontent-length: 0\r\n");
            if sender.impersonates {
                head += "impersonate-user: bob\r\n";
            }
            if sender.user.is_none() {
                head += "authorization: Bearer invalid\r\n";
            }
            let response = sender.client.send(format!("{head}\r\n").as_bytes(), method == "HEAD").await;
            let response = response.with_context(|| format!("{method} {target}"))?;
            anyhow::ensure!(response.audit_id == id, "{method} {target}: {response:?}");
            expected.insert(id, logged(policy, sender.user.as_ref(), method, &target)?);
        }
    }
    Ok(expected)
}

/// Returns what our implementation would log, and whether it omits managed fields.
fn logged(
    policy: &Policy,
    user: Option<&User>,
    method: &str,
    target: &str,
) -> anyhow::Result<(Logged, bool)> {
    let info = RequestInfo::parse(&method.parse::<Method>()?, &target.parse::<Uri>()?)?;
    let stages: &[Stage] = match user {
        None => &[Stage::ResponseStarted],
        Some(_) if info.is_long_running() => {
            &[Stage::RequestReceived, Stage::ResponseStarted, Stage::ResponseComplete]
        }
        Some(_) => &[Stage::RequestReceived, Stage::ResponseComplete],
    };
    let decision = policy.decide(user, &Attributes::from(info));
    let event = |stage: &Stage| (decision.level.name().to_owned(), stage.name().to_owned());
    let logged = stages.iter().filter(|stage| decision.logs(**stage)).map(event).collect();
    Ok((logged, decision.omit_managed_fields))
}

/// Reads the log.
fn read(log: &Path, number: usize) -> anyhow::Result<BTreeMap<String, Found>> {
    let mut all: BTreeMap<String, Found> = BTreeMap::new();
    let prefix = format!("{number}-");
    for event in audit_log::events(log, &prefix)? {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let id = text("auditID");
        // The ids of other requests are UUIDs.
        if id.starts_with(&prefix) && id.len() < 20 {
            let found = all.entry(id).or_default();
            found.logged.insert((text("level"), text("stage")));
            found.managed_fields = found.managed_fields.or(managed_fields(&event["responseObject"]));
        }
    }
    Ok(all)
}

/// Returns whether objects that have managed fields in the cluster have them here; `None` without
/// such objects.
fn managed_fields(response: &Value) -> Option<bool> {
    let object = match response["kind"].as_str()? {
        "Secret" => response,
        "SecretList" => response["items"].as_array()?.first()?,
        _ => return None,
    };
    Some(object["metadata"]["managedFields"].is_array())
}

/// Requests of the administrator whose responses have objects. Every policy logs these.
const WITH_OBJECTS: [&str; 2] = ["/api/v1/namespaces/a/secrets/x", "/api/v1/namespaces/a/secrets?limit=1"];

/// Objects that some of the requests read.
const OBJECTS: &str = r#"
{kind: List, apiVersion: v1, items: [
  {apiVersion: v1, kind: Namespace, metadata: {name: a}},
  {apiVersion: v1, kind: Namespace, metadata: {name: b}},
  {apiVersion: v1, kind: Secret, metadata: {namespace: a, name: x}},
  {apiVersion: v1, kind: Secret, metadata: {namespace: a, name: "y"}},
  {apiVersion: v1, kind: Secret, metadata: {namespace: b, name: x}},
]}
"#;

const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "post"];
const NAMESPACES: [&str; 3] = ["", "a", "b"];
const NAMES: [&str; 3] = ["", "x", "y"];
const RESOURCES: [&str; 10] = [
    "pods",
    "secrets",
    "pods/log",
    "pods/exec",
    "deployments",
    "deployments/scale",
    "nodes",
    "nodes/proxy",
    "widgets",
    "pods/*",
];
const GROUPS: [&str; 4] = ["", "apps", "example.com", "*"];
const PATHS: [&str; 8] =
    ["/version", "/api", "/apis", "/healthz", "/healthz/etcd", "/logs/x", "/metrics", "/invented"];

fn method(rng: &mut Rng, only_reads: bool) -> &'static str {
    if only_reads {
        "GET"
    } else {
        rng.one_of(&["GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
    }
}

fn target(rng: &mut Rng) -> String {
    if rng.in_hundred(25) {
        return rng.one_of(&PATHS).to_owned();
    }
    let (group, resource, subresource) = rng.one_of(&[
        ("api/v1", "pods", ""),
        ("api/v1", "pods", "log"),
        ("api/v1", "pods", "exec"),
        ("api/v1", "secrets", ""),
        ("api/v1", "nodes", ""),
        ("api/v1", "nodes", "proxy"),
        ("apis/apps/v1", "deployments", ""),
        ("apis/apps/v1", "deployments", "scale"),
        ("apis/example.com/v1", "widgets", ""),
        ("apis/example.com/v1", "widgets", "scale"),
    ]);
    let namespace = if resource == "nodes" { "" } else { rng.one_of(&NAMESPACES) };
    let mut target = format!("/{group}");
    if !namespace.is_empty() {
        target += &format!("/namespaces/{namespace}");
    }
    target += &format!("/{resource}");
    match (rng.one_of(&NAMES), subresource) {
        ("", "") => match rng.below(3) {
            0 => target + "?watch=true&timeoutSeconds=1&resourceVersion=0",
            _ => target + "?limit=1",
        },
        ("", subresource) => format!("{target}/z/{subresource}"),
        (name, "") => format!("{target}/{name}"),
        (name, subresource) => format!("{target}/{name}/{subresource}"),
    }
}

/// Returns a policy with many rules, most of which match few requests.
fn policy(rng: &mut Rng, number: usize) -> String {
    let mut objects = json!({"level": "RequestResponse", "users": ["admin"], "namespaces": ["a"],
        "verbs": ["get", "list"], "resources": [{"group": "", "resources": ["secrets"]}]});
    match number % 3 {
        // Without the key, the setting of the policy applies.
        0 => {}
        one_or_two => objects["omitManagedFields"] = json!(one_or_two == 1),
    }
    let mut rules = vec![json!({"level": "Metadata", "nonResourceURLs": [LAST]}), objects];
    for _ in 0..rng.within(20..40) {
        rules.push(rule(rng));
    }
    if rng.in_hundred(60) {
        rules.push(json!({"level": rng.one_of(&Level::ALL).name()}));
    }
    let mut policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules});
    if rng.in_hundred(20) {
        policy["omitStages"] = json!(["RequestReceived"]);
    }
    if rng.in_hundred(50) {
        policy["omitManagedFields"] = json!(true);
    }
    policy.to_string()
}

fn rule(rng: &mut Rng) -> Value {
    let mut rule = json!({"level": rng.one_of(&Level::ALL).name()});
    if rng.in_hundred(30) {
        rule["users"] = json!(some(rng, &["admin", "alice", "bob", "nobody"]));
    }
    if rng.in_hundred(30) {
        rule["userGroups"] =
            json!(some(rng, &["developers", "auditors", "system:authenticated", "system:masters"]));
    }
    if rng.in_hundred(60) {
        rule["verbs"] = json!(some(rng, &VERBS));
    }
    if rng.in_hundred(30) {
        rule["omitStages"] = json!(some(rng, &Stage::ALL.map(Stage::name)));
    }
    if rng.in_hundred(40) {
        rule["omitManagedFields"] = json!(rng.in_hundred(50));
    }
    if rng.in_hundred(25) {
        let url = rng.one_of(&PATHS);
        let url = if rng.in_hundred(30) {
            format!("{}*", &url[..rng.within(1..url.len())])
        } else {
            url.to_owned()
        };
        rule["nonResourceURLs"] = if rng.in_hundred(10) { json!(["*"]) } else { json!([url]) };
        return rule;
    }
    if rng.in_hundred(30) {
        rule["namespaces"] = json!(some(rng, &NAMESPACES));
    }
    if rng.in_hundred(80) {
        let mut group = json!({"group": rng.one_of(&GROUPS)});
        if rng.in_hundred(85) {
            let wildcards = ["*", "*/scale", "*/log", "*/proxy", "deployments/*"];
            group["resources"] =
                json!(if rng.in_hundred(30) { some(rng, &wildcards) } else { some(rng, &RESOURCES) });
            if rng.in_hundred(30) {
                group["resourceNames"] = json!(some(rng, &NAMES));
            }
        }
        rule["resources"] = json!([group]);
    }
    rule
}

/// Returns one or two elements.
fn some<'a>(rng: &mut Rng, all: &[&'a str]) -> Vec<&'a str> {
    (0..rng.within(1..3)).map(|_| rng.one_of(all)).collect()
}
