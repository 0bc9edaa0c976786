//! Kubernetes Events: what they look like, whatever they are about.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pinniped_kube_types::condition::wire_time;

/// The API server takes no longer message in the newer of its two kinds of Events.
const LONGEST_MESSAGE: usize = 1024;

/// What a warning is about and from whom it comes.
pub struct Warning<'a> {
    /// Name and namespace of the Event.
    pub metadata: ObjectMeta,
    /// The object that the Event is about.
    pub about: ObjectReference,
    /// The component that reports it.
    pub component: &'a str,
    /// A word for programs.
    pub reason: &'a str,
    /// Cut where it is too long.
    pub message: &'a str,
}

/// A warning Event.
pub fn warning(warning: Warning<'_>, now: Timestamp) -> Event {
    let Warning { metadata, about, component, reason, message } = warning;
    let Time(now) = wire_time(now);
    Event {
        metadata,
        involved_object: about,
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(shortened(message, LONGEST_MESSAGE)),
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

/// The text, or as much of it as goes into `most` bytes.
pub fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(most - '…'.len_utf8());
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_end_at_a_character() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened(&"ä".repeat(600), 1024).len(), 1023);
        assert!(shortened(&"ä".repeat(600), 1024).ends_with("ä…"));
    }
}
