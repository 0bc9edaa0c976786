//! `pinniped kubectl`: runs kubectl with an identity that its kubeconfig does not contain.
//!
//! ```text
//! arguments    the kubeconfig, context and user that kubectl selects, and the changed arguments
//! session_file the kubeconfig of one run
//! child        kubectl: forwards signals, returns the exit code
//! ```
//!
//! The command logs in first and passes kubectl a temporary kubeconfig whose user impersonates the
//! logged-in user. If no headers are needed, kubectl runs with unchanged arguments.

mod arguments;
mod child;
mod session_file;

use jiff::SignedDuration;
use kube::config::Kubeconfig;

use std::io;

use self::arguments::Arguments;
use self::child::ChildError;
use self::session_file::SessionFile;
use super::interruptible_login::{InterruptibleLoginError, run_login};
use super::{StartError, block_on};
use crate::environment::Environment;
use crate::flags::{Delivery, Parsed};
use crate::kubeconfig::{self, identity};
use crate::login::session::{Session, SessionError};
use crate::printer::Printer;

/// The minimum remaining lifetime of the credential, enough for the start of a long command.
const MIN_LIFETIME: SignedDuration = SignedDuration::from_secs(30);
/// The environment variable that passes the temporary kubeconfig to a nested `pinniped kubectl`.
const RUNNING: &str = "PINNIPED_KUBECTL_KUBECONFIG";

/// kubectl did not run.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    /// The program runs this command again.
    #[error("{0} runs `pinniped kubectl` again, name the real kubectl with --kubectl-path")]
    Nested(String),
    /// The temporary kubeconfig cannot be written.
    #[error("could not write a kubeconfig for kubectl")]
    SessionFile(#[from] io::Error),
    /// The plugin of the user is invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The login failed.
    #[error(transparent)]
    Login(#[from] InterruptibleLoginError),
    /// The child process failed.
    #[error(transparent)]
    Child(#[from] ChildError),
}

/// Runs kubectl and returns its exit code.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<u8, KubectlError> {
    let program = parsed.string_or("kubectl-path", "kubectl");
    if environment.non_empty(RUNNING).is_some_and(|file| environment.kubeconfig.as_deref() == Some(file)) {
        return Err(KubectlError::Nested(program));
    }
    let arguments = Arguments::new(&parsed.words);
    let file = match with_identity(&arguments, environment, printer)? {
        Some(config) => Some(SessionFile::create(&config, environment)?),
        None => None,
    };
    let path = file.as_ref().map(|file| file.path().to_string_lossy().into_owned());
    let words = match &path {
        Some(path) => arguments.with_kubeconfig(path),
        None => parsed.words.clone(),
    };
    let variables = path.iter().flat_map(|path| [("KUBECONFIG", path.as_str()), (RUNNING, path.as_str())]);
    Ok(block_on(child::run(&program, &words, &variables.collect::<Vec<_>>()))?)
    // Removes the file in any case.
}

/// Returns the kubeconfig that kubectl would use, with the identity added; `None` if kubectl needs
/// no identity.
fn with_identity(
    arguments: &Arguments<'_>,
    environment: &Environment,
    printer: Printer,
) -> Result<Option<Kubeconfig>, KubectlError> {
    // These commands operate on the files themselves.
    if arguments.command() == Some("config") {
        return Ok(None);
    }
    // kubectl reports errors in a kubeconfig itself.
    let Ok(mut config) = kubeconfig::load(arguments.kubeconfig(), environment) else { return Ok(None) };
    let Some((user, cluster)) = arguments.select(&config) else { return Ok(None) };
    let (Some(entry), Some(named)) = (
        config.auth_infos.iter().find(|named| named.name == user).and_then(|named| named.auth_info.as_ref()),
        config.clusters.iter().find(|named| named.name == cluster),
    ) else {
        return Ok(None);
    };
    let cluster = named.cluster.clone().unwrap_or_default();
    let session = match Session::of_user(entry, &named.name, &cluster, environment, printer)? {
        Some(session) if session.wants_service_account_token() => session,
        _ => return Ok(None),
    };
    let login = run_login(session.login(MIN_LIFETIME))?;
    let Some(identity) = &login.impersonate else { return Ok(None) };
    for entry in config.auth_infos.iter_mut().filter(|named| named.name == user) {
        if let Some(entry) = &mut entry.auth_info {
            identity::write_user(entry, identity, Delivery::Wrapper);
        }
    }
    Ok(Some(config))
}
