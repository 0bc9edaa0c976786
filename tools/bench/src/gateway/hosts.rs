//! Ten thousand hosts on a real control plane: their memory in the real program, and the time until
//! a change of one of them takes effect.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use http_body_util::BodyExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::guardian::Ending;
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::world::{World, WorldParams};
use pinniped_test_support::{process_status, wait};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::load::{Protocol, Target};
use crate::process;
use crate::run::measured_path::write;
use crate::run::requirements::Checks;
use crate::run::rounds::median;
use crate::table::Table;

use super::Options;

/// Number of hosts.
const HOSTS: usize = 10_000;
/// Limit of their additional resident memory, in MiB.
pub(super) const MEMORY: f64 = 60.0;
/// Limit of the time until a change takes effect, in ms.
pub(super) const LIVE: f64 = 1000.0;

/// The namespace of the gateway.
const NAMESPACE: &str = "pinniped-gateway";
/// The namespace of the objects.
const OBJECTS: &str = "bench";
/// Number of concurrent creations.
const CREATORS: usize = 16;
/// Interval of the requests that check whether a change has taken effect.
const EVERY: Duration = Duration::from_millis(5);

/// The domain of all hosts, with a wildcard certificate.
const DOMAIN: &str = "hosts.bench.test";

/// Measures memory and time. `program` is the real program, in a separate pod.
pub(super) fn measure(
    runtime: &Runtime,
    program: &Path,
    options: &Options,
    checks: &mut Checks,
) -> anyhow::Result<Table> {
    let world = World::start(WorldParams::default())?;
    let pods = world.pods("bench gateway").context("the measurement needs a network namespace of its own")?;
    let reported = runtime.block_on(hosts(program, options, &world, pods, checks));
    reported.with_context(|| format!("the gateway's log:\n{}", pods.log_tails(NAMESPACE, 20)))
}

async fn hosts(
    program: &Path,
    options: &Options,
    world: &World,
    pods: &Pods,
    checks: &mut Checks,
) -> anyhow::Result<Table> {
    let port = objects(world)?;
    install(world, pods, program, port).await?;
    let (pid, ip) = running(pods).await?;
    let proxies = proxies(world.client().await?);
    proxies.create(&PostParams::default(), &proxy("first")).await?;
    let mut client = Client::connect(world, ip, "first").await?;
    let first = until_status(&mut client, "/small", StatusCode::OK, Duration::from_secs(60)).await?;
    eprintln!("the first host is live after {first:?}");
    let before = settle(pid).await?;

    let start = Instant::now();
    let names = (0..HOSTS).map(|number| format!("h{number}"));
    futures::stream::iter(names)
        .map(|name| {
            let proxies = &proxies;
            async move { proxies.create(&PostParams::default(), &proxy(&name)).await }
        })
        .buffer_unordered(CREATORS)
        .try_for_each(async |_created| Ok(()))
        .await
        .context("could not create the hosts")?;
    eprintln!("{HOSTS} hosts were created within {:?}", start.elapsed());
    let last = format!("h{}", HOSTS - 1);
    let mut client = Client::connect(world, ip, &last).await?;
    until_status(&mut client, "/small", StatusCode::OK, Duration::from_secs(120)).await?;
    eprintln!("the last one is live {:?} after the first was created", start.elapsed());
    wait::until_ok(Duration::from_secs(600), "every status to be written", async || {
        let all = proxies.list(&ListParams::default().limit(500 + HOSTS as u32)).await?;
        let valid = all.items.iter().filter(|one| one.data["status"]["currentStatus"] == "valid").count();
        ensure!(valid == HOSTS + 1, "{valid} of {}", HOSTS + 1);
        Ok(())
    })
    .await?;
    eprintln!("every status is written {:?} after the first was created", start.elapsed());
    let after = settle(pid).await?;

    let cpu = process::cpu_time(pid)?;
    let mut took = Vec::new();
    let changes = if options.quick { 10 } else { 30 };
    for change in 0..changes {
        // The changes follow each other, each to another host, observed by a client that is already
        // connected.
        let name = format!("h{}", (change * 7919) % HOSTS);
        let mut client = Client::connect(world, ip, &name).await?;
        until_status(&mut client, "/changed", StatusCode::NOT_FOUND, Duration::from_secs(10)).await?;
        let patch = serde_json::json!({"spec": {"routes": [
            {"conditions": [{"prefix": "/changed"}], "directResponsePolicy": {"statusCode": 202}},
            {"conditions": [{"prefix": "/"}], "services": [{"name": "origin", "port": 80}]},
        ]}});
        proxies.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let live =
            until_status(&mut client, "/changed", StatusCode::ACCEPTED, Duration::from_secs(30)).await?;
        took.push(live.as_secs_f64() * 1000.0);
    }
    let cpu = process::cpu_time(pid)?.saturating_sub(cpu).as_secs_f64() * 1000.0 / changes as f64;
    let at_last = settle(pid).await?;

    let mut table = Table::new(&[&format!("{HOSTS} hosts with TLS, each an HTTPProxy"), "measured"]);
    let mut row = |what: &str, value: String| table.row(vec![what.to_owned(), value]);
    let mib = |bytes: f64| bytes / 1_048_576.0;
    let slowest = took.iter().copied().fold(0.0, f64::max);
    row("resident memory with one host, MiB", format!("{:.1}", mib(before)));
    row("with all, statuses written, MiB", format!("{:.1}", mib(after)));
    row("after the changes, MiB", format!("{:.1}", mib(at_last)));
    row("a change of a route is live after, median, ms", format!("{:.0}", median(took.iter().copied())));
    row("the slowest, ms", format!("{slowest:.0}"));
    row("CPU of a change, ms", format!("{cpu:.0}"));
    checks.at_most("10,000 hosts, additional resident memory, MiB", Some(mib(after - before)), MEMORY);
    checks.at_most("10,000 hosts, slowest change of a route, ms", Some(slowest), LIVE);
    Ok(table)
}

/// Starts the origin and returns its port without TLS.
fn objects(world: &World) -> anyhow::Result<u16> {
    let dir = world.dir();
    let control_plane = world.control_plane();
    let wildcard = format!("*.{DOMAIN}");
    let pair = control_plane.ca().server("bench-origin", &[&wildcard], &[])?;
    let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
    let (tls, plain) = (free_port()?, free_port()?);
    command.args([
        "origin",
        "--listen",
        &format!("{NODE_IP}:{tls}"),
        "--plain",
        &format!("{NODE_IP}:{plain}"),
    ]);
    command.arg("--cert").arg(write(dir, "hosts.crt", &pair.certificate_pem)?);
    command.arg("--key").arg(write(dir, "hosts.key", &pair.private_key_pem)?);
    let log = control_plane.log_file("bench-origin");
    control_plane.guardian().spawn(&command, Ending::Kill, &log)?;
    Ok(plain)
}

/// Installs the gateway from `deploy/` with one replica and without probes, and the objects that
/// its hosts need.
async fn install(world: &World, pods: &Pods, program: &Path, port: u16) -> anyhow::Result<()> {
    pods.register("pinniped-gateway", program.to_owned());
    let deploy = pinniped_test_support::tools::repository().join("deploy");
    let kubectl = world.kubectl();
    let files = [
        "install-tls-certificate-delegation.yaml",
        "install-gateway-crds.yaml",
        "install-pinniped-gateway.yaml",
    ];
    for file in files {
        let path = deploy.join(file);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("could not read {}", path.display()))?
            .replace("\n  replicas: 2\n", "\n  replicas: 0\n");
        wait::until_ok(Duration::from_secs(30), format!("kubectl apply -f {file}"), async || {
            kubectl.apply(&text).await
        })
        .await?;
    }
    kubectl.output(&["create", "namespace", OBJECTS]).await?;
    let (cert, key) = (world.dir().join("hosts.crt"), world.dir().join("hosts.key"));
    let (cert, key) = (format!("--cert={}", cert.display()), format!("--key={}", key.display()));
    kubectl.output(&["create", "secret", "tls", "wildcard", "-n", OBJECTS, &cert, &key]).await?;
    let service = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "origin", "namespace": OBJECTS},
         "spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": port}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
         "metadata": {"name": "origin", "namespace": OBJECTS, "labels": {"kubernetes.io/service-name": "origin"}},
         "ports": [{"name": "", "port": port, "protocol": "TCP"}],
         "endpoints": [{"addresses": [NODE_IP.to_string()], "conditions": {"ready": true}}]},
    ]});
    kubectl.apply(&service.to_string()).await?;
    let patch = serde_json::json!({"spec": {"replicas": 1, "template": {"spec": {"containers": [
        {"name": "pinniped-gateway", "readinessProbe": null},
    ]}}}});
    let deployment = ["patch", "deployment/pinniped-gateway", "-n", NAMESPACE, "-p", &patch.to_string()];
    kubectl.output(&deployment).await?;
    Ok(())
}

/// Returns the process and its address.
async fn running(pods: &Pods) -> anyhow::Result<(u32, Ipv4Addr)> {
    wait::until_ok(Duration::from_secs(60), "the gateway to listen", async || {
        let found = pods.list(NAMESPACE).into_iter().find_map(|(_, pod)| Some((pod.pid?, pod.ip?)));
        let (pid, ip) = found.context("no pod of it is running")?;
        tokio::net::TcpStream::connect((ip, 8443)).await?;
        Ok((pid, ip))
    })
    .await
}

fn proxies(client: kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("projectcontour.io", "v1", "HTTPProxy");
    Api::namespaced_with(client, OBJECTS, &ApiResource::from_gvk_with_plural(&kind, "httpproxies"))
}

fn proxy(name: &str) -> DynamicObject {
    let kind = GroupVersionKind::gvk("projectcontour.io", "v1", "HTTPProxy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "httpproxies");
    DynamicObject::new(name, &resource).within(OBJECTS).data(serde_json::json!({"spec": {
        "virtualhost": {"fqdn": format!("{name}.{DOMAIN}"), "tls": {"secretName": "wildcard"}},
        "routes": [{"conditions": [{"prefix": "/"}], "services": [{"name": "origin", "port": 80}]}],
    }}))
}

/// A connection for one host. It is opened again when the gateway closes it, or does not serve the
/// host yet.
struct Client {
    target: Target,
    tls: std::sync::Arc<rustls::ClientConfig>,
    open: Option<(crate::load::Sender, JoinSet<()>)>,
}

impl Client {
    async fn connect(world: &World, ip: Ipv4Addr, name: &str) -> anyhow::Result<Self> {
        let client = world.control_plane().ca().client("bench", None)?;
        let dir = world.dir();
        let target = Target {
            address: format!("{ip}:8443"),
            server_name: format!("{name}.{DOMAIN}"),
            ca: write(dir, "hosts-ca.crt", &world.control_plane().ca().certificate_pem)?,
            cert: write(dir, "client.crt", &client.certificate_pem)?,
            key: write(dir, "client.key", &client.private_key_pem)?,
            authority: None,
            bearer: None,
            protocol: Protocol::H1,
            classic: false,
            path: "/".to_owned(),
        };
        let tls = target.tls()?;
        Ok(Self { target, tls, open: None })
    }

    async fn status(&mut self, path: &str) -> anyhow::Result<StatusCode> {
        self.target.path = path.to_owned();
        let (mut sender, tasks) = match self.open.take() {
            Some(open) => open,
            None => {
                let mut tasks = JoinSet::new();
                (self.target.sender(&self.tls, &mut tasks).await?, tasks)
            }
        };
        let response = sender.send(self.target.request(0)?).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.open = Some((sender, tasks));
        Ok(status)
    }
}

/// Returns the time until the response had this status.
async fn until_status(
    client: &mut Client,
    path: &str,
    wanted: StatusCode,
    patience: Duration,
) -> anyhow::Result<Duration> {
    let start = Instant::now();
    loop {
        let status = client.status(path).await;
        if status.as_ref().is_ok_and(|status| *status == wanted) {
            return Ok(start.elapsed());
        }
        let host = &client.target.server_name;
        ensure!(start.elapsed() < patience, "{host}{path}: {status:?}, not {wanted} within {patience:?}");
        tokio::time::sleep(EVERY).await;
    }
}

/// Returns the resident memory of an idle process: the median of five readings, one per second.
async fn settle(pid: u32) -> anyhow::Result<f64> {
    let mut looks = Vec::new();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        looks.push(process_status::resident_memory(pid)? as f64);
    }
    Ok(median(looks))
}
