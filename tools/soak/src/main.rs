//! Long-running tests on a real control plane, for problems that appear only after a while. Run
//! them with `cargo xtask soak`.
//!
//! * `controller`: a kube-rs controller works through the proxy while the proxy is restarted
//!   repeatedly. At the end every object must be reconciled to its last generation, and every write
//!   must have been made as the controller's user.
//! * `logins`: logins on three replicas of which one is killed every ten seconds. No credential may
//!   have a wrong identity, and only requests on connections to a killed replica may fail.
//! * `mixed`: all kinds of requests concurrently. Memory, file descriptors and threads of the proxy
//!   must not grow.
//! * `rotations`: the external serving certificate is replaced a thousand times under load. No
//!   handshake and no request may fail, and memory must not grow.
//! * `bystanders`: known attacks, generated requests and resets, while watches of another user are
//!   open. No watch may end.

mod bystanders;
mod connection;
mod controller;
mod install;
mod logins;
mod mixed;
mod restarts;
mod rotations;
mod usage;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Attacks beside watches of another user.
    Bystanders(bystanders::Options),
    /// A controller that uses a proxy while the proxy is restarted.
    Controller(controller::Options),
    /// Logins while replicas are killed.
    Logins(logins::Options),
    /// All kinds of requests at the same time.
    Mixed(mixed::Options),
    /// New serving certificates under load.
    Rotations(rotations::Options),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Bystanders(options) => bystanders::run(&runtime, &options),
        Command::Controller(options) => controller::run(&runtime, &options),
        Command::Logins(options) => logins::run(&runtime, &options),
        Command::Mixed(options) => mixed::run(&runtime, &options),
        Command::Rotations(options) => rotations::run(&runtime, &options),
    }
}
