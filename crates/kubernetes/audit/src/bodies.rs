//! Copies of the bodies of requests and responses, for the levels `Request` and `RequestResponse`.
//!
//! A [`Capture`] collects the data of a body while the body is forwarded, and never delays it. All
//! copies of a program together have [`MAX_CAPTURED_BYTES`]; a body without room, or with more than
//! [`BodyParams::max_bytes`], is omitted from its event, which has the reason.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinniped_metrics::CounterTable;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Maximum size of all copies of a program in bytes.
pub const MAX_CAPTURED_BYTES: usize = 8 << 20;

/// The beginning of each copy, which takes nothing of [`MAX_CAPTURED_BYTES`]: a few clients with
/// large bodies cannot prevent copies of the small bodies of others. Permits limit the number of
/// requests, and with it the memory for these parts.
const UNCHARGED_BYTES: usize = 4 << 10;

/// Maximum number of values inside each other. Events are inside a list, and some receivers permit
/// 64 levels only.
const MAX_DEPTH: usize = 60;

/// The limits of bodies in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyParams {
    /// Maximum size of one body in bytes.
    pub max_bytes: usize,
}

/// The reason why an event has no body. The order is that of
/// [`OMISSIONS`](pinniped_kube_metrics::audit::OMISSIONS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// The body is larger than the limit.
    TooLarge,
    /// The body is not JSON, has too many levels, or is compressed.
    Encoding,
    /// The copies of other bodies use up the memory for them.
    Budget,
    /// The body was not transferred completely.
    Incomplete,
    /// The body contains a credential, whatever the policy says.
    Secret,
}

impl Omission {
    /// Returns the text in the annotation of an event.
    pub fn text(self) -> &'static str {
        match self {
            Self::TooLarge => "omitted: larger than the limit",
            Self::Encoding => "omitted: not JSON, JSON with more than 60 levels, or compressed",
            Self::Budget => "omitted: too many bodies at the same time",
            Self::Incomplete => "omitted: not transferred completely",
            Self::Secret => "omitted: contains a credential",
        }
    }
}

/// The memory and the limits of the copies.
#[derive(Debug)]
pub(crate) struct Bodies {
    max_bytes: usize,
    free: AtomicUsize,
    omitted: CounterTable<1>,
}

impl Bodies {
    pub(crate) fn new(params: BodyParams, omitted: CounterTable<1>) -> Arc<Self> {
        Arc::new(Self { max_bytes: params.max_bytes, free: AtomicUsize::new(MAX_CAPTURED_BYTES), omitted })
    }

    /// Takes memory for more data of a copy.
    fn take(&self, copied: usize, more: usize) -> bool {
        let bytes = charged(copied + more) - charged(copied);
        let take = |free: usize| free.checked_sub(bytes);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Returns the memory of a copy.
    fn release(&self, copied: usize) {
        self.free.fetch_add(charged(copied), Ordering::Relaxed);
    }
}

fn charged(copied: usize) -> usize {
    copied.saturating_sub(UNCHARGED_BYTES)
}

/// The copy of one body; clones share it.
#[derive(Clone)]
pub struct Capture(Arc<Shared>);

struct Shared {
    bodies: Arc<Bodies>,
    state: Mutex<State>,
}

enum State {
    Collecting(Vec<u8>),
    Complete(Vec<u8>),
    Omitted(Omission),
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

impl Capture {
    /// Begins a copy.
    pub(crate) fn new(bodies: &Arc<Bodies>) -> Self {
        Self(Arc::new(Shared {
            bodies: Arc::clone(bodies),
            state: Mutex::new(State::Collecting(Vec::new())),
        }))
    }

    /// Adds data of the body.
    pub fn push(&self, data: &[u8]) {
        let mut state = self.lock();
        let State::Collecting(copy) = &mut *state else { return };
        let omission = if copy.len() + data.len() > self.0.bodies.max_bytes {
            Omission::TooLarge
        } else if !self.0.bodies.take(copy.len(), data.len()) {
            Omission::Budget
        } else {
            copy.extend_from_slice(data);
            return;
        };
        self.replace(&mut state, omission);
    }

    /// Marks the copy as complete.
    pub fn complete(&self) {
        let mut state = self.lock();
        if let State::Collecting(copy) = &mut *state {
            let copy = std::mem::take(copy);
            *state = State::Complete(copy);
        }
    }

    /// Discards the copy.
    pub fn omit(&self, omission: Omission) {
        self.replace(&mut self.lock(), omission);
    }

    fn replace(&self, state: &mut State, omission: Omission) {
        if let State::Collecting(copy) | State::Complete(copy) = &*state {
            self.0.bodies.release(copy.len());
            self.0.bodies.omitted.add([omission as usize], 1);
            *state = State::Omitted(omission);
        }
    }

    /// Returns the body as JSON in one line; `None` for an empty body.
    ///
    /// # Errors
    /// Returns the reason why there is no copy.
    pub fn json(&self, omit_managed_fields: bool) -> Result<Option<Vec<u8>>, Omission> {
        let mut state = self.lock();
        let json = match &*state {
            State::Omitted(omission) => return Err(*omission),
            State::Complete(copy) if copy.is_empty() => return Ok(None),
            State::Complete(copy) => one_line(copy, omit_managed_fields),
            State::Collecting(_) => Err(Omission::Incomplete),
        };
        if let Err(omission) = &json {
            self.replace(&mut state, *omission);
        }
        json.map(Some)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Collecting(copy) | State::Complete(copy) = state {
            self.bodies.release(copy.len());
        }
    }
}

/// Returns JSON without line breaks, and if requested without managed fields.
fn one_line(json: &[u8], omit_managed_fields: bool) -> Result<Vec<u8>, Omission> {
    // The text of a client becomes part of a line that other programs parse.
    let text = std::str::from_utf8(json).map_err(|_| Omission::Encoding)?;
    serde_json::from_str::<ValidJson>(text).map_err(|_| Omission::Encoding)?;
    let compact = compact(json);
    if compact.depth > MAX_DEPTH {
        return Err(Omission::Encoding);
    }
    // The name may be written with escapes.
    let may_be_managed = text.contains("managedFields") || text.contains('\\');
    if !omit_managed_fields || !may_be_managed {
        return Ok(compact.json);
    }
    let mut value: Value = serde_json::from_str(text).map_err(|_| Omission::Encoding)?;
    // A value with a repeated name would lose a part that the API server may have read.
    if names(&value) == compact.names && remove_managed_fields(&mut value) {
        return serde_json::to_vec(&value).map_err(|_| Omission::Encoding);
    }
    // Numbers, repeated names and the order of names stay as they are.
    Ok(compact.json)
}

/// Accepts the JSON that a [`Value`] accepts, and stores nothing: a value may need a hundred times
/// the memory of its text.
struct ValidJson;

impl<'de> Deserialize<'de> for ValidJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for ValidJson {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while members.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

/// Returns the number of names in all objects.
fn names(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.len() + members.values().map(names).sum::<usize>(),
        Value::Array(items) => items.iter().map(names).sum(),
        _ => 0,
    }
}

/// JSON without space between its tokens.
#[derive(Default)]
struct Compact {
    json: Vec<u8>,
    /// The number of names in all objects, with repeated ones.
    names: usize,
    /// The number of values inside each other.
    depth: usize,
}

/// Removes the space between the tokens of valid JSON.
fn compact(json: &[u8]) -> Compact {
    let mut compact = Compact { json: Vec::with_capacity(json.len()), ..Compact::default() };
    let (mut in_text, mut is_escaped, mut depth) = (false, false, 0);
    for &byte in json {
        if in_text {
            in_text = byte != b'"' || is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
        } else if byte.is_ascii_whitespace() {
            continue;
        } else {
            in_text = byte == b'"';
            match byte {
                b':' => compact.names += 1,
                b'{' | b'[' => {
                    depth += 1;
                    compact.depth = compact.depth.max(depth);
                }
                b'}' | b']' => depth -= 1,
                _ => {}
            }
        }
        compact.json.push(byte);
    }
    compact
}

/// Removes the managed fields of an object, of the items of a list, and of the objects in the rows
/// of a table, as `copyWithoutManagedFields` of k8s.io/apiserver does. Returns whether there were
/// any.
fn remove_managed_fields(value: &mut Value) -> bool {
    let remove = |object: &mut Value| {
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        metadata.is_some_and(|metadata| metadata.remove("managedFields").is_some())
    };
    let mut removed = remove(value);
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(|item| removed |= remove(item));
    }
    if let Some(rows) = value.get_mut("rows").and_then(Value::as_array_mut) {
        let objects = rows.iter_mut().filter_map(|row| row.get_mut("object"));
        objects.for_each(|object| removed |= remove(object));
    }
    removed
}

#[cfg(test)]
mod tests {
    use pinniped_kube_metrics::audit;

    use super::*;

    fn bodies(max_bytes: usize) -> Arc<Bodies> {
        Bodies::new(BodyParams { max_bytes }, CounterTable::new(&audit::BODIES_OMITTED))
    }

    fn captured(parts: &[&str]) -> Capture {
        let capture = Capture::new(&bodies(100));
        parts.iter().for_each(|part| capture.push(part.as_bytes()));
        capture.complete();
        capture
    }

    fn json(body: &str, omit_managed_fields: bool) -> Result<Option<String>, Omission> {
        let json = captured(&[body]).json(omit_managed_fields)?;
        Ok(json.map(|json| String::from_utf8(json).unwrap()))
    }

    #[test]
    fn a_body_is_json_in_one_line_and_otherwise_unchanged() {
        for (body, wanted) in [
            (
                "{\n  \"b\": [1.0, 12345678901234567890123],\r\n\t\"a\": \" x\\\"  \\\\\"\n}\n",
                r#"{"b":[1.0,12345678901234567890123],"a":" x\"  \\"}"#,
            ),
            ("null", "null"),
            ("[{\"op\":\"remove\", \"path\":\"/a b\"}]", r#"[{"op":"remove","path":"/a b"}]"#),
        ] {
            assert_eq!(json(body, true).unwrap().unwrap(), wanted);
        }
        assert_eq!(json("", true), Ok(None));
        assert_eq!(captured(&["{\"a\"", ":1", "}"]).json(false).unwrap().unwrap(), b"{\"a\":1}");
        for invalid in ["{", "a: b", "{}{}", "\"\\ud800\"", "\"\n\"", "1e999", "{1:2}", "[1,]"] {
            assert_eq!(json(invalid, false), Err(Omission::Encoding), "{invalid}");
        }
        let capture = Capture::new(&bodies(100));
        capture.push(b"\"\xff\"");
        capture.complete();
        assert_eq!(capture.json(false), Err(Omission::Encoding));
        // Nesting is limited.
        for (depth, fits) in [(MAX_DEPTH, true), (MAX_DEPTH + 1, false), (10_000, false)] {
            let capture = Capture::new(&bodies(1 << 20));
            capture.push("[".repeat(depth).as_bytes());
            capture.push("]".repeat(depth).as_bytes());
            capture.complete();
            assert_eq!(capture.json(false).is_ok(), fits, "{depth}");
        }
    }

    #[test]
    fn managed_fields_of_objects_lists_and_tables_are_omitted_if_required() {
        for (body, wanted) in [
            (r#"{"metadata":{"name":"a","managedFields":[]}}"#, r#"{"metadata":{"name":"a"}}"#),
            (r#"{"items":[{"metadata":{"managedFields":[]}},{}]}"#, r#"{"items":[{"metadata":{}},{}]}"#),
            (
                r#"{"rows":[{"object":{"metadata":{"managedFields":1}}}]}"#,
                r#"{"rows":[{"object":{"metadata":{}}}]}"#,
            ),
            (r#"{"metadata":{"managed\u0046ields":[]}}"#, r#"{"metadata":{}}"#),
            (r#"{"data":{"managedFields":"a"}}"#, r#"{"data":{"managedFields":"a"}}"#),
            // Nothing is removed beside a repeated name.
            (
                r#"{"metadata":{"managedFields":[]},"spec":{"a:":1},"spec":{"b":2}}"#,
                r#"{"metadata":{"managedFields":[]},"spec":{"a:":1},"spec":{"b":2}}"#,
            ),
        ] {
            assert_eq!(json(body, true).unwrap().unwrap(), wanted);
            assert_eq!(json(body, false).unwrap().unwrap(), body);
        }
    }

    #[test]
    fn a_body_is_bounded_and_all_bodies_share_a_budget() {
        let all = bodies(MAX_CAPTURED_BYTES);
        let small = bodies(4);
        let capture = Capture::new(&small);
        capture.push(b"12");
        capture.push(b"345");
        capture.push(b"6");
        capture.complete();
        assert_eq!(capture.json(false), Err(Omission::TooLarge));
        assert_eq!(small.free.load(Ordering::Relaxed), MAX_CAPTURED_BYTES);

        let half = vec![b'1'; MAX_CAPTURED_BYTES / 2 + UNCHARGED_BYTES];
        let all = Bodies::new(BodyParams { max_bytes: half.len() }, all.omitted.clone());
        let [one, two, three, four] = [(); 4].map(|()| Capture::new(&all));
        one.push(&half);
        two.push(&half);
        three.push(&[b'1'; UNCHARGED_BYTES]);
        three.push(b"1");
        three.complete();
        assert_eq!(three.json(false), Err(Omission::Budget));
        // A small body has room.
        four.push(b"1");
        four.complete();
        assert_eq!(four.json(false), Ok(Some(b"1".to_vec())));
        assert_eq!(two.json(false), Err(Omission::Incomplete));
        drop(one);
        assert_eq!(all.free.load(Ordering::Relaxed), MAX_CAPTURED_BYTES);
        assert_eq!(all.omitted.get([Omission::Budget as usize]), 1);
    }
}
