//! Benchmarks of the impersonation proxy against the API server itself and against other proxies,
//! in one run.
//!
//! `run` starts a real control plane, the peers and the Concierge, and this program again as the
//! load. Compared figures are in one table, because figures of different runs or machines are not
//! comparable. Start it with `cargo xtask bench`.

mod gateway;
mod load;
mod login;
mod plugin;
mod process;
mod run;
#[path = "repeat/runs.rs"]
mod runs;
mod server;
mod table;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use serde::Serialize;

/// The allocator of `pinniped-gateway`, for the measured data plane; the peers that use the same
/// crates get it, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
enum Command {
    /// Measure and print the tables.
    Run(run::Options),
    /// Measure the ingress gateway and print the tables.
    Gateway(gateway::Options),
    /// Measure logins with a webhook and with ID tokens, and print the table.
    Login(login::Options),
    /// Measure the credential plugin and print the table.
    Plugin(plugin::Options),
    /// Internal: the gateway's data plane with a fixed table.
    #[command(hide = true)]
    DataPlane(gateway::DataPlaneOptions),
    /// Internal: the server behind the gateway.
    #[command(hide = true)]
    Origin(server::OriginOptions),
    /// Internal: a forwarder without authentication and authorization.
    #[command(hide = true)]
    Floor(server::FloorOptions),
    /// Internal: an API server that returns prepared responses.
    #[command(hide = true)]
    Stub(server::StubOptions),
    /// Internal: a Concierge that issues the same token to all users.
    #[command(hide = true)]
    LoginStub(server::LoginStubOptions),
    /// Internal: send GETs.
    #[command(hide = true)]
    Gets {
        #[command(flatten)]
        target: load::Target,
        #[command(flatten)]
        load: load::GetsOptions,
    },
    /// Internal: open new connections, each for one GET.
    #[command(hide = true)]
    Connects {
        #[command(flatten)]
        target: load::Target,
        #[arg(long)]
        count: u64,
        #[arg(long)]
        concurrency: usize,
    },
    /// Internal: open connections, print their number, keep them open until stdin closes.
    #[command(hide = true)]
    Holds {
        #[command(flatten)]
        target: load::Target,
        #[arg(long)]
        count: u64,
    },
    /// Internal: send a short GET at intervals until stdin closes.
    #[command(hide = true)]
    Lists {
        #[command(flatten)]
        target: load::Target,
    },
    /// Internal: open watches, print their number, keep them open until stdin closes.
    #[command(hide = true)]
    Watches {
        #[command(flatten)]
        target: load::Target,
        #[command(flatten)]
        load: load::WatchesOptions,
    },
    /// Internal: transfer bytes in one response or in one request.
    #[command(hide = true)]
    Bytes {
        #[command(flatten)]
        target: load::Target,
        #[arg(long, value_enum)]
        direction: load::Direction,
        #[arg(long)]
        mebibytes: u64,
        #[arg(long)]
        connections: usize,
    },
    /// Internal: transfer bytes through an upgraded stream.
    #[command(hide = true)]
    Tunnel {
        #[command(flatten)]
        target: load::Target,
        #[arg(long, value_enum)]
        direction: load::Direction,
        #[arg(long)]
        megabytes: u64,
    },
}

fn main() -> ExitCode {
    match run_command() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command() -> anyhow::Result<ExitCode> {
    pinniped_pki::install_crypto_provider();
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Run(options) => return run::run(&runtime, &options),
        Command::Gateway(options) => return gateway::run(&runtime, &options),
        Command::Login(options) => return login::run(&runtime, &options),
        Command::Plugin(options) => return plugin::run(&runtime, &options),
        Command::DataPlane(options) => runtime.block_on(gateway::data_plane(&options))?,
        Command::Origin(options) => runtime.block_on(server::origin(&options))?,
        Command::Floor(options) => runtime.block_on(server::floor(&options))?,
        Command::Stub(options) => runtime.block_on(server::stub(&options))?,
        Command::LoginStub(options) => runtime.block_on(server::login_stub(&options))?,
        Command::Gets { target, load } => {
            print_json(&runtime.block_on(unless_cancelled(load::gets(&target, &load)))?)?;
        }
        Command::Connects { target, count, concurrency } => {
            print_json(&runtime.block_on(unless_cancelled(load::connects(&target, count, concurrency)))?)?;
        }
        Command::Holds { target, count } => {
            process::raise_open_files();
            runtime.block_on(load::holds(&target, count, |opened| print_json(&opened), stdin_closed()))?;
        }
        Command::Lists { target } => {
            // When the parent no longer reads, it terminates this process by closing standard
            // input.
            let begun = || print_json(&()).unwrap_or_default();
            print_json(&runtime.block_on(load::lists(&target, begun, stdin_closed()))?)?;
        }
        Command::Watches { target, load } => {
            print_json(&runtime.block_on(load::watches(
                &target,
                &load,
                |opened| print_json(&opened),
                stdin_closed(),
            ))?)?;
        }
        Command::Bytes { target, direction, mebibytes, connections } => {
            let load = load::bytes(&target, direction, mebibytes, connections);
            print_json(&runtime.block_on(unless_cancelled(load))?)?;
        }
        Command::Tunnel { target, direction, megabytes } => {
            print_json(&runtime.block_on(unless_cancelled(load::tunnel(&target, direction, megabytes)))?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line for the parent.
fn print_json(what: &impl Serialize) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", serde_json::to_string(what)?)
        .and_then(|()| stdout.flush())
        .context("standard output is closed")
}

/// Runs a load, which stops early when the parent has exited.
async fn unless_cancelled<T>(load: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        done = load => done,
        () = stdin_closed() => anyhow::bail!("the parent process has exited"),
    }
}

/// Completes when standard input closes, because the parent stops the load or exits.
async fn stdin_closed() {
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        drop(sender);
    });
    // Nothing is ever sent: the end of the thread is the signal.
    let _ended = receiver.await;
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_definitions_of_all_flags_are_valid() {
        super::Command::command().debug_assert();
    }
}
