//! The compared paths of a request: directly to the server, or through a proxy.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::load::{LoadResult, Protocol};

/// The proxy of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// No proxy.
    Direct,
    /// HAProxy, with the same version of HTTP on both sides.
    HaProxy,
    /// HAProxy, with HTTP/2 from clients and HTTP/1.1 to the server.
    HaProxyToHttp1,
    /// The benchmark's own minimal forwarder.
    Floor,
    /// The measured proxy.
    Proxy,
    /// `pinniped proxy`, which is measured in addition.
    Local,
    /// HAProxy, configured to splice bytes in the kernel.
    HaProxySplice,
    /// nginx.
    Nginx,
    /// The gateway, which has a separate run.
    Gateway,
}

/// All variants of HAProxy: comparisons use the best of these.
pub(crate) const HAPROXY: [Peer; 2] = [Peer::HaProxy, Peer::HaProxyToHttp1];

impl Peer {
    /// Returns the name for tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::HaProxy => "HAProxy",
            Self::HaProxyToHttp1 => "HAProxy, h2>h1",
            Self::Floor => "floor",
            Self::Proxy => "proxy",
            Self::Local => "pinniped proxy",
            Self::HaProxySplice => "HAProxy, splice",
            Self::Nginx => "nginx",
            Self::Gateway => "gateway",
        }
    }
}

/// The server at the end of all paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Behind {
    /// The real API server.
    #[value(name = "api-server")]
    ApiServer,
    /// The stub that responds from memory.
    Stub,
}

impl Behind {
    /// Returns the name for tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "API server",
            Self::Stub => "stub",
        }
    }
}

/// One path, and its addresses.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredPath {
    pub(crate) peer: Peer,
    /// The addresses for HTTP/2 and for HTTP/1.1.
    pub(crate) addresses: [String; 2],
    pub(crate) server_name: String,
    pub(crate) ca: PathBuf,
    /// The process whose CPU time is measured.
    pub(crate) pid: u32,
    /// File with the bearer token, where the path accepts no certificate; requests then use its
    /// address as the host.
    pub(crate) bearer: Option<PathBuf>,
}

/// The identity of the load.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl MeasuredPath {
    /// Returns a command that runs this program with the load `what` against the path.
    pub(crate) fn load(&self, as_whom: &Identity, protocol: Protocol, what: &str, path: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        let [h2, h1] = &self.addresses;
        let (address, version) = match protocol {
            Protocol::H2 => (h2, "h2"),
            Protocol::H1 => (h1, "h1"),
        };
        command.arg(what).args(["--protocol", version, "--address", address, "--path", path]);
        command.args(["--server-name", &self.server_name]);
        for (flag, value) in [("--ca", &self.ca), ("--cert", &as_whom.cert), ("--key", &as_whom.key)] {
            command.arg(flag).arg(value);
        }
        if let Some(bearer) = &self.bearer {
            command.args(["--authority", address]).arg("--bearer").arg(bearer);
        }
        // The load terminates when its standard input closes, at the latest when this process
        // exits.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

/// Runs a load to completion.
pub(crate) fn load_result(route: &MeasuredPath, command: &mut Command) -> anyhow::Result<LoadResult> {
    let mut load = command.spawn().context("could not start the load")?;
    let held = load.stdin.take();
    let output = load.wait_with_output().context("could not read from the load")?;
    drop(held);
    ensure!(output.status.success(), "the load against {} failed", route.peer.name());
    serde_json::from_slice(&output.stdout).context("the load printed no result")
}

/// Writes a file of the run.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}
