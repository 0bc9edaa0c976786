//! The commands, one file each: from parsed flags to the output on stdout, or an error text for
//! `Error: `. [`interruptible_login`] runs the login of
//! `login` and `kubectl`.

mod contexts;
pub mod doctor;
pub mod explain;
pub mod generate_man;
pub mod get_kubeconfig;
pub mod interruptible_login;
pub mod kubectl;
pub mod login;
pub mod logout;
mod output_format;
mod plugin_response;
pub mod proxy;
mod remedies;
pub mod status;
pub mod version;
pub mod whoami;

use std::io;

use pinniped_go_compat::duration::GoDuration;
use tokio::time::error::Elapsed;

use self::doctor::DoctorError;
use self::explain::ExplainError;
use self::generate_man::GenerateManError;
use self::get_kubeconfig::GetKubeconfigError;
use self::kubectl::KubectlError;
use self::login::LoginCommandError;
use self::logout::LogoutError;
use self::proxy::ProxyError;
use self::status::StatusError;
use self::version::VersionError;
use self::whoami::WhoAmIError;
use crate::environment::Environment;
use crate::flags::parse::{ParseResult, Parsed, find};
use crate::flags::tree::{Action, root_of};
use crate::flags::{completion, help, markdown};
use crate::printer::{Level, Printer};
use crate::{OutputError, write};

/// A command failed. The text after `Error: ` is the chain of this error.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// `pinniped get kubeconfig`.
    #[error(transparent)]
    GetKubeconfig(#[from] GetKubeconfigError),
    /// `pinniped login`.
    #[error(transparent)]
    Login(#[from] LoginCommandError),
    /// `pinniped whoami`.
    #[error(transparent)]
    WhoAmI(#[from] WhoAmIError),
    /// `pinniped doctor`.
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    /// `pinniped explain`.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// `pinniped logout`.
    #[error(transparent)]
    Logout(#[from] LogoutError),
    /// `pinniped status`.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// `pinniped proxy`.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// `pinniped kubectl`.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// `pinniped generate-man`.
    #[error(transparent)]
    GenerateMan(#[from] GenerateManError),
    /// `pinniped version`.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A command that only prints, such as `pinniped help`.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// The asynchronous runtime could not be started.
#[derive(Debug, thiserror::Error)]
#[error("could not start")]
pub struct StartError(#[source] io::Error);

/// Runs a parsed command and returns its exit code.
///
/// # Errors
///
/// Returns the error to print after `Error: `.
pub fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<u8, CommandError> {
    let root = root_of(environment);
    match parsed.action {
        Action::Kubectl => return Ok(kubectl::run(parsed, environment, printer)?),
        Action::GetKubeconfig => get_kubeconfig::run(parsed, environment, printer.at(Level::Info))?,
        Action::LoginStatic | Action::LoginOidc | Action::LoginToken => {
            login::run(parsed, environment, login_printer(environment, printer))?;
        }
        Action::WhoAmI => whoami::run(parsed, environment, printer)?,
        Action::Explain => explain::run(parsed, printer)?,
        Action::Logout => logout::run(parsed, environment, printer)?,
        Action::Status => status::run(parsed, environment, printer)?,
        Action::Doctor => doctor::run(parsed, environment, printer)?,
        Action::Proxy => proxy::run(parsed, environment, printer)?,
        Action::Version => version::run(parsed, printer)?,
        Action::Completion(shell) => {
            write(printer, completion::script(shell, !parsed.bool("no-descriptions")).as_bytes())?;
        }
        Action::Complete { descriptions } => {
            let candidates = completion::candidates(&parsed.words, descriptions, environment);
            let (directive, its_name) = candidates.directive();
            let lines = candidates.lines.iter().map(String::as_str).chain([directive]);
            write(printer, lines.map(|line| format!("{line}\n")).collect::<String>().as_bytes())?;
            printer.line(its_name);
        }
        Action::Man => generate_man::run(&parsed.words)?,
        Action::MarkdownHelp => write(printer, markdown::reference().as_bytes())?,
        Action::Help => match find(root, &parsed.words) {
            Ok((path, rest)) if rest.is_empty() || path.len() > 1 => {
                write(printer, help::help(&path, environment).as_bytes())?;
            }
            Err(ParseResult::Wrong { message, hint, .. }) => {
                printer.error(&message, None);
                if let Some(hint) = hint {
                    printer.line(&hint);
                }
                return Ok(1);
            }
            // `find` returns no other error, and only the program itself has no words.
            Ok(_) | Err(ParseResult::Help(_) | ParseResult::Run(_)) => {
                write(printer, help::help(&[root], environment).as_bytes())?;
            }
        },
    }
    Ok(0)
}

fn login_printer(environment: &Environment, printer: Printer) -> Printer {
    printer.at(if environment.debug() { Level::Debug } else { Level::Warning })
}

/// Runs `work` on this thread. Commands that need no network do not call this.
pub(crate) fn block_on<T, E: From<StartError>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError)?;
    let result = runtime.block_on(work);
    // A pending name resolution may block, and no result depends on it.
    runtime.shutdown_background();
    result
}

/// Runs `work` for the time of a flag `--timeout`; zero is no limit.
///
/// # Errors
///
/// Returns an error if the time has elapsed.
pub(crate) async fn within<T>(limit: GoDuration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    match limit.is_zero() {
        true => Ok(work.await),
        false => tokio::time::timeout(limit.to_std(), work).await,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_blocked_thread_does_not_delay_the_end_of_a_command() {
        let (end, wait) = mpsc::channel::<Infallible>();
        let (done, finished) = mpsc::channel();
        std::thread::spawn(move || {
            let result: Result<(), StartError> = block_on(async move {
                tokio::task::spawn_blocking(move || wait.recv());
                Ok(())
            });
            done.send(result.is_ok())
        });
        assert_eq!(finished.recv_timeout(Duration::from_secs(10)), Ok(true));
        drop(end);
    }

    #[tokio::test(start_paused = true)]
    async fn zero_is_no_limit() {
        let hour = || tokio::time::sleep(Duration::from_secs(3600));
        assert!(within(GoDuration::default(), hour()).await.is_ok());
        assert!(within(Duration::from_secs(1).into(), hour()).await.is_err());
    }
}
