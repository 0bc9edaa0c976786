//! Runs one login on this thread, which the user can cancel with Ctrl-C. `pinniped login` and
//! `pinniped kubectl` use it; `pinniped proxy`, which logs in repeatedly, does not.

use super::{StartError, block_on};
use crate::login::Login;
use crate::login::session::LoginError;

/// There is no credential.
#[derive(Debug, thiserror::Error)]
pub enum InterruptibleLoginError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The login failed.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The user cancelled the login with Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Runs a login on this thread.
///
/// # Errors
///
/// Returns the reason why there is no credential.
pub(super) fn run_login(
    login: impl Future<Output = Result<Login, LoginError>>,
) -> Result<Login, InterruptibleLoginError> {
    block_on(async {
        tokio::select! {
            done = Box::pin(login) => Ok(done?),
            // Dropping the login restores the terminal, and lets other processes log in.
            Ok(()) = tokio::signal::ctrl_c() => Err(InterruptibleLoginError::Interrupted),
        }
    })
}
