//! `local-user-authenticator`: a TokenReview webhook whose users are Secrets, for demonstrations
//! and tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    pinniped_local_user_authenticator::run::main()
}
