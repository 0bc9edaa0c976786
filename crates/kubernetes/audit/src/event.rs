//! Audit events: `audit.k8s.io/v1`, kind `Event`, as JSON.
//!
//! The parts that all events of a request have in common are encoded once ([`RequestText`]), so
//! that an event of a proxied request costs about a microsecond. Clients choose many of the texts;
//! [`pinniped_logging::truncate`] limits their length.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::User;
use pinniped_logging::truncate::{MAX_LIST_BYTES, MAX_TEXT_BYTES, truncated, truncated_list, truncated_map};
use serde::Serialize;

use crate::policy::{Level, Stage};

/// The beginning of an event. Events in a list do not have it.
pub(crate) const TYPE_META: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Maximum length of a user agent in bytes, and the mark of a longer one, as in the API server.
const MAX_USER_AGENT_BYTES: usize = 1024;
const USER_AGENT_MARK: &str = "...TRUNCATED";

/// The length of a user below which no list or text of it needs to be truncated.
const SMALL_USER_BYTES: usize = if MAX_TEXT_BYTES < MAX_LIST_BYTES { MAX_TEXT_BYTES } else { MAX_LIST_BYTES };

/// A request as its client sent it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Path and query.
    pub uri: &'a str,
    /// Verb and object.
    pub attributes: &'a Attributes,
    /// The addresses that forwarded the request, and that of the connection.
    pub source_ips: &'a [String],
    /// The user agent; empty for none.
    pub user_agent: &'a str,
    /// The time at which it was received.
    pub received: Timestamp,
}

/// The text that all events of a request have in common.
#[derive(Clone, Debug, Default)]
pub struct RequestText {
    json: Vec<u8>,
    /// The end of the members before the user.
    before_user: usize,
    /// The end of the members before the response.
    before_response: usize,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ResponseStatus<'a> {
    metadata: Empty,
    /// `Success` or `Failure`; empty for a response whose body is not known.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub status: &'a str,
    /// The error.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: &'a str,
    /// The reason of the error, such as `Forbidden`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'a str,
    /// The status code.
    pub code: u16,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Empty {}

impl<'a> ResponseStatus<'a> {
    /// Returns the status of a response whose body is not known.
    pub fn of_code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }

    /// Returns the status of an error.
    pub fn failure(code: u16, reason: &'a str, message: &'a str) -> Self {
        Self { metadata: Empty {}, status: "Failure", message, reason, code }
    }
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The level.
    pub level: Level,
    /// The identifier of the request.
    pub audit_id: &'a str,
    /// The stage.
    pub stage: Stage,
    /// The request.
    pub request: &'a RequestText,
    /// The authenticated user; `None` if the client is not identified.
    pub user: Option<&'a User>,
    /// The user that it impersonates.
    pub impersonated_user: Option<&'a User>,
    /// The result; `None` before there is one.
    pub response: Option<ResponseStatus<'a>>,
    /// The time of the stage.
    pub time: Timestamp,
    /// Annotations.
    pub annotations: &'a [(&'a str, &'a str)],
}

impl RequestText {
    /// Encodes a request.
    pub fn new(request: &Request<'_>) -> Self {
        let Request { uri, attributes, source_ips, user_agent, received } = *request;
        let mut json = Vec::with_capacity(
            256 + uri.len().min(MAX_TEXT_BYTES) + user_agent.len().min(MAX_USER_AGENT_BYTES),
        );
        text(&mut json, "requestURI", uri);
        text(&mut json, "verb", attributes.verb());
        let before_user = json.len();
        if !source_ips.is_empty() {
            member(&mut json, "sourceIPs");
            value(&mut json, source_ips);
        }
        match user_agent.len() {
            0 => {}
            1..=MAX_USER_AGENT_BYTES => text(&mut json, "userAgent", user_agent),
            _ => {
                let kept = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
                text(&mut json, "userAgent", &format!("{kept}{USER_AGENT_MARK}"));
            }
        }
        if let Attributes::Resource(resource) = attributes {
            object_ref(&mut json, resource);
        }
        let before_response = json.len();
        member(&mut json, "requestReceivedTimestamp");
        timestamp(&mut json, received);
        json.shrink_to_fit();
        Self { json, before_user, before_response }
    }
}

impl Event<'_> {
    /// Appends the event as one line.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        let Self { level, audit_id, stage, request, user, impersonated_user, response, time, annotations } =
            *self;
        let (head, rest) = request.json.split_at(request.before_user);
        let (origin, received) = rest.split_at(request.before_response - request.before_user);
        out.extend_from_slice(TYPE_META.as_bytes());
        out.extend_from_slice(b"\"level\":\"");
        out.extend_from_slice(level.name().as_bytes());
        out.push(b'"');
        text(out, "auditID", audit_id);
        out.extend_from_slice(b",\"stage\":\"");
        out.extend_from_slice(stage.name().as_bytes());
        out.push(b'"');
        out.extend_from_slice(head);
        // The API server writes an empty object for a client that is not identified.
        member(out, "user");
        match user {
            Some(user) => write_user(out, user),
            None => out.extend_from_slice(b"{}"),
        }
        if let Some(user) = impersonated_user {
            member(out, "impersonatedUser");
            write_user(out, user);
        }
        out.extend_from_slice(origin);
        if let Some(mut response) = response {
            let message = truncated(response.message);
            response.message = &message;
            member(out, "responseStatus");
            value(out, &response);
        }
        out.extend_from_slice(received);
        member(out, "stageTimestamp");
        timestamp(out, time);
        if !annotations.is_empty() {
            member(out, "annotations");
            let mut separator = b'{';
            for (key, annotation) in annotations {
                out.push(separator);
                separator = b',';
                value(out, key);
                out.push(b':');
                value(out, &truncated(annotation));
            }
            out.push(b'}');
        }
        out.extend_from_slice(b"}\n");
    }
}

/// The members of `authentication.k8s.io/v1`, `UserInfo`.
#[derive(Serialize)]
struct UserInfo<'a, L: Serialize, M: Serialize> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<L>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<M>,
}

fn write_user(out: &mut Vec<u8>, user: &User) {
    let User { name, uid, groups, extra } = user;
    let (has_groups, has_extra) = (!groups.is_empty(), !extra.is_empty());
    if size(user) <= SMALL_USER_BYTES {
        let groups = has_groups.then_some(groups);
        value(out, &UserInfo { username: name, uid, groups, extra: has_extra.then_some(extra) });
    } else {
        let groups = has_groups.then(|| truncated_list(groups));
        let extra = has_extra.then(|| truncated_map(extra));
        value(out, &UserInfo { username: &truncated(name), uid: &truncated(uid), groups, extra });
    }
}

/// Returns the length of all texts of a user, with three bytes for each as in the limits.
fn size(user: &User) -> usize {
    let list = |list: &Vec<String>| list.iter().map(|text| text.len() + 3).sum::<usize>();
    let map = |map: &BTreeMap<String, Vec<String>>| {
        map.iter().map(|(key, values)| key.len() + 3 + list(values)).sum::<usize>()
    };
    user.name.len() + user.uid.len() + list(&user.groups) + map(&user.extra)
}

fn object_ref(json: &mut Vec<u8>, resource: &ResourceAttributes) {
    member(json, "objectRef");
    let start = json.len();
    for (key, of_object) in [
        ("resource", &resource.resource),
        ("namespace", &resource.namespace),
        ("name", &resource.name),
        ("apiGroup", &resource.group),
        ("apiVersion", &resource.version),
        ("subresource", &resource.subresource),
    ] {
        if !of_object.is_empty() {
            text(json, key, of_object);
        }
    }
    // The first member begins with a comma.
    json[start] = b'{';
    json.push(b'}');
}

/// Appends a member with a text, [`truncated`].
fn text(json: &mut Vec<u8>, key: &str, of: &str) {
    member(json, key);
    value(json, &truncated(of));
}

/// Appends a comma and a key, which needs no escapes.
fn member(json: &mut Vec<u8>, key: &str) {
    json.extend_from_slice(b",\"");
    json.extend_from_slice(key.as_bytes());
    json.extend_from_slice(b"\":");
}

fn value<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and neither do these types.
    let _infallible = serde_json::to_writer(json, value);
}

/// Appends a time in microseconds, like `metav1.MicroTime`.
fn timestamp(json: &mut Vec<u8>, time: Timestamp) {
    let time = TimeZone::UTC.to_datetime(time);
    json.push(b'"');
    digits(json, u32::try_from(time.year()).unwrap_or_default(), 4);
    for (separator, number) in [
        (b'-', time.month()),
        (b'-', time.day()),
        (b'T', time.hour()),
        (b':', time.minute()),
        (b':', time.second()),
    ] {
        json.push(separator);
        digits(json, u32::from(number.unsigned_abs()), 2);
    }
    json.push(b'.');
    digits(json, time.subsec_nanosecond().unsigned_abs() / 1000, 6);
    json.extend_from_slice(b"Z\"");
}

/// Appends the last digits of a number, with leading zeros.
fn digits(json: &mut Vec<u8>, mut number: u32, count: usize) {
    let start = json.len();
    json.resize(start + count, b'0');
    for digit in json[start..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests;
