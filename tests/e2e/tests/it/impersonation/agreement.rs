//! Client impersonation, requested directly from the API server and through the proxy: decision,
//! refusal text and resulting user must be the same. From 1.36 on the API server has the same
//! modes.
//!
//! Permissions and targets are random with a fixed seed. Each client sends the same requests in the
//! same order on both routes, because both servers cache the mode that succeeded last.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use pinniped_e2e::walkthrough::DECISION;
use pinniped_test_support::rng::Rng;
use serde_json::{Value, json};

use super::{Connection, ORIGINAL_USER, Protocol, ReceivedResponse, post, service_account, token_of, with};
use crate::installed::{self, Credentials, Installed};

const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// Number of clients with random permissions.
const CLIENTS: usize = 28;
/// Number of requests per client.
const TARGETS: usize = 30;

/// Verb, API group, resources, names.
type Permission = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

const AUTHENTICATION: &str = "authentication.k8s.io";
const PERMISSIONS: &[Permission] = &[
    ("impersonate-on:user-info:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
    ("impersonate-on:serviceaccount:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
    ("impersonate-on:arbitrary-node:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
    ("impersonate:user-info", AUTHENTICATION, &["users"], &["bob", "jürgen"]),
    ("impersonate:user-info", AUTHENTICATION, &["users"], &[]),
    ("impersonate:user-info", AUTHENTICATION, &["groups"], &["g1", "g2", "system:authenticated"]),
    // A rule for all groups at once, although there is no group with this name.
    ("impersonate:user-info", AUTHENTICATION, &["groups"], &["*"]),
    ("impersonate:user-info", AUTHENTICATION, &["groups"], &[]),
    ("impersonate:user-info", AUTHENTICATION, &["uids"], &["u1"]),
    ("impersonate:user-info", AUTHENTICATION, &["userextras/example.com/a"], &["v1", "v2"]),
    ("impersonate:user-info", AUTHENTICATION, &["userextras/example.com/b", "userextras/example.com/c"], &[]),
    ("impersonate:user-info", AUTHENTICATION, &["userextras/*"], &[]),
    ("impersonate:serviceaccount", AUTHENTICATION, &["serviceaccounts"], &["sa1"]),
    ("impersonate:arbitrary-node", AUTHENTICATION, &["nodes"], &["n1"]),
    ("impersonate", "", &["users"], &["bob", "system:node:n1", "system:anonymous"]),
    ("impersonate", "", &["users"], &[]),
    ("impersonate", "", &["groups"], &["g1", "g2", "g3"]),
    ("impersonate", "", &["groups"], &[]),
    ("impersonate", "", &["serviceaccounts"], &[]),
    ("impersonate", AUTHENTICATION, &["uids"], &[]),
    ("impersonate", AUTHENTICATION, &["userextras/plain", "userextras/example.com/a"], &[]),
    ("impersonate", AUTHENTICATION, &["userextras/*"], &[]),
];
const NAMES: &[&str] = &[
    "bob",
    "bob",
    "carol",
    "jürgen",
    "system:anonymous",
    "system:serviceaccount:ns:sa1",
    "system:serviceaccount:ns:sa2",
    "system:serviceaccount:NS:sa1",
    "system:serviceaccount:ns:sa1:x",
    "system:node:n1",
    "system:node:n2",
    "system:node:N1",
];
const GROUPS: &[&str] =
    &["g1", "g1", "g2", "g3", "g4", "g5", "system:authenticated", "system:unauthenticated"];
const ODD_GROUPS: &[&str] = &["system:masters", "", "g 6"];
const EXTRAS: &[&str] =
    &["example.com%2fa", "example.com%2Fb", "example.com%2fc", "example.com%2Fd", "plain", "-.com%2fa"];
const VALUES: &[&str] = &["v1", "v1", "v2", "v3", ""];

/// The identity to impersonate in one request, as headers.
type Target = Vec<(String, String)>;

fn target(rng: &mut Rng) -> Target {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
    let has_name = !rng.in_hundred(4);
    if has_name {
        add("impersonate-user", rng.one_of(NAMES));
    }
    let only_name = rng.in_hundred(35);
    if has_name && only_name {
        return headers;
    }
    if rng.in_hundred(25) || !has_name {
        add("impersonate-uid", rng.one_of(&["u1", "u1", "u2"]));
    }
    if rng.in_hundred(60) {
        for _ in 0..rng.below(7) {
            add("impersonate-group", rng.one_of(GROUPS));
        }
        if rng.in_hundred(10) {
            add("impersonate-group", rng.one_of(ODD_GROUPS));
        }
    }
    if rng.in_hundred(45) {
        let keys = 1 + rng.below(2) * rng.below(5);
        for _ in 0..keys {
            let key = rng.one_of(EXTRAS);
            for _ in 0..=rng.below(2) {
                add(&format!("impersonate-extra-{key}"), rng.one_of(VALUES));
            }
        }
    }
    headers
}

/// Grants each client its permissions, and waits until the API server uses all of them.
async fn grant_permissions(installed: &Installed, clients: &BTreeMap<String, Vec<Permission>>) {
    let client = installed.admin().await;
    let roles = Api::<ClusterRole>::all(client.clone());
    for (name, rights) in clients {
        let rule = |(verb, group, resources, names): &Permission| json!({"verbs": [verb], "apiGroups": [group], "resources": resources, "resourceNames": names});
        let rules: Vec<_> = rights.iter().map(rule).collect();
        let role = json!({"metadata": {"name": name}, "rules": rules});
        roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    }
    let bindings = Api::<ClusterRoleBinding>::all(client);
    for name in clients.keys() {
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]});
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    }
    // Roles and bindings reach the API server's authorizer in order, so the last one takes effect
    // last.
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow("agreement-last", rules).await;
}

/// Returns the relevant part of a response, without the proxy's additions.
fn decision(response: &ReceivedResponse) -> (u16, Value) {
    let body = response.json();
    if response.status == 201 {
        return (201, body["status"]["userInfo"].clone());
    }
    let message = body["message"].as_str().unwrap_or_default();
    let message = message.replace(&format!(": {DECISION}"), "").replace(&format!(", {DECISION}"), "");
    (response.status, json!(message))
}

/// Removes the original user from the target's extras.
fn take_original(user: &mut Value) -> Option<Value> {
    let extra = user["extra"].as_object_mut()?;
    let original = extra.remove(ORIGINAL_USER)?;
    if extra.is_empty() {
        user.as_object_mut()?.remove("extra");
    }
    serde_json::from_str(original[0].as_str()?).ok()
}

/// Sends the request on both routes; `Err` describes the difference.
async fn compare(
    proxy: &mut Connection,
    direct: &mut Connection,
    requestor: &str,
    target: &Target,
) -> Result<u16, String> {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let headers: Vec<_> = target.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let wanted = decision(&direct.send_request(with(post(WHO_AM_I, &body), &headers)).await);
    let mut got = decision(&proxy.send_request(with(post(WHO_AM_I, &body), &headers)).await);
    let differ = |why: &str, got: &(u16, Value)| {
        Err(format!("{requestor}: {why}\n  target {target:?}\n  API server {wanted:?}\n  proxy {got:?}"))
    };
    if got.0 == 201 {
        let original = take_original(&mut got.1);
        if original.is_none_or(|original| original["username"] != *requestor) {
            return differ("the original user is another one", &got);
        }
    }
    // If several extras are not permitted, Go's map order decides which one the refusal names.
    let is_extra = |(code, text): &(u16, Value)| {
        *code == 403 && text.as_str().is_some_and(|text| text.starts_with("userextras.authentication.k8s.io"))
    };
    let extras = target.iter().filter(|(name, _)| name.starts_with("impersonate-extra-")).count();
    if got == wanted || (extras > 1 && is_extra(&got) && is_extra(&wanted)) {
        return Ok(wanted.0);
    }
    differ("they disagree", &got)
}

async fn compare_all(
    installed: &Installed,
    requestor: &str,
    credentials: &Credentials,
    targets: &[Target],
) -> Vec<Result<u16, String>> {
    let mut proxy = Connection::open(installed, Protocol::Http2, credentials).await;
    let mut direct = Connection::to_api_server(installed, credentials).await;
    let mut results = Vec::new();
    for target in targets {
        results.push(compare(&mut proxy, &mut direct, requestor, target).await);
    }
    results
}

/// Returns whether the API server has the modes of the proxy. If not, records a skip of `test`.
async fn is_constrained(installed: &Installed, test: &str) -> bool {
    let why = "it has no constrained impersonation";
    installed.world().control_plane().is_since(36, test, why).await.unwrap()
}

#[tokio::test]
async fn the_proxy_and_the_api_server_make_the_same_impersonation_decisions() {
    const TEST: &str = "agreement about impersonation";
    let Some(installed) = installed::shared(TEST).await else { return };
    if !is_constrained(&installed, TEST).await {
        return;
    }
    let mut rng = Rng::new(36);
    let mut clients = BTreeMap::new();
    for number in 0..CLIENTS {
        // Some clients have few permissions, some nearly all.
        let density = 30 + 10 * u64::try_from(number % 7).unwrap();
        let rights = PERMISSIONS.iter().filter(|_| rng.in_hundred(density)).copied().collect();
        clients.insert(format!("agreement-{number:02}"), rights);
    }
    clients.insert("agreement-all".to_owned(), PERMISSIONS.to_vec());
    grant_permissions(&installed, &clients).await;
    let mut sessions: Vec<_> = clients.keys().map(|name| (name.clone(), None)).collect();
    sessions.push(("agreement-master".to_owned(), Some("system:masters")));
    let sessions: Vec<_> = sessions
        .into_iter()
        .map(|(name, group)| {
            let targets: Vec<_> = (0..TARGETS).map(|_| target(&mut rng)).collect();
            (Credentials::from(installed.certificate(&name, group)), name, targets)
        })
        .collect();

    let results: Vec<_> = futures::stream::iter(&sessions)
        .map(|(credentials, name, targets)| compare_all(&installed, name, credentials, targets))
        .buffer_unordered(4)
        .collect()
        .await;
    let mut counts = BTreeMap::new();
    let mut differences = Vec::new();
    for result in results.into_iter().flatten() {
        match result {
            Ok(code) => *counts.entry(code).or_insert(0_usize) += 1,
            Err(difference) => differences.push(difference),
        }
    }
    assert!(differences.is_empty(), "{} differ: {:#?}", differences.len(), differences.first());
    println!("agreed: {counts:?}");
    // Enough responses of each kind for a meaningful comparison.
    assert!(counts[&201] > 150 && counts[&403] > 150 && counts[&400] > 10, "{counts:?}");
}

#[tokio::test]
async fn both_make_the_same_decisions_for_a_service_account_that_impersonates_its_node() {
    const TEST: &str = "agreement about associated nodes";
    let Some(installed) = installed::shared(TEST).await else { return };
    if !is_constrained(&installed, TEST).await {
        return;
    }
    let namespace = "agreement-node";
    let (name, _) = service_account(&installed, namespace).await;
    let (without, _) = service_account(&installed, "agreement-node-without").await;
    let mut tokens = Vec::new();
    for namespace in [namespace, "agreement-node-without"] {
        // The node does not exist, so the pod never runs.
        let pod = json!({"metadata": {"name": "agent"}, "spec": {"serviceAccountName": "caller",
            "nodeName": "agreement-n1", "containers": [{"name": "none", "image": "example.com/none"}]}});
        let pods = Api::<Pod>::namespaced(installed.admin().await, namespace);
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": pod.metadata.uid});
        tokens.push(token_of(&installed, namespace, json!({"boundObjectRef": reference})).await);
    }
    let rules = json!([
        {"apiGroups": [AUTHENTICATION], "resources": ["nodes"], "verbs": ["impersonate:associated-node"]},
        {"apiGroups": [AUTHENTICATION], "resources": ["selfsubjectreviews"],
            "verbs": ["impersonate-on:associated-node:create"]},
    ]);
    installed.allow(&name, rules).await;

    let only = |node: &str| vec![("impersonate-user".to_owned(), node.to_owned())];
    let mut with_group = only("system:node:agreement-n1");
    with_group.push(("impersonate-group".to_owned(), "system:nodes".to_owned()));
    let targets = [only("system:node:agreement-n1"), only("system:node:agreement-n2"), with_group];
    for (name, token, wanted) in
        [(&name, &tokens[0], [201, 403, 403]), (&without, &tokens[1], [403, 403, 403])]
    {
        let results = compare_all(&installed, name, &Credentials::token(token), &targets).await;
        assert_eq!(results, wanted.map(Ok), "{name}");
    }
}
