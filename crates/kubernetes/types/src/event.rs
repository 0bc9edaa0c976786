//! Events of the API group `events.k8s.io/v1`, as data. They are shown by `kubectl describe`.
//!
//! The name of an Event is derived from its content. The same Event therefore has the same name in
//! every process, and the API server refuses to create it twice: a repetition is added to the
//! `series` of the existing Event. After an hour without a repetition the API server deletes it.
//!
//! This module does no I/O. `pinniped_controller::event` writes Events.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde_json::json;

use crate::text::truncated;

/// The namespace of Events about cluster-scoped objects.
pub const NAMESPACE_OF_CLUSTER_SCOPED: &str = "default";

/// Maximum length of a note, in bytes.
const MAX_NOTE_LENGTH: usize = 1024;

/// Maximum length of the reporting instance, in bytes.
const MAX_INSTANCE_LENGTH: usize = 128;

/// Maximum length of the object's name within the name of an Event, which may have 253 bytes.
const MAX_NAME_LENGTH: usize = 200;

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information: nothing needs attention.
    Normal,
    /// Something may need attention.
    Warning,
}

impl EventType {
    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The content of an Event, without the object to which it refers.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The type.
    pub type_: EventType,
    /// The reason, for programs: a word in CamelCase with at most 128 bytes.
    pub reason: String,
    /// The action that had this result, in the same form.
    pub action: &'static str,
    /// The text for users. A text of more than 1024 bytes is truncated.
    pub note: String,
    /// Another object that the Event concerns, such as a Secret.
    pub related: Option<ObjectReference>,
}

impl NewEvent {
    /// Returns an Event that needs no attention.
    pub fn normal(reason: impl Into<String>, action: &'static str, note: impl Into<String>) -> Self {
        Self { type_: EventType::Normal, reason: reason.into(), action, note: note.into(), related: None }
    }

    /// Returns an Event that may need attention.
    pub fn warning(reason: impl Into<String>, action: &'static str, note: impl Into<String>) -> Self {
        Self { type_: EventType::Warning, ..Self::normal(reason, action, note) }
    }

    /// Returns the Event with another object that it concerns.
    #[must_use]
    pub fn related_to(self, object: ObjectReference) -> Self {
        Self { related: Some(object), ..self }
    }

    /// Returns the object to create for an Event about `regarding`.
    pub fn object(&self, regarding: &ObjectReference, reporter: &Reporter, now: Timestamp) -> Event {
        let instance = &reporter.instance;
        Event {
            metadata: ObjectMeta {
                name: Some(self.name(regarding)),
                namespace: Some(namespace(regarding).to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            regarding: Some(regarding.clone()),
            related: self.related.clone(),
            type_: Some(self.type_.as_str().to_owned()),
            reason: Some(self.reason.clone()),
            action: Some(self.action.to_owned()),
            note: Some(truncated(&self.note, MAX_NOTE_LENGTH)),
            reporting_controller: Some(reporter.controller.to_owned()),
            reporting_instance: Some(
                instance[..instance.floor_char_boundary(MAX_INSTANCE_LENGTH)].to_owned(),
            ),
            ..Event::default()
        }
    }

    fn name(&self, regarding: &ObjectReference) -> String {
        let related = self.related.as_ref();
        let related = related.map(|object| (&object.kind, &object.namespace, &object.name, &object.uid));
        let mut hasher = DefaultHasher::new();
        (&regarding.kind, &regarding.uid).hash(&mut hasher);
        (self.type_, &self.reason, self.action, &self.note, related).hash(&mut hasher);
        let name = regarding.name.as_deref().unwrap_or_default();
        let short = name[..name.floor_char_boundary(MAX_NAME_LENGTH)]
            .trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
        format!("{short}.{:016x}", hasher.finish())
    }
}

/// The program that reports Events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    /// The name of the program, such as `pinniped-concierge`.
    pub controller: &'static str,
    /// The name of its pod.
    pub instance: String,
}

/// Returns the namespace of an Event about this object.
pub fn namespace(regarding: &ObjectReference) -> &str {
    let namespace = regarding.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    namespace.unwrap_or(NAMESPACE_OF_CLUSTER_SCOPED)
}

/// Returns the merge patch that adds a repetition at `now` to an existing Event.
pub fn repetition(existing: &Event, now: Timestamp) -> serde_json::Value {
    let count = existing.series.as_ref().map_or(1, |series| series.count).saturating_add(1);
    json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regarding(name: &str, namespace: Option<&str>) -> ObjectReference {
        ObjectReference {
            kind: Some("Thing".to_owned()),
            api_version: Some("example.com/v1".to_owned()),
            name: Some(name.to_owned()),
            namespace: namespace.map(str::to_owned),
            uid: Some("u".to_owned()),
            ..ObjectReference::default()
        }
    }

    fn reporter() -> Reporter {
        Reporter { controller: "program", instance: "pod-1".to_owned() }
    }

    #[test]
    fn an_event_has_every_field_that_the_api_requires() {
        let secret = ObjectReference { kind: Some("Secret".to_owned()), ..ObjectReference::default() };
        let new = NewEvent::warning("Bad", "Validate", "it is bad").related_to(secret);
        let event = new.object(&regarding("thing", None), &reporter(), Timestamp::UNIX_EPOCH);
        let mut value = serde_json::to_value(&event).unwrap();
        let name = value["metadata"]["name"].take();
        assert!(name.as_str().unwrap().starts_with("thing."), "{name}");
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": null, "namespace": "default"},
            "action": "Validate", "reason": "Bad", "note": "it is bad", "type": "Warning",
            "eventTime": "1970-01-01T00:00:00.000000Z",
            "regarding": {
                "apiVersion": "example.com/v1", "kind": "Thing", "name": "thing", "uid": "u"
            },
            "related": {"kind": "Secret"},
            "reportingController": "program", "reportingInstance": "pod-1",
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn the_same_content_has_the_same_name_and_other_content_has_another_one() {
        let now = |second| Timestamp::from_second(second).unwrap();
        let name = |new: NewEvent, uid: &str, second| {
            let regarding = ObjectReference { uid: Some(uid.to_owned()), ..regarding("a", Some("ns")) };
            let event = new.object(&regarding, &reporter(), now(second));
            assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
            event.metadata.name.unwrap()
        };
        let first = name(NewEvent::normal("R", "A", "n"), "u", 1);
        assert_eq!(name(NewEvent::normal("R", "A", "n"), "u", 2), first);
        for (other, uid) in [
            (NewEvent::warning("R", "A", "n"), "u"),
            (NewEvent::normal("Q", "A", "n"), "u"),
            (NewEvent::normal("R", "B", "n"), "u"),
            (NewEvent::normal("R", "A", "m"), "u"),
            (NewEvent::normal("R", "A", "n"), "v"),
            (NewEvent::normal("R", "A", "n").related_to(regarding("s", None)), "u"),
        ] {
            assert_ne!(name(other, uid, 1), first);
        }
    }

    #[test]
    fn an_event_respects_the_length_limits() {
        let reporter = Reporter { controller: "program", instance: "p".repeat(253) };
        let new = NewEvent::warning("R", "A", "ä".repeat(2000));
        for name in ["n".repeat(253), format!("{}-.n{}", "n".repeat(198), "n".repeat(30))] {
            let event = new.object(&regarding(&name, None), &reporter, Timestamp::UNIX_EPOCH);
            let name = event.metadata.name.unwrap();
            assert!(name.len() <= 253, "{name}");
            assert!(name.starts_with('n') && name.contains("n."), "{name}");
            assert!(event.note.unwrap().len() <= 1024);
            assert_eq!(event.reporting_instance.unwrap().len(), 128);
        }
    }

    #[test]
    fn a_repetition_is_counted() {
        let mut event = Event::default();
        for count in [2, 3] {
            let patch = repetition(&event, Timestamp::UNIX_EPOCH);
            assert_eq!(patch["series"]["count"], count);
            assert_eq!(patch["series"]["lastObservedTime"], "1970-01-01T00:00:00.000000Z");
            event.series = serde_json::from_value(patch["series"].clone()).unwrap();
        }
    }
}
