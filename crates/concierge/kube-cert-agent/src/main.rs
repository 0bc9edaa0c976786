//! `pinniped-concierge-kube-cert-agent`: lives in a pod on a node of the control plane, with the files of
//! kube-controller-manager mounted, and gives the cluster's signing key to whoever may exec into that pod.
//!
//! ```text
//! sleep   blocks until SIGTERM or SIGINT: what the pod runs
//! print   writes {"tls.crt": base64, "tls.key": base64} of the files named by CERT_PATH and KEY_PATH: what the
//!         Concierge runs by exec
//! ```
//!
//! The pod may use 32 MiB and a fiftieth of a processor, so this is a program of its own with next to no dependencies.
//! It opens no socket, starts no thread and never writes a file. Words and exit codes are those of upstream's agent.

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

/// Why the agent ended without having done its work.
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

/// Further arguments are ignored.
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

/// Handlers, and not the default action, because the kernel keeps signals without one from process 1 of a container.
fn sleep() -> Result<(), Error> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Error::Signals)?;
    signals.forever().next();
    Ok(())
}
