//! TLS termination: certificates, versions, client validation, and relayed bytes.

use std::sync::Arc;

use pinniped_gateway_routing::table::{
    ClientValidation, ForwardedCertificate, Protocol, Routes, TcpProxy, Terminated, Termination, TlsAction,
    TlsVersion, TlsVersions, UpstreamValidation,
};
use pinniped_test_support::certs::{Authority, Pair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::{
    Backend, CA, Client, Http1, ReceivedResponse, Table, all_to, bundle, demand, gateway, one, pair, service,
    termination, to, upstream, within,
};

fn inside(backend: &Backend) -> Terminated {
    Terminated::Http(Arc::new(Routes::new(all_to(to(&[backend.address])).into_iter().map(Arc::new))))
}

async fn shown(gateway: &pinniped_gateway_dataplane::Gateway, name: &str) -> Vec<u8> {
    let stream = Client::new().connect(gateway.tls_addr(), name).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test]
async fn d10_a_renewed_certificate_applies_immediately_and_a_removed_host_is_closed() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let (first, second) = (pair(&["a.local"]), pair(&["a.local"]));
    for pair in [&first, &second, &first] {
        Table::new().https("a.local", pair, all_to(to(&[backend.address]))).serve(&gateway);
        assert_eq!(shown(&gateway, "a.local").await, pair.der().unwrap());
    }
    Table::new().serve(&gateway);
    Client::new().connect(gateway.tls_addr(), "a.local").await.unwrap_err();
}

#[tokio::test]
async fn r9_each_host_has_its_own_tls_versions() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let pair = pair(&["a.local"]);
    use TlsVersion::{V1_2, V1_3};
    for (min, max, old, new) in
        [(V1_3, V1_3, false, true), (V1_2, V1_3, true, true), (V1_2, V1_2, true, false)]
    {
        let termination =
            Termination { versions: TlsVersions { min, max }, ..termination(&pair, inside(&backend)) };
        Table::new().tls("a.local", TlsAction::Terminate(termination)).serve(&gateway);
        let clients = [
            (Client::with_versions(&[&rustls::version::TLS12]), old),
            (Client::with_versions(&[&rustls::version::TLS13]), new),
        ];
        for (client, welcome) in clients {
            let connected = client.connect(gateway.tls_addr(), "a.local").await;
            assert_eq!(connected.is_ok(), welcome, "{min:?} {max:?}");
        }
    }
}

/// Returns the response to a client with or without a certificate; `None` if it is refused.
async fn attempt(
    gateway: &pinniped_gateway_dataplane::Gateway,
    client: Option<&Pair>,
) -> Option<ReceivedResponse> {
    let client = match client {
        Some(pair) => Client::new().showing(pair),
        None => Client::new(),
    };
    let stream = client.connect(gateway.tls_addr(), "a.local").await.ok()?;
    // In TLS 1.3 a client learns of a refusal only with the first response.
    let mut http = Http1::over(stream).await;
    let request = http::Request::get("/").header("host", "a.local");
    let request =
        request.header("x-forwarded-client-cert", "Subject=\"CN=root\"").body(Default::default()).unwrap();
    http.send(request).await.ok()
}

#[tokio::test]
async fn client_certificates_are_validated_as_the_host_requires() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let own = pair(&["a.local"]);
    let stranger = Authority::new("stranger").unwrap().client("mallory", None).unwrap();
    let good = CA.client("pinny", Some("developers")).unwrap();
    for (validation, none, bad) in
        [(demand(&CA), false, false), (ClientValidation { optional: true, ..demand(&CA) }, true, false)]
    {
        let termination = Termination {
            client_validation: Some(Arc::new(validation)),
            ..termination(&own, inside(&backend))
        };
        Table::new().tls("a.local", TlsAction::Terminate(termination)).serve(&gateway);
        assert_eq!(attempt(&gateway, None).await.is_some(), none);
        assert_eq!(attempt(&gateway, Some(&stranger)).await.is_some(), bad);
        let response = attempt(&gateway, Some(&good)).await.unwrap();
        assert_eq!(response.status, 200);
        // The client's own header never reaches the backend.
        assert_eq!(response.report("x-forwarded-client-cert"), None);
    }
    // An empty client CA refuses every client.
    let nobody = ClientValidation { ca: Arc::default(), ..demand(&CA) };
    let closed =
        Termination { client_validation: Some(Arc::new(nobody)), ..termination(&own, inside(&backend)) };
    Table::new().tls("a.local", TlsAction::Terminate(closed)).serve(&gateway);
    let before = gateway.counts().unservable;
    assert!(attempt(&gateway, Some(&good)).await.is_none());
    assert!(attempt(&gateway, None).await.is_none());
    assert_eq!(gateway.counts().unservable, before + 2);
    // The failure is not cached after the configuration is valid again.
    let again =
        Termination { client_validation: Some(Arc::new(demand(&CA))), ..termination(&own, inside(&backend)) };
    Table::new().tls("a.local", TlsAction::Terminate(again)).serve(&gateway);
    assert_eq!(attempt(&gateway, Some(&good)).await.unwrap().status, 200);
}

#[tokio::test]
async fn the_backend_receives_the_client_certificate_details_that_the_host_selects() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let own = pair(&["a.local"]);
    let forward =
        ForwardedCertificate { subject: true, certificate: true, ..ForwardedCertificate::default() };
    let validation = ClientValidation { forward: Some(forward), optional: true, ..demand(&CA) };
    let termination =
        Termination { client_validation: Some(Arc::new(validation)), ..termination(&own, inside(&backend)) };
    Table::new().tls("a.local", TlsAction::Terminate(termination)).serve(&gateway);
    let client = CA.client("pinny", Some("developers")).unwrap();
    let response = attempt(&gateway, Some(&client)).await.unwrap();
    let report = response.report("x-forwarded-client-cert").unwrap();
    assert!(
        report.starts_with("Hash=") && report.contains(";Cert=\"-----BEGIN%20CERTIFICATE-----%0A"),
        "{report}"
    );
    assert!(report.ends_with(";Subject=\"O=developers, CN=pinny\""), "{report}");
    assert_eq!(attempt(&gateway, None).await.unwrap().report("x-forwarded-client-cert"), None);
}

#[tokio::test]
async fn t7_terminated_tcp_connections_reach_the_backend_with_and_without_tls() {
    let echo = |mut stream: TcpStream| async move {
        let (mut read, mut write) = stream.split();
        let _gone = tokio::io::copy(&mut read, &mut write).await;
        let _gone = write.shutdown().await;
    };
    let plain = Backend::start(echo).await;
    let acceptor =
        tokio_rustls::TlsAcceptor::from(crate::world::server_config(&pair(&["backend.local"]), b""));
    let wrapped = Backend::start(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let (mut read, mut write) = tokio::io::split(stream);
            let _gone = tokio::io::copy(&mut read, &mut write).await;
            let _gone = write.shutdown().await;
        }
    })
    .await;
    let gateway = gateway();
    let own = pair(&["a.local"]);
    for backends in [to(&[plain.address]), one(upstream(Protocol::Tls, &[wrapped.address]))] {
        let inside = Terminated::Tcp(TcpProxy { backends });
        Table::new().tls("a.local", TlsAction::Terminate(termination(&own, inside))).serve(&gateway);
        let client = Client::new().alpn(&[b"h2", b"http/1.1"]);
        let stream = client.connect(gateway.tls_addr(), "a.local").await.unwrap();
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec(), own.der().unwrap());
        assert_eq!(stream.get_ref().1.alpn_protocol(), None);
        let (mut read, mut write) = tokio::io::split(stream);
        let wanted: Vec<u8> = (0..300_000_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
        let mut seen = Vec::new();
        let (sent, received) = within(async {
            tokio::join!(
                async {
                    write.write_all(&wanted).await?;
                    write.shutdown().await
                },
                read.read_to_end(&mut seen)
            )
        })
        .await;
        sent.unwrap();
        received.unwrap();
        assert!(seen == wanted);
    }
}

#[tokio::test]
async fn the_backend_certificate_is_verified_only_if_the_route_requires_it() {
    let own = pair(&["backend.local"]);
    let gateway = gateway();
    let other = Authority::new("other CA").unwrap();
    let validation = |ca: &Authority, names: &[&str]| UpstreamValidation {
        ca: bundle(ca),
        names: names.iter().map(|name| Box::from(*name)).collect(),
    };
    for (protocol, alpn) in [(Protocol::Tls, &b""[..]), (Protocol::H2, b"h2")] {
        let backend = Backend::https("backend", &own, alpn).await;
        for (validation, status) in [
            (None, 200),
            (Some(validation(&CA, &["backend.local"])), 200),
            (Some(validation(&CA, &["other.local", "backend.local"])), 200),
            (Some(validation(&CA, &["other.local"])), 503),
            (Some(validation(&other, &["backend.local"])), 503),
        ] {
            let upstream = service("backend", protocol, validation.clone(), &[backend.address]);
            Table::new().plain("a.local", all_to(one(upstream))).serve(&gateway);
            let response = Http1::plain(&gateway).await.get("a.local", "/").await;
            assert_eq!(response.status, status, "{protocol:?} {validation:?}: {response:?}");
        }
    }
}
