//! Audit events: `audit.k8s.io/v1`, kind `Event`, as JSON.
//!
//! The parts that all events of a request have in common are encoded once ([`RequestText`]), so
//! that an event of a proxied request costs about a microsecond. Clients choose many of the texts;
//! [`pinniped_logging::truncate`] limits their length.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::User;
use pinniped_logging::truncate::{MAX_LIST_BYTES, MAX_TEXT_BYTES, truncated, truncated_list, truncated_map};
use serde::Serialize;

use crate::policy::{Level, Stage};

/// The beginning of a member, whose name needs no escapes.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

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
    pub source_ips: &'a [IpAddr],
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
    /// The body of the request: JSON in one line.
    pub request_object: Option<&'a [u8]>,
    /// The body of the response: JSON in one line.
    pub response_object: Option<&'a [u8]>,
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
        text(&mut json, key!("requestURI"), uri);
        text(&mut json, key!("verb"), attributes.verb());
        let before_user = json.len();
        if !source_ips.is_empty() {
            member(&mut json, key!("sourceIPs"));
            list(&mut json, source_ips, write_ip);
        }
        match user_agent.len() {
            0 => {}
            1..=MAX_USER_AGENT_BYTES => text(&mut json, key!("userAgent"), user_agent),
            _ => {
                let kept = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
                text(&mut json, key!("userAgent"), &format!("{kept}{USER_AGENT_MARK}"));
            }
        }
        if let Attributes::Resource(resource) = attributes {
            object_ref(&mut json, resource);
        }
        let before_response = json.len();
        member(&mut json, key!("requestReceivedTimestamp"));
        timestamp(&mut json, received);
        Self { json, before_user, before_response }
    }

    /// Releases memory that is not used, for a request that lasts long.
    pub fn shrink_to_fit(&mut self) {
        self.json.shrink_to_fit();
    }
}

impl Event<'_> {
    /// Appends the event as one line.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        let Self {
            level,
            audit_id,
            stage,
            request,
            user,
            impersonated_user,
            response,
            request_object,
            response_object,
            time,
            annotations,
        } = *self;
        let (head, rest) = request.json.split_at(request.before_user);
        let (origin, received) = rest.split_at(request.before_response - request.before_user);
        out.extend_from_slice(TYPE_META.as_bytes());
        out.extend_from_slice(b"\"level\":\"");
        out.extend_from_slice(level.name().as_bytes());
        out.extend_from_slice(b"\",\"auditID\":");
        quoted(out, &truncated(audit_id));
        out.extend_from_slice(b",\"stage\":\"");
        out.extend_from_slice(stage.name().as_bytes());
        out.push(b'"');
        out.extend_from_slice(head);
        // The API server writes an empty object for a client that is not identified.
        member(out, key!("user"));
        match user {
            Some(user) => write_user(out, user),
            None => out.extend_from_slice(b"{}"),
        }
        if let Some(user) = impersonated_user {
            member(out, key!("impersonatedUser"));
            write_user(out, user);
        }
        out.extend_from_slice(origin);
        if let Some(mut response) = response {
            let message = truncated(response.message);
            response.message = &message;
            member(out, key!("responseStatus"));
            value(out, &response);
        }
        for (key, object) in
            [(key!("requestObject"), request_object), (key!("responseObject"), response_object)]
        {
            if let Some(object) = object {
                member(out, key);
                out.extend_from_slice(object);
            }
        }
        out.extend_from_slice(received);
        member(out, key!("stageTimestamp"));
        timestamp(out, time);
        if !annotations.is_empty() {
            member(out, key!("annotations"));
            let start = out.len();
            for (key, annotation) in annotations {
                out.push(b',');
                quoted(out, key);
                out.push(b':');
                quoted(out, &truncated(annotation));
            }
            end_object(out, start);
        }
        out.extend_from_slice(b"}\n");
    }
}

/// Appends an object of `authentication.k8s.io/v1`, `UserInfo`.
fn write_user(out: &mut Vec<u8>, user: &User) {
    let User { name, uid, groups, extra } = user;
    let start = out.len();
    for (key, of_user) in [(key!("username"), name), (key!("uid"), uid)] {
        if !of_user.is_empty() {
            text(out, key, of_user);
        }
    }
    let is_small = size(user) <= SMALL_USER_BYTES;
    if !groups.is_empty() {
        member(out, key!("groups"));
        if is_small { texts(out, groups) } else { texts(out, &truncated_list(groups)) }
    }
    if !extra.is_empty() {
        member(out, key!("extra"));
        if is_small { write_extra(out, extra) } else { write_extra(out, &truncated_map(extra)) }
    }
    end_object(out, start);
}

fn write_extra<T: AsRef<str>>(out: &mut Vec<u8>, extra: &BTreeMap<T, Vec<T>>) {
    let start = out.len();
    for (key, values) in extra {
        out.push(b',');
        quoted(out, key.as_ref());
        out.push(b':');
        texts(out, values);
    }
    end_object(out, start);
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
    member(json, key!("objectRef"));
    let start = json.len();
    for (key, of_object) in [
        (key!("resource"), &resource.resource),
        (key!("namespace"), &resource.namespace),
        (key!("name"), &resource.name),
        (key!("apiGroup"), &resource.group),
        (key!("apiVersion"), &resource.version),
        (key!("subresource"), &resource.subresource),
    ] {
        if !of_object.is_empty() {
            text(json, key, of_object);
        }
    }
    end_object(json, start);
}

fn write_ip(json: &mut Vec<u8>, ip: &IpAddr) {
    json.push(b'"');
    match ip {
        IpAddr::V4(ip) => {
            for (at, byte) in ip.octets().into_iter().enumerate() {
                if at > 0 {
                    json.push(b'.');
                }
                value(json, &byte);
            }
        }
        IpAddr::V6(ip) => {
            // Writing to memory does not fail.
            let _infallible = write!(json, "{ip}");
        }
    }
    json.push(b'"');
}

/// Completes an object, whose members begin at `start`, each with a comma.
fn end_object(json: &mut Vec<u8>, start: usize) {
    match json.get_mut(start) {
        Some(comma) => *comma = b'{',
        None => json.push(b'{'),
    }
    json.push(b'}');
}

/// Appends an array.
fn list<T>(json: &mut Vec<u8>, values: &[T], mut append: impl FnMut(&mut Vec<u8>, &T)) {
    json.push(b'[');
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            json.push(b',');
        }
        append(json, value);
    }
    json.push(b']');
}

fn texts<T: AsRef<str>>(json: &mut Vec<u8>, values: &[T]) {
    list(json, values, |json, value| quoted(json, value.as_ref()));
}

/// Appends a member with a text, [`truncated`].
fn text(json: &mut Vec<u8>, key: &str, of: &str) {
    member(json, key);
    quoted(json, &truncated(of));
}

/// Appends a text in quotation marks.
///
/// Almost no text needs an escape. `serde_json` compares one byte after the other, which was a
/// quarter of the time that the request's thread spent on an event.
fn quoted(json: &mut Vec<u8>, of: &str) {
    if needs_escape(of.as_bytes()) {
        return value(json, of);
    }
    json.push(b'"');
    json.extend_from_slice(of.as_bytes());
    json.push(b'"');
}

/// Returns whether a text has a character below U+0020, a quotation mark or a backslash. Compares
/// eight bytes at once.
fn needs_escape(text: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    // Not 0 if a byte is smaller than the limit. The subtraction borrows from the next byte, so a
    // byte above such a byte may be marked too, which does not change whether there is one.
    let any_below = |word: u64, limit: u8| word.wrapping_sub(ONES * u64::from(limit)) & !word & (ONES << 7);
    let special = |bytes: &[u8; 8]| {
        let word = u64::from_ne_bytes(*bytes);
        let any_equal = |byte: u8| any_below(word ^ (ONES * u64::from(byte)), 1);
        any_below(word, b' ') | any_equal(b'"') | any_equal(b'\\')
    };
    let (words, rest) = text.as_chunks();
    match text.last_chunk() {
        Some(last) => words.iter().fold(special(last), |found, word| found | special(word)) != 0,
        None => rest.iter().any(|byte| matches!(byte, ..b' ' | b'"' | b'\\')),
    }
}

/// Appends the beginning of a member, which is a [`key!`].
fn member(json: &mut Vec<u8>, key: &str) {
    json.extend_from_slice(key.as_bytes());
}

fn value<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and neither do these types.
    let _infallible = serde_json::to_writer(json, value);
}

/// Appends a time in microseconds, like `metav1.MicroTime`.
fn timestamp(json: &mut Vec<u8>, time: Timestamp) {
    let time = TimeZone::UTC.to_datetime(time);
    let mut text = *b"\"0000-00-00T00:00:00.000000Z\"";
    digits(&mut text[1..5], u32::from(time.year().unsigned_abs()));
    digits(&mut text[6..8], u32::from(time.month().unsigned_abs()));
    digits(&mut text[9..11], u32::from(time.day().unsigned_abs()));
    digits(&mut text[12..14], u32::from(time.hour().unsigned_abs()));
    digits(&mut text[15..17], u32::from(time.minute().unsigned_abs()));
    digits(&mut text[18..20], u32::from(time.second().unsigned_abs()));
    digits(&mut text[21..27], time.subsec_nanosecond().unsigned_abs() / 1000);
    json.extend_from_slice(&text);
}

/// Writes the last digits of a number, with leading zeros.
fn digits(text: &mut [u8], mut number: u32) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests;
