//! The audit events of one request, as in `WithAudit` and `WithFailedAuthenticationAudit` of
//! k8s.io/apiserver.
//!
//! ```text
//! client identified                                        refused before that, abandoned
//!   RequestReceived    before any further step               ResponseStarted
//!   ResponseStarted    long-running requests: response begins
//!   ResponseComplete   the response or the upgraded connection has ended
//!   Panic              instead, if a step panicked
//! ```
//!
//! Owners share the audit of a request: the chain until the response begins, then the body of the
//! response, and an upgraded connection. The last event is written when the last owner drops it.
//! Copies of the bodies ([`tee`]) are in the events of requests whose level requires them.
//! If requests wait for their events, the body writes the last event, and its end waits for the
//! delivery.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use jiff::Timestamp;
use pinniped_http_server::Connection;
use pinniped_http_server::body::Body;
use pinniped_kube_audit::auditor::{Auditor, Delivery};
use pinniped_kube_audit::bodies::{Capture, Omission};
use pinniped_kube_audit::event::{self, Event, LimitedText, RequestText, ResponseStatus, UserInfo};
use pinniped_kube_audit::policy::{Decision, Level, Stage};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::KnownUser;
use pinniped_kube_request::request_info::RequestInfo;

use crate::authorize::Denial;
use crate::chain::RequestResult;
use crate::in_flight::RequestClass;
use crate::presentation::Presentation;

pub mod tee;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Maximum number of addresses that are read from `X-Forwarded-For`.
const MAX_FORWARDED: usize = 32;

const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";
/// The annotation of the API server for an event without its objects, because they are too large.
const TRUNCATED: (&str, &str) = ("audit.k8s.io/truncated", "true");

/// The media types of objects and of patches that are JSON.
const JSON_TYPES: [&str; 5] = [
    "application/json",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// The status code for a client that did not wait for the response, as nginx logs it. The API
/// server logs 200, which is misleading.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// The audit of one request.
pub struct RequestAudit {
    auditor: Arc<Auditor>,
    audit_id: HeaderValue,
    received: Timestamp,
    method: Method,
    /// The addresses that forwarded the request, as the client sent them.
    forwarded: [Option<HeaderValue>; 2],
    peer: Option<IpAddr>,
    begun: OnceLock<Begun>,
    progress: Mutex<Progress>,
}

/// The additions of later steps of a request to its events.
#[derive(Default)]
struct Progress {
    impersonated: Option<KnownUser>,
    /// The decision of authorization, and its reason.
    authorization: Option<(Option<&'static str>, LimitedText)>,
    /// An annotation of the handler.
    annotation: Option<(&'static str, LimitedText)>,
    ended: Option<Ended>,
    /// Whether the last event is written.
    is_complete: bool,
}

/// The decision of the policy, and the request.
struct Begun {
    decision: Decision,
    user: Option<KnownUser>,
    is_long_running: bool,
    /// `None` if no stage is logged.
    text: Option<Arc<RequestText>>,
    /// `None` below the level that requires bodies, and for a server that does not log them.
    bodies: Option<Box<Bodies>>,
}

/// The copies of the bodies.
struct Bodies {
    rules: BodyRules,
    request: OnceLock<Capture>,
    response: OnceLock<Capture>,
}

/// The rules of a server for bodies in events.
#[derive(Clone, Copy, Debug)]
pub struct BodyRules {
    /// Whether the bodies contain credentials, so that no event has them.
    pub are_secret: bool,
    /// The annotations with the reasons why an event has no request body, and no response body.
    pub annotations: [&'static str; 2],
}

struct Ended {
    result: AuditResult,
    annotation: Option<(&'static str, &'static str)>,
    /// Whether the event is written that has the result.
    is_last: bool,
}

/// The result of a request, for its events.
pub(crate) enum AuditResult {
    /// A response with this status code, whose body is not known.
    Response(u16),
    /// An error.
    Refused {
        code: u16,
        reason: LimitedText,
        message: LimitedText,
    },
    Panicked,
    Abandoned,
}

impl std::fmt::Debug for RequestAudit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestAudit").field("audit_id", &self.audit_id).finish_non_exhaustive()
    }
}

impl AuditResult {
    pub(crate) fn of(result: &RequestResult<'_>) -> Self {
        match result {
            RequestResult::Served(response) => Self::Response(response.status().as_u16()),
            RequestResult::Refused(refusal) => {
                let (code, reason) = refusal.code_and_reason();
                Self::Refused { code, reason: reason.to_owned().into(), message: refusal.to_string().into() }
            }
            RequestResult::Panicked => Self::Panicked,
            RequestResult::Abandoned => Self::Abandoned,
        }
    }

    fn status(&self) -> ResponseStatus {
        match self {
            Self::Response(code) => ResponseStatus::of_code(*code),
            Self::Refused { code, reason, message } => {
                ResponseStatus::failure(*code, reason.clone(), message.clone())
            }
            Self::Panicked => ResponseStatus::failure(500, "InternalError", "the request handler panicked"),
            Self::Abandoned => ResponseStatus::failure(
                CLIENT_CLOSED_REQUEST,
                "",
                "the client did not wait for the response, or its connection ended",
            ),
        }
    }
}

impl RequestAudit {
    /// Begins the audit of a request, before a step changes its headers.
    pub(crate) fn new<B>(
        auditor: &Arc<Auditor>,
        audit_id: &HeaderValue,
        request: &Request<B>,
        connection: Option<&Connection>,
    ) -> Arc<Self> {
        let first = |name: &HeaderName| request.headers().get(name).cloned();
        Arc::new(Self {
            auditor: Arc::clone(auditor),
            audit_id: audit_id.clone(),
            received: Timestamp::now(),
            method: request.method().clone(),
            forwarded: [first(&X_FORWARDED_FOR), first(&X_REAL_IP)],
            peer: connection.map(|connection| connection.peer_addr.ip().to_canonical()),
            begun: OnceLock::new(),
            progress: Mutex::default(),
        })
    }

    /// Evaluates the policy for a client that is identified, and writes the first event. Returns
    /// the delivery for which the request waits.
    pub(crate) fn begin(
        &self,
        user: &KnownUser,
        attributes: &Attributes,
        class: RequestClass,
        rules: Option<BodyRules>,
        presentation: &Presentation,
    ) -> Option<Delivery> {
        let is_long_running = class == RequestClass::LongRunning;
        let begun = self
            .begun
            .get_or_init(|| self.decided(Some(user), attributes, is_long_running, rules, presentation));
        self.write(begun, &self.progress(), Stage::RequestReceived, self.received)
    }

    /// Records the user that the client impersonates.
    pub(crate) fn impersonates(&self, user: &KnownUser) {
        self.progress().impersonated = Some(user.clone());
    }

    /// Records the decision of authorization.
    pub(crate) fn authorized(&self, reviewed: &Result<(), Denial>) {
        self.progress().authorization = Some(match reviewed {
            Ok(()) => (Some("allow"), LimitedText::default()),
            Err(Denial::Denied(reason)) => (Some("forbid"), reason.clone().into()),
            // The text of the API server.
            Err(Denial::Failed(_)) => (None, "internal error".into()),
        });
    }

    /// Adds an annotation to later events. Only the first call has an effect.
    pub fn annotate(&self, key: &'static str, value: String) {
        self.progress().annotation.get_or_insert_with(|| (key, value.into()));
    }

    /// Records the result, and writes the event of a response that begins. Returns the delivery for
    /// which the response waits.
    pub(crate) fn end(
        &self,
        result: AuditResult,
        annotation: Option<(&'static str, &'static str)>,
        rules: impl FnOnce(&Attributes) -> Option<BodyRules>,
        presentation: &Presentation,
    ) -> Option<Delivery> {
        let begun = self.begun.get_or_init(|| {
            // The client is not identified.
            let attributes = match RequestInfo::parse(&self.method, presentation.uri()) {
                Ok(info) => Attributes::from(info),
                Err(_) => Attributes::NonResource {
                    verb: self.method.as_str().to_ascii_lowercase(),
                    path: presentation.uri().path().to_owned(),
                },
            };
            self.decided(None, &attributes, false, rules(&attributes), presentation)
        });
        let stage = match (&result, &begun.user) {
            (_, None) => Some(Stage::ResponseStarted),
            (AuditResult::Panicked, Some(_)) => Some(Stage::Panic),
            (AuditResult::Abandoned, Some(_)) => None,
            _ => begun.is_long_running.then_some(Stage::ResponseStarted),
        };
        let is_last = begun.user.is_none() || matches!(result, AuditResult::Panicked);
        let mut progress = self.progress();
        if progress.ended.is_some() {
            return None;
        }
        progress.ended = Some(Ended { result, annotation, is_last });
        self.write(begun, &progress, stage?, Timestamp::now())
    }

    /// Returns the copy of the body of the request to make, if an event needs it. The body of a
    /// long-running request is a stream, which is not copied.
    pub fn capture_request(&self, headers: &HeaderMap) -> Option<Capture> {
        let begun = self.begun.get()?;
        let bodies = begun.bodies.as_ref().filter(|_| !begun.is_long_running)?;
        self.capture(&bodies.request, bodies.rules, is_json(headers))
    }

    /// Does the same for the body of the response.
    fn capture_response(&self, response: &Response<Body>) -> Option<Capture> {
        let begun = self.begun.get()?;
        let bodies = begun.bodies.as_ref().filter(|_| {
            begun.decision.level == Level::RequestResponse
                && !begun.is_long_running
                && response.status() != StatusCode::SWITCHING_PROTOCOLS
        })?;
        let headers = response.headers();
        self.capture(&bodies.response, bodies.rules, is_json(headers) && !is_compressed(headers))
    }

    fn capture(&self, place: &OnceLock<Capture>, rules: BodyRules, is_json: bool) -> Option<Capture> {
        let capture = place.get_or_init(|| self.auditor.capture());
        let omission = match (rules.are_secret, is_json) {
            (true, _) => Omission::Secret,
            (false, false) => Omission::Encoding,
            (false, true) => return Some(capture.clone()),
        };
        capture.omit(omission);
        None
    }

    /// Copies the body of the response, if an event needs it, and keeps the audit until the end of
    /// the response, if an event is due then. Returns the delivery for which a response without a
    /// body waits.
    pub(crate) fn until_end(
        self: &Arc<Self>,
        mut response: Response<Body>,
    ) -> (Response<Body>, Option<Delivery>) {
        if !self.has_last_event() {
            return (response, None);
        }
        // A response to HEAD has no body, whatever its header fields say, and the type of an empty
        // body says nothing.
        let is_empty = self.method == Method::HEAD || http_body::Body::is_end_stream(response.body());
        if !is_empty && let Some(capture) = self.capture_response(&response) {
            response = response.map(|body| tee::response(body, capture));
        }
        let audit = Arc::clone(self);
        // An upgraded connection continues after its response.
        let waits = self.auditor.has_deliveries() && response.status() != StatusCode::SWITCHING_PROTOCOLS;
        if !waits {
            return (response.map(|body| body.keeping(audit)), None);
        }
        // Such a body cannot wait.
        if is_empty {
            return (response, self.complete());
        }
        (response.map(|body| body.ending_after(move || audit.complete())), None)
    }

    /// Writes the last event, if there is one. Returns the delivery for which the end of the
    /// response waits.
    fn complete(&self) -> Option<Delivery> {
        let begun = self.begun.get()?;
        let mut progress = self.progress();
        if progress.ended.as_ref()?.is_last || std::mem::replace(&mut progress.is_complete, true) {
            return None;
        }
        self.write(begun, &progress, Stage::ResponseComplete, Timestamp::now())
    }

    /// Returns whether an event is due when the response has ended.
    fn has_last_event(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.decision.logs(Stage::ResponseComplete))
            && self.progress().ended.as_ref().is_some_and(|ended| !ended.is_last)
    }

    fn decided(
        &self,
        user: Option<&KnownUser>,
        attributes: &Attributes,
        is_long_running: bool,
        rules: Option<BodyRules>,
        presentation: &Presentation,
    ) -> Begun {
        let decision = self.auditor.decide(user.map(|user| &**user), attributes);
        let text = Stage::ALL.into_iter().any(|stage| decision.logs(stage)).then(|| {
            Arc::new(RequestText::new(event::Request {
                audit_id: text(&self.audit_id),
                uri: presentation.request_uri(),
                attributes,
                source_ips: self.source_ips(),
                user_agent: &presentation.agent(),
                received: self.received,
            }))
        });
        let bodies = rules
            .filter(|_| decision.level >= Level::Request)
            .map(|rules| Box::new(Bodies { rules, request: OnceLock::new(), response: OnceLock::new() }));
        Begun { decision, user: user.cloned(), is_long_running, text, bodies }
    }

    /// Returns the addresses like `SourceIPs` of k8s.io/apimachinery. All but the last can be
    /// invented by the client.
    fn source_ips(&self) -> Vec<IpAddr> {
        let [forwarded_for, real_ip] = self.forwarded.each_ref().map(Option::as_ref);
        let mut ips = forwarded_for.map_or_else(Vec::new, |value| forwarded_ips(value.as_bytes()));
        if let Some(real_ip) = real_ip
            && let Ok(ip) = text(real_ip).trim().parse()
            && !ips.contains(&ip)
        {
            ips.push(ip);
        }
        if let Some(peer) = self.peer
            && ips.last() != Some(&peer)
        {
            ips.push(peer);
        }
        ips
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, begun: &Begun, progress: &Progress, stage: Stage, time: Timestamp) -> Option<Delivery> {
        let request = begun.text.as_ref().filter(|_| begun.decision.logs(stage))?;
        let Progress { impersonated, authorization, annotation, ended, is_complete: _ } = progress;
        let ended = ended.as_ref();
        let objects = begun.bodies.as_ref().filter(|_| stage != Stage::RequestReceived);
        let object = |body: &OnceLock<Capture>, omit_managed_fields| {
            body.get().map_or(Ok(None), |body| body.json(omit_managed_fields))
        };
        let omit = begun.decision.omit_managed_fields;
        let [request_object, response_object] = match objects {
            None => [Ok(None), Ok(None)],
            // The API server logs patches as they are.
            Some(bodies) => [
                object(&bodies.request, omit && self.method != Method::PATCH),
                object(&bodies.response, omit),
            ],
        };
        let mut annotations = Vec::with_capacity(2);
        if let Some((decision, reason)) = authorization {
            if let Some(decision) = *decision {
                annotations.push((DECISION, decision.into()));
            }
            annotations.push((REASON, reason.clone()));
        }
        if let Some((key, text)) = ended.and_then(|ended| ended.annotation) {
            annotations.push((key, text.into()));
        }
        if let Some((key, text)) = annotation {
            annotations.push((*key, text.clone()));
        }
        if let Some(bodies) = objects {
            let omissions = [request_object.as_ref().err(), response_object.as_ref().err()];
            if omissions.contains(&Some(&Omission::TooLarge)) {
                annotations.push((TRUNCATED.0, TRUNCATED.1.into()));
            }
            for (annotation, omission) in bodies.rules.annotations.into_iter().zip(omissions) {
                if let Some(omission) = omission {
                    annotations.push((annotation, omission.text().into()));
                }
            }
        }
        // A boxed slice has no spare capacity, which the limits do not count.
        let exact = |json: Vec<u8>| Bytes::from(json.into_boxed_slice());
        let body = |object: Result<Option<Vec<u8>>, _>| object.ok().flatten().map(exact);
        self.auditor.write(Event {
            level: begun.decision.level,
            stage,
            request: Arc::clone(request),
            user: begun.user.as_ref().map(UserInfo::of),
            impersonated_user: impersonated.as_ref().map(UserInfo::of),
            response: ended.map(|ended| ended.result.status()),
            request_object: body(request_object),
            response_object: body(response_object),
            time,
            annotations,
        })
    }
}

/// Returns whether the type of a body is JSON: that of objects, or that of a patch.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("unknown"));
    let media_type = value.split(';').next().unwrap_or_default().trim();
    // The API server reads a body without a type as JSON. Clients send server-side apply as JSON.
    media_type.is_empty() || JSON_TYPES.iter().any(|json| media_type.eq_ignore_ascii_case(json))
}

/// Returns whether the body of a response is compressed. The API server does not read this header
/// field of requests.
fn is_compressed(headers: &HeaderMap) -> bool {
    let encoding = headers.get(CONTENT_ENCODING).map_or("", |value| value.to_str().unwrap_or("unknown"));
    !matches!(encoding, "" | "identity")
}

fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

/// Returns the last addresses of `X-Forwarded-For`: trusted proxies add theirs at the end.
fn forwarded_ips(value: &[u8]) -> Vec<IpAddr> {
    let last = value.rsplit(|byte| *byte == b',').take(MAX_FORWARDED);
    let last = last.filter_map(|ip| std::str::from_utf8(ip).ok());
    let mut ips: Vec<IpAddr> = last.filter_map(|ip| ip.trim().parse().ok()).collect();
    ips.reverse();
    ips
}

impl Drop for RequestAudit {
    /// Writes the last event. No request waits for it any more.
    fn drop(&mut self) {
        drop(self.complete());
    }
}

#[cfg(test)]
mod tests {
    use pinniped_http_client::proxy_environment::ProxyEnvironment;
    use pinniped_kube_audit::auditor::AuditParams;
    use pinniped_kube_audit::bodies::BodyParams;
    use pinniped_kube_audit::webhook::ClientParams;
    use pinniped_pki::tls::CipherRestriction;

    use super::*;

    /// Returns an auditor without backends.
    pub(super) fn auditor() -> Auditor {
        let policy = tempfile::NamedTempFile::new().unwrap();
        let text = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: RequestResponse}]}";
        std::fs::write(policy.path(), text).unwrap();
        let params = AuditParams {
            policy_file: policy.path().to_owned(),
            bodies: BodyParams { max_bytes: 1000 },
            log: None,
            webhook: None,
        };
        let client = ClientParams {
            proxies: ProxyEnvironment::default(),
            ciphers: CipherRestriction::default(),
            user_agent: HeaderValue::from_static("test"),
        };
        Auditor::open(&params, client).unwrap().0
    }

    #[test]
    fn only_json_is_copied_and_of_responses_only_what_is_not_compressed() {
        for (fields, wanted) in [
            (&[][..], true),
            (&[("content-type", "application/json")], true),
            (&[("content-type", "Application/JSON; charset=utf-8")], true),
            (&[("content-type", "application/strategic-merge-patch+json")], true),
            (&[("content-type", "application/json"), ("content-encoding", "identity")], true),
            (&[("content-type", "application/json"), ("content-encoding", "gzip")], false),
            (&[("content-type", "application/vnd.kubernetes.protobuf")], false),
            (&[("content-type", "application/json;stream=watch")], true),
            (&[("content-type", "text/plain")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            assert_eq!(is_json(&headers) && !is_compressed(&headers), wanted, "{fields:?}");
        }
    }

    #[test]
    fn the_last_forwarded_addresses_are_kept() {
        let ips =
            |value: &str| forwarded_ips(value.as_bytes()).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(ips("192.0.2.1, x, 2001:db8::1"), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(ips(""), [""; 0]);
        // Bytes that a client invents do not hide the address that a proxy adds.
        assert_eq!(forwarded_ips(b"\xff, 192.0.2.1").len(), 1);
        let invented = "192.0.2.1,".repeat(MAX_FORWARDED);
        let kept = ips(&format!("{invented}198.51.100.7"));
        assert_eq!((kept.len(), kept.last().unwrap().as_str()), (MAX_FORWARDED, "198.51.100.7"));
        // Only a part of a long value is read.
        assert_eq!(ips(&format!("192.0.2.1,{}", "a,".repeat(MAX_FORWARDED))), [""; 0]);
    }
}
