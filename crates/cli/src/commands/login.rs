//! `pinniped login oidc`, `login static` and `login token`: the exec plugin of kubectl.
//!
//! kubectl runs these commands for every call, so the common case, a cached credential, needs no
//! network, no runtime and no TLS. A cached credential that is about to expire is still returned
//! immediately, while a child process fetches the next one, so that the expiration does not delay
//! any call. The child never involves the user.

use std::process::{Command, Stdio};

use jiff::Timestamp;

use super::interruptible_login::{InterruptibleLoginError, run_login};
use super::plugin_response::{ResponseError, respond};
use crate::environment::{Environment, PINNIPED_RENEW_IN_BACKGROUND};
use crate::flags::Parsed;
use crate::login::exec_cache::ExecCache;
use crate::login::session::{Session, SessionError};
use crate::platform::own_process_group;
use crate::printer::Printer;

/// No `ExecCredential` was printed.
#[derive(Debug, thiserror::Error)]
pub enum LoginCommandError {
    /// The flags are invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is no credential.
    #[error(transparent)]
    Login(#[from] InterruptibleLoginError),
    /// kubectl may not get the credential.
    #[error(transparent)]
    Response(#[from] ResponseError),
}

/// Prints an `ExecCredential`.
pub(crate) fn run(
    parsed: &Parsed,
    environment: &Environment,
    printer: Printer,
) -> Result<(), LoginCommandError> {
    let session = Session::from_flags(parsed, &environment.args, environment, printer)?;
    let renewing = environment.variable(PINNIPED_RENEW_IN_BACKGROUND).is_some();
    if renewing {
        // The lock is held until the credential is stored.
        let Some(_only_renewal) = session.cache().and_then(ExecCache::renewal_lock) else { return Ok(()) };
        run_login(session.in_background().fresh())?;
        return Ok(());
    }
    if let Some(hit) = session.cached(Timestamp::now()) {
        printer.debug("using cached cluster credential.", &[]);
        if hit.renewal_due && session.can_renew() {
            renew_in_background(environment);
        }
        return Ok(respond(hit.login, &session, environment, printer)?);
    }
    Ok(respond(run_login(session.fresh())?, &session, environment, printer)?)
}

/// Starts this program with the same arguments, to update the cache without output.
fn renew_in_background(environment: &Environment) {
    let Some(executable) = &environment.executable else { return };
    let mut command = Command::new(executable);
    command
        .args(&environment.args)
        .env(PINNIPED_RENEW_IN_BACKGROUND, "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Ctrl-C in kubectl must not interrupt the renewal.
    own_process_group(&mut command);
    // The child intentionally outlives this process: the timeouts of its requests limit its
    // lifetime. If it cannot be started, the next run after the expiration fetches the credential.
    drop(command.spawn());
}
