//! Log lines: one JSON object a line on stderr, in the key order that users of Pinniped know
//! (`level`, `timestamp`, `logger`, `caller`, `message`, then the event's own fields).
//!
//! Everything that is logged passes through here, libraries included, so nothing reaches stderr in another
//! format. A warning prints as level `info` with `"warning": true`, as upstream's encoder does. Library events
//! (hyper, kube, rustls, ...) show from `warn` on, and in full only at level `all`.
//!
//! A field named `logger` moves to its place in front; a field named `error` moves to the end.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::value;
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// How much is logged. The names are those of the static configuration's `log.level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Warnings and errors only: the level when none is configured.
    #[default]
    Warning,
    /// State changes as well.
    Info,
    /// One line a request as well.
    Debug,
    /// Everything of this program.
    Trace,
    /// Everything, also of the libraries; of these without `trace` in release programs.
    All,
}

impl LogLevel {
    /// Parses the configured value; the empty string means warnings only.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            "all" => Self::All,
            _ => return None,
        })
    }

    fn most_verbose(self) -> Level {
        match self {
            Self::Warning => Level::WARN,
            Self::Info => Level::INFO,
            Self::Debug => Level::DEBUG,
            Self::Trace | Self::All => Level::TRACE,
        }
    }

    fn enables(self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("pinniped");
        // kube's watcher warns at every single attempt of what the controllers name once.
        let limit = match metadata.target() {
            _ if ours || self == Self::All => self.most_verbose(),
            "kube_runtime::watcher" => Level::ERROR,
            _ => Level::WARN,
        };
        level(metadata) <= limit
    }
}

fn level(metadata: &Metadata<'_>) -> Level {
    if metadata.target() == value::TRACE { Level::TRACE } else { *metadata.level() }
}

/// Installs the process's log output. Calling it a second time has no effect.
pub fn init(level: LogLevel) {
    let layer = JsonLines { level, write: write_stderr };
    // Fails only when a subscriber is already there, which tests that start several servers do.
    let _already_installed = tracing_subscriber::registry().with(layer).try_init();
}

fn write_stderr(line: &[u8]) {
    // A closed stderr is no reason to stop serving.
    let _closed = std::io::stderr().lock().write_all(line);
}

struct JsonLines<W> {
    level: LogLevel,
    write: W,
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber,
    W: Fn(&[u8]) + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.level.enables(metadata)
    }

    // Lets what is below it end at one comparison.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level.most_verbose()))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        (self.write)(line(event.metadata(), &fields, Timestamp::now()).as_bytes());
    }
}

/// The event's fields, already encoded, sorted into the places they print in.
#[derive(Default)]
struct Fields {
    message: String,
    logger: Option<String>,
    error: Option<String>,
    rest: String,
}

impl Fields {
    fn put(&mut self, field: &Field, encoded: String) {
        match field.name() {
            "message" => self.message = encoded,
            "logger" => self.logger = Some(encoded),
            "error" => self.error = Some(encoded),
            name => {
                // `r#type` and the like lose their prefix; a dotted name prints as it is.
                let name = name.strip_prefix("r#").unwrap_or(name);
                let _infallible = write!(self.rest, ",{}:{encoded}", string(name));
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, string(&format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // A value built by `json()` is already JSON; everything else is text.
        match value::raw(value) {
            Some(raw) => self.put(field, raw.to_owned()),
            None => self.put(field, string(value)),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, if value.is_finite() { value.to_string() } else { string(&value.to_string()) });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Many errors repeat their source in their own text.
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        self.put(field, string(&text));
    }
}

fn string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".to_owned())
}

fn line(metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
    let (level, warning) = match level(metadata) {
        Level::ERROR => ("error", false),
        Level::WARN => ("info", true),
        Level::INFO => ("info", false),
        Level::DEBUG => ("debug", false),
        Level::TRACE => ("trace", false),
    };
    let mut line = String::with_capacity(256);
    let _infallible = write!(line, "{{\"level\":\"{level}\",\"timestamp\":\"{}\"", timestamp(now));
    if let Some(logger) = &fields.logger {
        let _infallible = write!(line, ",\"logger\":{logger}");
    }
    let _infallible = write!(
        line,
        ",\"caller\":{}",
        string(&format!(
            "{}:{}${}",
            metadata.file().unwrap_or("unknown"),
            metadata.line().unwrap_or(0),
            metadata.module_path().unwrap_or(metadata.target()),
        ))
    );
    let message = if fields.message.is_empty() { "\"\"" } else { &fields.message };
    let _infallible = write!(line, ",\"message\":{message}");
    if warning {
        line.push_str(",\"warning\":true");
    }
    line.push_str(&fields.rest);
    if let Some(error) = &fields.error {
        let _infallible = write!(line, ",\"error\":{error}");
    }
    line.push_str("}\n");
    line
}

/// UTC with exactly six digits of a second, as in every other line that Pinniped writes.
pub fn timestamp(now: Timestamp) -> String {
    format!("{now:.6}")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn captured(level: LogLevel, log: impl FnOnce()) -> Vec<serde_json::Value> {
        raw(level, log).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn raw(level: LogLevel, log: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let write = move |line: &[u8]| sink.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
        let subscriber = tracing_subscriber::registry().with(JsonLines { level, write });
        tracing::subscriber::with_default(subscriber, log);
        lines.lock().unwrap().clone()
    }

    #[test]
    fn keys_come_in_upstreams_order() {
        let lines = raw(LogLevel::Info, || {
            tracing::info!(error = "boom", port = 8444, logger = "some-controller", "starting");
        });
        let positions: Vec<_> = [
            "\"level\"",
            "\"timestamp\"",
            "\"logger\"",
            "\"caller\"",
            "\"message\"",
            "\"port\"",
            "\"error\"",
        ]
        .iter()
        .map(|key| lines[0].find(key).unwrap())
        .collect();
        assert!(positions.is_sorted(), "{}", lines[0]);
        assert!(lines[0].ends_with("}\n"));
    }

    #[test]
    fn a_warning_prints_as_info_with_a_mark() {
        let lines = captured(LogLevel::Warning, || tracing::warn!("look here"));
        assert_eq!(lines[0]["level"], "info");
        assert_eq!(lines[0]["warning"], true);
    }

    #[test]
    fn info_is_silent_when_no_level_is_configured() {
        assert!(captured(LogLevel::Warning, || tracing::info!("quiet")).is_empty());
    }

    #[test]
    fn library_events_below_warning_show_only_at_all() {
        let log = || tracing::info!(target: "hyper::proto", "frame");
        assert!(captured(LogLevel::Trace, log).is_empty());
        assert_eq!(captured(LogLevel::All, log).len(), 1);
    }

    #[test]
    fn an_event_of_level_trace_shows_as_one_and_not_at_debug() {
        let log = || tracing::debug!(target: value::TRACE, "deep down");
        assert!(captured(LogLevel::Debug, log).is_empty());
        for level in [LogLevel::Trace, LogLevel::All] {
            let lines = captured(level, log);
            assert_eq!(lines.len(), 1);
            assert_eq!(lines[0]["level"], "trace");
        }
    }

    #[test]
    fn the_watcher_of_kube_does_not_repeat_what_is_named_once() {
        let log = || tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403");
        assert!(captured(LogLevel::Trace, log).is_empty());
        assert_eq!(captured(LogLevel::All, log).len(), 1);
    }

    #[test]
    fn structured_values_print_as_json() {
        let lines = captured(LogLevel::Info, || {
            tracing::info!(
                service = value::json(&serde_json::json!({"name": "a", "namespace": "b"})),
                "creating"
            );
        });
        assert_eq!(lines[0]["service"]["namespace"], "b");
    }

    #[test]
    fn a_text_that_pretends_to_be_json_stays_a_text() {
        let forged = "\0json:\"\"}\n{\"level\":\"error\"";
        let lines = captured(LogLevel::Info, || tracing::info!(text = forged, "seen"));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["text"], forged);
    }

    #[test]
    fn timestamps_have_microseconds_in_utc() {
        let time: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(timestamp(time), "2026-01-02T03:04:05.000000Z");
    }

    #[test]
    fn a_line_break_in_a_value_does_not_break_the_line() {
        let lines = raw(LogLevel::Info, || tracing::info!(text = "a\nb", "two\nlines"));
        assert_eq!(lines[0].matches('\n').count(), 1);
    }
}
