//! The commands, one file each: from parsed flags to the output on stdout, or an error text for
//! `Error: `.

pub mod doctor;
pub mod get_kubeconfig;
pub mod kubectl;
pub mod login_static;
mod plugin_answer;
pub mod proxy;
pub mod version;
pub mod whoami;

use crate::environment::Environment;
use crate::flags::parse::{Outcome, Parsed, find};
use crate::flags::tree::{Action, ROOT};
use crate::flags::{completion, help, markdown};
use crate::printer::{Level, Printer};
use crate::write;

/// The error of `login oidc`.
pub(crate) const NO_OIDC: &str = "could not complete Pinniped login: this build cannot log in through OpenID Connect yet, \
                                  use `pinniped login static` or another build";

/// Runs a parsed command and returns its exit code.
///
/// # Errors
///
/// Returns the text after `Error: `.
pub fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<u8, String> {
    let outcome = match parsed.action {
        Action::Kubectl => return kubectl::run(parsed, environment, printer),
        Action::GetKubeconfig => get_kubeconfig::run(parsed, environment, printer.at(Level::Info)),
        Action::LoginStatic => login_static::run(parsed, environment, login_printer(environment, printer)),
        Action::LoginOidc => Err(NO_OIDC.to_owned()),
        Action::WhoAmI => whoami::run(parsed, environment, printer),
        Action::Doctor => doctor::run(parsed, environment, printer),
        Action::Proxy => proxy::run(parsed, environment, printer),
        Action::Version => version::run(parsed, printer),
        Action::Completion(shell) => {
            write(printer, &completion::script(shell, !parsed.bool("no-descriptions")))
        }
        Action::Complete { descriptions } => {
            let mut text = completion::candidates(&parsed.words, descriptions).join("\n");
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(":4\n");
            write(printer, text.as_bytes())?;
            printer.line("Completion ended with directive: ShellCompDirectiveNoFileComp");
            Ok(())
        }
        Action::MarkdownHelp => write(printer, markdown::reference().as_bytes()),
        Action::Help => match find(&ROOT, &parsed.words) {
            Ok((path, rest)) if rest.is_empty() || path.len() > 1 => {
                write(printer, help::help(&path, environment).as_bytes())
            }
            Ok(_) | Err(Outcome::Wrong { .. } | Outcome::Help(_) | Outcome::Run(_)) => {
                printer.line(&format!("Unknown help topic [`{}`]", parsed.words.join("` `")));
                printer.line(help::usage(&[&ROOT], environment).trim_end());
                Ok(())
            }
        },
    };
    outcome.map(|()| 0)
}

fn login_printer(environment: &Environment, printer: Printer) -> Printer {
    printer.at(if environment.debug() { Level::Debug } else { Level::Warning })
}

/// Runs `work` on this thread. Commands that need no network do not call this.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| format!("could not start: {err}"))?
        .block_on(work)
}
