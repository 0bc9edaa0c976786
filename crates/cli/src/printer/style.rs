//! Colors and marks of texts for a terminal.

use std::borrow::Cow;

use super::printable;
use crate::environment::Environment;
use crate::platform;

/// Disables colors if it is set and not empty (<https://no-color.org>).
const NO_COLOR: &str = "NO_COLOR";
/// The value `dumb` names a terminal without colors.
const TERM: &str = "TERM";

/// The value of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorChoice {
    /// Colors on a terminal, unless the environment disables them.
    #[default]
    Auto,
    /// Colors and the texts for a terminal, also in files and pipes.
    Always,
    /// No colors.
    Never,
}

impl ColorChoice {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// Returns the value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// The form of a text for one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether a person reads the text: short lines with marks.
    pub short: bool,
    /// Whether there are colors.
    pub color: bool,
}

impl Style {
    /// Returns the style for an output.
    pub fn new(choice: ColorChoice, is_terminal: bool, environment: &Environment) -> Self {
        let known = environment.non_empty(TERM).map_or(!platform::TERMINALS_SET_TERM, |term| term != "dumb");
        let capable = known && environment.non_empty(NO_COLOR).is_none();
        match choice {
            ColorChoice::Auto => Self { short: is_terminal, color: is_terminal && capable },
            ColorChoice::Always => Self { short: true, color: true },
            ColorChoice::Never => Self { short: is_terminal, color: false },
        }
    }
}

/// A color of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// Errors.
    Red,
    /// Success.
    Green,
    /// Warnings.
    Yellow,
    /// Advice.
    Cyan,
    /// Less important text.
    Dim,
}

impl Color {
    /// Returns the parameter of the control sequence "select graphic rendition" (ECMA-48).
    fn code(self) -> u8 {
        match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Cyan => 36,
            Self::Dim => 2,
        }
    }
}

/// The mark of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Success.
    Fine,
    /// A problem.
    Problem,
    /// A warning.
    Warning,
    /// A step.
    Step,
}

/// A text with colors.
#[derive(Clone, Debug, Default)]
pub struct Text(Vec<(Option<Color>, String)>);

impl Text {
    /// Appends text without a color.
    pub fn plain(&mut self, text: impl Into<String>) -> &mut Self {
        self.0.push((None, text.into()));
        self
    }

    /// Appends text with a color.
    pub fn colored(&mut self, color: Color, text: &str) -> &mut Self {
        self.0.push((Some(color), text.to_owned()));
        self
    }

    /// Appends a mark.
    pub fn mark(&mut self, mark: Mark) -> &mut Self {
        match mark {
            Mark::Fine => self.colored(Color::Green, "✓"),
            Mark::Problem => self.colored(Color::Red, "✗"),
            Mark::Warning => self.colored(Color::Yellow, "!"),
            Mark::Step => self.colored(Color::Dim, "·"),
        }
    }

    /// Returns the bytes for an output. The only control sequences in it are those of colors.
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for (color, text) in &self.0 {
            let text: Cow<'_, str> = printable(text);
            match color.filter(|_| style.color) {
                Some(color) => out.push_str(&format!("\u{1b}[{}m{text}\u{1b}[0m", color.code())),
                None => out.push_str(&text),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment::new(Vec::new(), variables)
    }

    #[test]
    fn colors_depend_on_the_flag_the_terminal_and_the_environment() {
        use ColorChoice::{Always, Auto, Never};
        let term = ("TERM", "xterm");
        for (choice, is_terminal, variables, short, color) in [
            (Auto, true, &[term][..], true, true),
            (Auto, false, &[term], false, false),
            (Auto, true, &[term, ("NO_COLOR", "1")], true, false),
            (Auto, true, &[term, ("NO_COLOR", "")], true, true),
            (Auto, true, &[("TERM", "dumb")], true, false),
            (Auto, true, &[], true, cfg!(windows)),
            (Always, false, &[("NO_COLOR", "1")], true, true),
            (Never, true, &[], true, false),
            (Never, false, &[], false, false),
        ] {
            assert_eq!(
                Style::new(choice, is_terminal, &environment(variables)),
                Style { short, color },
                "{choice:?} {is_terminal} {variables:?}"
            );
        }
    }

    #[test]
    fn a_text_has_no_control_sequences_of_its_content() {
        let mut text = Text::default();
        text.mark(Mark::Problem).plain(" a\u{1b}[2J\n");
        assert_eq!(text.render(Style { short: true, color: true }), "\u{1b}[31m✗\u{1b}[0m a\u{fffd}[2J\n");
        assert_eq!(text.render(Style::default()), "✗ a\u{fffd}[2J\n");
    }
}
