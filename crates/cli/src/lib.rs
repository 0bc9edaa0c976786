//! The `pinniped` command: creates kubeconfigs, logs in as the exec plugin of kubectl, prints the
//! authenticated user.
//!
//! | module | purpose |
//! |---|---|
//! | [`environment`] | the inputs from the process, read once |
//! | [`flags`] | the table of commands and flags: parser, help, completion |
//! | [`commands`] | one file per command, from parsed flags to an exit code |
//! | [`kubeconfig`] | loads and creates kubeconfigs |
//! | [`admin`] | a Kubernetes client for a kubeconfig |
//! | [`https`] | HTTPS clients for single requests |
//! | [`concierge`] | the exchange of a token for a credential |
//! | [`login`] | login sessions, the OIDC login, and the caches |
//! | [`supervisor`] | the discovery of a Pinniped Supervisor |
//! | `exec_plugin` | runs the plugin of a kubeconfig user |
//! | `bounded_file` | reads the files of users, with a limit |
//! | `similar` | names that the user may have meant |
//! | `platform` | everything that differs between operating systems |
//! | `default_scopes` | the default scopes that another issuer has |
//! | [`explanations`] | the meaning of conditions, reasons and error texts, and their remedies |
//! | [`printer`] | all output to stdout and stderr |
//!
//! The program has no state except for its cache files, and starts no thread unless it needs the
//! network, because kubectl runs it for every call. Each error has a type with one variant for each
//! cause. The text after `Error: ` is the chain of the error and its causes; scripts and users
//! depend on the exact texts.
#![forbid(unsafe_code)]

pub mod admin;
mod bounded_file;
pub mod commands;
pub mod concierge;
mod default_scopes;
pub mod environment;
mod exec_plugin;
pub mod explanations;
pub mod flags;
pub mod https;
pub mod kubeconfig;
pub mod login;
mod platform;
pub mod printer;
mod private_file;
mod similar;
pub mod supervisor;
pub mod version;

use pinniped_error::chain;
use pinniped_go_compat::io::GoIoError;

use crate::commands::CommandError;
use crate::environment::Environment;
use crate::flags::parse::{ParseResult, color_of};
use crate::flags::tree::root_of;
use crate::flags::{help, parse};
use crate::printer::{Level, Printer};

/// Runs the program and returns its exit code: 0, or 1 after an error, or the exit code of kubectl
/// if it ran, or 2 if `doctor` could not check the installation.
pub fn run(environment: &Environment) -> u8 {
    let root = root_of(environment);
    let printer = |choice| Printer::for_terminal(Level::Warning, choice, environment);
    let (result, printer) = match parse(root, &environment.args) {
        ParseResult::Help(path) => {
            let printer = printer(color_of(&environment.args));
            let written = write(printer, help::help(&path, environment).as_bytes());
            (written.map(|()| 0).map_err(CommandError::from), printer)
        }
        ParseResult::Wrong { message, hint, remedy } => {
            let printer = printer(color_of(&environment.args));
            // Upstream prints none.
            let remedy = remedy.filter(|_| printer.messages_are_for_people());
            printer.error(&message, remedy.as_deref());
            if let Some(hint) = hint {
                printer.line(&hint);
            }
            return 1;
        }
        ParseResult::Run(parsed) => {
            let printer = printer(parsed.color());
            for warning in &parsed.warnings {
                printer.line(warning);
            }
            (commands::run(&parsed, environment, printer), printer)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            let remedy = error.remedy().filter(|remedy| remedy.is_for(printer));
            let remedy = remedy.map(|remedy| help::with_name_of_program(remedy.text, root));
            printer.error(&chain(&error).to_string(), remedy.as_deref());
            error.exit_code()
        }
    }
}

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("could not write output")]
pub struct OutputError(#[source] GoIoError);

/// Writes the output of a command.
fn write(printer: Printer, bytes: &[u8]) -> Result<(), OutputError> {
    printer.product(bytes).map_err(|error| OutputError(error.into()))
}
