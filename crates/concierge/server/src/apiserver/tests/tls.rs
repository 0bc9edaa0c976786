//! Tests of the whole server over a real socket: TLS 1.3 only, client certificates verified for
//! each request.

use std::net::SocketAddr;

use pinniped_delegated_auth::cluster_auth_config::ClusterAuthConfig;
use pinniped_pki::{CaBundle, CertificateAuthority, ClientSubject, Validity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

fn start(ca: &CertificateAuthority, validity: &Validity) -> ApiServer {
    let serving = CertificateStore::serving("concierge-serving-cert");
    let pair = ca.issue_server(&["localhost".to_owned()], &[], validity).expect("a serving pair");
    serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes()).expect("a pair");
    let client_ca = CaBundle::from_pem(ca.certificate_pem().as_bytes()).expect("a bundle");
    let cluster = ClusterAuthConfig { client_ca: Some(client_ca), ..ClusterAuthConfig::default() };
    let client = reviews();
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    serve(
        listener,
        Params {
            serving,
            registry: Registry::new(),
            issuers: Vec::new(),
            tokens: Arc::new(crate::token_issuer::tests::Off),
            suffix: GroupSuffix::default(),
            cluster_auth: ClusterAuthConfigWatch::fixed(cluster),
            reviewer: TokenReviewer::new(client.clone()),
            authorizer: Authorizer::new(client),
            log_usernames_and_groups: false,
            credential_lifetime: tokio::sync::watch::channel(Duration::from_secs(300)).1,
            admission: AdmissionGate::new(UnappliedAdmission::Report),
            health: Health::new(),
            metrics: Metrics::new(),
            debug_state: Default::default(),
            requests: Default::default(),
            listeners: Default::default(),
            limits: pinniped_http_server::Limits::default(),
            tracer: None,
        },
    )
}

/// Sends one request over a separate connection, and returns the raw response.
async fn raw(
    addr: SocketAddr,
    ca: &CertificateAuthority,
    version: &'static rustls::SupportedProtocolVersion,
    subject: Option<(&ClientSubject, &Validity)>,
    request: &str,
) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate_der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots);
    let config = match subject {
        None => builder.with_no_client_auth(),
        Some((subject, validity)) => {
            let pair = ca.issue_client(subject, validity).expect("a client pair");
            let chain = vec![CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("a pair")
        }
    };
    let talk = async {
        let tcp = TcpStream::connect(addr).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        tls.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        tls.read_to_string(&mut response).await?;
        Ok(response)
    };
    tokio::time::timeout(DEADLINE, talk).await.expect("a response within the deadline")
}

#[tokio::test]
async fn certificates_identify_callers_and_old_tls_versions_are_refused() {
    let validity = Validity::starting(Timestamp::now(), Duration::from_secs(600));
    let long_ago =
        Validity::starting("2020-01-01T00:00:00Z".parse().expect("a time"), Duration::from_secs(60));
    let ca = CertificateAuthority::generate("test", &validity).expect("a CA");
    let server = start(&ca, &validity);
    let addr = server.local_addr();
    let tls13 = &rustls::version::TLS13;

    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let response = raw(addr, &ca, tls13, None, health).await.expect("a response");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\nok"), "{response}");
    raw(addr, &ca, &rustls::version::TLS12, None, health).await.expect_err("TLS 1.2");

    let who_am_i = format!(
        "POST {WHOAMI} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let subject = ClientSubject {
        username: "jane".to_owned(),
        groups: vec!["g".to_owned()],
        ..ClientSubject::default()
    };
    let response = raw(addr, &ca, tls13, Some((&subject, &validity)), &who_am_i).await.expect("a response");
    assert!(response.starts_with("HTTP/1.1 201 Created\r\n"), "{response}");
    assert!(
        response.contains(r#""user":{"username":"jane","groups":["g","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256="#),
        "{response}"
    );
    // An invalid certificate is refused with 401, not by an aborted handshake.
    let response = raw(addr, &ca, tls13, Some((&subject, &long_ago)), &who_am_i).await.expect("a response");
    assert!(response.starts_with("HTTP/1.1 401 Unauthorized\r\n"), "{response}");

    server.drain(DEADLINE).await;
    assert!(Listener::bind(addr).is_ok(), "the port is free again");
}

/// Opens a connection of an anonymous client at this address.
async fn connect(from: [u8; 4], addr: SocketAddr, ca: &CertificateAuthority) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.certificate_der().clone()).expect("a root");
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of this machine");
    let tcp = socket.connect(addr).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("a handshake")
}

/// Sends the head of a login without its body, and returns the status: 100 when the login has its
/// permits and waits for the body.
async fn begin_login(connection: &mut TlsStream<TcpStream>) -> String {
    let head = format!(
        "POST {LOGIN} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        TCR.len()
    );
    connection.write_all(head.as_bytes()).await.expect("written");
    status(connection).await
}

async fn status(connection: &mut TlsStream<TcpStream>) -> String {
    let mut start = [0; 12];
    let read = tokio::time::timeout(DEADLINE, connection.read_exact(&mut start)).await;
    read.expect("a response within the deadline").expect("a response");
    String::from_utf8_lossy(&start[9..]).into_owned()
}

#[tokio::test]
async fn stalled_anonymous_logins_from_one_address_do_not_block_those_from_another() {
    let validity = Validity::starting(Timestamp::now(), Duration::from_secs(3600));
    let ca = CertificateAuthority::generate("ca", &validity).expect("a CA");
    let server = start(&ca, &validity);
    let addr = server.local_addr();
    let mut stalled = Vec::new();
    loop {
        let mut connection = connect([127, 0, 0, 2], addr, &ca).await;
        match begin_login(&mut connection).await.as_str() {
            "100" => stalled.push(connection),
            "429" => break,
            other => panic!("{other}"),
        }
    }
    assert!((50..=LOGINS_IN_FLIGHT * 3 / 4).contains(&stalled.len()), "{}", stalled.len());
    let mut connection = connect([127, 0, 0, 1], addr, &ca).await;
    assert_eq!(begin_login(&mut connection).await, "100");
    let mut rest = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len() - 12];
    connection.read_exact(&mut rest).await.expect("the rest of the head");
    connection.write_all(TCR.as_bytes()).await.expect("written");
    assert_eq!(status(&mut connection).await, "201");
}
