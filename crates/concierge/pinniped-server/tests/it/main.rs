//! Tests of the program: the names with which it is started, and the local-user-authenticator as
//! deployed. Tests of the Concierge as deployed are in `tests/e2e`.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should stop")]

mod local_user_authenticator;
mod names;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_pinniped-server");
