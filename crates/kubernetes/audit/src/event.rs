//! Audit events: `audit.k8s.io/v1`, kind `Event`, as JSON.
//!
//! The parts that all events of a request have in common are encoded once ([`RequestText`]). A
//! small user is encoded once for all requests that share its [`KnownUser`]. Clients choose many of
//! the texts; [`pinniped_logging::truncate`] limits their length.
//!
//! Between two events, other code fills the caches of the processor, so this code is kept small:
//! the functions that append bytes, texts and times are not inlined.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::identity::{KnownUser, User};
use pinniped_logging::truncate::{MAX_LIST_BYTES, MAX_TEXT_BYTES, truncated, truncated_list, truncated_map};
use serde::Serialize;

use crate::policy::{Level, Stage};

/// The beginning of a member, whose name needs no escapes.
macro_rules! key {
    ($name:literal) => {
        concat!(",\"", $name, "\":").as_bytes()
    };
}

/// The beginning of an event. Events in a list do not have it.
pub(crate) const TYPE_META: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Maximum length of a user agent in bytes, and the mark of a longer one, as in the API server.
const MAX_USER_AGENT_BYTES: usize = 1024;
const USER_AGENT_MARK: &str = "...TRUNCATED";

/// Maximum length of a user whose lists and texts need not be truncated.
const SMALL_USER_BYTES: usize = if MAX_TEXT_BYTES < MAX_LIST_BYTES { MAX_TEXT_BYTES } else { MAX_LIST_BYTES };

/// Maximum length of a user whose encoded form is kept. Each connection may have its own user, so
/// this limits the memory.
const MAX_KEPT_USER_BYTES: usize = 1 << 10;

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
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseStatus<'a> {
    /// `Success` or `Failure`; empty for a response whose body is not known.
    pub status: &'a str,
    /// The error.
    pub message: &'a str,
    /// The reason of the error, such as `Forbidden`.
    pub reason: &'a str,
    /// The status code.
    pub code: u16,
}

impl<'a> ResponseStatus<'a> {
    /// Returns the status of a response whose body is not known.
    pub fn of_code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }

    /// Returns the status of an error.
    pub fn failure(code: u16, reason: &'a str, message: &'a str) -> Self {
        Self { status: "Failure", message, reason, code }
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
    pub user: Option<&'a KnownUser>,
    /// The user that it impersonates.
    pub impersonated_user: Option<&'a KnownUser>,
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
            append(&mut json, key!("sourceIPs"));
            list(&mut json, source_ips, write_ip);
        }
        match user_agent.len() {
            0 => {}
            1..=MAX_USER_AGENT_BYTES => text(&mut json, key!("userAgent"), user_agent),
            _ => long_user_agent(&mut json, user_agent),
        }
        if let Attributes::Resource(resource) = attributes {
            object_ref(&mut json, resource);
        }
        let before_response = json.len();
        append(&mut json, key!("requestReceivedTimestamp"));
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
        append(out, TYPE_META.as_bytes());
        append(out, b"\"level\":\"");
        append(out, level.name().as_bytes());
        append(out, b"\"");
        text(out, key!("auditID"), audit_id);
        text(out, key!("stage"), stage.name());
        append(out, head);
        // The API server writes an empty object for a client that is not identified.
        append(out, key!("user"));
        match user {
            Some(user) => write_user(out, user),
            None => append(out, b"{}"),
        }
        if let Some(user) = impersonated_user {
            append(out, key!("impersonatedUser"));
            write_user(out, user);
        }
        append(out, origin);
        if let Some(response) = response {
            append(out, key!("responseStatus"));
            write_status(out, response);
        }
        for (key, object) in
            [(key!("requestObject"), request_object), (key!("responseObject"), response_object)]
        {
            if let Some(object) = object {
                append(out, key);
                append(out, object);
            }
        }
        append(out, received);
        append(out, key!("stageTimestamp"));
        timestamp(out, time);
        if !annotations.is_empty() {
            append(out, key!("annotations"));
            let start = out.len();
            for (key, annotation) in annotations {
                append(out, b",");
                quoted(out, key);
                append(out, b":");
                limited(out, annotation);
            }
            end_object(out, start);
        }
        append(out, b"}\n");
    }
}

/// Appends an object of `meta/v1`, `Status`.
fn write_status(out: &mut Vec<u8>, of: ResponseStatus<'_>) {
    let ResponseStatus { status, message, reason, code } = of;
    append(out, b"{\"metadata\":{}");
    for (key, of_status) in [(key!("status"), status), (key!("message"), message), (key!("reason"), reason)] {
        if !of_status.is_empty() {
            text(out, key, of_status);
        }
    }
    append(out, key!("code"));
    value(out, &code);
    append(out, b"}");
}

/// Appends an object of `authentication.k8s.io/v1`, `UserInfo`.
fn write_user(out: &mut Vec<u8>, user: &KnownUser) {
    let encode_small = |user: &User| {
        (size(user) <= MAX_KEPT_USER_BYTES).then(|| {
            let mut json = Vec::new();
            encode_user(&mut json, user);
            json.into_boxed_slice()
        })
    };
    match user.user_info(encode_small) {
        Some(json) => append(out, json),
        None => encode_user(out, user),
    }
}

#[inline(never)]
fn encode_user(json: &mut Vec<u8>, user: &User) {
    let User { name, uid, groups, extra } = user;
    let start = json.len();
    for (key, of_user) in [(key!("username"), name), (key!("uid"), uid)] {
        if !of_user.is_empty() {
            text(json, key, of_user);
        }
    }
    let is_small = size(user) <= SMALL_USER_BYTES;
    if !groups.is_empty() {
        append(json, key!("groups"));
        if is_small { texts(json, groups) } else { texts(json, &truncated_list(groups)) }
    }
    if !extra.is_empty() {
        append(json, key!("extra"));
        if is_small { write_extra(json, extra) } else { write_extra(json, &truncated_map(extra)) }
    }
    end_object(json, start);
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

#[cold]
#[inline(never)]
fn long_user_agent(json: &mut Vec<u8>, user_agent: &str) {
    let kept = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
    text(json, key!("userAgent"), &format!("{kept}{USER_AGENT_MARK}"));
}

fn object_ref(json: &mut Vec<u8>, resource: &ResourceAttributes) {
    append(json, key!("objectRef"));
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

/// Appends a member with a text.
fn text(json: &mut Vec<u8>, key: &[u8], of: &str) {
    append(json, key);
    limited(json, of);
}

/// Appends a text in quotation marks, [`truncated`].
#[inline(never)]
fn limited(json: &mut Vec<u8>, of: &str) {
    quoted(json, &truncated(of));
}

/// Appends a text in quotation marks.
///
/// Almost no text needs an escape. `serde_json` compares one byte after the other, which was a
/// quarter of the time that the request's thread spent on an event.
#[inline(never)]
fn quoted(json: &mut Vec<u8>, of: &str) {
    if needs_escape(of.as_bytes()) {
        return escaped(json, of);
    }
    append(json, b"\"");
    append(json, of.as_bytes());
    append(json, b"\"");
}

#[cold]
#[inline(never)]
fn escaped(json: &mut Vec<u8>, of: &str) {
    value(json, of);
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

#[inline(never)]
fn append(json: &mut Vec<u8>, bytes: &[u8]) {
    json.extend_from_slice(bytes);
}

fn value<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and neither do these types.
    let _infallible = serde_json::to_writer(json, value);
}

/// Appends a time in microseconds, like `metav1.MicroTime`.
#[inline(never)]
fn timestamp(json: &mut Vec<u8>, time: Timestamp) {
    thread_local! {
        /// The last second for which a time was written, and its text.
        static SECOND: Cell<(i64, [u8; 20])> = const { Cell::new((0, *b"1970-01-01T00:00:00.")) };
    }
    let (second, nanosecond) = (time.as_second(), time.subsec_nanosecond());
    // Times before 1970 have negative nanoseconds; a clock may be wrong.
    let (second, nanosecond) =
        if nanosecond < 0 { (second - 1, nanosecond + 1_000_000_000) } else { (second, nanosecond) };
    let (mut known, mut text) = SECOND.get();
    if known != second {
        (known, text) = (second, second_text(time));
        SECOND.set((known, text));
    }
    let mut fraction = *b"000000Z\"";
    digits(&mut fraction[..6], nanosecond.unsigned_abs() / 1000);
    append(json, b"\"");
    append(json, &text);
    append(json, &fraction);
}

/// Returns a time up to its seconds, with the point that follows them.
#[cold]
fn second_text(time: Timestamp) -> [u8; 20] {
    let time = TimeZone::UTC.to_datetime(time);
    let mut text = *b"0000-00-00T00:00:00.";
    digits(&mut text[..4], u32::from(time.year().unsigned_abs()));
    for (at, number) in
        [(5, time.month()), (8, time.day()), (11, time.hour()), (14, time.minute()), (17, time.second())]
    {
        digits(&mut text[at..at + 2], u32::from(number.unsigned_abs()));
    }
    text
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
