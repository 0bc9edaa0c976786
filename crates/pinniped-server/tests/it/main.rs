//! Tests of the program: the names with which it is started, start failures of the gateway, and the
//! local-user-authenticator as deployed. Tests of the Concierge and of the gateway as deployed are
//! in `tests/e2e`.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should stop")]

mod gateway;
mod local_user_authenticator;
mod names;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pinniped-server");

/// Returns a command that runs the program through a link with this name in `folder`.
fn command(folder: &Path, name: &str) -> Command {
    let link = folder.join(name);
    symlink(PROGRAM, &link).unwrap();
    Command::new(link)
}
