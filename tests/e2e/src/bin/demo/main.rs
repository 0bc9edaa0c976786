//! `pinniped-demo`: narrates the walk-through on a real control plane. Run it with `cargo xtask
//! demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use pinniped_e2e::cert_manager::CertManager;
use pinniped_e2e::contour;
use pinniped_e2e::walkthrough::Ingress;
use pinniped_test_support::identity_provider::Kind;
use tokio::signal::unix::{Signal, SignalKind, signal};

mod existing;
mod node;
mod observe;
mod oidc;
mod relay;
mod world;

/// Shows the walk-through on a real control plane.
#[derive(Parser)]
struct Args {
    /// Leave everything running at the end (also after a failure), until Ctrl-C, and say how to use
    /// it.
    #[arg(long)]
    keep: bool,
    /// A real cert-manager issues the certificate that the proxy serves.
    #[arg(long)]
    with_cert_manager: bool,
    /// Our gateway brings the user's connections to the proxy: the whole release post, so with a
    /// real cert-manager.
    #[arg(long, requires = "with_cert_manager", conflicts_with = "with_contour")]
    with_gateway: bool,
    /// A real Contour with Envoy does, in our gateway's place.
    #[arg(long, requires = "with_cert_manager")]
    with_contour: bool,
    /// A real identity provider authenticates the user; in processes only. With --keep, standard
    /// input is the socket from which the listeners of the user's own browser are received.
    #[arg(long, conflicts_with_all = ["with_cert_manager", "node"])]
    with_oidc: bool,
    /// The identity provider.
    #[arg(long, value_enum, default_value_t, requires = "with_oidc")]
    provider: Provider,
    /// A real Prometheus reads the metrics, and the demo shows the panels of the dashboard; in
    /// processes only. Standard input may be a socket with a listener, on which the machine reaches
    /// Prometheus.
    #[arg(long, conflicts_with = "node")]
    observe: bool,
    /// How the user is let in.
    #[arg(long, value_enum, default_value_t)]
    strategy: Strategy,
    /// Walk on this node, in pods, in place of processes.
    #[arg(long, value_name = "NAME", requires = "image")]
    node: Option<String>,
    /// Where the node does not run: start it with the programs of this folder, and end it
    /// afterwards.
    #[arg(long, value_name = "DIR", requires = "node")]
    node_tools: Option<PathBuf>,
    /// The archive of our image, for the node.
    #[arg(long, value_name = "FILE", requires = "node")]
    image: Option<PathBuf>,
    /// Walk in the existing cluster of this kubeconfig, which is an administrator's.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "keep", "with_cert_manager", "with_oidc"])]
    kubeconfig: Option<PathBuf>,
    /// The image for the existing cluster: in a registry, or on its nodes.
    #[arg(long, value_name = "NAME", requires = "kubeconfig", default_value = pinniped_image::REFERENCE)]
    image_name: String,
    /// Change the existing cluster without a question.
    #[arg(long, requires = "kubeconfig")]
    yes: bool,
}

/// Ways of a user into the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Strategy {
    /// Through the impersonation proxy, as in the release post.
    #[default]
    ImpersonationProxy,
    /// To the API server itself, with a service account's token; in processes only.
    ServiceAccountToken,
}

/// Identity providers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Provider {
    /// Keycloak.
    #[default]
    Keycloak,
    /// The npm package.
    OidcProvider,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before the signals are caught, so that Ctrl-C ends the question.
    let existing = args.kubeconfig.as_ref();
    let existing =
        existing.map(|file| existing::Params::new(file, args.image_name.clone(), args.yes)).transpose();
    let existing = match existing {
        Ok(existing) => existing,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: could not create a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(demo(args, existing)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(args: Args, existing: Option<existing::Params>) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignals::new()?;
    if let Some(params) = existing {
        return existing::demo(params, &mut stop).await;
    }
    let mut relays = relay::received()?;
    let scenario = scenario(&args, &mut relays)?;
    let observer = args.observe.then(|| observe::Params::new(&mut relays)).transpose()?;
    match (args.node, args.image) {
        (Some(name), Some(image)) => {
            let params = node::Params { name, image, tools: args.node_tools, keep: args.keep, scenario };
            node::demo(params, &mut stop).await
        }
        _ => world::demo(args.keep, scenario, observer, &mut stop).await,
    }
}

/// The steps of a walk.
enum Scenario {
    /// The impersonation proxy, with the programs of a real cert-manager or without.
    Proxy { cert_manager: Option<PathBuf> },
    /// The whole release post with its ingress.
    ReleasePost { cert_manager: PathBuf, ingress: Ingress },
    /// Service account tokens.
    Tokens,
    /// A login at an identity provider.
    Oidc(oidc::Params),
}

fn scenario(args: &Args, relays: &mut Vec<relay::Relay>) -> anyhow::Result<Scenario> {
    if args.with_oidc {
        let kind = match args.provider {
            Provider::Keycloak => Kind::Keycloak,
            Provider::OidcProvider => Kind::OidcProvider,
        };
        return oidc::Params::new(kind, args.keep, relays).map(Scenario::Oidc);
    }
    if args.strategy == Strategy::ServiceAccountToken {
        anyhow::ensure!(
            args.node.is_none() && !args.with_cert_manager,
            "--strategy service-account-token goes neither with --node nor with --with-cert-manager"
        );
        return Ok(Scenario::Tokens);
    }
    let cert_manager = match args.with_cert_manager {
        true => Some(CertManager::programs().context("cert-manager is built by `cargo xtask demo`")?),
        false => None,
    };
    let ingress = if args.with_gateway {
        Some(Ingress::Gateway)
    } else if args.with_contour {
        let programs = contour::Programs::find();
        Some(Ingress::Contour(programs.context("Contour and Envoy are installed by `cargo xtask demo`")?))
    } else {
        None
    };
    Ok(match (cert_manager, ingress) {
        (Some(cert_manager), Some(ingress)) => Scenario::ReleasePost { cert_manager, ingress },
        (cert_manager, _) => Scenario::Proxy { cert_manager },
    })
}

/// The result of the demo.
enum DemoResult {
    Done,
    Failed(anyhow::Error),
    Interrupted,
}

/// Ctrl-C, or a termination signal.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("could not watch for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("could not watch for SIGTERM")?,
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn interrupted() -> ExitCode {
    eprintln!("\ninterrupted, cleaning up");
    ExitCode::from(130)
}
