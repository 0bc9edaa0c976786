//! The peers: HAProxy and the floor, each in a pod like the Concierge's own, so that packets take
//! the same route.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinniped_test_support::pods::{NODE_IP, Pods};
use pinniped_test_support::wait;
use pinniped_test_support::world::World;

use super::haproxy;
use super::measured_path::{Behind, MeasuredPath, Peer, write};

/// The user of the load; its group has the role `view`.
pub(super) const USER: &str = "bench-user";
/// The group of the user.
pub(super) const GROUP: &str = "bench-group";
/// The name in the certificate of the peers.
const NAME: &str = "bench-peer.local";
/// The account that impersonates for the peers.
const ACCOUNT: &str = "bench-impersonator";
/// The mount point of the peers' files.
pub(super) const MOUNT: &str = "/bench";
/// The port for HTTP/2, and the floor's port for both versions.
pub(super) const PORT: u16 = 8443;
/// HAProxy's port for HTTP/1.1.
pub(super) const PORT_H1: u16 = 8442;
/// HAProxy's port that converts HTTP/2 to HTTP/1.1.
pub(super) const PORT_TO_H1: u16 = 8441;

/// The files that the peers of a run share.
pub(super) struct Peers {
    dir: PathBuf,
    ca: PathBuf,
    haproxy: Option<PathBuf>,
}

impl Peers {
    /// Creates accounts, certificates and permissions. [`Peers::start`] starts the peers.
    pub(super) async fn prepare(world: &World, haproxy: Option<PathBuf>) -> anyhow::Result<Self> {
        let kubectl = world.kubectl();
        kubectl.output(&["create", "serviceaccount", ACCOUNT]).await?;
        kubectl
            .output(&["create", "clusterrole", ACCOUNT, "--verb=impersonate", "--resource=users,groups"])
            .await?;
        let account = format!("--serviceaccount=default:{ACCOUNT}");
        let role = format!("--clusterrole={ACCOUNT}");
        kubectl.output(&["create", "clusterrolebinding", ACCOUNT, &role, &account]).await?;
        let token = kubectl.output(&["create", "token", ACCOUNT, "--duration=24h"]).await?;

        let dir = world.dir().join("bench");
        std::fs::create_dir_all(&dir)?;
        let authority = world.control_plane().ca();
        let pair = authority.server("bench-peer", &[NAME], &[])?;
        write(&dir, "peer.crt", &pair.certificate_pem)?;
        write(&dir, "peer.key", &pair.private_key_pem)?;
        // HAProxy requires both in one file.
        write(&dir, "peer.pem", &format!("{}{}", pair.certificate_pem, pair.private_key_pem))?;
        write(&dir, "token", token.trim())?;
        let ca = write(&dir, "ca.crt", &authority.certificate_pem)?;
        Ok(Self { dir, ca, haproxy })
    }

    /// Starts the peers in front of the server on `port` of the node.
    pub(super) async fn start(
        &self,
        world: &World,
        pods: &Pods,
        behind: Behind,
        port: u16,
    ) -> anyhow::Result<Vec<MeasuredPath>> {
        let behind = match behind {
            Behind::ApiServer => "api-server",
            Behind::Stub => "stub",
        };
        let mut routes = Vec::new();
        if let Some(program) = &self.haproxy {
            let token = std::fs::read_to_string(self.dir.join("token"))?;
            let file = format!("haproxy-{behind}.cfg");
            write(&self.dir, &file, &haproxy::config(port, &token))?;
            let command = ["haproxy", "-db", "-f", &format!("{MOUNT}/{file}")].map(str::to_owned);
            let route = self.pod(world, pods, behind, Peer::HaProxy, program, &command).await?;
            let to_http1 = route.addresses[0].replace(&format!(":{PORT}"), &format!(":{PORT_TO_H1}"));
            let addresses = [to_http1, route.addresses[1].clone()];
            let converting = MeasuredPath { peer: Peer::HaProxyToHttp1, addresses, ..route.clone() };
            routes.extend([route, converting]);
        }
        let file = |name: &str| format!("{MOUNT}/{name}");
        let program = std::env::current_exe().context("could not find this program")?;
        let name = program.file_name().and_then(|name| name.to_str()).context("this program has no name")?;
        let command = [
            [name, "floor"].map(str::to_owned),
            ["--listen".to_owned(), format!("0.0.0.0:{PORT}")],
            ["--cert".to_owned(), file("peer.crt")],
            ["--key".to_owned(), file("peer.key")],
            ["--client-ca".to_owned(), file("ca.crt")],
            ["--upstream".to_owned(), format!("{NODE_IP}:{port}")],
            ["--upstream-name".to_owned(), NODE_IP.to_string()],
            ["--upstream-ca".to_owned(), file("ca.crt")],
            ["--user".to_owned(), USER.to_owned()],
            ["--token".to_owned(), file("token")],
        ]
        .concat();
        routes.push(self.pod(world, pods, behind, Peer::Floor, &program, &command).await?);
        Ok(routes)
    }

    async fn pod(
        &self,
        world: &World,
        pods: &Pods,
        behind: &str,
        peer: Peer,
        program: &Path,
        command: &[String],
    ) -> anyhow::Result<MeasuredPath> {
        pods.register(&command[0], program.to_owned());
        let pod_name = format!("{}-{behind}", peer.name().to_lowercase());
        let pod = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod_name},
            "spec": {
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "peer",
                    "image": "none",
                    "command": command,
                    "volumeMounts": [{"name": "bench", "mountPath": MOUNT, "readOnly": true}],
                }],
                "volumes": [{"name": "bench", "hostPath": {"path": self.dir}}],
            },
        });
        world.kubectl().apply(&pod.to_string()).await?;
        let (pid, ip) =
            wait::until_ok(Duration::from_secs(30), format!("{pod_name} to listen"), async || {
                let found = pods.list("default").into_iter().find(|(name, _)| *name == pod_name);
                let (pid, ip) =
                    found.and_then(|(_, pod)| Some((pod.pid?, pod.ip?))).context("it does not run")?;
                tokio::net::TcpStream::connect((ip, PORT)).await?;
                ensure!(has_program_name(pid, &command[0])?, "process {pid} is not {} yet", command[0]);
                Ok((pid, ip))
            })
            .await
            .with_context(|| pods.log_tails("default", 20))?;
        Ok(MeasuredPath {
            peer,
            addresses: addresses(peer, ip),
            server_name: NAME.to_owned(),
            ca: self.ca.clone(),
            pid,
            bearer: None,
        })
    }
}

fn addresses(peer: Peer, ip: Ipv4Addr) -> [String; 2] {
    let h1 = if peer == Peer::HaProxy { PORT_H1 } else { PORT };
    [format!("{ip}:{PORT}"), format!("{ip}:{h1}")]
}

/// Whether the process runs the program, and not the shell that prepares its pod.
fn has_program_name(pid: u32, program: &str) -> anyhow::Result<bool> {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
    // The kernel stores fifteen bytes of the name.
    Ok(program.starts_with(comm.trim_end()))
}
