//! Common kubectl commands through the impersonation proxy, as the user whom the `pinniped` plug-in
//! logged in, or through `pinniped proxy` with a service account's token. Each command runs with a
//! current kubectl, which uses WebSocket, and with one sixteen releases older, which uses SPDY. The
//! administrator also runs each command directly against the API server, and the output must be
//! equal.
//!
//! ```text
//! matrix.rs       the table: command, input, expected output, kubectl version
//! interactive.rs  interactive rows: attach, exec -t, logs -f, run -i, debug, cp, get -w, proxy
//! forwards.rs     port-forward, idle for over a minute and busy for over a minute
//! session.rs      one kubectl on one route, with its own namespace
//! protocols.rs    the protocols of the streams, from the API server's audit log
//! recordings.rs   recordings of sessions, which have a test of their own
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::FutureExt as _;
use futures::future::join_all;
use pinniped_e2e::environment::{Environment as _, OnNode};
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{Delivery, Serving, Walk};
use pinniped_image::{File, Image, Link, Roots};
use pinniped_node::{Node, fixture};
use pinniped_test_support::tools;

use crate::admin::Admin;
use crate::walkthrough::{INSTALL, nothing_restarted};
use matrix::MATRIX;
use session::{Route, Session, Shown, Version};

mod forwards;
mod interactive;
mod matrix;
mod protocols;
mod recordings;
mod session;

/// Environment variable with the folder of Debian's kubectl 1.20 and busybox; `cargo xtask test`
/// sets it.
const DEBIAN_ENV: &str = "PINNIPED_DEBIAN_TOOLS";
/// The image of the pods.
const IMAGE: &str = "example.com/busybox:of-the-matrix";
/// The busybox applets that pods, kubectl and the matrix use.
const APPLETS: [&str; 15] = [
    "cat",
    "dd",
    "echo",
    "httpd",
    "ls",
    "nc",
    "pidof",
    "rm",
    "sh",
    "sha256sum",
    "sleep",
    "stty",
    "tar",
    "test",
    "touch",
];
/// The pod of each session. Its first container serves a file on port 8080 and the received bytes
/// on port 7, and runs commands; the second one echoes its standard input.
const TARGET: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: target}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "echo served > /tmp/index.html; httpd -p 8080 -h /tmp; echo ready; exec nc -ll -p 7 -e cat"]
  - name: listener
    image: IMAGE
    imagePullPolicy: Never
    stdin: true
    command: [sh, -c, 'while read -r line; do echo "heard $line"; done']
"#;

#[tokio::test]
async fn every_kubectl_does_the_same_through_the_proxy_as_without_it() {
    compare("every kubectl does the same through the proxy as without it", Route::Proxy).await;
}

#[tokio::test]
async fn every_kubectl_does_the_same_through_pinniped_proxy_and_service_account_tokens() {
    let test = "every kubectl does the same through pinniped proxy and service account tokens";
    compare(test, Route::LocalProxy).await;
}

/// Returns the folder with Debian's programs, or records a skip where it was not fetched.
fn debian(test: &str) -> Option<PathBuf> {
    let found = std::env::var_os(DEBIAN_ENV).map(PathBuf::from);
    if found.is_none() {
        let why =
            "Debian's kubectl 1.20 and busybox are not there: `cargo xtask test` fetches them where it can";
        tools::skip(test, why);
    }
    found
}

/// Runs the matrix directly and on `route`, and compares the results.
async fn compare(test: &str, route: Route) {
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
    let done = scenario(node, admin, &walk, &debian, route).await;
    let output = if done.is_err() { admin.existing_objects().await } else { String::new() };
    let removed = walk.remove().await;
    if let Err(error) = done {
        panic!("{output}\n{error:#}");
    }
    removed.unwrap();
}

async fn scenario(
    node: &'static Node,
    admin: Admin<'_>,
    walk: &Walk<'_>,
    debian: &Path,
    route: Route,
) -> anyhow::Result<()> {
    let archive = admin.0.dir().join("busybox.tar");
    pinniped_image::build(&busybox(debian), &archive)?;
    node.import_image(&archive).await?;
    pinniped_image::product(&tools::image_bin_dir()?, &archive)?;
    node.import_image(&archive).await?;
    walk.install().await?;
    walk.create_user().await?;
    walk.show_credential_issuer().await?;
    walk.create_authenticator().await?;
    let (kubeconfig, local_proxy) = match route {
        Route::LocalProxy => {
            walk.enable_tokens().await?;
            walk.write_tokens_kubeconfig(Delivery::Kubeconfig).await?;
            walk.allow_and_list_with_token().await?;
            let (running, kubeconfig) = walk.start_local_proxy().await?;
            (kubeconfig, Some(running))
        }
        Route::Direct | Route::Proxy => {
            walk.enable_proxy(&Serving::Generated).await?;
            walk.kubeconfig().await?;
            walk.allow_and_list().await?;
            (walk.user_kubeconfig(), None)
        }
    };

    let direct = admin.0.admin_kubeconfig();
    let session = |version, route, kubeconfig: &Path| {
        Session::new(node, admin.0, walk, debian, version, route, kubeconfig)
    };
    let sessions = [
        session(Version::Today, Route::Direct, &direct),
        session(Version::Today, route, &kubeconfig),
        session(Version::Old, Route::Direct, &direct),
        session(Version::Old, route, &kubeconfig),
    ];
    for session in &sessions {
        prepare(admin, session).await?;
    }
    let results = join_all(sessions.iter().map(|session| all_rows(session).boxed_local())).await;
    let mut failures = Vec::new();
    for (pair, sessions) in results.chunks(2).zip(sessions.chunks(2)) {
        failures.extend(problems(&sessions[0], &pair[0], &pair[1]));
        if let Err(error) = protocols::were_used(node, &sessions[1]) {
            failures.push(format!("{error:#}"));
        }
    }
    for session in &sessions {
        admin.kubectl(&["delete", "namespace", &session.namespace, "--wait=false"]).await?;
    }
    ensure!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    if let Some(mut local_proxy) = local_proxy {
        local_proxy.interrupt(Duration::from_secs(20)).await?;
    }
    nothing_restarted(admin.0).await
}

fn busybox(debian: &Path) -> Image {
    let link = |name: &str| Link { inside: format!("/bin/{name}"), target: "busybox".to_owned() };
    Image {
        user: "0:0".to_owned(),
        roots: Roots::Absent,
        files: vec![File::program(debian.join("busybox"), "/bin/busybox")],
        links: APPLETS.map(link).into(),
        ..Image::new(IMAGE)
    }
}

/// Creates a namespace with the target pod.
async fn prepare(admin: Admin<'_>, session: &Session<'_>) -> anyhow::Result<()> {
    let namespace = session.namespace.as_str();
    admin.kubectl(&["create", "namespace", namespace]).await?;
    // Pods are rejected until the default service account exists.
    let account = ["wait", "--for=create", "serviceaccount/default", "-n", namespace, "--timeout=60s"];
    admin.kubectl(&account).await?;
    let target = TARGET.replace("IMAGE", IMAGE);
    admin.input(&["apply", "-n", namespace, "-f", "-"], Some(&target)).await?;
    let ready = ["wait", "--for=condition=Ready", "pod/target", "-n", namespace, "--timeout=120s"];
    admin.kubectl(&ready).await.map(drop)
}

/// The result of each row in a session; `None` if the row is not for this kubectl.
type RowResults = Vec<Option<anyhow::Result<Shown>>>;

/// Runs the rows in order, because some depend on previous ones, and the long rows concurrently
/// with them.
async fn all_rows(session: &Session<'_>) -> RowResults {
    let long = MATRIX.iter().filter(|row| row.long && row.is_for(session));
    let long = join_all(long.map(|row| row.run(session)));
    let short = async {
        let mut results = Vec::new();
        for row in MATRIX {
            results.push(if row.is_for(session) && !row.long { Some(row.run(session).await) } else { None });
        }
        results
    };
    let (long, mut results) = futures::join!(long, short);
    let mut long = long.into_iter();
    for (row, environment) in MATRIX.iter().zip(&mut results) {
        if row.long && row.is_for(session) {
            *environment = long.next();
        }
    }
    results
}

/// Returns the problems of each row.
fn problems(session: &Session<'_>, direct: &RowResults, proxied: &RowResults) -> Vec<String> {
    let rows = MATRIX.iter().zip(direct.iter().zip(proxied));
    let problems = rows.filter_map(|(row, (direct, proxied))| {
        let why = match (direct.as_ref()?, proxied.as_ref()?) {
            (Ok(direct), Ok(proxied)) => row.problem(direct, proxied)?,
            (Err(error), Ok(_)) => format!("directly: {error:#}"),
            (Ok(_), Err(error)) => format!("through the proxy only: {error:#}"),
            (Err(direct), Err(proxied)) => format!("directly: {direct:#}\nthrough the proxy: {proxied:#}"),
        };
        Some(format!("== kubectl {}, row {:?}: {why}", session.version.name(), row.name))
    });
    problems.collect()
}

#[test]
fn rows_have_unique_names() {
    let mut names: Vec<&str> = MATRIX.iter().map(|row| row.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
