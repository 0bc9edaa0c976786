//! `pinniped-concierge-kube-cert-agent`: an agent that reads the cluster's signing key.
//!
//! The agent runs in a pod on a control plane node, with the files of kube-controller-manager
//! mounted. A client that may exec into the pod can read the key.
//!
//! ```text
//! sleep   blocks until SIGTERM or SIGINT; the command of the pod
//! print   writes {"tls.crt": base64, "tls.key": base64} of the files named by CERT_PATH and
//!         KEY_PATH; the Concierge runs it by exec (print.rs)
//! ```
//!
//! The pod has a limit of 32 MiB of memory and 20m of CPU, so the agent is a separate program with
//! few dependencies. It opens no socket, starts no thread and never writes a file. Its messages and
//! exit codes are those of upstream's agent. The controller that deploys the agent and runs `print`
//! is in `pinniped-concierge-controllers`.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

mod print;

fn main() -> ExitCode {
    match run(std::env::args_os().nth(1).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Reasons why the agent exits with an error.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("missing subcommand")]
    MissingSubcommand,
    #[error("invalid subcommand {0:?}")]
    InvalidSubcommand(String),
    #[error("could not wait for signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Print(#[from] print::Error),
}

/// Runs a subcommand. Further arguments are ignored.
fn run(subcommand: Option<&OsStr>) -> Result<(), Error> {
    let subcommand = subcommand.ok_or(Error::MissingSubcommand)?;
    match subcommand.to_str() {
        Some("sleep") => sleep(),
        Some("print") => {
            let variable = |name: &str| -> OsString { std::env::var_os(name).unwrap_or_default() };
            Ok(print::print(variable, &mut print::stdout()?)?)
        }
        _ => Err(Error::InvalidSubcommand(subcommand.to_string_lossy().into_owned())),
    }
}

/// Blocks until SIGTERM or SIGINT. It installs handlers instead of relying on the default action,
/// because the kernel does not deliver signals without a handler to process 1 of a container.
fn sleep() -> Result<(), Error> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Error::Signals)?;
    signals.forever().next();
    Ok(())
}
