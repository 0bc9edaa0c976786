//! Runs the walk-through in an existing cluster. The demo removes nothing there; it prints the
//! commands that do.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use pinniped_e2e::environment::ExistingCluster;
use pinniped_e2e::narrator::{Narrator, seconds};
use pinniped_e2e::walkthrough::{INSTALL_FILES, Walk};
use pinniped_test_support::tools;

use crate::{StopSignals, interrupted};

/// The cluster and the image.
pub(crate) struct Params {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    image: String,
}

impl Params {
    /// Finds kubectl, and asks the user for permission unless `yes` is set.
    pub(crate) fn new(kubeconfig: &Path, image: String, yes: bool) -> anyhow::Result<Self> {
        let kubeconfig = std::fs::canonicalize(kubeconfig)
            .with_context(|| format!("could not find the kubeconfig {}", kubeconfig.display()))?;
        let kubectl = tools::in_path("kubectl").context("kubectl is not in PATH")?;
        let server = server(&kubectl, &kubeconfig)?;
        println!(
            "This demo installs the Concierge with image {image} into the cluster at {server}:\n\n  {}\n\n\
             It creates a user `pinny-the-seal` with a known password, and binds the ClusterRole `view` to it.\n\
             It does not change an existing installation, and prints the commands that remove everything.",
            INSTALL_FILES.join("\n  ")
        );
        if !yes {
            anyhow::ensure!(std::io::stdin().is_terminal(), "--yes confirms this where no terminal can");
            print!("\nContinue? [y/N] ");
            std::io::stdout().flush().context("could not write to the terminal")?;
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).context("could not read from the terminal")?;
            anyhow::ensure!(matches!(line.trim(), "y" | "Y" | "yes"), "not confirmed, nothing was changed");
        }
        Ok(Self { kubectl, kubeconfig, image })
    }
}

/// Returns the address of the cluster.
fn server(kubectl: &Path, kubeconfig: &Path) -> anyhow::Result<String> {
    let mut view = std::process::Command::new(kubectl);
    view.args(["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    let output = view.arg("--kubeconfig").arg(kubeconfig).output().context("could not run kubectl")?;
    anyhow::ensure!(
        output.status.success(),
        "could not read {}: {}",
        kubeconfig.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) async fn demo(params: Params, stop: &mut StopSignals) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let folder = tempfile::Builder::new().prefix("pinniped-demo-").tempdir();
    // The kubeconfig of the user stays.
    let folder = folder.context("could not create a folder for the demo's files")?.keep();
    let cluster = ExistingCluster::new(&params.kubectl, &params.kubeconfig, &folder);
    let walk = Walk::new(&cluster, Narrator::Loud, start)?;
    let existing = walk.leftovers().await?;
    anyhow::ensure!(
        existing.is_empty(),
        "the cluster already has objects with the names of an installation, which this demo does not change: {}",
        existing.join(", ")
    );
    let end = tokio::select! {
        result = walk.on_existing_cluster(&params.image) => Some(result),
        () = stop.requested() => None,
    };
    let code = match end {
        Some(Ok(())) => {
            println!("\n== Done in {}", seconds(start.elapsed()));
            println!("\nThe kubeconfig of the user: {}", walk.tutorial_kubeconfig().display());
            ExitCode::SUCCESS
        }
        Some(Err(error)) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
        None => interrupted(),
    };
    println!("\nTo remove everything that the demo installed:\n\n  {}", walk.removal().join("\n  "));
    Ok(code)
}
