//! Third-party programs in a cluster, and the labels by which the walk removes their objects.

use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::{tools, wait};

use crate::environment::{Environment, Step};

/// The label of every object that a walk, or a program that it starts, creates besides the objects
/// of `deploy/`.
pub const MADE_BY_WALK: &str = "app.kubernetes.io/managed-by=pinniped-demo";

/// Runs an administrator's kubectl without showing it; the command must succeed.
pub(crate) async fn kubectl(
    environment: &dyn Environment,
    args: &[&str],
    input: Option<&str>,
) -> anyhow::Result<String> {
    let mut command = environment.kubectl().command(args);
    command.current_dir(tools::repository());
    Ok(Step::inside(environment, command).run(input).await?.success()?.stdout)
}

/// Rejects a cluster in which `object` (`KIND/NAME`) exists and does not belong to a walk. `flag`
/// is the option that requested the program.
pub(crate) async fn refuse_another(
    environment: &dyn Environment,
    object: &str,
    flag: &str,
) -> anyhow::Result<()> {
    let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
    let label = format!("jsonpath={{.metadata.labels.{}}}", key.replace('.', r"\."));
    if kubectl(environment, &["get", object, "--output=name", "--ignore-not-found"], None).await?.is_empty() {
        return Ok(());
    }
    let found = kubectl(environment, &["get", object, "--output", &label], None).await?;
    anyhow::ensure!(
        found == value,
        "the cluster has a {object} of another installation: run without {flag}, or use another cluster"
    );
    Ok(())
}

/// Applies a file of definitions, labels them as the walk's, and waits until their kinds are
/// served.
pub(crate) async fn define(environment: &dyn Environment, file: &std::path::Path) -> anyhow::Result<()> {
    let file = file.to_str().with_context(|| format!("{} is not Unicode", file.display()))?;
    let args = ["apply", "--server-side", "--force-conflicts", "--filename", file];
    kubectl(environment, &args, None).await?;
    await_defined(environment, file).await
}

/// Labels applied definitions as the walk's, and waits until their kinds are served.
pub(crate) async fn await_defined(environment: &dyn Environment, file: &str) -> anyhow::Result<()> {
    kubectl(environment, &["label", "--overwrite", "--filename", file, MADE_BY_WALK], None).await?;
    let args = ["wait", "--for=condition=Established", "--timeout=120s", "--filename", file];
    // The command fails at once on a definition that has no status yet.
    wait::until_ok(Duration::from_secs(120), "definitions to be established", async || {
        kubectl(environment, &args, None).await.map(drop)
    })
    .await
}
