//! Measures the cost of relaying bytes: the CPU time of the relaying thread for one GiB by transfer
//! method, and for many small exchanges. Run it with `cargo run --release -p
//! pinniped-gateway-dataplane --example relay_cost`.
//!
//! With two addresses (`-- 127.0.0.1:8443 127.0.0.1:9443`), the same bytes go through another
//! relay, which listens on the first address and forwards to the second. Read the CPU time of that
//! process separately.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_gateway_dataplane::relay::{TransferMethod, relay};
use rustix::time::{ClockId, clock_gettime};

const LARGE: u64 = 4 << 30;
const EXCHANGES: u32 = 50_000;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    if let (Some(through), Some(to)) = (arguments.next(), arguments.next()) {
        let listener = TcpListener::bind(to.parse::<SocketAddr>()?)?;
        println!("large: {:?}", large(&listener, through.parse()?)?);
        println!("exchanges: {:?}", small(&listener, through.parse()?)?);
        return Ok(());
    }
    for method in [TransferMethod::Copy, TransferMethod::Splice, TransferMethod::Adaptive] {
        let cpu = relayed(method, large)?;
        let gib = LARGE as f64 / f64::from(1 << 30);
        println!("{method:?}: {:.0} ms of processor a GiB", cpu.as_secs_f64() * 1000.0 / gib);
        let cpu = relayed(method, small)?;
        println!(
            "{method:?}: {:.2} us of processor an exchange",
            cpu.as_secs_f64() * 1e6 / f64::from(EXCHANGES)
        );
    }
    Ok(())
}

type Load = fn(&TcpListener, SocketAddr) -> anyhow::Result<Duration>;

/// Returns the CPU time of a thread that relays one connection of this load.
fn relayed(method: TransferMethod, load: Load) -> anyhow::Result<Duration> {
    let backend = TcpListener::bind("127.0.0.1:0")?;
    let far = backend.local_addr()?;
    let front = TcpListener::bind("127.0.0.1:0")?;
    let near = front.local_addr()?;
    let relaying = std::thread::spawn(move || -> anyhow::Result<Duration> {
        let (client, _) = front.accept()?;
        let server = TcpStream::connect(far)?;
        for socket in [&client, &server] {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
        }
        let began = now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (client, server) =
                (tokio::net::TcpStream::from_std(client)?, tokio::net::TcpStream::from_std(server)?);
            let (_, result) = relay(&client, &server, Duration::from_secs(60), method).await;
            result.context("the relay broke")
        })?;
        Ok(now() - began)
    });
    load(&backend, near)?;
    relaying.join().map_err(|_| anyhow::anyhow!("the relay panicked"))?
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Transfers many bytes in one direction.
fn large(backend: &TcpListener, through: SocketAddr) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let backend = backend.try_clone()?;
    let reading = std::thread::spawn(move || -> anyhow::Result<u64> {
        let (mut stream, _) = backend.accept()?;
        let (mut bytes, mut all) = (vec![0; 256 << 10], 0);
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(all),
                read => all += read as u64,
            }
        }
    });
    let mut stream = TcpStream::connect(through)?;
    let bytes = vec![7; 64 << 10];
    for _ in 0..LARGE / bytes.len() as u64 {
        stream.write_all(&bytes)?;
    }
    drop(stream);
    let read = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    anyhow::ensure!(read == LARGE, "{read} bytes arrived");
    Ok(start.elapsed())
}

/// Exchanges many small requests and responses on one connection.
fn small(backend: &TcpListener, through: SocketAddr) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let backend = backend.try_clone()?;
    let answering = std::thread::spawn(move || -> anyhow::Result<()> {
        let (mut stream, _) = backend.accept()?;
        stream.set_nodelay(true)?;
        let mut bytes = [0; 512];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(through)?;
    stream.set_nodelay(true)?;
    let mut bytes = [7; 512];
    for _ in 0..EXCHANGES {
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
    }
    drop(stream);
    answering.join().map_err(|_| anyhow::anyhow!("the backend panicked"))??;
    Ok(start.elapsed())
}
