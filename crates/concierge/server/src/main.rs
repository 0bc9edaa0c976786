//! `pinniped-concierge`: the program that runs in the cluster, with its aggregated API and
//! impersonation proxy.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Requests use less CPU time than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Provides authentication for Kubernetes clusters through the Concierge APIs.
#[derive(Parser)]
#[command(name = "pinniped-concierge", version, disable_help_subcommand = true)]
struct Flags {
    /// Path to the configuration file
    #[arg(short, long, default_value = "pinniped.yaml", value_name = "FILE")]
    config: PathBuf,

    /// Path to the directory that holds the pod's metadata from the Kubernetes downward API
    #[arg(long, default_value = "/etc/podinfo", value_name = "DIRECTORY")]
    downward_api_path: PathBuf,

    #[arg(hide = true)]
    unexpected: Vec<String>,
}

fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) if error.use_stderr() => {
            eprintln!("Error: {}", pinniped_program::flag_error(&error));
            return ExitCode::FAILURE;
        }
        // Help and version requests.
        Err(text) => text.exit(),
    };
    if let Some(word) = flags.unexpected.first() {
        eprintln!("Error: unknown command {word:?} for \"pinniped-concierge\"");
        return ExitCode::FAILURE;
    }
    pinniped_concierge::concierge::main(&flags.config, &flags.downward_api_path)
}
