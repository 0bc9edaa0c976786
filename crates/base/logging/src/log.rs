//! Log lines on stderr: one JSON object or one line of text for each event.
//!
//! In JSON, the keys have upstream's order (`level`, `timestamp`, `logger`, `caller`, `message`,
//! then the event's own fields). A warning has level `info` and `"warning": true`, as in upstream's
//! encoder. [`LogFormat::Text`] is for people who read the log without a tool, and for programs
//! that read logfmt.
//!
//! All log events use this module, including those of libraries, so no other format appears on
//! stderr. Events of libraries (hyper, rustls, ...) are logged from `warn` on, and all of them only
//! at level `all`.
//!
//! A field named `logger` moves to the front; a field named `error` moves to the end. Long texts
//! are cut, see [`crate::truncate`].

use std::fmt::Write as _;
use std::io::Write as _;

use crate::{truncate, value};
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

/// The log level. The names are those of the static configuration's `log.level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only warnings, errors and events of the target [`value::ALWAYS`]: the default.
    #[default]
    Warning,
    /// Also state changes.
    Info,
    /// Also one line per request.
    Debug,
    /// All events of this program.
    Trace,
    /// All events, including those of libraries; in release builds without the `trace` events of
    /// libraries.
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

    /// Returns the configured value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
            Self::All => "all",
        }
    }

    fn most_verbose(self) -> Level {
        match self {
            Self::Warning => Level::WARN,
            Self::Info => Level::INFO,
            Self::Debug => Level::DEBUG,
            Self::Trace | Self::All => Level::TRACE,
        }
    }

    fn enables(self, metadata: &Metadata<'_>, targets: LogTargets) -> bool {
        let target = metadata.target();
        if target == value::ALWAYS {
            return true;
        }
        let is_own = target == value::TRACE || target.starts_with(targets.own);
        let limit = if is_own || self == Self::All {
            self.most_verbose()
        } else if targets.errors_only.contains(&target) {
            Level::ERROR
        } else {
            Level::WARN
        };
        level(metadata) <= limit
    }
}

/// The format of log lines. The names are those of the static configuration's `log.format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object with the keys of upstream: the default.
    #[default]
    Json,
    /// Pairs `key=value`: `time`, `level` and `msg`, then the event's own fields. A value with
    /// characters other than visible ASCII, or with `"`, `=` or `\`, is a JSON text, so that each
    /// value can be read back. A line has no `caller`.
    Text,
}

impl LogFormat {
    /// Parses the configured value; the empty string means JSON.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" | "json" => Self::Json,
            "text" => Self::Text,
            _ => return None,
        })
    }

    /// Returns the configured value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Text => "text",
        }
    }
}

/// The targets of events that are logged differently from those of other libraries. The target of
/// an event is the path of its module unless the event names another one.
#[derive(Clone, Copy, Debug)]
pub struct LogTargets {
    /// The first letters of the targets of the program itself.
    pub own: &'static str,
    /// Targets of libraries that log a warning for a failure that the program itself reports: only
    /// their errors are logged.
    pub errors_only: &'static [&'static str],
    /// The first letters of the targets of events that other programs read: they are JSON in each
    /// format.
    pub always_json: &'static [&'static str],
}

impl LogTargets {
    fn format(self, configured: LogFormat, metadata: &Metadata<'_>) -> LogFormat {
        let is_json = self.always_json.iter().any(|target| metadata.target().starts_with(target));
        if is_json { LogFormat::Json } else { configured }
    }
}

fn level(metadata: &Metadata<'_>) -> Level {
    if metadata.target() == value::TRACE { Level::TRACE } else { *metadata.level() }
}

/// Installs the log output of the process, and returns its level, which can be changed. A second
/// call has no effect, and the level that it returns has none either.
///
/// ```
/// use pinniped_logging::log::{self, LogFormat, LogLevel, LogTargets};
///
/// let targets = LogTargets {
///     own: "my_program",
///     errors_only: &["chatty_library::retry"],
///     always_json: &[],
/// };
/// let level = log::init(LogLevel::Info, LogFormat::Json, targets);
/// level.set(LogLevel::Debug);
/// ```
pub fn init(level: LogLevel, format: LogFormat, targets: LogTargets) -> InstalledLevel {
    let (layer, handle) =
        reload::Layer::new(Lines { level, format, targets, write: write_stderr as WriteLine });
    // Fails only when a subscriber is already installed, which happens in tests that start several
    // servers.
    let _already_installed = tracing_subscriber::registry().with(layer).try_init();
    InstalledLevel(handle)
}

type WriteLine = fn(&[u8]);

/// The level of the installed log output. Clones share it.
#[derive(Clone, Debug)]
pub struct InstalledLevel(reload::Handle<Lines<WriteLine>, Registry>);

impl InstalledLevel {
    /// Changes the level of all events from now on.
    pub fn set(&self, level: LogLevel) {
        // Fails only for an output that was not installed.
        let _not_installed = self.0.modify(|output| output.level = level);
    }
}

fn write_stderr(line: &[u8]) {
    // A closed stderr is no reason to stop serving.
    let _closed = std::io::stderr().lock().write_all(line);
}

#[derive(Debug)]
struct Lines<W> {
    level: LogLevel,
    format: LogFormat,
    targets: LogTargets,
    write: W,
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber,
    W: Fn(&[u8]) + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.level.enables(metadata, self.targets)
    }

    // Lets `tracing` discard events below this level with one comparison. Events of the target
    // `ALWAYS` have the level `info`.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level.most_verbose().max(Level::INFO)))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let format = self.targets.format(self.format, event.metadata());
        let mut fields = Fields { format, ..Fields::default() };
        event.record(&mut fields);
        let now = Timestamp::now();
        let line = match format {
            LogFormat::Json => json_line(event.metadata(), &fields, now),
            LogFormat::Text => text_line(event.metadata(), &fields, now),
        };
        (self.write)(line.as_bytes());
    }
}

/// The encoded fields of an event, grouped by their position in the line.
#[derive(Default)]
struct Fields {
    format: LogFormat,
    message: String,
    logger: Option<String>,
    error: Option<String>,
    rest: String,
}

impl Fields {
    /// Stores a value that is encoded as JSON.
    fn put(&mut self, field: &Field, json: String) {
        let encoded = match self.format {
            LogFormat::Json => json,
            LogFormat::Text => text_value(json),
        };
        match field.name() {
            "message" => self.message = encoded,
            "logger" => self.logger = Some(encoded),
            "error" => self.error = Some(encoded),
            name => {
                // `r#type` and similar names lose their prefix; a dotted name stays the same.
                let name = name.strip_prefix("r#").unwrap_or(name);
                let _infallible = match self.format {
                    LogFormat::Json => write!(self.rest, ",{}:{encoded}", string(name)),
                    LogFormat::Text => write!(self.rest, " {name}={encoded}"),
                };
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, string(&format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // A value from `json()` is already JSON; everything else is text.
        match value::raw(value) {
            Some(raw) if raw.len() <= truncate::MAX_LIST_BYTES => self.put(field, raw.to_owned()),
            // JSON that is cut is a text.
            Some(raw) => self.put(field, string(raw)),
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
        self.put(field, string(&pinniped_error::chain(value).to_string()));
    }
}

fn string(text: &str) -> String {
    serde_json::to_string(&truncate::truncated(text)).unwrap_or_else(|_| "\"\"".to_owned())
}

/// Returns the text for a value that is encoded as JSON: a text without its quotation marks if it
/// is readable without them.
fn text_value(json: String) -> String {
    let is_bare = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '=');
    match json.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) if !inner.is_empty() && inner.chars().all(is_bare) => inner.to_owned(),
        Some(_) => visible(json),
        None if json.chars().all(is_bare) => json,
        // A list or an object.
        None => visible(string(&json)),
    }
}

/// Escapes the characters of a JSON text that a terminal would interpret, and that JSON allows:
/// control characters behind ASCII, and marks that change the direction of the text.
fn visible(json: String) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !json.contains(is_hidden) {
        return json;
    }
    json.chars().fold(String::with_capacity(json.len() + 16), |mut text, c| {
        if is_hidden(c) {
            let _infallible = write!(text, "\\u{:04x}", u32::from(c));
        } else {
            text.push(c);
        }
        text
    })
}

fn text_line(metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
    let mut line = String::with_capacity(256);
    let message = if fields.message.is_empty() { "\"\"" } else { &fields.message };
    let _infallible = write!(line, "time={} level={} msg={message}", timestamp(now), level(metadata));
    if let Some(logger) = &fields.logger {
        let _infallible = write!(line, " logger={logger}");
    }
    line.push_str(&fields.rest);
    if let Some(error) = &fields.error {
        let _infallible = write!(line, " error={error}");
    }
    line.push('\n');
    line
}

fn json_line(metadata: &Metadata<'_>, fields: &Fields, now: Timestamp) -> String {
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

/// Formats a time in UTC with exactly six digits of a second, as in all log lines of upstream.
pub fn timestamp(now: Timestamp) -> String {
    format!("{now:.6}")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const TARGETS: LogTargets = LogTargets {
        own: env!("CARGO_CRATE_NAME"),
        errors_only: &["library::watcher"],
        always_json: &["pinniped_logging::read_by_programs"],
    };

    fn captured(level: LogLevel, log: impl FnOnce()) -> Vec<serde_json::Value> {
        raw(level, log).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn raw(level: LogLevel, log: impl FnOnce()) -> Vec<String> {
        formatted(level, LogFormat::Json, log)
    }

    fn formatted(level: LogLevel, format: LogFormat, log: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let write = move |line: &[u8]| sink.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
        let subscriber =
            tracing_subscriber::registry().with(Lines { level, format, targets: TARGETS, write });
        tracing::subscriber::with_default(subscriber, log);
        lines.lock().unwrap().clone()
    }

    #[test]
    fn keys_have_upstreams_order() {
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
    fn a_warning_has_level_info_and_a_warning_field() {
        let lines = captured(LogLevel::Warning, || tracing::warn!("look here"));
        assert_eq!(lines[0]["level"], "info");
        assert_eq!(lines[0]["warning"], true);
    }

    #[test]
    fn a_changed_level_applies_to_events_that_were_not_logged_before() {
        let lines = Arc::new(Mutex::new(0));
        let sink = Arc::clone(&lines);
        let write = move |_: &[u8]| *sink.lock().unwrap() += 1;
        let (level, format) = (LogLevel::Warning, LogFormat::Json);
        let (layer, handle) = reload::Layer::new(Lines { level, format, targets: TARGETS, write });
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for (level, logged) in [(LogLevel::Warning, 0), (LogLevel::Debug, 1), (LogLevel::Info, 1)] {
                handle.modify(|output| output.level = level).unwrap();
                tracing::debug!("one event");
                assert_eq!(*lines.lock().unwrap(), logged, "{level:?}");
            }
        });
    }

    fn text(log: impl FnOnce()) -> String {
        formatted(LogLevel::All, LogFormat::Text, log).concat()
    }

    /// Reads a line of text back.
    fn pairs(line: &str) -> Vec<(String, String)> {
        let mut rest = line.strip_suffix('\n').unwrap();
        let mut pairs = Vec::new();
        while !rest.is_empty() {
            let (key, from_value) = rest.split_once('=').unwrap();
            let (value, next) = if from_value.starts_with('"') {
                let mut values = serde_json::Deserializer::from_str(from_value).into_iter::<String>();
                let value = values.next().unwrap().unwrap();
                (value, &from_value[values.byte_offset()..])
            } else {
                let end = from_value.find(' ').unwrap_or(from_value.len());
                (from_value[..end].to_owned(), &from_value[end..])
            };
            pairs.push((key.to_owned(), value));
            rest = next.strip_prefix(' ').unwrap_or(next);
        }
        pairs
    }

    #[test]
    fn a_line_of_text_has_time_level_and_message_first_and_the_error_last() {
        let line = text(|| {
            tracing::warn!(error = "no such host", port = 8444, address = "[::1]:443", "could not connect");
        });
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.strip_prefix("time=").unwrap().parse::<Timestamp>().is_ok(), "{line}");
        assert_eq!(
            rest,
            "level=WARN msg=\"could not connect\" port=8444 address=[::1]:443 error=\"no such host\"\n"
        );
    }

    #[test]
    fn each_value_of_a_line_of_text_can_be_read_back() {
        let values = [
            "",
            " ",
            "plain",
            "a b",
            "a=b",
            "\"",
            "\\",
            "a\nlevel=ERROR msg=forged",
            "\u{1b}[31m",
            "\u{9b}31m",
            "\u{202e}abc",
            "\u{2028}",
            "\u{061c}abc",
            "\u{200e}abc\u{200f}",
            "\u{2066}abc\u{2069}",
            "é",
            "{\"a\":1}",
            "true",
            "\0json:[1]",
            "\u{7f}",
            "\u{10ffff}",
        ];
        for value in values {
            let line =
                text(|| tracing::info!(logger = value, error = value, value, path = %value, "{value}"));
            let read = pairs(&line);
            let keys: Vec<_> = read.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys, ["time", "level", "msg", "logger", "value", "path", "error"], "{line}");
            assert!(read[2..].iter().all(|(_, read)| read == value), "{value:?}: {line}");
            let marks = "\u{061c}\u{200e}\u{200f}\u{2028}\u{202e}\u{2066}\u{2069}";
            let is_plain = |c: char| !c.is_control() && !marks.contains(c);
            assert!(line.strip_suffix('\n').unwrap().chars().all(is_plain), "{line:?}");
        }
    }

    #[test]
    fn lists_and_objects_of_a_line_of_text_are_json_in_a_text() {
        let service = serde_json::json!({"name": "a", "ports": [1, 2]});
        let line = text(|| tracing::info!(service = value::json(&service), count = 3, ok = true, "m"));
        let read = pairs(&line);
        let of = |key: &str| read.iter().find(|(found, _)| found == key).unwrap().1.as_str();
        assert_eq!(serde_json::from_str::<serde_json::Value>(of("service")).unwrap(), service);
        assert_eq!((of("count"), of("ok"), of("msg")), ("3", "true", "m"));
    }

    #[test]
    fn events_that_programs_read_are_json_in_each_format() {
        let line = text(|| tracing::info!(target: "pinniped_logging::read_by_programs::a", "m"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap()["message"], "m");
    }

    #[test]
    fn info_is_not_logged_when_no_level_is_configured() {
        assert!(captured(LogLevel::Warning, || tracing::info!("quiet")).is_empty());
    }

    #[test]
    fn events_of_the_target_always_are_logged_at_every_level() {
        for level in [LogLevel::Warning, LogLevel::Info, LogLevel::Debug, LogLevel::Trace, LogLevel::All] {
            let lines = captured(level, || tracing::info!(target: value::ALWAYS, "started"));
            assert_eq!(lines.len(), 1, "{level:?}");
            assert_eq!((&lines[0]["level"], &lines[0]["message"]), (&"info".into(), &"started".into()));
            assert!(lines[0].get("warning").is_none() && lines[0].get("target").is_none());
        }
    }

    #[test]
    fn library_events_below_warning_are_logged_only_at_level_all() {
        let log = || tracing::info!(target: "hyper::proto", "frame");
        assert!(captured(LogLevel::Trace, log).is_empty());
        assert_eq!(captured(LogLevel::All, log).len(), 1);
    }

    #[test]
    fn a_trace_event_has_level_trace_and_is_not_logged_at_debug() {
        let log = || tracing::debug!(target: value::TRACE, "deep down");
        assert!(captured(LogLevel::Debug, log).is_empty());
        for level in [LogLevel::Trace, LogLevel::All] {
            let lines = captured(level, log);
            assert_eq!(lines.len(), 1);
            assert_eq!(lines[0]["level"], "trace");
        }
    }

    #[test]
    fn warnings_of_a_library_that_repeats_them_are_not_logged() {
        let log = || tracing::warn!(target: "library::watcher", "watch list error with 403");
        assert!(captured(LogLevel::Trace, log).is_empty());
        assert_eq!(captured(LogLevel::All, log).len(), 1);
    }

    #[test]
    fn structured_values_are_printed_as_json() {
        let lines = captured(LogLevel::Info, || {
            tracing::info!(
                service = value::json(&serde_json::json!({"name": "a", "namespace": "b"})),
                "creating"
            );
        });
        assert_eq!(lines[0]["service"]["namespace"], "b");
    }

    #[test]
    fn a_text_that_imitates_a_json_value_stays_a_text() {
        let forged = "\0json:\"\"}\n{\"level\":\"error\"";
        let lines = captured(LogLevel::Info, || tracing::info!(text = forged, "seen"));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["text"], forged);
    }

    #[test]
    fn long_texts_and_values_are_cut() {
        let long = "a".repeat(1 << 20);
        let lines = raw(LogLevel::Info, || {
            let values = value::json(&[&long]);
            tracing::info!(error = long, path = %long, names = values, "{long}");
        });
        assert!(lines[0].len() < 5 * truncate::MAX_TEXT_BYTES, "{} bytes", lines[0].len());
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        for key in ["message", "path", "names", "error"] {
            let text = line[key].as_str().unwrap();
            assert!(text.contains("aaaa") && text.ends_with(" bytes]"), "{key}");
        }
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
