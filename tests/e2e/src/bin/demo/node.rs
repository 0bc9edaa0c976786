//! Runs the walk-through on a node that is already running, in pods of our image. The demo removes
//! the objects that it creates; the node stays.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use pinniped_e2e::environment::{Environment as _, OnNode};
use pinniped_e2e::narrator::{Narrator, seconds};
use pinniped_e2e::walkthrough::{CONCIERGE, GATEWAY, Ingress, LOCAL_USER_AUTHENTICATOR, Walk};
use pinniped_node::{Node, UpOptions};
use pinniped_test_support::kubectl::LONGEST;

use crate::{DemoResult, Scenario, StopSignals, interrupted};

/// The number of log lines of a pod that usually show why a walk failed.
const TAIL: &str = "--tail=20";

/// The node and its parts.
pub(crate) struct Params {
    pub(crate) name: String,
    /// The archive of our image.
    pub(crate) image: PathBuf,
    /// The programs of a node that the demo starts if it is not running.
    pub(crate) tools: Option<PathBuf>,
    pub(crate) keep: bool,
    pub(crate) scenario: Scenario,
}

pub(crate) async fn demo(params: Params, stop: &mut StopSignals) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let attached = Node::attach(&params.name);
    let own = attached.is_err() && params.tools.is_some();
    let node = match (attached, &params.tools) {
        (Err(_), Some(tools)) => {
            tokio::select! {
                node = up(&params.name, tools) => node?,
                () = stop.requested() => return Ok(interrupted()),
            }
        }
        (attached, _) => attached?,
    };
    let code = walk(&node, &params, own, start, stop).await?;
    if own && !params.keep {
        println!("\n== Stop the node");
        node.down().await?;
    }
    Ok(code)
}

async fn up(name: &str, tools: &Path) -> anyhow::Result<Node> {
    println!("== Start node `{name}`");
    let options = UpOptions {
        name: name.to_owned(),
        tools: Some(tools.to_owned()),
        report: |step| println!("   {step}"),
        ..UpOptions::default()
    };
    Node::up(options).await
}

async fn walk(
    node: &Node,
    params: &Params,
    own: bool,
    start: Instant,
    stop: &mut StopSignals,
) -> anyhow::Result<ExitCode> {
    let Params { name, keep, .. } = params;
    let folder = tempfile::Builder::new().prefix("pinniped-demo-").tempdir();
    let folder = folder.context("could not create a folder for the demo's files")?;
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Loud, start)?;
    let end = tokio::select! {
        result = everything(node, &walk, params, start) => result.map_or_else(DemoResult::Failed, |()| DemoResult::Done),
        () = stop.requested() => DemoResult::Interrupted,
    };
    let code = match &end {
        DemoResult::Done => {
            println!("\n== Done in {}", seconds(start.elapsed()));
            ExitCode::SUCCESS
        }
        DemoResult::Failed(error) => {
            eprintln!("\nerror: {error:#}");
            explain(&environment).await;
            ExitCode::FAILURE
        }
        DemoResult::Interrupted if own => interrupted(),
        DemoResult::Interrupted => {
            eprintln!("\ninterrupted");
            ExitCode::from(130)
        }
    };
    if *keep {
        println!("{}", how_to_go_on(node, &folder.keep())?);
    } else if !own && !matches!(end, DemoResult::Done) {
        eprintln!(
            "\nWhat was installed is still on node `{name}`; the next demo removes it first, and so does \
             `cargo xtask node down --name {name}`."
        );
    }
    Ok(code)
}

async fn everything(node: &Node, walk: &Walk<'_>, params: &Params, start: Instant) -> anyhow::Result<()> {
    let Params { image, keep, scenario, .. } = params;
    let narrator = Narrator::Loud;
    if !walk.leftovers().await?.is_empty() {
        narrator.print("An earlier demo was kept or interrupted.");
        walk.remove().await?;
    }
    narrator.heading(start, "Bring our image onto the node");
    println!("\n$ ctr --namespace k8s.io images import {}", image.display());
    let importing = Instant::now();
    node.import_image(image).await?;
    println!("   ({})", seconds(importing.elapsed()));
    // The parts of the walk that terminate with the demo.
    let mut ends = Vec::new();
    match scenario {
        Scenario::Proxy { cert_manager } => {
            walk.everything_on_a_node(cert_manager.as_deref()).await?;
            ends.extend(cert_manager.is_some().then_some("cert-manager (the certificate is not renewed)"));
        }
        Scenario::ReleasePost { cert_manager, ingress } => {
            // Held until everything is removed, or left running.
            let _entrance = walk.release_post(cert_manager, ingress, true).await?;
            ends.push("cert-manager (the certificate is not renewed)");
            if let Ingress::Contour(_) = ingress {
                ends.push("Contour with Envoy (no server responds at the proxy's name; our gateway remains)");
            }
        }
        Scenario::Tokens | Scenario::Oidc(_) => anyhow::bail!("this demo is shown in processes only"),
    }
    if !keep {
        walk.remove().await?;
    } else if !ends.is_empty() {
        narrator.print(&format!("(a part of this demo was, and has ended: {})", ends.join(", ")));
    }
    Ok(())
}

/// Prints logs of the pods and events after a failure. Best effort: the error itself is already
/// printed.
async fn explain(environment: &OnNode<'_>) {
    let show = async |args: &[&str]| {
        let Ok(command) = environment.enter(environment.kubectl().command(args)) else { return };
        let shown = pinniped_test_support::kubectl::as_typed(&environment.kubectl().command(args));
        if let Ok(output) = pinniped_test_support::kubectl::run_as(LONGEST, shown, command, None).await {
            eprintln!("\n$ {}\n{}{}", output.command, output.stdout, output.stderr);
        }
    };
    show(&["get", "pods", "--all-namespaces", "--output", "wide"]).await;
    for namespace in [CONCIERGE, LOCAL_USER_AUTHENTICATOR, GATEWAY] {
        show(&["get", "events", "--namespace", namespace, "--sort-by=.lastTimestamp"]).await;
        let app = format!("--selector=app={namespace}");
        show(&["logs", &app, "--namespace", namespace, "--prefix", TAIL]).await;
    }
    show(&["get", "credentialissuer", "--output", "yaml"]).await;
    show(&["get", "httpproxies", "--all-namespaces", "--output", "yaml"]).await;
}

/// Returns the command that opens a shell in the node's network, and the users' kubeconfigs.
fn how_to_go_on(node: &Node, folder: &Path) -> anyhow::Result<String> {
    let bins = pinniped_test_support::tools::bin_dir()?;
    let name = node.layout().name();
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "sh".to_owned());
    Ok(format!(
        "\nEverything stays on node `{name}`. To continue manually:\n\n  \
         {bins}/pinniped-node exec --name {name} -- env HOME={home} {shell}\n\n\
         There, `kubectl` is the administrator's; the kubeconfigs of the users are in {home}.\n\
         The next demo removes everything first; `cargo xtask node down --name {name}` removes the node.",
        home = folder.join("home").display(),
        bins = bins.display(),
    ))
}
