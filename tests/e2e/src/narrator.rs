//! Prints commands with their real output and duration, or nothing at all.

use std::time::{Duration, Instant};

use pinniped_test_support::kubectl::CommandOutput;

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
    pub fn print(self, text: &str) {
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
    pub async fn run(self, command: Step, input: Option<&str>, show: Show) -> anyhow::Result<CommandOutput> {
        if self == Narrator::Loud {
            let redirect =
                if let Show::RedirectedTo(file) = show { format!(" > {file}") } else { String::new() };
            println!("\n$ {}{redirect}", command.shown());
            for line in input.into_iter().flat_map(str::lines) {
                let end = if line.chars().count() > WIDTH { "..." } else { "" };
                println!("  | {}{end}", line.chars().take(WIDTH).collect::<String>());
            }
        }
        let output = command.run(input).await?;
        self.show(&output, show);
        Ok(output)
    }

    /// Prints the output of a command.
    pub(crate) fn show(self, output: &CommandOutput, show: Show) {
        if self == Narrator::Silent {
            return;
        }
        match show {
            Show::Output if output.stdout.ends_with('\n') => print!("{}", output.stdout),
            // jsonpath output does not end with a newline.
            Show::Output if !output.stdout.is_empty() => println!("{}", output.stdout),
            Show::Output => {}
            Show::RedirectedTo(_) => {}
            Show::Size => println!("({} bytes)", output.stdout.len()),
        }
        print!("{}", output.stderr);
        let code = if output.code == 0 { String::new() } else { format!("exit code {}, ", output.code) };
        println!("   ({code}{})", seconds(output.took));
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
        fits: impl Fn(&CommandOutput) -> bool,
    ) -> anyhow::Result<CommandOutput> {
        let start = Instant::now();
        let first = self.run(command(), None, show).await?;
        if fits(&first) {
            return Ok(first);
        }
        self.print("not yet, trying again ...");
        let last =
            pinniped_test_support::wait::until_ok(deadline, command().shown().to_owned(), async || {
                let output = command().run(None).await?;
                anyhow::ensure!(
                    fits(&output),
                    "its last result was exit code {}: {}{}",
                    output.code,
                    output.stdout,
                    output.stderr
                );
                Ok(output)
            })
            .await?;
        self.print(&format!("after {}:", seconds(start.elapsed())));
        self.show(&last, show);
        Ok(last)
    }
}

/// Formats a duration, such as `1.2 s`.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
