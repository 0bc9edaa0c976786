//! `pinniped login static`: kubectl's exec plugin with a fixed token.
//!
//! kubectl runs this for every call, so the usual way, a credential from the cache, needs no network, no runtime
//! and no TLS. A cached credential that is about to end is still given out at once, while a child process of this
//! one fetches the next; so nobody waits at the moment of expiry.

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
        // Held until the credential is there.
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

/// Starts this program again with the same arguments, to fill the cache and say nothing.
fn renew_in_background(environment: &Environment) {
    let Some(executable) = &environment.executable else { return };
    let mut command = Command::new(executable);
    command
        .args(&environment.args)
        .env(PINNIPED_RENEW_IN_BACKGROUND, "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // Ctrl-C at kubectl is not meant for it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    // It outlives this process by design: it ends by itself within the limit of the exchange. If it cannot be
    // started, the next run after expiry fetches the credential.
    drop(command.spawn());
}
