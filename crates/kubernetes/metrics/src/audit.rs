//! Metrics of the audit log of requests.

use pinniped_metrics::{Definition, Label, LabelValue};

/// Values of the label `backend`. The order is that of `Backend` in the crate `kube-audit`.
pub const BACKENDS: &[LabelValue] = &[("log", "The file, or standard output"), ("webhook", "The webhook")];

/// Values of the label `reason`. The order is that of `Loss` in the crate `kube-audit`.
pub const LOSSES: &[LabelValue] = &[
    (
        "buffer_full",
        "The backend was slower than the requests, or it failed for so long that the buffer was full",
    ),
    (
        "failed",
        "The backend failed: for example, the disk is full, or the webhook did not accept the events in \
         five attempts",
    ),
    ("shutdown", "The program stopped before the backend had received the events"),
];

/// Values of the label `reason`. The order is that of `Omission` in the crate `kube-audit`.
pub const OMISSIONS: &[LabelValue] = &[
    ("too_large", "The body is larger than `audit.proxiedRequests.maxBodyBytes`"),
    ("encoding", "The body is not JSON, is JSON with more than 60 levels, or is compressed"),
    ("budget", "The bodies of other requests at the same time used up the memory for them"),
    ("incomplete", "The body was not transferred completely"),
    ("secret", "The body contains a credential"),
];

/// Bodies that events do not have.
pub static BODIES_OMITTED: Definition = Definition::counter(
    "pinniped_audit_bodies_omitted",
    "Bodies of requests and responses that a policy requires and that events do not have",
)
.by(&[Label::of("reason", OMISSIONS)])
.present("proxied requests are audited");

/// Events that a backend has received.
pub static EVENTS: Definition =
    Definition::counter("pinniped_audit_events", "Audit events that a backend has received")
        .by(&[Label::of("backend", BACKENDS)])
        .present("proxied requests are audited");

/// Events that a backend has not received.
pub static EVENTS_LOST: Definition =
    Definition::counter("pinniped_audit_events_lost", "Audit events that a backend has not received")
        .by(&[Label::of("backend", BACKENDS), Label::of("reason", LOSSES)])
        .present("proxied requests are audited");

/// The definitions of this module.
pub const ALL: &[&Definition] = &[&EVENTS, &EVENTS_LOST, &BODIES_OMITTED];
