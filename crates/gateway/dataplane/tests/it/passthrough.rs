//! Passthrough connections.

use std::net::SocketAddr;
use std::sync::Arc;

use pinniped_gateway_routing::table::{Backends, Protocol};
use pinniped_http_server::{Capacity, CapacityParams};
use pinniped_test_support::certs::Pair;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::world::{
    Backend, Client, Table, gateway, gateway_with, one, pair, server_config, to, until, upstream, within,
};

const HOST: &str = "impersonation-proxy-mtls.local";

/// A TLS server that sends the subject of the client certificate and then every received byte
/// twice.
async fn backend(pair: &Pair) -> Backend {
    let acceptor = TlsAcceptor::from(server_config(pair, b""));
    Backend::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let known = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
            let _gone = stream.write_all(format!("{known}\n").as_bytes()).await;
            let mut bytes = vec![0; 64 << 10];
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                if stream.write_all(&bytes[..read].repeat(2)).await.is_err() {
                    return;
                }
            }
            let _gone = stream.shutdown().await;
        }
    })
    .await
}

/// A server that sends its name and closes the connection.
async fn named(name: &'static str) -> Backend {
    Backend::start(move |mut stream: TcpStream| async move {
        let _gone = stream.write_all(name.as_bytes()).await;
        let _gone = stream.shutdown().await;
        let _hello = stream.read_to_end(&mut Vec::new()).await;
    })
    .await
}

/// Returns the bytes that a raw connection with this ClientHello receives until it closes.
async fn send_request(address: SocketAddr, hello: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(hello).await?;
    let mut response = String::new();
    within(stream.read_to_string(&mut response)).await?;
    Ok(response)
}

#[tokio::test]
async fn t1_client_and_backend_exchange_their_own_certificates() {
    let own = pair(&[HOST]);
    let backend = backend(&own).await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    let client = crate::world::CA.client("pinny", Some("developers")).unwrap();
    for (client, known) in [(Client::new(), "0\n"), (Client::new().showing(&client), "1\n")] {
        let mut stream = client.connect(gateway.tls_addr(), HOST).await.unwrap();
        let seen = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        assert_eq!(seen, own.der().unwrap());
        let mut report = [0; 2];
        within(stream.read_exact(&mut report)).await.unwrap();
        assert_eq!(std::str::from_utf8(&report).unwrap(), known);
        let large: Vec<u8> = (0..200_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let (mut read, mut write) = tokio::io::split(stream);
        let wanted = large.len() * 2;
        let (sent, received) = within(async {
            tokio::join!(
                async {
                    write.write_all(&large).await?;
                    write.shutdown().await
                },
                async {
                    let mut all = Vec::new();
                    read.read_to_end(&mut all).await.map(|_| all)
                }
            )
        })
        .await;
        sent.unwrap();
        assert_eq!(received.unwrap().len(), wanted);
    }
    until("both are over", || gateway.tls_stats().open == 0).await;
    let counts = gateway.counts();
    assert_eq!(counts.relayed, 2);
    assert!(counts.relayed_to_clients > 800_000, "{counts:?}");
    // Port 80 does not serve the host.
    let response = crate::world::Http1::plain(&gateway).await.get(HOST, "/").await;
    assert_eq!(response.status, 404);
    assert_eq!(response.body, "");
}

#[tokio::test]
async fn t2_a_missing_or_unknown_server_name_is_closed_without_a_certificate() {
    let backend = backend(&pair(&[HOST])).await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    for hello in
        [Client::new().no_sni().hello(HOST), Client::new().hello("other.local"), Client::new().hello("local")]
    {
        // A regular close without a single byte.
        assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "");
    }
    assert_eq!(backend.accepted(), 0);
    assert_eq!(gateway.counts().unknown_name, 3);
}

#[tokio::test]
async fn t3_a_client_hello_in_many_segments_or_records_is_forwarded_unchanged() {
    // The backend compares the raw bytes, so it is not a TLS server here.
    let backend = Backend::start(|mut stream: TcpStream| async move {
        let mut hello = vec![0; 1 << 16];
        let mut read = 0;
        // The server sends the received bytes after the client has half-closed.
        while let Ok(more @ 1..) = stream.read(&mut hello[read..]).await {
            read += more;
        }
        let _gone = stream.write_all(&hello[..read]).await;
    })
    .await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    let whole = Client::new().hello(HOST);
    assert!(whole.len() > 1400, "no post-quantum key share");
    let records = |most: usize| -> Vec<u8> {
        let record =
            |part: &[u8]| [&[22, 3, 1], &u16::try_from(part.len()).unwrap().to_be_bytes()[..], part].concat();
        whole[5..].chunks(most).flat_map(record).collect()
    };
    for (bytes, segment) in
        [(whole.clone(), 1), (whole.clone(), 700), (records(100), 1 << 16), (records(3), 11)]
    {
        let stream = TcpStream::connect(gateway.tls_addr()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut read, mut write) = stream.into_split();
        for part in bytes.chunks(segment) {
            write.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
        write.shutdown().await.unwrap();
        let mut seen = Vec::new();
        within(read.read_to_end(&mut seen)).await.unwrap();
        assert!(seen == bytes, "{} bytes in segments of {segment}: {} seen", bytes.len(), seen.len());
    }
}

#[tokio::test]
async fn t3_a_handshake_with_a_fragmented_client_hello_completes_with_the_backend() {
    let backend = backend(&pair(&[HOST])).await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    // A proxy before the gateway that splits the bytes into small pieces.
    let cutter = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = cutter.local_addr().unwrap();
    let far = gateway.tls_addr();
    let cutting = tokio::spawn(async move {
        let (near, _) = cutter.accept().await.unwrap();
        let far = TcpStream::connect(far).await.unwrap();
        far.set_nodelay(true).unwrap();
        let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
            (near.into_split(), far.into_split());
        let back = tokio::io::copy(&mut far_read, &mut near_write);
        let first_to_second = async {
            let mut bytes = [0; 90];
            while let Ok(read @ 1..) = near_read.read(&mut bytes).await {
                far_write.write_all(&bytes[..read]).await.unwrap();
                tokio::task::yield_now().await;
            }
            far_write.shutdown().await
        };
        let _ended = tokio::join!(back, first_to_second);
    });
    let mut stream = Client::new().connect(address, HOST).await.unwrap();
    let mut report = [0; 2];
    within(stream.read_exact(&mut report)).await.unwrap();
    assert_eq!(&report, b"0\n");
    drop(stream);
    within(cutting).await.unwrap();
}

#[tokio::test]
async fn t4_a_connection_is_closed_until_the_backend_has_an_endpoint() {
    let gateway = gateway();
    let hello = Client::new().hello(HOST);
    Table::new().passthrough(HOST, to(&[])).serve(&gateway);
    assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "");
    assert_eq!(gateway.counts().unconnected, 1);
    let backend = named("here").await;
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "here");
    Table::new().serve(&gateway);
    assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "");
    assert_eq!(gateway.counts().unknown_name, 1);
}

#[tokio::test]
async fn t8_connections_are_distributed_by_weight_and_round_robin_over_endpoints() {
    let [a, b, c] = [named("a").await, named("b").await, named("c").await];
    let gateway = gateway();
    let (heavy, light) =
        (upstream(Protocol::Http1, &[a.address, b.address]), upstream(Protocol::Tls, &[c.address]));
    let hello = Client::new().hello(HOST);
    for (weights, wanted) in
        [((3, 1), [15, 15, 10]), ((0, 0), [10, 10, 20]), ((7, 0), [20, 20, 0]), ((0, 2), [0, 0, 40])]
    {
        let before = [a.accepted(), b.accepted(), c.accepted()];
        let backends = Backends::new(vec![(weights.0, Arc::clone(&heavy)), (weights.1, Arc::clone(&light))]);
        Table::new().passthrough(HOST, backends.unwrap()).serve(&gateway);
        for _ in 0..40 {
            send_request(gateway.tls_addr(), &hello).await.unwrap();
        }
        let now = [a.accepted(), b.accepted(), c.accepted()];
        for ((now, before), wanted) in now.into_iter().zip(before).zip(wanted) {
            assert!((now - before).abs_diff(wanted) <= 2, "{weights:?}: {} for {wanted}", now - before);
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_connections_is_skipped() {
    let backend = named("good").await;
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[dead, backend.address])).serve(&gateway);
    let hello = Client::new().hello(HOST);
    for _ in 0..6 {
        assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "good");
    }
    Table::new().passthrough(HOST, to(&[dead])).serve(&gateway);
    assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "");
}

/// The unit tests of the backends cover the timeout.
#[tokio::test]
async fn an_unresponsive_endpoint_is_skipped() {
    // A listener whose queue is full does not answer a SYN.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let silent = full.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(std::time::Duration::from_secs(1), TcpStream::connect(silent)).await
    {
        waiting.push(stream);
    }
    let backend = named("good").await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[silent, backend.address])).serve(&gateway);
    let hello = Client::new().hello(HOST);
    // One of two turns is the silent endpoint's.
    for _ in 0..2 {
        assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), "good");
    }
    assert_eq!(backend.accepted(), 2);
    assert_eq!(gateway.counts().unconnected, 0);
    drop(waiting);
}

#[tokio::test]
async fn a_table_change_closes_no_passthrough_connection() {
    let backend = backend(&pair(&[HOST])).await;
    let gateway = gateway();
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    let mut stream = Client::new().connect(gateway.tls_addr(), HOST).await.unwrap();
    within(stream.read_exact(&mut [0; 2])).await.unwrap();
    for _ in 0..3 {
        Table::new().serve(&gateway);
        Client::new().connect(gateway.tls_addr(), HOST).await.unwrap_err();
        stream.write_all(b"x").await.unwrap();
        let mut twice = [0; 2];
        within(stream.read_exact(&mut twice)).await.unwrap();
        assert_eq!(&twice, b"xx");
    }
}

#[tokio::test]
async fn the_longest_wildcard_matches_a_passthrough_host_at_any_depth() {
    let [wide, deep, exact] = [named("wide").await, named("deep").await, named("exact").await];
    let gateway = gateway();
    Table::new()
        .passthrough("*.w", to(&[wide.address]))
        .passthrough("*.b.w", one(upstream(Protocol::H2c, &[deep.address])))
        .passthrough("a.w", one(upstream(Protocol::Tls, &[exact.address])))
        .serve(&gateway);
    for (name, wanted) in [
        ("a.w", "exact"),
        ("A.W", "exact"),
        ("x.w", "wide"),
        ("x.y.w", "wide"),
        ("x.b.w", "deep"),
        ("other", ""),
    ] {
        let hello = Client::new().hello(name);
        assert_eq!(send_request(gateway.tls_addr(), &hello).await.unwrap(), wanted, "{name}");
    }
}

#[tokio::test]
async fn idle_connections_are_displaced_and_relayed_connections_stay() {
    let own = pair(&[HOST]);
    let backend = backend(&own).await;
    let capacity = Capacity::new(&CapacityParams {
        connections: 4,
        connections_per_address: None,
        memory: None,
        files: None,
        files_per_connection: 2,
    });
    let gateway = gateway_with(|params| params.limits.capacity = capacity.clone());
    Table::new().passthrough(HOST, to(&[backend.address])).serve(&gateway);
    let mut relayed = Client::new().connect(gateway.tls_addr(), HOST).await.unwrap();
    let mut report = [0; 2];
    within(relayed.read_exact(&mut report)).await.unwrap();
    let mut silent = Vec::new();
    for address in [gateway.tls_addr(), gateway.plain_addr()].repeat(10) {
        silent.push(within(TcpStream::connect(address)).await.unwrap());
    }
    // The limit covers both ports together.
    until("the first ones made way", || capacity.stats().connections_displaced >= 17).await;
    let mut end = [0; 1];
    assert!(!matches!(within(silent[0].read(&mut end)).await, Ok(1..)));
    for stream in [&mut relayed, &mut Client::new().connect(gateway.tls_addr(), HOST).await.unwrap()] {
        within(stream.write_all(b"ab")).await.unwrap();
    }
    let mut twice = [0; 4];
    within(relayed.read_exact(&mut twice)).await.unwrap();
    assert_eq!(&twice, b"abab");
}
