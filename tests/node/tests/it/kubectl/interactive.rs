//! Interactive rows of the matrix.

use anyhow::ensure;
use pinniped_test_support::rng::Rng;
use pinniped_test_support::wire;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;

use super::IMAGE;
use super::session::{Session, Shown};
use crate::background::Open;

/// Size of the copied file in bytes.
const FILE: usize = 3 << 20;

/// Checks that text arrives as it is written, and that the log ends when the container terminates.
pub(super) async fn follow_logs(session: &Session<'_>) -> anyhow::Result<Shown> {
    let image = format!("--image={IMAGE}");
    // The container outlives the command that ends it: the end of a container kills its commands.
    let script = "echo first; until test -f /tmp/end; do sleep 0.1; done; \
        while pidof touch; do sleep 0.1; done >/dev/null; echo last";
    let begin =
        ["run", "ending", &image, "--image-pull-policy=Never", "--restart=Never", "--", "sh", "-c", script];
    succeeds(session, &begin).await?;
    succeeds(session, &["wait", "--for=condition=Ready", "pod/ending", "--timeout=60s"]).await?;
    let logs = session.open("logs", &["logs", "--follow", "ending"])?;
    logs.await_output("first").await?;
    ensure!(logs.runs().await?, "it does not follow");
    succeeds(session, &["exec", "ending", "--", "touch", "/tmp/end"]).await?;
    session.end_of(&logs).await
}

/// Checks that events arrive as they happen.
pub(super) async fn watch(session: &Session<'_>) -> anyhow::Result<Shown> {
    let watch = session.open("watch", &["get", "configmaps", "--watch", "-o", "name"])?;
    watch.await_output("configmap/kube-root-ca.crt\n").await?;
    succeeds(session, &["create", "configmap", "seen"]).await?;
    let stdout = watch.await_output("configmap/seen\n").await?;
    ensure!(watch.runs().await?, "the watch has ended");
    succeeds(session, &["delete", "configmap", "seen"]).await?;
    Ok(Shown { code: 0, stdout, stderr: String::new() })
}

/// Checks a terminal whose size is visible to programs in the pod, and its input.
pub(super) async fn terminal(session: &Session<'_>) -> anyhow::Result<Shown> {
    let inside = r#"until test "$(stty size)" = "33 111"; do sleep 0.1; done; test -t 0 && echo resized; read -r line; echo "heard $line"; exit 7"#;
    let line = format!("stty rows 33 cols 111; exec $KUBECTL exec -it target -c main -- sh -c '{inside}'");
    let open = session.open_terminal("terminal", &line)?;
    open.await_output("resized").await?;
    open.write_input("typed\n").await?;
    open.await_output("heard typed").await?;
    // The echo of the terminal and its position are not part of the comparison.
    Ok(Shown { stdout: String::new(), ..session.end_of(&open).await? })
}

/// Checks that a copied file comes back unchanged.
pub(super) async fn copy(session: &Session<'_>) -> anyhow::Result<Shown> {
    let (sent, back) = (session.path("sent"), session.path("back"));
    let bytes = noise(FILE);
    std::fs::write(&sent, &bytes)?;
    succeeds(session, &["cp", &sent.to_string_lossy(), "target:/tmp/copied", "-c", "main"]).await?;
    let sum = succeeds(session, &["exec", "target", "-c", "main", "--", "sha256sum", "/tmp/copied"]).await?;
    let shown =
        succeeds(session, &["cp", "target:/tmp/copied", &back.to_string_lossy(), "-c", "main"]).await?;
    ensure!(std::fs::read(&back)? == bytes, "other bytes came back");
    Ok(Shown { stdout: sum.stdout, ..shown })
}

/// Checks that the output of a container arrives at once, and that the end of standard input
/// terminates kubectl, not the container.
pub(super) async fn attach(session: &Session<'_>) -> anyhow::Result<Shown> {
    let open = session.open("attach", &["attach", "-i", "target", "-c", "listener"])?;
    for word in ["one", "two"] {
        open.write_input(&format!("{word}\n")).await?;
        open.await_output(&format!("heard {word}\n")).await?;
    }
    ensure!(open.runs().await?, "it has terminated");
    open.hang_up().await;
    session.end_of(&open).await
}

/// Checks a pod that terminates with its input, and is removed.
pub(super) async fn run(session: &Session<'_>) -> anyhow::Result<Shown> {
    let image = format!("--image={IMAGE}");
    let args =
        ["run", "passing", "-i", "--rm", "--restart=Never", &image, "--image-pull-policy=Never", "--", "cat"];
    let open = session.open("run", &args)?;
    converse(session, &open, "hello\n").await
}

/// Checks a shell next to the containers of a running pod.
pub(super) async fn debug_in_place(session: &Session<'_>) -> anyhow::Result<Shown> {
    debug(session, "debug", &["--target=main"]).await
}

/// Checks a shell in a copy of a pod.
pub(super) async fn debug_a_copy(session: &Session<'_>) -> anyhow::Result<Shown> {
    debug(session, "debug-copy", &["--copy-to=copy", "--share-processes"]).await
}

async fn debug(session: &Session<'_>, name: &str, how: &[&str]) -> anyhow::Result<Shown> {
    let image = format!("--image={IMAGE}");
    let args = ["debug", "-i", "target", "-c", "debugger", &image, "--image-pull-policy=IfNotPresent"];
    let script = ["--", "sh", "-c", r#"read -r line; echo "told $line"; read -r line"#];
    let open = session.open(name, &[&args[..], how, &script].concat())?;
    converse(session, &open, "told hello\n").await
}

/// Sends a line, waits for the response, and closes standard input, in this order, because the
/// program may exit when its input ends.
async fn converse(session: &Session<'_>, open: &Open, response: &str) -> anyhow::Result<Shown> {
    open.write_input("hello\n").await?;
    open.await_output(response).await?;
    open.hang_up().await;
    session.end_of(open).await
}

/// Checks requests of a program without credentials: a list, and an HTTP page of the pod.
pub(super) async fn proxy(session: &Session<'_>) -> anyhow::Result<Shown> {
    let socket = session.path("socket");
    let open = session.open("proxy", &["proxy", "--unix-socket", &socket.to_string_lossy()])?;
    open.await_output("Starting to serve on").await?;
    let pods = format!("/api/v1/namespaces/{}/pods", session.namespace);
    let mut output = String::new();
    for (path, wanted) in
        [(pods.clone(), "\"PodList\""), (format!("{pods}/target:8080/proxy/index.html"), "served")]
    {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let mut response = wire::raw_request(UnixStream::connect(&socket).await?, request.as_bytes()).await?;
        response.stream.read_to_end(&mut response.rest).await?;
        let body = String::from_utf8_lossy(&response.rest);
        ensure!(body.contains(wanted), "GET {path}: {}\n{body}", response.head);
        output += &format!("{} with {wanted}\n", response.status);
    }
    ensure!(open.runs().await?, "it has terminated");
    Ok(Shown { code: 0, stdout: output, stderr: String::new() })
}

/// Runs a command, which must succeed.
async fn succeeds(session: &Session<'_>, args: &[&str]) -> anyhow::Result<Shown> {
    let shown = session.run(args, None).await?;
    ensure!(shown.code == 0, "kubectl {}: {shown:?}", args.join(" "));
    Ok(shown)
}

/// Returns bytes of all values with a long period.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let mut rng = Rng::new(0);
    (0..count).map(|_| rng.number() as u8).collect()
}
