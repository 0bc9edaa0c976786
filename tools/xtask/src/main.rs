//! Development tasks of the project. This crate has few dependencies, so that it compiles quickly,
//! and needs nothing but cargo.
//!
//! ```text
//! cargo xtask control-plane  finds or builds etcd, kube-apiserver, kubectl and the others
//! cargo xtask test           checks the machine, builds, runs all tests, lists the skipped ones
//! cargo xtask test NAME      runs only the tests of a suite, such as `certificates`
//! cargo xtask test --fast    runs only the tests that need no control plane
//! cargo xtask world          keeps a control plane ready for tests
//! cargo xtask demo           runs the walk-through on a real control plane
//! cargo xtask manifests      renders deploy/ from the chart, or checks that it is rendered
//! cargo xtask site           builds and checks the documentation site
//! cargo xtask image          builds the container image and prints its content
//! cargo xtask dist           writes the archives and packages of a release
//! cargo xtask release        sets the version and dates the changelog
//! cargo xtask workflows      checks the workflows of GitHub
//! cargo xtask node           runs a real one-node cluster: up, status, exec, down
//! cargo xtask bench          runs the benchmarks
//! cargo xtask server-functions  groups the functions of requests for the linker
//! cargo xtask soak           runs a restarted proxy, a mixed load, rotations, or attacks
//! cargo xtask fuzz           runs the fuzz targets of the parsers of client input
//! ```
#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod control_plane;
mod demo;
mod disk;
mod dist;
mod fields;
mod fuzz;
mod image;
mod manifests;
mod monitoring;
mod node;
mod release;
mod revision;
mod server_functions;
mod site;
mod soak;
mod suite;
mod supply_chain;
mod test;
mod tidy;
mod workflows;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Finds the control plane's programs, or builds them once; the last line of the output is
    /// their folder.
    ControlPlane(control_plane::Args),
    /// Runs all tests with real programs on a real control plane.
    Test(test::Args),
    /// Keeps a control plane ready for tests, so that they start without delay.
    World(world::Args),
    /// Shows the walk-through: install, configure, log in.
    Demo(demo::Args),
    /// Renders the manifests and the kustomize base in deploy/ from the chart.
    Manifests(manifests::Args),
    /// Builds the documentation site, and checks its links.
    Site(site::Args),
    /// Builds the product's container image without a container daemon.
    Image(image::Args),
    /// Writes the archives and packages of a release, except the image, into one folder.
    Dist(dist::Args),
    /// Prepares the commit of a release, or prints its section of the changelog.
    Release(release::Args),
    /// Checks the workflows in .github with actionlint.
    Workflows(workflows::Args),
    /// Runs a real one-node cluster on this machine, without a container daemon.
    Node(node::Args),
    /// Measures the impersonation proxy against the API server itself.
    Bench(bench::Args),
    /// Writes the linker script that groups the functions of requests.
    ServerFunctions(server_functions::Args),
    /// Loads the proxy for minutes and checks that its resource usage does not grow.
    Soak(soak::Args),
    /// Runs the fuzz targets; needs a nightly compiler.
    Fuzz(fuzz::Args),
    /// Checks layers, names, comments, pages and subjects of commits.
    Tidy(tidy::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::ControlPlane(args) => control_plane::run(&args),
        Command::Test(args) => test::run(&args),
        Command::World(args) => world::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Manifests(args) => manifests::run(&args),
        Command::Site(args) => site::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Workflows(args) => workflows::run(&args),
        Command::Node(args) => node::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::ServerFunctions(args) => server_functions::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Tidy(args) => tidy::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
