//! Measurements of the impersonation proxy against the API server itself, in one run.
//!
//! `run` starts a real control plane and the release Concierge, then this same program again as the load. What is
//! compared stands in one table, because figures of different runs or machines cannot be compared. Start it with
//! `cargo xtask bench`.

mod load;
mod process;
mod run;
mod server;
mod table;

use std::io::{Read as _, Write as _};

use anyhow::Context as _;
use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Measure and print the table.
    Run(run::Options),
    /// Internal: send GETs and print the outcome as JSON.
    #[command(hide = true)]
    Gets {
        #[command(flatten)]
        target: load::Target,
        #[arg(long)]
        connections: usize,
        #[arg(long)]
        concurrency: usize,
        #[arg(long)]
        requests: u64,
    },
    /// Internal: forward and decide nothing.
    #[command(hide = true)]
    Floor(server::FloorOptions),
    /// Internal: open watches, print a line, hold them until stdin ends.
    #[command(hide = true)]
    Watches {
        #[command(flatten)]
        target: load::Target,
        #[arg(long)]
        count: usize,
        #[arg(long)]
        per_connection: usize,
    },
}

fn main() -> std::process::ExitCode {
    match run_command() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run_command() -> anyhow::Result<()> {
    pinniped_pki::install_crypto_provider();
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Run(options) => run::run(&runtime, &options),
        Command::Floor(options) => runtime.block_on(server::floor(&options)),
        Command::Gets { target, connections, concurrency, requests } => {
            let outcome = runtime.block_on(load::gets(&target, connections, concurrency, requests))?;
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(())
        }
        Command::Watches { target, count, per_connection } => {
            let released = tokio_stdin_closed();
            runtime.block_on(load::watches(&target, count, per_connection, announce, released))
        }
    }
}

fn announce() {
    println!("open");
    // The parent sees a closed pipe in its own way.
    let _closed = std::io::stdout().flush();
}

/// Ends when stdin does, which is when the parent lets go or dies.
async fn tokio_stdin_closed() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        let _gone = sender.send(());
    });
    let _either_way = receiver.await.context("stdin thread ended");
}
