//! One run: control plane, Concierge, load, figures.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::wait;
use pinniped_test_support::world::{World, WorldParams};
use tokio::runtime::Runtime;

use crate::load::{Outcome, Protocol};
use crate::process;
use crate::table::Table;

const NAMESPACE: &str = "pinniped-concierge";
const PROXY_NAME: &str = "bench-proxy.local";
const CONFIG_MAP: &str = "/api/v1/namespaces/default/configmaps/bench";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Dbench";

/// What to measure, and how long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer requests and watches: shows that it works and gives rough figures.
    #[arg(long)]
    quick: bool,
    /// The Concierge program to measure.
    #[arg(long)]
    concierge: PathBuf,
}

impl Options {
    fn requests(&self) -> u64 {
        if self.quick { 4_000 } else { 40_000 }
    }

    fn watches(&self) -> usize {
        if self.quick { 300 } else { 2_000 }
    }
}

/// Where requests go in one of the compared ways.
struct Way {
    name: &'static str,
    address: String,
    server_name: String,
    ca: PathBuf,
    pid: u32,
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    let world = World::start(WorldParams::default())?;
    let pods = world.pods("bench").context("the measurement needs a network namespace of its own")?;
    measure(runtime, options, &world, pods).with_context(|| pods.log_tails(NAMESPACE, 20))
}

fn measure(runtime: &Runtime, options: &Options, world: &World, pods: &Pods) -> anyhow::Result<()> {
    pods.register("pinniped-concierge", options.concierge.clone());
    eprintln!("control plane is up; installing the Concierge");
    let (pid, ip) = runtime.block_on(install(world, pods))?;
    let client = world.control_plane().ca().client("bench-user", Some("bench-group"))?;
    let cert = write(world.dir(), "bench-user.crt", &client.certificate_pem)?;
    let key = write(world.dir(), "bench-user.key", &client.private_key_pem)?;
    let proxy_ca = runtime.block_on(proxy_ca(world))?;

    let at_rest = process::resident(pid)?;
    let api_server = world.control_plane().server();
    let api_address = api_server.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let ways = [
        Way {
            name: "API server",
            server_name: api_address.split(':').next().unwrap_or_default().to_owned(),
            address: api_address,
            ca: write(world.dir(), "kube-ca.crt", &world.control_plane().ca().certificate_pem)?,
            pid: api_server_pid(world)?,
        },
        Way {
            name: "proxy",
            address: format!("{ip}:8444"),
            server_name: PROXY_NAME.to_owned(),
            ca: write(world.dir(), "proxy-ca.crt", &proxy_ca)?,
            pid,
        },
    ];

    let mut requests = Table::new(&[
        "GET of a ConfigMap",
        "protocol",
        "requests/s",
        "p50 µs",
        "p90 µs",
        "p99 µs",
        "CPU µs/request of this process",
    ]);
    for protocol in [Protocol::H2, Protocol::H1] {
        for way in &ways {
            // Caches warm and code paths paged in before anything counts.
            gets(way, &cert, &key, protocol, options.requests() / 10)?;
            let before = process::cpu_time(way.pid)?;
            let outcome = gets(way, &cert, &key, protocol, options.requests())?;
            let used = process::cpu_time(way.pid)?.saturating_sub(before);
            let each = used.as_secs_f64() * 1e6 / outcome.requests as f64;
            requests.row(vec![
                way.name.to_owned(),
                match protocol {
                    Protocol::H2 => "HTTP/2".to_owned(),
                    Protocol::H1 => "HTTP/1.1".to_owned(),
                },
                format!("{:.0}", outcome.requests as f64 / outcome.seconds),
                outcome.p50.to_string(),
                outcome.p90.to_string(),
                outcome.p99.to_string(),
                format!("{each:.0}"),
            ]);
        }
    }

    let mut memory = Table::new(&["Resident memory of the Concierge", "value"]);
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
    memory.row(vec!["at rest, proxy listening".to_owned(), mib(at_rest)]);
    let after_load = process::resident(pid)?;
    memory.row(vec!["after the load above".to_owned(), mib(after_load)]);
    for (protocol, per_connection) in [(Protocol::H2, 50), (Protocol::H1, 1)] {
        let count = match protocol {
            Protocol::H2 => options.watches(),
            Protocol::H1 => options.watches() / 2,
        };
        let before = process::resident(pid)?;
        let held = watches(&ways[1], &cert, &key, protocol, count, per_connection)?;
        let with = process::resident(pid)?;
        drop(held);
        let each = with.saturating_sub(before) as f64 / 1024.0 / count as f64;
        let name = match protocol {
            Protocol::H2 => format!("each of {count} open watches, HTTP/2, {per_connection} a connection"),
            Protocol::H1 => format!("each of {count} open watches, HTTP/1.1, a connection each"),
        };
        memory.row(vec![name, format!("{each:.0} KiB")]);
    }

    println!("\n{requests}\n{memory}");
    println!(
        "The Go implementation on such a machine, for comparison: 500 µs CPU a GET over HTTP/2, 556 µs over"
    );
    println!("HTTP/1.1; 90 MiB resident at rest; 228 KiB an open watch.");
    Ok(())
}

async fn install(world: &World, pods: &Pods) -> anyhow::Result<(u32, std::net::Ipv4Addr)> {
    let deploy = pinniped_test_support::tools::repository().join("deploy");
    let kubectl = world.kubectl();
    for file in ["install-pinniped-concierge-crds.yaml", "install-pinniped-concierge-resources.yaml"] {
        let path = deploy.join(file);
        let path = path.to_str().context("path is not UTF-8")?;
        wait::until_ok(Duration::from_secs(30), format!("kubectl apply -f {file}"), async || {
            kubectl.output(&["apply", "-f", path]).await
        })
        .await?;
    }
    // Where kube-proxy runs, ClusterIPs are the kernel's work. Here a program stands in for it, whose work on the same
    // cores would be measured with the rest; so the Concierge is shown the API server's own address.
    let server = world.control_plane().server();
    let port = server.rsplit(':').next().context("the API server has no port")?;
    kubectl
        .output(&[
            "set",
            "env",
            "deployment/pinniped-concierge",
            "--namespace",
            NAMESPACE,
            &format!("KUBERNETES_SERVICE_HOST={NODE_IP}"),
            &format!("KUBERNETES_SERVICE_PORT={port}"),
        ])
        .await?;
    kubectl
        .output(&["rollout", "status", "deployment/pinniped-concierge", "-n", NAMESPACE, "--timeout=120s"])
        .await?;
    let patch = format!(
        r#"{{"spec":{{"impersonationProxy":{{"mode":"enabled","externalEndpoint":"{PROXY_NAME}","service":{{"type":"None"}}}}}}}}"#
    );
    kubectl
        .output(&["patch", "credentialissuer", "pinniped-concierge-config", "--type=merge", "-p", &patch])
        .await?;
    kubectl.output(&["create", "configmap", "bench", "--from-literal=key=value"]).await?;
    kubectl
        .output(&["create", "clusterrolebinding", "bench", "--clusterrole=view", "--group=bench-group"])
        .await?;
    wait::until_ok(Duration::from_secs(90), "the impersonation proxy to listen", async || {
        ensure!(strategy(world).await?.starts_with("Success Listening"), "{}", strategy(world).await?);
        Ok(())
    })
    .await
    .with_context(|| pods.log_tails(NAMESPACE, 20))?;
    let running: Vec<_> = pods.list(NAMESPACE);
    let found = running.iter().find_map(|(_, pod)| Some((pod.pid?, pod.ip?)));
    found.context("no pod of the Concierge runs")
}

async fn strategy(world: &World) -> anyhow::Result<String> {
    const PATH: &str = "jsonpath={.status.strategies[?(@.type==\"ImpersonationProxy\")].status} \
         {.status.strategies[?(@.type==\"ImpersonationProxy\")].reason} \
         {.status.strategies[?(@.type==\"ImpersonationProxy\")].message}";
    world.kubectl().output(&["get", "credentialissuer", "pinniped-concierge-config", "-o", PATH]).await
}

async fn proxy_ca(world: &World) -> anyhow::Result<String> {
    const PATH: &str = "jsonpath={.data.ca\\.crt}";
    let secret = format!("{NAMESPACE}-impersonation-proxy-ca-certificate");
    let encoded = world.kubectl().output(&["get", "secret", &secret, "-n", NAMESPACE, "-o", PATH]).await?;
    use base64::Engine as _;
    Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded.trim())?)?)
}

fn api_server_pid(world: &World) -> anyhow::Result<u32> {
    world
        .control_plane()
        .process_ids()
        .into_iter()
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("kube-apiserver"))
        })
        .context("the API server is not running")
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}

fn this_program(way: &Way, cert: &Path, key: &Path, protocol: Protocol, what: &str, path: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(what);
    for (flag, value) in
        [("--address", way.address.as_str()), ("--server-name", &way.server_name), ("--path", path)]
    {
        command.arg(flag).arg(value);
    }
    for (flag, value) in [("--ca", way.ca.as_path()), ("--cert", cert), ("--key", key)] {
        command.arg(flag).arg(value);
    }
    command.arg("--protocol").arg(match protocol {
        Protocol::H1 => "h1",
        Protocol::H2 => "h2",
    });
    command
}

fn gets(way: &Way, cert: &Path, key: &Path, protocol: Protocol, requests: u64) -> anyhow::Result<Outcome> {
    let mut command = this_program(way, cert, key, protocol, "gets", CONFIG_MAP);
    command.args(["--connections", "4", "--concurrency", "16", "--requests", &requests.to_string()]);
    let output = command.stderr(Stdio::inherit()).output().context("could not start the load")?;
    ensure!(output.status.success(), "the load against the {} failed", way.name);
    serde_json::from_slice(&output.stdout).context("the load printed no outcome")
}

/// Open watches; dropping it closes them.
struct Held(std::process::Child);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends by itself once stdin is closed.
        let _ended = self.0.wait();
    }
}

fn watches(
    way: &Way,
    cert: &Path,
    key: &Path,
    protocol: Protocol,
    count: usize,
    per_connection: usize,
) -> anyhow::Result<Held> {
    let mut command = this_program(way, cert, key, protocol, "watches", WATCH);
    command.args(["--count", &count.to_string(), "--per-connection", &per_connection.to_string()]);
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("could not start the watches")?;
    let mut held = Held(child);
    let stdout = held.0.stdout.take().context("no pipe")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim() != "open" {
        bail!("the watches were not opened");
    }
    Ok(held)
}
