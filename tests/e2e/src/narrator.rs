//! Shows commands, their real output and their time, or nothing at all.

use std::time::{Duration, Instant};

use pinniped_test_support::kubectl::Outcome;

use crate::environment::Step;

/// Longest line of a command's input that is shown whole.
const WIDTH: usize = 110;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrator {
    /// Everything, for people.
    Loud,
    /// Nothing, for tests.
    Silent,
}

/// What of an output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// All of it.
    Output,
    /// Standard error only: standard output goes to the named file.
    RedirectedTo(&'static str),
    /// Only its size: certificates.
    Size,
}

impl Narrator {
    /// A heading, with the time since `start`.
    pub fn heading(self, start: Instant, text: &str) {
        if self == Narrator::Loud {
            println!("\n== {text}   [{}]", seconds(start.elapsed()));
        }
    }

    /// A remark.
    pub fn say(self, text: &str) {
        if self == Narrator::Loud {
            println!("   {text}");
        }
    }

    /// A command that something else runs.
    pub fn show_command(self, text: &str) {
        if self == Narrator::Loud {
            println!("\n$ {text}");
        }
    }

    /// Runs a command and shows it.
    ///
    /// # Errors
    /// When it cannot be started or does not end.
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
            // As jsonpath prints it, without a newline.
            Show::Output if !outcome.stdout.is_empty() => println!("{}", outcome.stdout),
            Show::Output => {}
            Show::RedirectedTo(_) => {}
            Show::Size => println!("({} bytes)", outcome.stdout.len()),
        }
        print!("{}", outcome.stderr);
        let code = if outcome.code == 0 { String::new() } else { format!("exit code {}, ", outcome.code) };
        println!("   ({code}{})", seconds(outcome.took));
    }

    /// Runs a command again and again until its outcome `fits`, at most for `deadline`; shows the first and,
    /// when it is another one, the last outcome.
    ///
    /// # Errors
    /// When none fits; the last outcome is part of the message.
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

/// `1.2 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
