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

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::header::HeaderName;
use http::{HeaderValue, Method, Request};
use jiff::Timestamp;
use pinniped_http_server::Connection;
use pinniped_kube_audit::auditor::Auditor;
use pinniped_kube_audit::event::{self, Event, RequestText, ResponseStatus};
use pinniped_kube_audit::policy::{Decision, Stage};
use pinniped_kube_request::attributes::Attributes;
use pinniped_kube_request::identity::KnownUser;
use pinniped_kube_request::request_info::RequestInfo;

use crate::authorize::Denial;
use crate::chain::RequestResult;
use crate::in_flight::RequestClass;
use crate::presentation::Presentation;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Maximum number of addresses that are read from `X-Forwarded-For`.
const MAX_FORWARDED: usize = 32;

const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

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
    impersonated: OnceLock<KnownUser>,
    /// The decision of authorization, and its reason.
    authorization: OnceLock<(Option<&'static str>, String)>,
    ended: OnceLock<Ended>,
}

/// The decision of the policy, and the request.
struct Begun {
    decision: Decision,
    user: Option<KnownUser>,
    is_long_running: bool,
    text: RequestText,
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
        reason: String,
        message: String,
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
                Self::Refused { code, reason: reason.to_owned(), message: refusal.to_string() }
            }
            RequestResult::Panicked => Self::Panicked,
            RequestResult::Abandoned => Self::Abandoned,
        }
    }

    fn status(&self) -> ResponseStatus<'_> {
        match self {
            Self::Response(code) => ResponseStatus::of_code(*code),
            Self::Refused { code, reason, message } => ResponseStatus::failure(*code, reason, message),
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
            impersonated: OnceLock::new(),
            authorization: OnceLock::new(),
            ended: OnceLock::new(),
        })
    }

    /// Evaluates the policy for a client that is identified, and writes the first event.
    pub(crate) fn begin(
        &self,
        user: &KnownUser,
        attributes: &Attributes,
        class: RequestClass,
        presentation: &Presentation,
    ) {
        let is_long_running = class == RequestClass::LongRunning;
        let begun =
            self.begun.get_or_init(|| self.decided(Some(user), attributes, is_long_running, presentation));
        self.write(begun, Stage::RequestReceived, self.received);
    }

    /// Records the user that the client impersonates.
    pub(crate) fn impersonates(&self, user: &KnownUser) {
        let _first = self.impersonated.set(user.clone());
    }

    /// Records the decision of authorization.
    pub(crate) fn authorized(&self, reviewed: &Result<(), Denial>) {
        let _first = self.authorization.set(match reviewed {
            Ok(()) => (Some("allow"), String::new()),
            Err(Denial::Denied(reason)) => (Some("forbid"), reason.clone()),
            // The text of the API server.
            Err(Denial::Failed(_)) => (None, "internal error".to_owned()),
        });
    }

    /// Records the result, and writes the event of a response that begins.
    pub(crate) fn end(
        &self,
        result: AuditResult,
        annotation: Option<(&'static str, &'static str)>,
        presentation: &Presentation,
    ) {
        let begun = self.begun.get_or_init(|| {
            // The client is not identified.
            let attributes = match RequestInfo::parse(&self.method, presentation.uri()) {
                Ok(info) => Attributes::from(info),
                Err(_) => Attributes::NonResource {
                    verb: self.method.as_str().to_ascii_lowercase(),
                    path: presentation.uri().path().to_owned(),
                },
            };
            self.decided(None, &attributes, false, presentation)
        });
        let stage = match (&result, &begun.user) {
            (_, None) => Some(Stage::ResponseStarted),
            (AuditResult::Panicked, Some(_)) => Some(Stage::Panic),
            (AuditResult::Abandoned, Some(_)) => None,
            _ => begun.is_long_running.then_some(Stage::ResponseStarted),
        };
        let is_last = begun.user.is_none() || matches!(result, AuditResult::Panicked);
        if self.ended.set(Ended { result, annotation, is_last }).is_ok()
            && let Some(stage) = stage
        {
            self.write(begun, stage, Timestamp::now());
        }
    }

    /// Returns whether an event is due when the response has ended.
    pub(crate) fn has_last_event(&self) -> bool {
        self.begun.get().is_some_and(|begun| begun.decision.logs(Stage::ResponseComplete))
            && self.ended.get().is_some_and(|ended| !ended.is_last)
    }

    fn decided(
        &self,
        user: Option<&KnownUser>,
        attributes: &Attributes,
        is_long_running: bool,
        presentation: &Presentation,
    ) -> Begun {
        let decision = self.auditor.decide(user.map(|user| &**user), attributes);
        let text = if Stage::ALL.into_iter().any(|stage| decision.logs(stage)) {
            RequestText::new(&event::Request {
                uri: presentation.request_uri(),
                attributes,
                source_ips: &self.source_ips(),
                user_agent: &presentation.agent(),
                received: self.received,
            })
        } else {
            RequestText::default()
        };
        Begun { decision, user: user.cloned(), is_long_running, text }
    }

    /// Returns the addresses like `SourceIPs` of k8s.io/apimachinery. All but the last can be
    /// invented by the client.
    fn source_ips(&self) -> Vec<String> {
        let [forwarded_for, real_ip] = self.forwarded.each_ref().map(text);
        let mut ips = forwarded_ips(forwarded_for);
        if let Ok(ip) = real_ip.trim().parse()
            && !ips.contains(&ip)
        {
            ips.push(ip);
        }
        if let Some(peer) = self.peer
            && ips.last() != Some(&peer)
        {
            ips.push(peer);
        }
        ips.iter().map(IpAddr::to_string).collect()
    }

    fn write(&self, begun: &Begun, stage: Stage, time: Timestamp) {
        if !begun.decision.logs(stage) {
            return;
        }
        let ended = self.ended.get();
        let mut annotations = [("", ""); 3];
        let mut count = 0;
        let mut annotate = |annotation| {
            annotations[count] = annotation;
            count += 1;
        };
        if let Some((decision, reason)) = self.authorization.get() {
            if let Some(decision) = decision {
                annotate((DECISION, decision));
            }
            annotate((REASON, reason));
        }
        if let Some(annotation) = ended.and_then(|ended| ended.annotation) {
            annotate(annotation);
        }
        self.auditor.write(&Event {
            level: begun.decision.level,
            audit_id: self.audit_id.to_str().unwrap_or_default(),
            stage,
            request: &begun.text,
            user: begun.user.as_deref(),
            impersonated_user: self.impersonated.get().map(|user| &**user),
            response: ended.map(|ended| ended.result.status()),
            time,
            annotations: &annotations[..count],
        });
    }
}

fn text(value: &Option<HeaderValue>) -> &str {
    value.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the last addresses of `X-Forwarded-For`: trusted proxies add theirs at the end.
fn forwarded_ips(value: &str) -> Vec<IpAddr> {
    let last = value.rsplit(',').take(MAX_FORWARDED);
    let mut ips: Vec<IpAddr> = last.filter_map(|ip| ip.trim().parse().ok()).collect();
    ips.reverse();
    ips
}

impl Drop for RequestAudit {
    /// Writes the last event.
    fn drop(&mut self) {
        if let (Some(begun), Some(ended)) = (self.begun.get(), self.ended.get())
            && !ended.is_last
        {
            self.write(begun, Stage::ResponseComplete, Timestamp::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_forwarded_addresses_are_kept() {
        let ips = |value: &str| forwarded_ips(value).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(ips("192.0.2.1, x, 2001:db8::1"), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(ips(""), [""; 0]);
        let invented = "192.0.2.1,".repeat(MAX_FORWARDED);
        let kept = ips(&format!("{invented}198.51.100.7"));
        assert_eq!((kept.len(), kept.last().unwrap().as_str()), (MAX_FORWARDED, "198.51.100.7"));
        // Only a part of a long value is read.
        assert_eq!(ips(&format!("192.0.2.1,{}", "a,".repeat(MAX_FORWARDED))), [""; 0]);
    }
}
