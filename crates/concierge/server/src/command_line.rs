//! The command line of the program.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Provides authentication for Kubernetes clusters through the Concierge APIs.
#[derive(Parser)]
#[command(name = "pinniped-concierge", version = pinniped_version::VERSION, disable_help_subcommand = true)]
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

/// Runs the Concierge as the arguments of the process request, until it is terminated.
pub fn main() -> ExitCode {
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
    crate::concierge::main(&flags.config, &flags.downward_api_path)
}
