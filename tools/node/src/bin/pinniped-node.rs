//! `pinniped-node`: brings a one-node cluster up and down.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    pinniped_node::cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: a node is made of Linux namespaces: it runs on Linux only");
    ExitCode::FAILURE
}
