//! `pinniped login static`: the exec plugin of kubectl with a fixed token.
//!
//! kubectl runs this command for every call, so the common case, a cached credential, needs no
//! network, no runtime and no TLS. A cached credential that is about to expire is still returned
//! immediately, while a child process fetches the next one, so that the expiration does not delay
//! any call.

use std::process::{Command, Stdio};

use jiff::Timestamp;

use super::block_on;
use super::plugin_answer::answer;
use crate::environment::{Environment, PINNIPED_RENEW_IN_BACKGROUND};
use crate::flags::Parsed;
use crate::login::exec_cache::ExecCache;
use crate::login::session::Session;
use crate::printer::Printer;

/// Prints an `ExecCredential`.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), String> {
    let session = Session::from_flags(parsed, &environment.args, environment, printer)?;
    let renewing = environment.variable(PINNIPED_RENEW_IN_BACKGROUND).is_some();
    if renewing {
        // The lock is held until the credential is stored.
        let Some(_only_renewal) = session.cache().and_then(ExecCache::renewal_lock) else { return Ok(()) };
        return block_on(session.fresh()).map(drop);
    }
    if let Some(hit) = session.cached(Timestamp::now()) {
        printer.debug("using cached cluster credential.", &[]);
        if hit.renewal_due && session.has_concierge() {
            renew_in_background(environment);
        }
        return answer(hit.login, &session, environment, printer);
    }
    answer(block_on(session.fresh())?, &session, environment, printer)
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
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    // The child intentionally outlives this process: the timeout of the exchange limits its
    // lifetime. If it cannot be started, the next run after the expiration fetches the credential.
    drop(command.spawn());
}
