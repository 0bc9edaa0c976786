//! Audit events: `audit.k8s.io/v1`, kind `Event`, as JSON.
//!
//! Usually, a request only copies its texts ([`RequestText`]), and [`crate::queue`] encodes several
//! events together. Between two requests, other code fills the caches of the processor, so that
//! encoding one event at a time costs several times as much. A user of at most 1 KiB is encoded
//! once for all requests that share its [`KnownUser`]. Clients choose many of the texts;
//! [`pinniped_logging::truncate`] limits their length.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pinniped_kube_request::attributes::Attributes;
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

/// The type of an event.
const TYPE_META: &[u8] = br#""kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Maximum length of a user agent in bytes, and the mark of a longer one, as in the API server.
const MAX_USER_AGENT_BYTES: usize = 1024;
const USER_AGENT_MARK: &str = "...TRUNCATED";

/// Maximum length of a user whose lists and texts need not be truncated.
const MAX_UNTRUNCATED_USER_BYTES: usize =
    if MAX_TEXT_BYTES < MAX_LIST_BYTES { MAX_TEXT_BYTES } else { MAX_LIST_BYTES };

/// Maximum length of a user whose encoded form is kept. Each connection may have its own user, so
/// this limits the memory.
const MAX_KEPT_USER_BYTES: usize = 1 << 10;

/// Maximum length in bytes of the parts of an event that do not depend on its texts: the names of
/// its members, the level, the stage, the times and the status code.
const MAX_FIXED_BYTES: usize = 640;
/// Maximum length in bytes of an address with its quotation marks and comma.
const MAX_IP_BYTES: usize = 48;
/// Maximum number of bytes of JSON for one byte of a text.
const MAX_ESCAPE_BYTES: usize = 6;

/// A request as its client sent it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The identifier.
    pub audit_id: &'a str,
    /// Path and query.
    pub uri: &'a str,
    /// Verb and object.
    pub attributes: &'a Attributes,
    /// The addresses that forwarded the request, and that of the connection.
    pub source_ips: Vec<IpAddr>,
    /// The user agent; empty for none.
    pub user_agent: &'a str,
    /// The time at which it was received.
    pub received: Timestamp,
}

/// The format of an event in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line of the log.
    Line,
    /// An item of a list, followed by a comma. It has no type, because the list states it.
    Item,
}

/// The part of a request that all its events have in common.
#[derive(Debug)]
pub struct RequestText {
    /// The texts of [`Part`], one after the other.
    texts: Box<str>,
    /// The end of each text.
    ends: [u32; Part::COUNT],
    /// Whether the request is for a resource.
    is_for_resource: bool,
    source_ips: Vec<IpAddr>,
    received: Timestamp,
}

/// A text of a request. The parts of a resource are empty for other requests.
#[derive(Clone, Copy)]
enum Part {
    AuditId,
    Uri,
    Verb,
    UserAgent,
    Resource,
    Namespace,
    Name,
    ApiGroup,
    ApiVersion,
    Subresource,
}

impl Part {
    const COUNT: usize = Self::Subresource as usize + 1;
}

/// The user of an event, encoded as `UserInfo` of `authentication.k8s.io/v1`.
#[derive(Clone, Debug)]
pub struct UserInfo(Arc<[u8]>);

/// A text of limited length.
#[derive(Clone, Debug, Default)]
pub struct LimitedText(Cow<'static, str>);

/// The result of a request.
#[derive(Clone, Debug, Default)]
pub struct ResponseStatus {
    /// `Success` or `Failure`; empty for a response whose body is not known.
    status: &'static str,
    /// The error.
    message: LimitedText,
    /// The reason of the error, such as `Forbidden`.
    reason: LimitedText,
    /// The status code.
    code: u16,
}

impl<T: Into<Cow<'static, str>>> From<T> for LimitedText {
    /// Truncates a long text, so that the memory of events is limited.
    fn from(text: T) -> Self {
        let text = text.into();
        match truncated(&text) {
            Cow::Borrowed(_) => Self(text),
            Cow::Owned(truncated) => Self(truncated.into()),
        }
    }
}

impl ResponseStatus {
    /// Returns the status of a response whose body is not known.
    pub fn of_code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }

    /// Returns the status of an error.
    pub fn failure(code: u16, reason: impl Into<LimitedText>, message: impl Into<LimitedText>) -> Self {
        Self { status: "Failure", message: message.into(), reason: reason.into(), code }
    }
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// The level.
    pub level: Level,
    /// The stage.
    pub stage: Stage,
    /// The request.
    pub request: Arc<RequestText>,
    /// The authenticated user; `None` if the client is not identified.
    pub user: Option<UserInfo>,
    /// The user that it impersonates.
    pub impersonated_user: Option<UserInfo>,
    /// The result; `None` before there is one.
    pub response: Option<ResponseStatus>,
    /// The body of the request: JSON in one line.
    pub request_object: Option<Bytes>,
    /// The body of the response: JSON in one line.
    pub response_object: Option<Bytes>,
    /// The time of the stage.
    pub time: Timestamp,
    /// Annotations.
    pub annotations: Vec<(&'static str, LimitedText)>,
}

impl RequestText {
    /// Copies the texts of a request, each with a limited length.
    pub fn new(request: Request<'_>) -> Self {
        let Request { audit_id, uri, attributes, source_ips, user_agent, received } = request;
        let agent = match user_agent.len() {
            ..=MAX_USER_AGENT_BYTES => Cow::Borrowed(user_agent),
            _ => long_user_agent(user_agent),
        };
        // In the order of `Part`.
        let of_request = [audit_id, uri, attributes.verb(), &agent];
        let of_resource = match attributes {
            Attributes::NonResource { .. } => [""; 6],
            Attributes::Resource(resource) => [
                &*resource.resource,
                &resource.namespace,
                &resource.name,
                &resource.group,
                &resource.version,
                &resource.subresource,
            ],
        };
        let parts = || of_request.iter().chain(&of_resource);
        let mut texts = String::with_capacity(parts().map(|text| text.len().min(MAX_TEXT_BYTES)).sum());
        let mut ends = [0; Part::COUNT];
        for (end, text) in ends.iter_mut().zip(parts()) {
            texts.push_str(&truncated(text));
            // The length fits: ten texts of little more than 8 KiB each.
            *end = texts.len() as u32;
        }
        let is_for_resource = matches!(attributes, Attributes::Resource(_));
        Self { texts: texts.into_boxed_str(), ends, is_for_resource, source_ips, received }
    }

    fn part(&self, part: Part) -> &str {
        let end = |part: usize| self.ends[part] as usize;
        let start = (part as usize).checked_sub(1).map_or(0, end);
        &self.texts[start..end(part as usize)]
    }
}

impl UserInfo {
    /// Encodes a user. One of at most 1 KiB is encoded only in the first call.
    pub fn of(user: &KnownUser) -> Self {
        let encode_small =
            |user: &User| (size(user) <= MAX_KEPT_USER_BYTES).then(|| encoded_user(user).into());
        Self(match user.user_info(encode_small) {
            Some(json) => Arc::clone(json),
            None => encoded_user(user).into(),
        })
    }
}

impl Event {
    /// Returns an upper bound of the length of the event as JSON. The event needs about as much
    /// memory.
    pub(crate) fn max_len(&self) -> usize {
        let user = |user: &Option<UserInfo>| user.as_ref().map_or(0, |UserInfo(json)| json.len());
        let object = |object: &Option<Bytes>| object.as_ref().map_or(0, Bytes::len);
        let response = self.response.as_ref();
        let texts = self.request.texts.len()
            + response.map_or(0, |status| status.message.0.len() + status.reason.0.len())
            + self.annotations.iter().map(|(key, text)| key.len() + 1 + text.0.len()).sum::<usize>();
        MAX_FIXED_BYTES
            + MAX_ESCAPE_BYTES * texts
            + MAX_IP_BYTES * self.request.source_ips.len()
            + user(&self.user)
            + user(&self.impersonated_user)
            + object(&self.request_object)
            + object(&self.response_object)
    }

    /// Appends the event. It has no line break but the last byte of [`Format::Line`].
    pub(crate) fn write(&self, format: Format, out: &mut Vec<u8>) {
        let Self {
            level,
            stage,
            request,
            user,
            impersonated_user,
            response,
            request_object,
            response_object,
            time,
            annotations,
        } = self;
        // Almost no request has a text that needs an escape, so all of them are searched at once.
        let append = if needs_escape(request.texts.as_bytes()) { quoted } else { plain };
        let part = |out: &mut Vec<u8>, key: &[u8], part| {
            out.extend_from_slice(key);
            append(out, request.part(part));
        };
        let optional_part = |out: &mut Vec<u8>, key: &[u8], of_request| {
            if !request.part(of_request).is_empty() {
                part(out, key, of_request);
            }
        };
        out.push(b'{');
        if format == Format::Line {
            out.extend_from_slice(TYPE_META);
        }
        out.extend_from_slice(b"\"level\":");
        plain(out, level.name());
        part(out, key!("auditID"), Part::AuditId);
        out.extend_from_slice(key!("stage"));
        plain(out, stage.name());
        part(out, key!("requestURI"), Part::Uri);
        part(out, key!("verb"), Part::Verb);
        // The API server writes an empty object for a client that is not identified.
        out.extend_from_slice(key!("user"));
        out.extend_from_slice(user.as_ref().map_or(b"{}", |UserInfo(json)| json));
        if let Some(UserInfo(json)) = impersonated_user {
            out.extend_from_slice(key!("impersonatedUser"));
            out.extend_from_slice(json);
        }
        if !request.source_ips.is_empty() {
            out.extend_from_slice(key!("sourceIPs"));
            list(out, &request.source_ips, write_ip);
        }
        optional_part(out, key!("userAgent"), Part::UserAgent);
        if request.is_for_resource {
            out.extend_from_slice(key!("objectRef"));
            let start = out.len();
            optional_part(out, key!("resource"), Part::Resource);
            optional_part(out, key!("namespace"), Part::Namespace);
            optional_part(out, key!("name"), Part::Name);
            optional_part(out, key!("apiGroup"), Part::ApiGroup);
            optional_part(out, key!("apiVersion"), Part::ApiVersion);
            optional_part(out, key!("subresource"), Part::Subresource);
            end_object(out, start);
        }
        if let Some(response) = response {
            out.extend_from_slice(key!("responseStatus"));
            write_status(out, response);
        }
        for (key, object) in
            [(key!("requestObject"), request_object), (key!("responseObject"), response_object)]
        {
            if let Some(object) = object {
                out.extend_from_slice(key);
                out.extend_from_slice(object);
            }
        }
        out.extend_from_slice(key!("requestReceivedTimestamp"));
        timestamp(out, request.received);
        out.extend_from_slice(key!("stageTimestamp"));
        timestamp(out, *time);
        if !annotations.is_empty() {
            out.extend_from_slice(key!("annotations"));
            let start = out.len();
            for (key, annotation) in annotations {
                out.push(b',');
                plain(out, key);
                out.push(b':');
                quoted(out, &annotation.0);
            }
            end_object(out, start);
        }
        out.extend_from_slice(match format {
            Format::Line => b"}\n",
            Format::Item => b"},",
        });
    }
}

/// Appends an object of `meta/v1`, `Status`.
fn write_status(out: &mut Vec<u8>, of: &ResponseStatus) {
    let ResponseStatus { status, message, reason, code } = of;
    out.extend_from_slice(b"{\"metadata\":{}");
    optional_text(out, key!("status"), status);
    optional_text(out, key!("message"), &message.0);
    optional_text(out, key!("reason"), &reason.0);
    out.extend_from_slice(key!("code"));
    value(out, code);
    out.push(b'}');
}

/// Returns an object of `authentication.k8s.io/v1`, `UserInfo`.
fn encoded_user(user: &User) -> Vec<u8> {
    let User { name, uid, groups, extra } = user;
    let mut json = Vec::new();
    optional_text(&mut json, key!("username"), &truncated(name));
    optional_text(&mut json, key!("uid"), &truncated(uid));
    let is_small = size(user) <= MAX_UNTRUNCATED_USER_BYTES;
    if !groups.is_empty() {
        json.extend_from_slice(key!("groups"));
        if is_small { texts(&mut json, groups) } else { texts(&mut json, &truncated_list(groups)) }
    }
    if !extra.is_empty() {
        json.extend_from_slice(key!("extra"));
        if is_small { write_extra(&mut json, extra) } else { write_extra(&mut json, &truncated_map(extra)) }
    }
    end_object(&mut json, 0);
    json
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
fn long_user_agent(user_agent: &str) -> Cow<'_, str> {
    let kept = &user_agent[..user_agent.floor_char_boundary(MAX_USER_AGENT_BYTES)];
    format!("{kept}{USER_AGENT_MARK}").into()
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
fn list<T>(json: &mut Vec<u8>, values: &[T], append: impl Fn(&mut Vec<u8>, &T)) {
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

/// Appends a member with a text, unless it is empty.
fn optional_text(json: &mut Vec<u8>, key: &[u8], of: &str) {
    if !of.is_empty() {
        json.extend_from_slice(key);
        quoted(json, of);
    }
}

/// Appends a text in quotation marks. Almost no text needs an escape, and `serde_json` compares one
/// byte after the other.
fn quoted(json: &mut Vec<u8>, of: &str) {
    if needs_escape(of.as_bytes()) { value(json, of) } else { plain(json, of) }
}

/// Appends a text that needs no escapes in quotation marks.
fn plain(json: &mut Vec<u8>, of: &str) {
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

fn value<T: Serialize + ?Sized>(json: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and neither do these types.
    let _infallible = serde_json::to_writer(json, value);
}

/// Appends a time in microseconds, like `metav1.MicroTime`.
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
    json.push(b'"');
    json.extend_from_slice(&text);
    json.extend_from_slice(&fraction);
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
pub(crate) mod tests;
