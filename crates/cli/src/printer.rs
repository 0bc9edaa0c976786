//! The only door to stdout and stderr.
//!
//! stdout carries the product and nothing else; everything for the reader's eyes goes to stderr. Log lines have
//! the form that this program's users know: local time, place, message, pairs, two spaces between the parts.

use std::io::{self, Write};
use std::panic::Location;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use pinniped_go_compat::json as gojson;

/// Which log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Warnings and errors.
    Warning,
    /// What is going on.
    Info,
    /// Every step.
    Debug,
}

/// Writes for people and for programs.
#[derive(Clone, Copy, Debug)]
pub struct Printer {
    level: Level,
}

impl Printer {
    /// A printer that writes log lines up to `level`.
    pub fn new(level: Level) -> Self {
        Self { level }
    }

    /// The same with another level.
    #[must_use]
    pub fn at(self, level: Level) -> Self {
        Self { level }
    }

    /// Writes the product.
    ///
    /// # Errors
    ///
    /// What writing to stdout says; a reader that went away is no error.
    pub fn product(self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    /// Writes a line to stderr, whatever the level.
    pub fn line(self, text: &str) {
        // There is no better place left to complain to.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// What is going on.
    #[track_caller]
    pub fn info(self, message: &str, pairs: &[(&str, Value)]) {
        self.log(Level::Info, message, pairs, Location::caller());
    }

    /// A step.
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
    fn a_log_line_has_time_place_message_and_pairs() {
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
