//! Checks that this project interprets requests as the API server does. The test sends about a
//! hundred thousand requests that are almost valid to a real API server, whose audit log contains
//! the verb and object of each.
//!
//! The requests are sent over HTTP/1.1 connections byte for byte as generated, by a user without
//! permissions, so that each results in a cheap 403. The body of the 403 is compared, too: byte for
//! byte and in the requested encoding it must equal our own refusal, except for the reason.
//!
//! The comparison does not cover the following cases, which only tables can test
//! (`crates/kubernetes/request/src/request_info/tests.rs`):
//!
//! - field and label selectors, unless they determine a name;
//! - path segments after the subresource;
//! - requests that do not reach the audit log: request lines that Go's HTTP server rejects (status
//!   400) and paths without a kind (500). Their status, and the text of the 500, are compared;
//! - bytes that are not UTF-8: the log and our refusals contain U+FFFD for each of them, while the
//!   API server's own text contains `\xNN`;
//! - a name with a control character from U+007F to U+009F in YAML, which the API server converts
//!   from JSON with a parser that treats some of them as line breaks and fails for others.
//!
//! Permanent differences: `<`, `>`, the grave accent and, in queries, the quotation mark, which RFC
//! 3986 requires to be escaped, and bytes that are not UTF-8, are rejected with 400 by our HTTP
//! library and accepted by Go's; a `#` and the rest of the target are cut off. Clients escape them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::try_join_all;
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::BodyExt as _;
use pinniped_apiserver::respond::{self, Negotiated};
use pinniped_go_compat::url as gourl;
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::request_info::{RequestInfo, RequestInfoError};
use pinniped_kube_request::{deadline, forbidden};
use pinniped_kube_types::status::Status;
use pinniped_test_support::control_plane::{ControlPlane, ControlPlaneParams};
use pinniped_test_support::rng::Rng;

mod audit;
pub(crate) mod presentation;
mod request_parts;
mod requests;
pub(crate) mod wire;

use audit::{AuditLog, ObjectRef, Seen};
use requests::SentRequest;
use wire::{Client, ReceivedResponse};

/// Number of requests. Some of them cannot be compared (see the module); more than 100,000 can.
const REQUESTS: usize = 105_000;
/// Number of requests in flight before the audit log is read and emptied.
const BATCH: usize = 5_000;
const CONNECTIONS: usize = 16;
/// Environment variable that overrides the seed; a failure prints the seed.
const SEED: &str = "PINNIPED_REQUEST_INFO_SEED";
/// Contains characters that must be quoted, and characters that HTML or JSON must escape.
const USER: &str = "it \"q\" <&> \\ \u{fc}\u{ad}\u{2028}";

const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "kubernetes-admin", "system:anonymous"]
- level: None
  userGroups: ["system:serviceaccounts"]
- level: Metadata
"#;

#[tokio::test]
async fn requests_are_interpreted_as_by_the_api_server() {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => 20_260_801,
    };
    eprintln!("{REQUESTS} requests with seed {seed}");
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let mut log = AuditLog::create(&folder.path().join("audit.log")).unwrap();
    let extra_apiserver_args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.path().display()),
    ];
    let params = ControlPlaneParams { extra_apiserver_args, ..ControlPlaneParams::default() };
    let control_plane = ControlPlane::start(params).await.unwrap();
    let server: SocketAddr = control_plane.server().trim_start_matches("https://").parse().unwrap();
    let user = control_plane.ca().client(USER, Some("it")).unwrap();
    let mut clients: Vec<Client> =
        (0..CONNECTIONS).map(|_| Client::new(server, "localhost", Some(&user))).collect();

    let mut rng = Rng::new(seed);
    let (mut kinds, mut differences) = (BTreeMap::new(), Vec::new());
    for batch in 0..REQUESTS / BATCH {
        let requested: Vec<SentRequest> = (0..BATCH).map(|_| SentRequest::by(&mut rng)).collect();
        let ids: Vec<String> = (0..BATCH).map(|at| format!("{batch}-{at}")).collect();
        let responses = send_all(&mut clients, &requested, &ids).await.unwrap();
        // The handler chain that writes the log also assigns the audit id.
        let logged = ids
            .iter()
            .zip(&responses)
            .filter(|(_, response)| !response.audit_id.is_empty() && response.status != 500);
        let logged: Vec<(&str, bool)> =
            logged.map(|(id, response)| (id.as_str(), response.status == 400)).collect();
        let seen = log.take(&logged).await.unwrap_or_else(|error| {
            let missing =
                ids.iter().position(|id| error.root_cause().to_string().contains(&format!("\"{id}\"")));
            panic!("{error:#}: {:?}", missing.map(|at| (&requested[at], &responses[at])));
        });
        for ((requested, id), response) in requested.into_iter().zip(&ids).zip(&responses) {
            match compare(&requested, response, seen.get(id)).await {
                Ok(kind) => *kinds.entry(kind).or_insert(0) += 1,
                Err(difference) => differences.push((difference, requested)),
            }
        }
    }
    eprintln!("{kinds:#?}");
    assert!(differences.is_empty(), "{}", report(seed, differences));
    // A generator that no longer reaches a branch would weaken this test without a failure.
    for kind in [Kind::Resource, Kind::NonResource, Kind::BadRequest, Kind::NoInfo, Kind::BadTimeout] {
        assert!(kinds.get(&kind).is_some_and(|count| *count >= REQUESTS / 1000), "{kind:?}: {kinds:?}");
    }
}

/// Returns the shortest difference of each kind: of thousands, most have the same cause.
fn report(seed: u64, differences: Vec<(String, SentRequest)>) -> String {
    let mut text = format!("{} differences with seed {seed}", differences.len());
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (difference, requested) in differences {
        let (kind, difference) = difference.split_once(':').unwrap_or(("other", &difference));
        let (method, target) = (&requested.method, requested.target.escape_ascii());
        let SentRequest { accept, agent, .. } = &requested;
        kinds
            .entry(kind.to_owned())
            .or_default()
            .push(format!("\n  {method} {target}\n    accept {accept:?}, agent {agent:?}\n   {difference}"));
    }
    for (kind, mut all) in kinds {
        text += &format!("\n{kind}: {}", all.len());
        all.sort_by_key(String::len);
        text.extend(all.into_iter().take(12));
    }
    text
}

/// Each of the sixteen clients sends every sixteenth request, one after the other.
async fn send_all(
    clients: &mut [Client],
    asked: &[SentRequest],
    ids: &[String],
) -> anyhow::Result<Vec<ReceivedResponse>> {
    let count = clients.len();
    let shares = clients.iter_mut().enumerate().map(async |(first, client)| {
        let mut responses = Vec::new();
        for at in (first..asked.len()).step_by(count) {
            let (asked, id) = (&asked[at], &ids[at]);
            let response = client.send(&asked.to_wire(id), asked.method == "HEAD").await;
            let response =
                response.with_context(|| format!("{} {}", asked.method, asked.target.escape_ascii()))?;
            responses.push((at, response));
        }
        anyhow::Ok(responses)
    });
    let mut responses: Vec<(usize, ReceivedResponse)> =
        try_join_all(shares).await?.into_iter().flatten().collect();
    responses.sort_by_key(|(at, _)| *at);
    Ok(responses.into_iter().map(|(_, response)| response).collect())
}

/// The kind of a request's result, for the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Resource,
    NonResource,
    /// 400 before the path is interpreted.
    BadRequest,
    /// 500: the path ends where the kind should be.
    NoInfo,
    BadTimeout,
    /// Rejected by our library and not by the API server; see the module.
    OnlyOurs,
    /// Contains a `#`; see the module.
    Fragment,
}

async fn compare(
    asked: &SentRequest,
    response: &ReceivedResponse,
    seen: Option<&Seen>,
) -> Result<Kind, String> {
    if asked.target.contains(&b'#') {
        return Ok(Kind::Fragment);
    }
    let is_absolute = !asked.target.starts_with(b"/");
    let method = Method::from_bytes(asked.method.as_bytes()).map_err(|error| error.to_string())?;
    // Parses as hyper does.
    let Ok(uri) = Uri::from_maybe_shared(Bytes::copy_from_slice(&asked.target)) else {
        return match is_refused_by_go(response) {
            true => Ok(Kind::BadRequest),
            false if asked.target.iter().any(|byte| b"<>`\"".contains(byte)) => Ok(Kind::OnlyOurs),
            false if std::str::from_utf8(&asked.target).is_err() => Ok(Kind::OnlyOurs),
            false => Err(format!("target: only we refuse it, {}", shown(response))),
        };
    };
    let info = match RequestInfo::parse(&method, &uri) {
        Ok(info) => info,
        Err(error @ RequestInfoError::NoKind(_)) => {
            let error = format!("failed to create RequestInfo: {error}");
            let text = forbidden::internal_error_text(&String::from_utf8_lossy(&asked.target), &error) + "\n";
            // Only Go repeats scheme and host in it.
            let no_text = is_absolute || method == Method::HEAD;
            let same = response.status == 500 && (no_text || response.body == text.as_bytes());
            return if same {
                Ok(Kind::NoInfo)
            } else {
                Err(format!("no kind: wanted {text:?}, got {}", shown(response)))
            };
        }
        Err(_) if is_refused_by_go(response) => return Ok(Kind::BadRequest),
        Err(error) => return Err(format!("path: only we refuse it ({error}), {}", shown(response))),
    };
    let Some(seen) = seen else {
        return Err(format!("log: not there, {} for {info:?}", shown(response)));
    };
    same_info(&info, seen)?;
    let bad_timeout = match deadline::limit(uri.query(), Duration::from_secs(60)) {
        Err(message) if !info.is_long_running() => Some(Status::bad_request(message)),
        _ => None,
    };
    let (kind, wanted) = match &bad_timeout {
        Some(status) => (Kind::BadTimeout, status.clone()),
        None => {
            let kind = if info.is_resource { Kind::Resource } else { Kind::NonResource };
            (kind, forbidden::status(USER, &Attributes::from(info.clone()), ""))
        }
    };
    if bad_timeout.is_none() && response.status != 403 {
        // Some paths are open to every user.
        return Ok(kind);
    }
    if bad_timeout.is_none() && seen.response_started != info.is_long_running() {
        return Err(format!("long-running: {} for us", info.is_long_running()));
    }
    same_body(asked, &uri, &wanted, response).await?;
    Ok(kind)
}

fn is_refused_by_go(response: &ReceivedResponse) -> bool {
    response.status == 400 && response.audit_id.is_empty()
}

fn same_info(info: &RequestInfo, seen: &Seen) -> Result<(), String> {
    let ours = info.is_resource.then(|| ObjectRef {
        resource: info.resource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
        api_group: info.api_group.clone(),
        api_version: info.api_version.clone(),
        subresource: info.subresource.clone(),
    });
    if (&info.verb, &ours) != (&seen.verb, &seen.object_ref) {
        return Err(format!(
            "info:\n    ours   {} {ours:?}\n    theirs {} {:?}",
            info.verb, seen.verb, seen.object_ref
        ));
    }
    Ok(())
}

async fn same_body(
    asked: &SentRequest,
    uri: &Uri,
    wanted: &Status,
    response: &ReceivedResponse,
) -> Result<(), String> {
    let mut headers = HeaderMap::new();
    if let Some(accept) = asked.accept {
        headers.insert("accept", HeaderValue::from_static(accept));
    }
    if let Some(agent) = asked.agent {
        headers.insert("user-agent", HeaderValue::from_static(agent));
    }
    let ours = respond::status(wanted, &Negotiated::from_headers(&headers, uri.query()));
    let content_type = ours.headers()["content-type"].to_str().unwrap_or_default().to_owned();
    if (ours.status().as_u16(), &content_type) != (response.status, &response.content_type) {
        return Err(format!("encoding: ours {} {content_type}, theirs {}", ours.status(), shown(response)));
    }
    let body = ours.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    if asked.method != "HEAD" && !differs_as_documented(uri, wanted, &content_type) && body != response.body {
        return Err(format!(
            "body in {content_type}:\n    ours   {}\n    theirs {}",
            body.escape_ascii(),
            response.body.escape_ascii()
        ));
    }
    Ok(())
}

/// Whether the two differ by the last items of the module's list.
fn differs_as_documented(uri: &Uri, wanted: &Status, content_type: &str) -> bool {
    let details = wanted.details.as_ref();
    let mut named = details.into_iter().flat_map(|details| [&details.name, &details.kind, &details.group]);
    let is_text = gourl::unescape(uri.path()).is_some_and(|path| String::from_utf8(path).is_ok());
    !is_text
        || named.clone().any(|text| text.contains('\u{fffd}'))
        || content_type == "application/yaml"
            && named.any(|text| text.contains(|c| ('\u{7f}'..='\u{9f}').contains(&c)))
}

fn shown(response: &ReceivedResponse) -> String {
    format!("{} {} {}", response.status, response.content_type, response.body.escape_ascii())
}
