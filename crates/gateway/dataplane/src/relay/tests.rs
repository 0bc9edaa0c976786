use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;

const WAYS: [TransferMethod; 3] = [TransferMethod::Adaptive, TransferMethod::Copy, TransferMethod::Splice];
const HOUR: Duration = Duration::from_secs(3600);
const SMALL_BUFFER: usize = 128 << 10;

/// Returns both ends of a loopback connection.
async fn pair() -> (TcpStream, TcpStream) {
    pair_with(|_| {}).await
}

/// Returns both ends of a loopback connection with socket options, which the accepted end inherits
/// from its listener.
async fn pair_with(options: impl Fn(&SockRef<'_>)) -> (TcpStream, TcpStream) {
    let listener = TcpSocket::new_v4().unwrap();
    options(&SockRef::from(&listener));
    listener.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = listener.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpSocket::new_v4().unwrap();
    options(&SockRef::from(&client));
    let (near, far) = tokio::join!(client.connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// Limits the socket buffers to this size: otherwise the kernel enlarges them up to the limits of
/// the machine (`tcp_rmem`, `tcp_wmem`).
fn small_buffers(socket: &SockRef<'_>) {
    socket.set_recv_buffer_size(SMALL_BUFFER).unwrap();
    socket.set_send_buffer_size(SMALL_BUFFER).unwrap();
}

struct Relayed {
    client: TcpStream,
    server: TcpStream,
    relay: JoinHandle<(RelayedBytes, Result<(), RelayError>)>,
}

/// A client and a server with a relay between them.
async fn relayed(idle: Duration, method: TransferMethod) -> Relayed {
    relayed_between(pair().await, pair().await, idle, method)
}

fn relayed_between(
    (client, first): (TcpStream, TcpStream),
    (second, server): (TcpStream, TcpStream),
    idle: Duration,
    method: TransferMethod,
) -> Relayed {
    let relay = tokio::spawn(async move { relay(&first, &second, idle, method).await });
    Relayed { client, server, relay }
}

/// Returns bytes in which a gap or a repetition is detectable.
fn pattern(length: usize) -> Vec<u8> {
    // The length is prime, so that the pattern has a different alignment in each buffer.
    let part: Vec<u8> = (0..65_521).map(|at: usize| (at * 31 + at / 251).to_le_bytes()[0]).collect();
    let mut pattern = part.repeat(length / part.len() + 1);
    pattern.truncate(length);
    pattern
}

#[tokio::test]
async fn every_amount_arrives_completely_in_both_directions_with_every_method() {
    for method in WAYS {
        for length in [1, 4 << 10, 32 << 10, 3 << 20] {
            let Relayed { mut client, mut server, relay } = relayed(HOUR, method).await;
            let (first_to_second, second_to_first) = (pattern(length), pattern(length / 2));
            let (wanted_there, wanted_back) = (first_to_second.clone(), second_to_first.clone());
            let client = tokio::spawn(async move {
                let (mut read, mut write) = client.split();
                let mut response = Vec::new();
                let (sent, received) = tokio::join!(
                    async {
                        write.write_all(&first_to_second).await.unwrap();
                        write.shutdown().await
                    },
                    read.read_to_end(&mut response)
                );
                sent.unwrap();
                received.unwrap();
                response
            });
            let mut requested = Vec::new();
            let (mut read, mut write) = server.split();
            tokio::join!(
                async {
                    write.write_all(&second_to_first).await.unwrap();
                    write.shutdown().await.unwrap();
                },
                async {
                    read.read_to_end(&mut requested).await.unwrap();
                }
            );
            assert!(requested == wanted_there, "{method:?} {length}");
            assert!(client.await.unwrap() == wanted_back, "{method:?} {length}");
            let (moved, result) = relay.await.unwrap();
            result.unwrap();
            assert_eq!(
                moved,
                RelayedBytes { first_to_second: length as u64, second_to_first: (length / 2) as u64 }
            );
        }
    }
}

#[tokio::test]
async fn a_half_close_does_not_end_the_other_direction() {
    for method in WAYS {
        let Relayed { mut client, mut server, relay } = relayed(HOUR, method).await;
        client.write_all(b"ask").await.unwrap();
        client.shutdown().await.unwrap();
        let mut requested = String::new();
        server.read_to_string(&mut requested).await.unwrap();
        assert_eq!(requested, "ask");
        // The server responds in parts, with a delay.
        for part in [&b"an"[..], b"swer"] {
            server.write_all(part).await.unwrap();
            let mut seen = vec![0; part.len()];
            client.read_exact(&mut seen).await.unwrap();
            assert_eq!(seen, part);
        }
        drop(server);
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        let (moved, result) = relay.await.unwrap();
        result.unwrap();
        assert_eq!(moved, RelayedBytes { first_to_second: 3, second_to_first: 6 });
    }
}

#[tokio::test]
async fn a_slow_reader_stops_the_writer_without_losing_bytes() {
    for method in WAYS {
        let (near, far) = (pair_with(small_buffers).await, pair_with(small_buffers).await);
        let Relayed { mut client, mut server, relay } = relayed_between(near, far, HOUR, method);
        let (sent, progress) = tokio::sync::watch::channel(0);
        let writer = tokio::spawn(async move {
            let bytes = pattern(64 << 20);
            for chunk in bytes.chunks(64 << 10) {
                client.write_all(chunk).await.unwrap();
                sent.send_modify(|sent| *sent += chunk.len());
            }
            client.shutdown().await.unwrap();
            client
        });
        // The server does not read, so the writer stops long before the end.
        let mut seen = 0;
        loop {
            let mut progress = progress.clone();
            let moved = progress.wait_for(|sent| *sent > seen);
            match tokio::time::timeout(Duration::from_millis(300), moved).await {
                Ok(sent) => seen = *sent.unwrap(),
                Err(_stopped) => break,
            }
        }
        // Four sockets with two buffers each, which the kernel doubles, and the bytes that the
        // relay itself holds.
        let most = 4 * 2 * 2 * SMALL_BUFFER + (2 << 20);
        assert!(seen <= most, "{method:?}: {seen} bytes without a reader");
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert!(all == pattern(64 << 20), "{method:?}");
        drop((server, writer.await.unwrap()));
        relay.await.unwrap().1.unwrap();
    }
}

#[tokio::test]
async fn a_reset_is_forwarded_as_a_reset() {
    for method in WAYS {
        for from_client in [true, false] {
            let Relayed { client, server, relay } = relayed(HOUR, method).await;
            let (dies, mut lives) = if from_client { (client, server) } else { (server, client) };
            SockRef::from(&dies).set_linger(Some(Duration::ZERO)).unwrap();
            drop(dies);
            let error = lives.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{method:?}");
            let error = relay.await.unwrap().1.unwrap_err();
            match from_client {
                true => assert!(matches!(error, RelayError::First(_)), "{error:?}"),
                false => assert!(matches!(error, RelayError::Second(_)), "{error:?}"),
            }
        }
    }
}

#[tokio::test]
async fn only_silence_in_both_directions_is_idle() {
    let idle = Duration::from_millis(400);
    let Relayed { mut client, mut server, relay } = relayed(idle, TransferMethod::Adaptive).await;
    let start = Instant::now();
    for _ in 0..8 {
        tokio::time::timeout(idle / 4, std::future::pending::<()>()).await.unwrap_err();
        server.write_all(b".").await.unwrap();
        client.read_exact(&mut [0]).await.unwrap();
    }
    let last = start.elapsed();
    let error = relay.await.unwrap().1.unwrap_err();
    assert!(matches!(error, RelayError::Idle(_)), "{error:?}");
    assert!(start.elapsed() >= last + idle / 2, "ended {:?} after {last:?}", start.elapsed());
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_flow_yields_after_its_turn() {
    let (mut client, first) = pair().await;
    let (second, mut server) = pair().await;
    let writer = tokio::spawn(async move {
        client.write_all(&pattern(32 << 20)).await.unwrap();
        client
    });
    let reader = tokio::spawn(async move {
        let mut all = vec![0; 32 << 20];
        server.read_exact(&mut all).await.unwrap();
        server
    });
    let mut flow = Flow::new(TransferMethod::Adaptive);
    let mut most = 0;
    while flow.moved() < 32 << 20 {
        let before = flow.moved();
        poll_fn(|cx| {
            let _pending = flow.poll(cx, &first, &second);
            Poll::Ready(())
        })
        .await;
        most = most.max(flow.moved() - before);
        tokio::task::yield_now().await;
    }
    // One turn, and the bytes of its last transfer.
    assert!(most <= (1 << 20) + (1 << 18), "{most} bytes in one turn");
    drop((writer.await.unwrap(), reader.await.unwrap()));
}

#[tokio::test]
async fn streams_are_relayed_with_half_closes() {
    let (mut client, mut near) = tokio::io::duplex(1 << 10);
    let (mut far, mut server) = tokio::io::duplex(1 << 10);
    let relay =
        tokio::spawn(
            async move { relay_streams(&mut near, &mut far, HOUR, &CancellationToken::new()).await },
        );
    client.write_all(b"ask").await.unwrap();
    client.shutdown().await.unwrap();
    let mut requested = String::new();
    server.read_to_string(&mut requested).await.unwrap();
    server.write_all(b"answer").await.unwrap();
    drop(server);
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert_eq!((requested.as_str(), response.as_str()), ("ask", "answer"));
    let (moved, result) = relay.await.unwrap();
    result.unwrap();
    assert_eq!(moved, RelayedBytes { first_to_second: 3, second_to_first: 6 });
}

#[tokio::test(start_paused = true)]
async fn streams_close_only_after_the_idle_timeout() {
    let (_client, mut near) = tokio::io::duplex(1 << 10);
    let (mut far, mut server) = tokio::io::duplex(1 << 10);
    let start = Instant::now();
    let relay =
        tokio::spawn(
            async move { relay_streams(&mut near, &mut far, HOUR, &CancellationToken::new()).await },
        );
    tokio::time::advance(HOUR / 2).await;
    server.write_all(b".").await.unwrap();
    let (moved, result) = relay.await.unwrap();
    assert!(matches!(result, Err(RelayError::Idle(_))), "{result:?}");
    assert_eq!(moved, RelayedBytes { first_to_second: 0, second_to_first: 1 });
    assert!(start.elapsed() >= HOUR + HOUR / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn streams_close_when_the_grant_is_revoked() {
    let (mut client, mut near) = tokio::io::duplex(1 << 10);
    let (mut far, mut server) = tokio::io::duplex(1 << 10);
    let revoked = CancellationToken::new();
    let token = revoked.clone();
    let relay = tokio::spawn(async move { relay_streams(&mut near, &mut far, HOUR, &token).await });
    client.write_all(b"ask").await.unwrap();
    server.read_exact(&mut [0; 3]).await.unwrap();
    revoked.cancel();
    let (moved, result) = relay.await.unwrap();
    assert!(matches!(result, Err(RelayError::Revoked)), "{result:?}");
    assert_eq!(moved, RelayedBytes { first_to_second: 3, second_to_first: 0 });
}
