//! The command line of `pinniped-node`. Users run it through `cargo xtask node`.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use crate::{
    DEFAULT_NAME, Health, Layout, Node, Status, UpOptions, fixture, inside, instance, prerequisites,
};
use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

/// Prints a line. A closed standard output is ignored, so that an operation neither stops half-way
/// nor panics.
macro_rules! print_line {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($arg)*);
    }};
}

/// A one-node cluster in separate Linux namespaces.
#[derive(Parser)]
#[command(name = "pinniped-node", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a node, unless it is running already.
    Up(Up),
    /// Stops a node, and checks that nothing of it is left on the machine.
    Down(Which),
    /// Prints the status of a node; without a name, of all nodes.
    Status(Which),
    /// Runs a program of this machine in the node's network, with its names.
    Exec {
        #[command(flatten)]
        which: Which,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Starts a node, and stops it when standard input closes.
    #[command(hide = true)]
    Hold(Up),
    /// Succeeds when a node can run here.
    #[command(hide = true)]
    Check,
    #[command(hide = true)]
    Supervise(Step),
    #[command(hide = true)]
    Init(Step),
    #[command(hide = true)]
    Run(Which),
}

#[derive(Args)]
struct Which {
    /// The name of the node, to run several nodes at the same time.
    #[arg(long)]
    name: Option<String>,
    /// The folder of all nodes' state [default: /var/lib/pinniped-node, or PINNIPED_NODE_STATE].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    which: Which,
    /// The folder of the node's programs [default: PINNIPED_NODE_TOOLS].
    #[arg(long, value_name = "DIR")]
    tools: Option<PathBuf>,
    /// An image archive to import; may be repeated.
    #[arg(long = "image", value_name = "ARCHIVE")]
    images: Vec<PathBuf>,
}

#[derive(Args)]
struct Step {
    #[command(flatten)]
    which: Which,
    #[arg(long)]
    tools: PathBuf,
    #[arg(long)]
    marker: String,
}

impl Which {
    fn layout(&self) -> anyhow::Result<Layout> {
        Layout::new(self.name.as_deref().unwrap_or(DEFAULT_NAME), self.state.as_deref())
    }
}

/// Runs the command that this process was started with.
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(args) => block_on(up(args)),
        Command::Down(which) => down(&which),
        Command::Status(which) => status(&which),
        Command::Exec { which, command } => exec(&which, &command),
        Command::Hold(args) => block_on(hold(args)),
        Command::Check => match prerequisites::missing() {
            None => Ok(ExitCode::SUCCESS),
            Some(missing) => anyhow::bail!(missing),
        },
        Command::Supervise(step) => {
            match instance::supervise(&step.which.layout()?, &step.tools, &step.marker)? {}
        }
        Command::Init(step) => {
            inside::init(&step.which.layout()?, &step.tools, &step.marker).map(|()| ExitCode::SUCCESS)
        }
        Command::Run(which) => {
            let layout = which.layout()?;
            block_on(async move { inside::run(&layout).await.map(|()| ExitCode::SUCCESS) })
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("could not create a runtime")?;
    let result = runtime.block_on(work);
    // Does not wait for a thread that still reads standard input.
    runtime.shutdown_background();
    result
}

fn options(args: &Up, report: fn(&str)) -> anyhow::Result<UpOptions> {
    Ok(UpOptions {
        name: args.which.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned()),
        state: args.which.state.clone(),
        tools: args.tools.clone(),
        images: args.images.clone(),
        program: Some(std::env::current_exe().context("could not find this executable")?),
        report,
    })
}

/// Starts a node. A signal interrupts the start and removes what was created.
async fn up_or_signal(args: &Up, report: fn(&str)) -> anyhow::Result<Node> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("could not wait for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("could not wait for SIGHUP")?;
    tokio::select! {
        node = Node::up(options(args, report)?) => node,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted; removing the created resources"),
        _ = terminate.recv() => anyhow::bail!("received SIGTERM; removing the created resources"),
        _ = hang_up.recv() => anyhow::bail!("the terminal was closed; removing the created resources"),
    }
}

async fn up(args: Up) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let name = args.which.layout()?.name().to_owned();
    print_line!("== node `{name}`");
    let node = up_or_signal(&args, |step| print_line!("   {step}")).await?;
    print_line!("   up in {:.1} s", start.elapsed().as_secs_f64());
    let flag = name_flag(&name);
    print_line!("\nUse it:  cargo xtask node exec{flag} -- kubectl get pods -A");
    print_line!("Look:    {}", node.layout().logs().display());
    print_line!("Stop it: cargo xtask node down{flag}");
    Ok(ExitCode::SUCCESS)
}

fn name_flag(name: &str) -> String {
    if name == DEFAULT_NAME { String::new() } else { format!(" --name {name}") }
}

async fn hold(args: Up) -> anyhow::Result<ExitCode> {
    // The end of the pipe stops the node for any reason, also during startup.
    let mut closed = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let node = tokio::select! {
        node = up_or_signal(&args, |_| {}) => node,
        _ = &mut closed => Err(anyhow::anyhow!("released; removing the created resources")),
    };
    let node = match node {
        Ok(node) => node,
        Err(error) => {
            // The tests read standard output.
            print_line!("{error:#}");
            return Ok(ExitCode::FAILURE);
        }
    };
    print_line!("{}", fixture::HELD);
    let _ = closed.await;
    let layout = node.layout().clone();
    if let Err(error) = node.down().await {
        // The parent process has exited; `cargo xtask test` checks for this file.
        let file = layout.state().join(format!("{}.left", layout.name()));
        let _ = std::fs::create_dir_all(layout.state());
        std::fs::write(&file, format!("{error:#}\n"))
            .with_context(|| format!("could not write {}", file.display()))?;
        return Err(error);
    }
    Ok(ExitCode::SUCCESS)
}

fn down(which: &Which) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let layout = which.layout()?;
    if Node::remove(&layout)? {
        print_line!("== node `{}` is down in {:.1} s", layout.name(), start.elapsed().as_secs_f64());
        print_line!("   links, iptables, mounts, cgroups and processes are as before `up`");
    } else {
        print_line!("== there is no node `{}`", layout.name());
    }
    Ok(ExitCode::SUCCESS)
}

fn status(which: &Which) -> anyhow::Result<ExitCode> {
    let all = match &which.name {
        Some(_) => vec![Status::of(&which.layout()?)],
        None => Status::all(which.state.as_deref())?,
    };
    if all.is_empty() {
        print_line!("no node");
        return Ok(ExitCode::FAILURE);
    }
    for status in &all {
        let name = status.layout.name();
        match &status.health {
            Health::Absent => print_line!("{name}: absent"),
            Health::Starting => print_line!("{name}: starting"),
            Health::Broken(why) => print_line!(
                "{name}: broken ({why}); `cargo xtask node up{0}` repairs, `down{0}` removes",
                name_flag(name)
            ),
            Health::Running => {
                print_line!("{name}: running, kubeconfig {}", status.layout.kubeconfig().display());
            }
        }
    }
    let well = all.iter().all(|status| status.health == Health::Running);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn exec(which: &Which, command: &[OsString]) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;
    let node = Node::attach_in(&which.layout()?)?;
    let (program, args) = command.split_first().context("no program is given")?;
    let mut entered = node.enter(program)?.into_std();
    Err(entered.args(args).exec()).context("could not start nsenter")
}
