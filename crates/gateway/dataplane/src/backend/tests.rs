use std::collections::BTreeMap;

use pinniped_gateway_routing::table::{Protocol, ServicePort};
use tokio::time::Instant;

use super::*;

fn id(balance: Balance) -> UpstreamId {
    UpstreamId {
        service: ServicePort { namespace: "ns".into(), name: "service".into(), port: 80 },
        protocol: Protocol::Http1,
        balance,
        validation: None,
        idle_connection: None,
    }
}

fn upstream(balance: Balance, endpoints: &[SocketAddr]) -> Arc<Upstream> {
    Arc::new(Upstream { id: id(balance), client_certificate: None, endpoints: endpoints.into() })
}

fn addresses(count: u16) -> Vec<SocketAddr> {
    (1..=count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
}

#[test]
fn round_robin_rotates_the_endpoints_and_retries_use_the_following_ones() {
    let endpoints = addresses(4);
    let backend = Backend::new(&upstream(Balance::RoundRobin, &endpoints));
    let mut firsts = BTreeMap::new();
    let mut last = None;
    for _ in 0..8 {
        let order: Vec<u16> = backend.order(&endpoints).map(|server| server.address.port()).collect();
        assert_eq!(order.len(), ATTEMPTS);
        assert!(order.windows(2).all(|pair| pair[1] == pair[0] % 4 + 1), "{order:?}");
        assert_ne!(last.replace(order[0]), Some(order[0]));
        *firsts.entry(order[0]).or_insert(0) += 1;
    }
    assert_eq!(firsts, (1..=4).map(|port| (port, 2)).collect());
    assert_eq!(backend.order(&[]).count(), 0);
}

#[test]
fn least_request_selects_the_server_with_the_lower_load() {
    let endpoints = addresses(2);
    let backend = Backend::new(&upstream(Balance::LeastRequest, &endpoints));
    let _busy: Vec<Arc<Server>> = (0..5).map(|_| backend.server(endpoints[0])).collect();
    let idle = (0..100).filter(|_| backend.order(&endpoints).next().unwrap().address == endpoints[1]).count();
    // In a quarter of all cases both random choices select the busy server.
    assert!((50..100).contains(&idle), "{idle} of 100 times the idle one");
}

#[test]
fn a_removed_endpoint_is_forgotten_and_its_users_keep_their_reference() {
    let endpoints = addresses(2);
    let backend = Backend::new(&upstream(Balance::RoundRobin, &endpoints));
    let used = backend.server(endpoints[0]);
    backend.keep(&endpoints[1..]);
    assert!(backend.servers().is_empty());
    assert_eq!(used.address, endpoints[0]);
}

#[test]
fn t8_weights_hold_over_every_sequence_of_choices() {
    let backends = |weights: &[u32]| {
        let written = weights
            .iter()
            .zip(addresses(9))
            .map(|(weight, address)| (*weight, upstream(Balance::RoundRobin, &[address])));
        Backends::new(written.collect()).unwrap()
    };
    for weights in [&[7, 77][..], &[1, 1, 1], &[1, 2, 3, 4]] {
        let backends = backends(weights);
        let total: u32 = weights.iter().sum();
        let picked = Weights::default();
        let mut counts = vec![0; weights.len()];
        for n in 1..=1000 {
            let port = picked.pick(&backends).endpoints[0].port();
            counts[usize::from(port) - 1] += 1;
            for (count, weight) in counts.iter().zip(weights) {
                let wanted = f64::from(n) * f64::from(*weight) / f64::from(total);
                assert!((f64::from(*count) - wanted).abs() < 3.0, "{counts:?} of {weights:?} after {n}");
            }
        }
    }
}

#[test]
fn a_different_protocol_or_certificate_makes_a_different_backend() {
    let one = upstream(Balance::RoundRobin, &[]);
    let backend = Backend::new(&one);
    assert!(backend.is(&upstream(Balance::RoundRobin, &addresses(3))));
    assert!(!backend.is(&upstream(Balance::Random, &[])));
}

/// Returns a listener whose queue is full, so that it does not answer a SYN, and the connections in
/// the queue.
async fn unresponsive() -> (socket2::Socket, SocketAddr, Vec<TcpStream>) {
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
        queue.push(stream);
    }
    (full, address, queue)
}

#[tokio::test(start_paused = true)]
async fn an_unresponsive_endpoint_is_given_up_after_the_connect_timeout() {
    let (_full, silent, _queue) = unresponsive().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = listener.local_addr().unwrap();
    let endpoints = [silent, good];
    let backend = Backend::new(&upstream(Balance::RoundRobin, &endpoints));
    let mut waited = Vec::new();
    for _ in 0..4 {
        let began = Instant::now();
        let (_, server) = backend.connect(&endpoints).await.unwrap();
        assert_eq!(server.address, good);
        waited.push(began.elapsed());
    }
    // Timers have a resolution of one millisecond.
    let late = waited.iter().filter(|waited| waited.abs_diff(CONNECT_TIMEOUT) <= Duration::from_millis(1));
    assert_eq!(late.count(), 2, "every second turn is the silent endpoint's: {waited:?}");
    assert_eq!(waited.iter().filter(|waited| waited.is_zero()).count(), 2, "{waited:?}");

    let failed = backend.connect(&endpoints[..1]).await.map(drop).unwrap_err();
    assert!(matches!(failed, ConnectError::Timeout { address } if address == silent), "{failed}");
}
