//! Kubernetes Events, independent of the reporting component.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pinniped_kube_types::condition::wire_time;
use pinniped_kube_types::text::truncated;

/// Maximum message length in the newer of the two Event APIs, in bytes.
const MAX_MESSAGE_LENGTH: usize = 1024;

/// The object, the reporter and the text of a warning.
pub struct Warning<'a> {
    /// Name and namespace of the Event.
    pub metadata: ObjectMeta,
    /// The object to which the Event refers.
    pub about: ObjectReference,
    /// The component that reports it.
    pub component: &'a str,
    /// The reason, for programs.
    pub reason: &'a str,
    /// The message, truncated if it is too long.
    pub message: &'a str,
}

/// Returns a warning Event.
pub fn warning(warning: Warning<'_>, now: Timestamp) -> Event {
    let Warning { metadata, about, component, reason, message } = warning;
    let Time(now) = wire_time(now);
    Event {
        metadata,
        involved_object: about,
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(truncated(message, MAX_MESSAGE_LENGTH)),
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
