//! Runs kubectl as a child process: forwards termination signals to it, and exits with its exit
//! code.

use std::io::{self, ErrorKind};
use std::process::ExitStatus;

use tokio::process::Command;

use pinniped_go_compat::io::GoIoError;

use crate::commands::StartError;
use crate::environment::PINNIPED_EXPECTED_IDENTITY;
use crate::platform::{ForwardedSignals, exit_signal};

/// The child process failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals cannot be forwarded.
    #[error("could not watch signals")]
    Signals(#[source] io::Error),
    /// The program does not exist.
    #[error("could not run {0}: it was not found, install kubectl or name it with --kubectl-path")]
    NotFound(String),
    /// The program cannot be started.
    #[error("could not run {program}")]
    Spawn {
        /// The program.
        program: String,
        /// The failed call.
        #[source]
        source: GoIoError,
    },
    /// The exit code cannot be read.
    #[error("could not wait for {program}")]
    Wait {
        /// The program.
        program: String,
        /// The failed call.
        #[source]
        source: io::Error,
    },
}

/// Runs `program` until it exits and returns the exit code that a shell would report.
pub(super) async fn run(
    program: &str,
    words: &[String],
    variables: &[(&str, &str)],
) -> Result<u8, ChildError> {
    let mut signals = ForwardedSignals::watch().map_err(ChildError::Signals)?;
    let mut command = Command::new(program);
    command.args(words).envs(variables.iter().copied());
    if !variables.is_empty() {
        // The identity that the file expects applies.
        command.env_remove(PINNIPED_EXPECTED_IDENTITY);
    }
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => ChildError::NotFound(program.to_owned()),
        _ => ChildError::Spawn { program: program.to_owned(), source: error.into() },
    })?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            signal = signals.next() => ForwardedSignals::pass_on(signal, &child),
        }
    };
    let status = status.map_err(|source| ChildError::Wait { program: program.to_owned(), source })?;
    Ok(code(status))
}

/// Returns the exit code as shells do: 128 plus the number of the signal that terminated the
/// process.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(exit_signal(status).map(|signal| 128 + signal)).unwrap_or(1);
    // On systems with signals, exit codes are bytes.
    u8::try_from(code & 0xff).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn exit_codes_equal_those_of_a_shell() {
        let run = |script: &str| {
            let words = ["-c".to_owned(), script.to_owned()];
            crate::commands::block_on(super::run("sh", &words, &[])).unwrap()
        };
        assert_eq!(run("exit 0"), 0);
        assert_eq!(run("exit 7"), 7);
        assert_eq!(run("kill -KILL $$"), 137);
        assert_eq!(
            crate::commands::block_on(super::run("/no/such/kubectl", &[], &[])).unwrap_err().to_string(),
            "could not run /no/such/kubectl: it was not found, install kubectl or name it with --kubectl-path"
        );
    }
}
