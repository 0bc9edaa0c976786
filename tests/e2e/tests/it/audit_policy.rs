//! Checks that audit policies have the meaning that they have in the API server. The test sends
//! about a thousand requests to real API servers with generated policies, and compares the levels
//! and stages in their audit logs with the decisions of `pinniped-kube-audit`.
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
use pinniped_test_support::wait;
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
    let mut control_plane = None;
    for number in 0..POLICIES {
        let text = policy(&mut rng);
        std::fs::write(&policy_file, &text).unwrap();
        let policy = Policy::load(&policy_file).unwrap();
        match &control_plane {
            None => control_plane = Some(start(&policy_file, &log).await.unwrap()),
            Some(control_plane) => ControlPlane::restart_api_server(control_plane).await.unwrap(),
        }
        let control_plane = control_plane.as_ref().unwrap();
        let expected = send(&mut rng, control_plane, &policy, number).await.unwrap();
        let found = wait::until(Duration::from_secs(30), "all requests to be in the log", async || {
            let found = read(&log, number).ok()?;
            let is_last = |id: &&String| id.ends_with("-last");
            let are_all = expected.keys().filter(is_last).all(|id| found.get(id) == expected.get(id));
            are_all.then_some(found)
        })
        .await
        .unwrap();
        for (id, logged) in &expected {
            let seen = found.get(id).cloned().unwrap_or_default();
            assert_eq!(&seen, logged, "seed {seed}, request {id} with the policy {text}");
            *kinds.entry(seen).or_default() += 1;
        }
    }
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

/// Sends the requests, and returns what the log must have about each, by audit ID.
async fn send(
    rng: &mut Rng,
    control_plane: &ControlPlane,
    policy: &Policy,
    number: usize,
) -> anyhow::Result<BTreeMap<String, Logged>> {
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
            let target = if is_last { LAST.to_owned() } else { target(rng) };
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

/// Returns what our implementation would log.
fn logged(policy: &Policy, user: Option<&User>, method: &str, target: &str) -> anyhow::Result<Logged> {
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
    Ok(stages.iter().filter(|stage| decision.logs(**stage)).map(event).collect())
}

/// Reads the log. The last line may be incomplete.
fn read(log: &Path, number: usize) -> anyhow::Result<BTreeMap<String, Logged>> {
    let mut found: BTreeMap<String, Logged> = BTreeMap::new();
    let prefix = format!("{number}-");
    for line in std::fs::read_to_string(log)?.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let id = text("auditID");
        // The ids of other requests are UUIDs.
        if id.starts_with(&prefix) && id.len() < 20 {
            found.entry(id).or_default().insert((text("level"), text("stage")));
        }
    }
    Ok(found)
}

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
fn policy(rng: &mut Rng) -> String {
    let mut rules = vec![json!({"level": "Metadata", "nonResourceURLs": [LAST]})];
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
