//! Ports that stay forwarded for longer than any timeout of a minute.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::interactive::noise;
use super::session::{Session, Shown, Version};
use crate::background::Open;

/// The duration of upstream's test.
const LONG: Duration = Duration::from_secs(70);
/// Time limit of a response on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Size of the writes on the busy connection.
const PIECE: usize = 32 << 10;

/// Keeps one connection idle and one busy for over a minute, on separate forwarded ports; both
/// ports accept another connection afterwards.
pub(super) async fn stay_open(session: &Session<'_>) -> anyhow::Result<Shown> {
    let args = ["port-forward", "pod/target", ":7"];
    let (idle, busy) =
        (session.open("idle", &[&["-v=8"], &args[..]].concat())?, session.open("busy", &args)?);
    let ports = (port(&idle).await?, port(&busy).await?);
    let node = session.node;
    // The ports are in the node's network.
    let used = tokio::task::spawn_blocking(move || {
        node.block_on_inside(|| async move {
            tokio::try_join!(stays_idle(ports.0), stays_busy(ports.1))?;
            Echo::connect(ports.0).await?.repeats(b"another one").await?;
            Echo::connect(ports.1).await?.repeats(b"another one").await
        })
    });
    used.await?.and_then(|used| used)?;
    let notes = idle.noted()?;
    let protocol = protocol(session.version);
    ensure!(notes.contains(protocol), "there is no {protocol:?} in {notes}");
    for open in [&idle, &busy] {
        ensure!(open.runs().await?, "a port-forward has terminated");
    }
    Ok(Shown { code: 0, stdout: String::new(), stderr: String::new() })
}

/// Returns the output that identifies the protocol.
fn protocol(version: Version) -> &'static str {
    match version {
        Version::Today => "Sec-Websocket-Protocol: SPDY/3.1+portforward.k8s.io",
        Version::Old => "X-Stream-Protocol-Version: portforward.k8s.io",
    }
}

/// Returns the local port of a `port-forward`.
async fn port(open: &Open) -> anyhow::Result<u16> {
    let output = open.await_output(" -> 7\n").await?;
    let line = output.lines().find_map(|line| line.strip_prefix("Forwarding from 127.0.0.1:"));
    let port = line.and_then(|rest| rest.split(' ').next()?.parse().ok());
    port.with_context(|| format!("no port in {output:?}"))
}

/// Waits for the time to pass and not for a condition, because the connection is idle.
async fn stays_idle(port: u16) -> anyhow::Result<()> {
    let mut echo = Echo::connect(port).await?;
    echo.repeats(b"before").await?;
    sleep_until(Instant::now() + LONG).await;
    echo.repeats(b"after").await.context("after a time without use")
}

async fn stays_busy(port: u16) -> anyhow::Result<()> {
    let mut echo = Echo::connect(port).await?;
    let piece = noise(PIECE);
    let end = Instant::now() + LONG;
    // Half a megabyte per second leaves capacity of the node for the other rows.
    let mut pace = interval(Duration::from_millis(60));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while Instant::now() < end {
        pace.tick().await;
        echo.repeats(&piece).await.context("while in use")?;
    }
    Ok(())
}

/// A connection to the pod's port 7.
struct Echo(TcpStream);

impl Echo {
    async fn connect(port: u16) -> anyhow::Result<Self> {
        Ok(Self(TcpStream::connect(("127.0.0.1", port)).await.context("could not connect")?))
    }

    async fn repeats(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let (mut read, mut write) = self.0.split();
        let mut back = vec![0; bytes.len()];
        let both = async { tokio::try_join!(write.write_all(bytes), read.read_exact(&mut back)).map(drop) };
        timeout(TIME_LIMIT, both).await.context("no response")?.context("the connection is broken")?;
        ensure!(back == bytes, "other bytes came back");
        Ok(())
    }
}
