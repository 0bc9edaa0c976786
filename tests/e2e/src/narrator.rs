//! Prints commands with their real output and duration, or nothing at all.

use std::time::{Duration, Instant};

use pinniped_test_support::kubectl::Outcome;

use crate::environment::Step;

/// Maximum length of a line of a command's input that is printed completely.
const WIDTH: usize = 110;

/// The amount of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrator {
    /// Prints everything, for people.
    Loud,
    /// Prints nothing, for tests.
    Silent,
}

/// The part of a command's output that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// All output.
    Output,
    /// Standard error only; standard output goes to the named file.
    RedirectedTo(&'static str),
    /// The size only, for certificates.
    Size,
}

impl Narrator {
    /// Prints a heading with the time since `start`.
    pub fn heading(self, start: Instant, text: &str) {
        if self == Narrator::Loud {
            println!("\n== {text}   [{}]", seconds(start.elapsed()));
        }
    }

    /// Prints a remark.
    pub fn say(self, text: &str) {
        if self == Narrator::Loud {
            println!("   {text}");
        }
    }

    /// Prints a command that another component runs.
    pub fn show_command(self, text: &str) {
        if self == Narrator::Loud {
            println!("\n$ {text}");
        }
    }

    /// Runs a command and prints it.
    ///
    /// # Errors
    /// Returns an error when it cannot be started or does not exit.
    pub async fn run(self, command: Step, input: Option<&str>, show: Show) -> anyhow::Result<Outcome> {
        if self == Narrator::Loud {
            let redirect =
                if let Show::RedirectedTo(file) = show { format!(" > {file}") } else { String::new() };
            println!("\n$ {}{redirect}", command.shown());
            for line in input.into_iter().flat_map(str::lines) {
                let end = if line.chars().count() > WIDTH { "..." } else { "" };
                println!("  | {}{end}", line.chars().take(WIDTH).collect::<String>());
            }
        }
        let outcome = command.run(input).await?;
        self.show(&outcome, show);
        Ok(outcome)
    }

    fn show(self, outcome: &Outcome, show: Show) {
        if self == Narrator::Silent {
            return;
        }
        match show {
            Show::Output if outcome.stdout.ends_with('\n') => print!("{}", outcome.stdout),
            // jsonpath output does not end with a newline.
            Show::Output if !outcome.stdout.is_empty() => println!("{}", outcome.stdout),
            Show::Output => {}
            Show::RedirectedTo(_) => {}
            Show::Size => println!("({} bytes)", outcome.stdout.len()),
        }
        print!("{}", outcome.stderr);
        let code = if outcome.code == 0 { String::new() } else { format!("exit code {}, ", outcome.code) };
        println!("   ({code}{})", seconds(outcome.took));
    }

    /// Repeats a command until its output `fits`, at most for `deadline`. Prints the first and, if
    /// it differs, the last output.
    ///
    /// # Errors
    /// Returns an error that contains the last output when none fits.
    pub async fn run_until(
        self,
        deadline: Duration,
        command: impl Fn() -> Step,
        show: Show,
        fits: impl Fn(&Outcome) -> bool,
    ) -> anyhow::Result<Outcome> {
        let start = Instant::now();
        let first = self.run(command(), None, show).await?;
        if fits(&first) {
            return Ok(first);
        }
        self.say("not yet, asking again ...");
        let last =
            pinniped_test_support::wait::until_ok(deadline, command().shown().to_owned(), async || {
                let outcome = command().run(None).await?;
                anyhow::ensure!(
                    fits(&outcome),
                    "its last outcome was exit code {}: {}{}",
                    outcome.code,
                    outcome.stdout,
                    outcome.stderr
                );
                Ok(outcome)
            })
            .await?;
        self.say(&format!("after {}:", seconds(start.elapsed())));
        self.show(&last, show);
        Ok(last)
    }
}

/// Formats a duration, such as `1.2 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
