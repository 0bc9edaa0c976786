//! `pinniped-node`: brings a one-node cluster up and down.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    pinniped_node::cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: a node consists of Linux namespaces and runs on Linux only");
    ExitCode::FAILURE
}
