//! Third-party programs in a cluster, and the labels by which the walk removes their objects.

use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::{tools, wait};

use crate::environment::{Place, Step};

/// The label of every object that a walk, or a program that it starts, creates besides the objects
/// of `deploy/`.
pub const MADE_BY_WALK: &str = "app.kubernetes.io/managed-by=pinniped-demo";

/// Runs an administrator's kubectl without showing it; the command must succeed.
pub(crate) async fn kubectl(place: &dyn Place, args: &[&str], input: Option<&str>) -> anyhow::Result<String> {
    let mut command = place.kubectl().command(args);
    command.current_dir(tools::repository());
    Ok(Step::inside(place, command).run(input).await?.success()?.stdout)
}

/// Rejects a cluster in which `object` (`KIND/NAME`) exists and does not belong to a walk. `flag`
/// is the option that requested the program.
pub(crate) async fn refuse_another(place: &dyn Place, object: &str, flag: &str) -> anyhow::Result<()> {
    let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
    let label = format!("jsonpath={{.metadata.labels.{}}}", key.replace('.', r"\."));
    if kubectl(place, &["get", object, "--output=name", "--ignore-not-found"], None).await?.is_empty() {
        return Ok(());
    }
    let found = kubectl(place, &["get", object, "--output", &label], None).await?;
    anyhow::ensure!(
        found == value,
        "the cluster has a {object} that is not ours: walk without {flag}, or where there is none"
    );
    Ok(())
}

/// Applies a file of definitions, labels them as the walk's, and waits until their kinds are
/// served.
pub(crate) async fn define(place: &dyn Place, file: &std::path::Path) -> anyhow::Result<()> {
    let file = file.to_str().with_context(|| format!("{} is not Unicode", file.display()))?;
    let args = ["apply", "--server-side", "--force-conflicts", "--filename", file];
    kubectl(place, &args, None).await?;
    await_defined(place, file).await
}

/// Labels applied definitions as the walk's, and waits until their kinds are served.
pub(crate) async fn await_defined(place: &dyn Place, file: &str) -> anyhow::Result<()> {
    kubectl(place, &["label", "--overwrite", "--filename", file, MADE_BY_WALK], None).await?;
    let args = ["wait", "--for=condition=Established", "--timeout=120s", "--filename", file];
    // The command fails at once on a definition that has no status yet.
    wait::until_ok(Duration::from_secs(120), "definitions to be established", async || {
        kubectl(place, &args, None).await.map(drop)
    })
    .await
}
