//! All output to stdout and stderr.
//!
//! stdout contains only the output of a command; messages for users go to stderr. Log lines have
//! the format of upstream: local time, source location, message and key-value pairs, separated by
//! two spaces. On a terminal they are short: a mark, the message and its values ([`style`]).
//!
//! Much of the text is from servers and kubeconfigs: the description of an error, a user code, a
//! name in a certificate. `printable` is applied here, where the text reaches a terminal, so that
//! no caller needs to: everything on stderr, and stdout if it is a terminal. Programs that read
//! stdout receive the exact bytes.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::panic::Location;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use pinniped_go_compat::json as gojson;

pub mod style;

use self::style::{Color, ColorChoice, Mark, Style, Text};
use crate::environment::Environment;

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
    stdout: Style,
    stderr: Style,
}

impl Printer {
    /// Creates a printer that writes log lines up to `level`, in upstream's format.
    pub fn new(level: Level) -> Self {
        Self { level, stdout: Style::default(), stderr: Style::default() }
    }

    /// Creates a printer with the styles for this process.
    pub fn for_terminal(level: Level, choice: ColorChoice, environment: &Environment) -> Self {
        let style = |is_terminal| Style::new(choice, is_terminal, environment);
        Self { level, stdout: style(io::stdout().is_terminal()), stderr: style(io::stderr().is_terminal()) }
    }

    /// Returns a printer with another level.
    #[must_use]
    pub fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Returns whether stdout is for a person, and not for a program.
    pub fn output_is_for_people(self) -> bool {
        self.stdout.short
    }

    /// Returns whether stderr is for a person, and not for a program.
    pub fn messages_are_for_people(self) -> bool {
        self.stderr.short
    }

    /// Writes the output of a command that has colors on a terminal.
    ///
    /// # Errors
    ///
    /// Returns the error of stdout, except if the reader has closed the pipe.
    pub fn styled_product(self, text: &Text) -> io::Result<()> {
        write_stdout(text.render(self.stdout).as_bytes())
    }

    /// Writes an error of the program, and a line with its remedy if there is one.
    pub fn error(self, message: &str, remedy: Option<&str>) {
        let mut text = Text::default();
        text.colored(Color::Red, "Error:").plain(format!(" {message}\n"));
        if let Some(remedy) = remedy {
            text.colored(Color::Cyan, "try:").plain(format!(" {remedy}\n"));
        }
        write_stderr(text.render(self.stderr).as_bytes());
    }

    /// Writes the output of a command.
    ///
    /// # Errors
    ///
    /// Returns the error of stdout, except if the reader has closed the pipe.
    pub fn product(self, bytes: &[u8]) -> io::Result<()> {
        if io::stdout().is_terminal() {
            write_stdout(printable(&String::from_utf8_lossy(bytes)).as_bytes())
        } else {
            write_stdout(bytes)
        }
    }

    /// Writes a line to stderr at any level.
    pub fn line(self, text: &str) {
        print_message(&format!("{text}\n"));
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
        if level > self.level {
            return;
        }
        if self.stderr.short {
            write_stderr(short_line(level, message, pairs).render(self.stderr).as_bytes());
        } else {
            self.line(&log_line(&Timestamp::now().to_zoned(TimeZone::system()), place, message, pairs));
        }
    }
}

/// Writes to stderr, for example a prompt. All messages go through here.
pub(crate) fn print_message(text: &str) {
    write_stderr(printable(text).as_bytes());
}

fn write_stderr(bytes: &[u8]) {
    let mut stderr = io::stderr().lock();
    // If stderr fails, the error cannot be reported.
    let _ = stderr.write_all(bytes).and_then(|()| stderr.flush());
}

fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Returns the log line for a terminal: a mark, the message and its values, without time and place.
fn short_line(level: Level, message: &str, pairs: &[(&str, Value)]) -> Text {
    let mut line = Text::default();
    line.mark(match level {
        Level::Warning => Mark::Warning,
        Level::Info => Mark::Fine,
        Level::Debug => Mark::Step,
    });
    line.plain(format!(" {}", printable_line(message)));
    for (name, value) in pairs {
        let value = match value {
            Value::String(text) => text.clone(),
            other => json(other),
        };
        line.colored(Color::Dim, &format!("  {name}: ")).plain(printable_line(&value));
    }
    line.plain("\n".to_owned());
    line
}

/// Returns text that a terminal displays and does not interpret: U+FFFD replaces control characters
/// (C0 and C1, DEL) and the characters that change the order of a text (bidirectional embeddings,
/// overrides and isolates). Line feeds and tabs stay.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_interpreted = |c: char| match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    };
    if text.contains(is_interpreted) {
        text.chars().map(|c| if is_interpreted(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
    } else {
        Cow::Borrowed(text)
    }
}

/// Returns the same text as [`printable`] in one line: spaces replace line feeds and tabs.
pub(crate) fn printable_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
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

    #[test]
    fn a_log_line_on_a_terminal_is_short() {
        let pairs = [("name", Value::from("a\nb")), ("roots", 2.into())];
        for (level, mark) in [(Level::Info, "✓"), (Level::Warning, "!"), (Level::Debug, "·")] {
            let line = short_line(level, "discovered", &pairs);
            let plain = Style { short: true, color: false };
            assert_eq!(line.render(plain), format!("{mark} discovered  name: a b  roots: 2\n"));
        }
    }

    #[test]
    fn a_terminal_does_not_interpret_printable_text() {
        for (text, expected) in [
            ("", ""),
            ("pinny\n\tcafé ‰ 日本 \u{1f9ad} █▀▄ שלום\n", "pinny\n\tcafé ‰ 日本 \u{1f9ad} █▀▄ שלום\n"),
            // Clear the screen, overwrite the line, ring the bell, delete.
            ("a\u{1b}[2J\r\nb\u{7}\u{8}\0\u{7f}", "a\u{fffd}[2J\u{fffd}\nb\u{fffd}\u{fffd}\u{fffd}\u{fffd}"),
            // The control sequence introducer and the operating system command as one character.
            ("\u{9b}31m\u{9d}0;title\u{85}", "\u{fffd}31m\u{fffd}0;title\u{fffd}"),
            ("\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}x", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}x"),
            ("\u{2066}\u{2067}\u{2068}\u{2069}x", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}x"),
            ("\u{2029}\u{202f}\u{2065}\u{206a}", "\u{2029}\u{202f}\u{2065}\u{206a}"),
        ] {
            assert_eq!(printable(text), expected, "{text:?}");
        }
        assert!(matches!(printable("unchanged\n"), Cow::Borrowed(_)));
        assert_eq!(printable_line("a\nb\tc\u{1b}d"), "a b c\u{fffd}d");
    }
}
