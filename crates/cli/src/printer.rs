//! All output to stdout and stderr.
//!
//! stdout contains only the output of a command; messages for users go to stderr. Log lines have
//! the format of upstream: local time, source location, message and key-value pairs, separated by
//! two spaces.

use std::io::{self, Write};
use std::panic::Location;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use pinniped_go_compat::json as gojson;

/// The lowest severity of log lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Warnings and errors.
    Warning,
    /// Information about progress.
    Info,
    /// Every step.
    Debug,
}

/// Writes output and messages.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    level: Level,
}

impl Printer {
    /// Creates a printer that writes log lines up to `level`.
    pub fn new(level: Level) -> Self {
        Self { level }
    }

    /// Returns a printer with another level.
    #[must_use]
    pub fn at(self, level: Level) -> Self {
        Self { level }
    }

    /// Writes the output of a command.
    ///
    /// # Errors
    ///
    /// Returns the error of stdout, except if the reader has closed the pipe.
    pub fn product(self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    /// Writes a line to stderr at any level.
    pub fn line(self, text: &str) {
        // If stderr fails, the error cannot be reported.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Logs a problem that does not prevent the result.
    #[track_caller]
    pub fn warn(self, message: &str, pairs: &[(&str, Value)]) {
        self.log(Level::Warning, message, pairs, Location::caller());
    }

    /// Logs information about progress.
    #[track_caller]
    pub fn info(self, message: &str, pairs: &[(&str, Value)]) {
        self.log(Level::Info, message, pairs, Location::caller());
    }

    /// Logs a step.
    #[track_caller]
    pub fn debug(self, message: &str, pairs: &[(&str, Value)]) {
        self.log(Level::Debug, message, pairs, Location::caller());
    }

    fn log(self, level: Level, message: &str, pairs: &[(&str, Value)], place: &Location<'_>) {
        if level <= self.level {
            self.line(&log_line(&Timestamp::now().to_zoned(TimeZone::system()), place, message, pairs));
        }
    }
}

fn log_line(now: &Zoned, place: &Location<'_>, message: &str, pairs: &[(&str, Value)]) -> String {
    let mut parts = place.file().rsplit(['/', '\\']);
    let file = parts.next().unwrap_or_default();
    let dir = parts.next().unwrap_or_default();
    let time = now.strftime("%a, %d %b %Y %H:%M:%S %Z");
    let mut line = format!("{time}  {dir}/{file}:{}  {message}", place.line());
    if !pairs.is_empty() {
        let pairs: Vec<String> =
            pairs.iter().map(|(key, value)| format!("{}: {}", json(key), json(value))).collect();
        line.push_str(&format!("  {{{}}}", pairs.join(", ")));
    }
    line
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    gojson::to_string(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_time_location_message_and_pairs() {
        let now: Zoned = "2026-11-21T07:59:08[UTC]".parse().unwrap();
        let place = Location::caller();
        assert_eq!(
            log_line(&now, place, "discovered CredentialIssuer", &[("name", "x".into()), ("n", 2.into())]),
            format!(
                "Sat, 21 Nov 2026 07:59:08 UTC  src/printer.rs:{}  discovered CredentialIssuer  {{\"name\": \"x\", \"n\": 2}}",
                place.line()
            )
        );
        assert!(log_line(&now, place, "no pairs", &[]).ends_with("  no pairs"));
    }
}
