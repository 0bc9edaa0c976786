//! Recordings of sessions with a real kubelet: a file has the output that kubectl printed.

use std::fs;
use std::time::Duration;

use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::*;

const CONFIG: &str = "pinniped-concierge-config";
const DEPLOYMENT: &str = "deployment/pinniped-concierge";
/// The folder in the pods of the Concierge.
const FOLDER: &str = "/recordings";
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_recording_has_the_output_that_kubectl_printed() {
    let test = "a recording has the output that kubectl printed";
    if !fixture::possible(test) {
        return;
    }
    let Some(debian) = debian(test) else { return };
    let Some(node) = fixture::shared(test).unwrap() else { return };
    let _install = INSTALL.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let environment = OnNode::new(node, folder.path());
    let walk = Walk::new(&environment, Narrator::Silent, Instant::now()).unwrap();
    let admin = Admin(&environment);
    let done = recorded(node, admin, &walk, &debian).await;
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn recorded(
    node: &'static Node,
    admin: Admin<'_>,
    walk: &Walk<'_>,
    debian: &Path,
) -> anyhow::Result<()> {
    let archive = admin.0.dir().join("busybox.tar");
    pinniped_image::build(&busybox(debian), &archive)?;
    node.import_image(&archive).await?;
    pinniped_image::product(&tools::image_bin_dir()?, &archive)?;
    node.import_image(&archive).await?;
    walk.install().await?;
    enable(admin).await?;
    walk.create_user().await?;
    walk.show_credential_issuer().await?;
    walk.create_authenticator().await?;
    walk.enable_proxy(&Serving::Generated).await?;
    walk.kubeconfig().await?;
    walk.allow_and_list().await?;

    // WebSocket and SPDY.
    for version in [Version::Today, Version::Old] {
        let session =
            Session::new(node, admin.0, walk, debian, version, Route::Proxy, &walk.user_kubeconfig());
        prepare(admin, &session).await?;
        let checked = sessions(node, &session).await;
        admin.kubectl(&["delete", "namespace", &session.namespace, "--wait=false"]).await?;
        checked?;
    }
    nothing_restarted(admin.0).await
}

/// Adds the settings and a volume, and replaces the pods.
async fn enable(admin: Admin<'_>) -> anyhow::Result<()> {
    let config = admin.json(&["configmap", CONFIG, "-n", CONCIERGE]).await?;
    let text = config["data"]["pinniped.yaml"].as_str().unwrap_or_default();
    let text = format!("{text}\nrecording: {{sessions: {{directory: {FOLDER}, mode: required}}}}\n");
    let config = json!({"data": {"pinniped.yaml": text}}).to_string();
    admin.kubectl(&["patch", "configmap", CONFIG, "-n", CONCIERGE, "-p", &config]).await?;
    let pod = json!({"spec": {"template": {"spec": {
        "volumes": [{"name": "recordings", "emptyDir": {}}],
        "containers": [{
            "name": "pinniped-concierge",
            "volumeMounts": [{"name": "recordings", "mountPath": FOLDER}],
        }],
    }}}})
    .to_string();
    admin.kubectl(&["patch", DEPLOYMENT, "-n", CONCIERGE, "-p", &pod]).await?;
    admin.kubectl(&["rollout", "status", DEPLOYMENT, "-n", CONCIERGE, "--timeout=120s"]).await?;
    Ok(())
}

async fn sessions(node: &Node, session: &Session<'_>) -> anyhow::Result<()> {
    let script = "echo out; echo err >&2; exit 3";
    let shown = session.run(&["exec", "target", "-c", "main", "--", "sh", "-c", script], None).await?;
    ensure!(shown.code == 3 && shown.stdout == "out\n", "{shown:?}");
    let lines = recording(node, session, |header| header["command"] == format!("sh -c {script}")).await?;
    let text = output(&lines);
    ensure!(["out\n", "err\n"].iter().all(|line| text.contains(line)), "{text}");

    let shown = interactive::attach(session).await?;
    let lines = recording(node, session, |header| header["subresource"] == "attach").await?;
    ensure!(output(&lines) == shown.stdout, "{shown:?}, but {lines:?}");

    let shown = interactive::terminal(session).await?;
    ensure!(shown.code == 7, "{shown:?}");
    let lines = recording(node, session, |header| header["tty"] == true).await?;
    ensure!(lines[0]["width"] == 111 && lines[0]["height"] == 33, "{}", lines[0]);
    ensure!(output(&lines).contains("heard typed"), "{lines:?}");
    ensure!(lines[1..].iter().all(|line| line[1] != "i"), "input is not recorded: {lines:?}");
    Ok(())
}

fn output(lines: &[Value]) -> String {
    let events = lines[1..].iter().filter(|line| line[1] == "o");
    events.filter_map(|line| line[2].as_str()).collect()
}

/// Waits for a complete recording of the session's namespace whose header satisfies a condition.
async fn recording(
    node: &Node,
    session: &Session<'_>,
    is_wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<Vec<Value>> {
    let pods = node.layout().dir().join("data/kubelet/pods");
    wait::until_ok(TIME_LIMIT, "a recording", async || {
        let mut names = Vec::new();
        for pod in fs::read_dir(&pods)? {
            let folder = pod?.path().join("volumes/kubernetes.io~empty-dir/recordings");
            // Other pods have no such volume.
            for file in fs::read_dir(folder).into_iter().flatten() {
                let path = file?.path();
                let name = path.to_string_lossy().into_owned();
                if name.ends_with(".cast") && name.contains(&format!("Z_{}_target_", session.namespace)) {
                    let lines: Result<Vec<Value>, _> =
                        fs::read_to_string(&path)?.lines().map(serde_json::from_str).collect();
                    let lines = lines?;
                    if lines
                        .first()
                        .is_some_and(|header| is_wanted(&header["kubernetes"]) || is_wanted(header))
                    {
                        ensure!(lines[0]["kubernetes"]["username"] == "pinny", "{}", lines[0]);
                        return Ok(lines);
                    }
                }
                names.push(name);
            }
        }
        anyhow::bail!("only {names:?}")
    })
    .await
}
