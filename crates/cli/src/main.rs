//! The `pinniped` command line; everything is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use pinniped_cli::environment::Environment;

fn main() -> ExitCode {
    ExitCode::from(pinniped_cli::run(&Environment::of_this_process()))
}
