//! Log events of a test, with their fields.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    /// Its level.
    pub level: Level,
    /// Its fields, and its text as the field `message`.
    pub fields: BTreeMap<String, String>,
}

impl LogEvent {
    /// Returns the value of a field, or an empty string if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// The log events of the thread that created it, until it is dropped.
///
/// A test whose runtime has one thread (`#[tokio::test]`) gets all of its events, and none of other
/// tests.
pub struct LogEvents {
    recorder: Recorder,
    _default: tracing::subscriber::DefaultGuard,
    /// With a single subscriber, tracing caches the interest of the thread that reaches a callsite
    /// first, which may be a thread of another test without a subscriber. With two subscribers it
    /// queries each of them.
    _second: Dispatch,
}

impl LogEvents {
    /// Records events whose target begins with one of `targets`, of this level and more severe
    /// ones.
    pub fn record(targets: &'static [&'static str], level: Level) -> Self {
        let recorder = Recorder { targets, level, events: Arc::default() };
        let _second = Dispatch::new(recorder.clone());
        let _default = tracing::subscriber::set_default(recorder.clone());
        Self { recorder, _default, _second }
    }

    /// Returns the events, oldest first, since the last [`clear`](Self::clear).
    pub fn all(&self) -> Vec<LogEvent> {
        self.recorder.events().clone()
    }

    /// Forgets the events.
    pub fn clear(&self) {
        self.recorder.events().clear();
    }
}

#[derive(Clone)]
struct Recorder {
    targets: &'static [&'static str],
    level: Level,
    events: Arc<Mutex<Vec<LogEvent>>>,
}

impl Recorder {
    fn events(&self) -> MutexGuard<'_, Vec<LogEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
            && self.targets.iter().any(|target| metadata.target().starts_with(target))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.events().push(LogEvent { level: *event.metadata().level(), fields: fields.0 });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
