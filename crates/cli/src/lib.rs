//! The `pinniped` command: writes kubeconfigs, logs in as kubectl's exec plugin, tells who somebody is.
//!
//! | part | what it does |
//! |---|---|
//! | [`environment`] | everything taken from the process, read once |
//! | [`flags`] | the table of commands and flags: parser, help, completion |
//! | [`commands`] | one file per command, from parsed flags to an exit |
//! | [`kubeconfig`] | kubeconfigs in and out |
//! | [`admin`] | a Kubernetes client from a kubeconfig |
//! | [`concierge`] | the exchange of a token for a credential |
//! | [`login`] | the credential cache and what kubectl tells a plugin |
//! | [`printer`] | the only door to stdout and stderr |
//!
//! It has no state but its cache files and starts no thread unless it must talk to the network: kubectl runs it for
//! every call. Errors are texts from where they arise, because their words are the interface: scripts and people
//! know them.
#![forbid(unsafe_code)]

pub mod admin;
pub mod commands;
pub mod concierge;
pub mod dial;
pub mod environment;
mod exec_plugin;
pub mod flags;
pub mod https;
pub mod kubeconfig;
pub mod login;
pub mod printer;
mod private_file;
pub mod version;

use crate::environment::Environment;
use crate::flags::parse::Outcome;
use crate::flags::tree::ROOT;
use crate::flags::{help, parse};
use crate::printer::{Level, Printer};

/// Runs the program and returns its exit code: 0, or 1 after any error; that of kubectl where it ran.
pub fn run(environment: &Environment) -> u8 {
    let printer = Printer::new(Level::Warning);
    let result = match parse(&ROOT, &environment.args) {
        Outcome::Help(path) => write(printer, help::help(&path, environment).as_bytes()).map(|()| 0),
        Outcome::Wrong { message, hint } => {
            printer.line(&format!("Error: {message}"));
            if let Some(hint) = hint {
                printer.line(&hint);
            }
            return 1;
        }
        Outcome::Run(parsed) => {
            for warning in &parsed.warnings {
                printer.line(warning);
            }
            commands::run(&parsed, environment, printer)
        }
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            printer.line(&format!("Error: {message}"));
            1
        }
    }
}

/// Writes the product of a command.
fn write(printer: Printer, bytes: &[u8]) -> Result<(), String> {
    printer.product(bytes).map_err(|err| format!("could not write output: {}", flags::value::go_io(&err)))
}
