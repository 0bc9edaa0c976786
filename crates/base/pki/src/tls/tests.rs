//! Tests of handshakes over the loopback interface.

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair as TestKey, SanType};
use rustls::{ClientConfig, ProtocolVersion, ServerConfig, client::ResolvesClientCert, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::{CaBundle, CertificateAuthority, CertificatePair, CertificateStore, ClientSubject, Validity};

/// The properties of a handshake that both sides report.
#[derive(Debug)]
struct Handshake {
    version: ProtocolVersion,
    suite: rustls::CipherSuite,
    group: rustls::NamedGroup,
    alpn: Option<Vec<u8>>,
    client_chain: Vec<CertificateDer<'static>>,
    server_chain: Vec<CertificateDer<'static>>,
}

/// Performs a handshake over the loopback interface and sends one byte in each direction: in TLS
/// 1.3 the client learns only then whether the server accepts its certificate.
async fn handshake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &str,
) -> (io::Result<Handshake>, io::Result<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::clone(server));
    let connector = TlsConnector::from(Arc::clone(client));
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let serve = async {
        let (tcp, _) = listener.accept().await?;
        let mut stream = acceptor.accept(tcp).await?;
        let byte = stream.read_u8().await?;
        stream.write_u8(byte).await?;
        stream.flush().await?;
        let (_, connection) = stream.get_ref();
        Ok::<_, io::Error>(
            connection
                .peer_certificates()
                .unwrap_or_default()
                .iter()
                .cloned()
                .map(CertificateDer::into_owned)
                .collect(),
        )
    };
    let send_request = async {
        let mut stream = connector.connect(name, TcpStream::connect(address).await?).await?;
        stream.write_u8(7).await?;
        stream.flush().await?;
        assert_eq!(stream.read_u8().await?, 7);
        let (_, connection) = stream.get_ref();
        Ok::<_, io::Error>(Handshake {
            version: connection.protocol_version().unwrap(),
            suite: connection.negotiated_cipher_suite().unwrap().suite(),
            group: connection.negotiated_key_exchange_group().unwrap().name(),
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
            client_chain: vec![],
            server_chain: connection.peer_certificates().unwrap().to_vec(),
        })
    };
    let both = async { tokio::join!(serve, send_request) };
    let (served, requested) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    match (served, requested) {
        (Ok(client_chain), Ok(seen)) => (Ok(Handshake { client_chain, ..seen }), Ok(())),
        (Ok(_), Err(error)) => (Err(error), Ok(())),
        (Err(server), Ok(_)) => panic!("only the server failed: {server}"),
        (Err(server), Err(client)) => (Err(client), Err(server)),
    }
}

struct World {
    ca: CertificateAuthority,
    store: CertificateStore,
}

impl World {
    fn new() -> Self {
        let ca = CertificateAuthority::generate("serving CA", &hour()).unwrap();
        Self { ca, store: CertificateStore::serving("serving") }
    }

    fn with_pair() -> Self {
        let world = Self::new();
        world.rotate();
        world
    }

    fn rotate(&self) {
        let names = ["localhost".to_owned()];
        let leaf = self.ca.issue_server(&names, &["127.0.0.1".parse().unwrap()], &hour()).unwrap();
        self.store.set(leaf.certificate_pem.as_bytes(), leaf.private_key_pem.as_bytes()).unwrap();
    }

    fn roots(&self) -> Roots {
        Roots::Bundle(CaBundle::from_pem(self.ca.certificate_pem().as_bytes()).unwrap())
    }

    fn server(&self, profile: Profile, ciphers: &[&str]) -> Arc<ServerConfig> {
        let hints: ClientCaHints = Arc::new(Vec::new);
        self.server_with_hints(profile, ciphers, hints)
    }

    fn server_with_hints(
        &self,
        profile: Profile,
        ciphers: &[&str],
        hints: ClientCaHints,
    ) -> Arc<ServerConfig> {
        let names: Vec<String> = ciphers.iter().map(|name| (*name).to_owned()).collect();
        let ciphers = CipherRestriction::parse(&names).unwrap();
        server_config(profile, &ciphers, &self.store, ClientCertificates::Request(hints), ALPN_HTTP)
    }

    fn client(&self, profile: Profile) -> Arc<ClientConfig> {
        client_config(profile, self.roots(), ALPN_HTTP).unwrap()
    }

    /// Returns a client that presents this pair regardless of the server's CA names.
    fn client_showing(&self, profile: Profile, key: &Arc<CertifiedKey>) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client(profile));
        config.client_auth_cert_resolver = Arc::new(Shows(Arc::clone(key)));
        Arc::new(config)
    }

    /// Returns a client with TLS 1.2 only.
    fn old_client(&self) -> Arc<ClientConfig> {
        let bundle = CaBundle::from_pem(self.ca.certificate_pem().as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(bundle.ders().iter().cloned());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn hour() -> Validity {
    Validity::starting(Timestamp::now(), Duration::from_secs(3600))
}

fn client_pair(validity: &Validity) -> CertificatePair {
    let ca = CertificateAuthority::generate("unknown CA", &hour()).unwrap();
    let subject = ClientSubject { username: "alice".to_owned(), ..ClientSubject::default() };
    let issued = ca.issue_client(&subject, validity).unwrap();
    CertificatePair::parse(issued.certificate_pem.as_bytes(), issued.private_key_pem.as_bytes()).unwrap()
}

#[tokio::test]
async fn both_profiles_negotiate_the_best_of_each_version() {
    let world = World::with_pair();
    for profile in [Profile::Secure, Profile::Default] {
        let seen =
            handshake(&world.server(profile, &[]), &world.client(profile), "localhost").await.0.unwrap();
        assert_eq!(seen.version, ProtocolVersion::TLSv1_3);
        assert_eq!(seen.suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(seen.group, rustls::NamedGroup::X25519MLKEM768);
        assert_eq!(seen.alpn.as_deref(), Some(ALPN_H2));
        assert!(seen.client_chain.is_empty());
    }
    let seen =
        handshake(&world.server(Profile::Default, &[]), &world.old_client(), "localhost").await.0.unwrap();
    assert_eq!(seen.version, ProtocolVersion::TLSv1_2);
    assert_eq!(seen.suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    assert_eq!(seen.alpn, None);
}

#[tokio::test]
async fn the_secure_profile_refuses_tls_1_2() {
    let world = World::with_pair();
    let (client, server) =
        handshake(&world.server(Profile::Secure, &[]), &world.old_client(), "localhost").await;
    assert!(client.unwrap_err().to_string().contains("ProtocolVersion"));
    server.unwrap_err();
}

#[tokio::test]
async fn tls_1_2_suites_are_restricted_and_tls_1_3_is_not() {
    let world = World::with_pair();
    let server = world.server(Profile::Default, &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]);
    let seen = handshake(&server, &world.old_client(), "localhost").await.0.unwrap();
    assert_eq!(seen.suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    let seen = handshake(&server, &world.client(Profile::Default), "localhost").await.0.unwrap();
    assert_eq!(seen.suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let rsa_only = world.server(Profile::Default, &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    handshake(&rsa_only, &world.old_client(), "localhost").await.0.unwrap_err();
}

#[tokio::test]
async fn a_client_without_a_server_name_gets_the_current_pair() {
    let world = World::with_pair();
    let server = world.server(Profile::Secure, &[]);
    let by_name = handshake(&server, &world.client(Profile::Secure), "localhost").await.0.unwrap();
    let by_address = handshake(&server, &world.client(Profile::Secure), "127.0.0.1").await.0.unwrap();
    assert_eq!(by_name.server_chain, by_address.server_chain);
}

#[tokio::test]
async fn every_handshake_uses_the_current_pair_of_the_store() {
    let world = World::new();
    let server = world.server(Profile::Secure, &[]);
    let client = world.client(Profile::Secure);
    handshake(&server, &client, "localhost").await.0.unwrap_err();
    world.rotate();
    let first = handshake(&server, &client, "localhost").await.0.unwrap();
    world.rotate();
    let second = handshake(&server, &client, "localhost").await.0.unwrap();
    assert_ne!(first.server_chain, second.server_chain);
    world.store.unset();
    handshake(&server, &client, "localhost").await.0.unwrap();
    world.store.refuse();
    handshake(&server, &client, "localhost").await.0.unwrap_err();
    world.rotate();
    handshake(&server, &client, "localhost").await.0.unwrap();
}

#[tokio::test]
async fn any_client_certificate_is_accepted() {
    let world = World::with_pair();
    let server = world.server(Profile::Default, &[]);
    let past = |from: &str, until: &str| Validity {
        not_before: from.parse().unwrap(),
        not_after: until.parse().unwrap(),
    };
    let version_1 = CertificatePair::parse(
        include_bytes!("../../testdata/version-1-client.pem"),
        include_bytes!("../../testdata/version-1-client.key"),
    );
    let pairs = [
        ("good, of an unknown CA", client_pair(&hour())),
        ("expired", client_pair(&past("2001-01-01T00:00:00Z", "2002-01-01T00:00:00Z"))),
        ("not yet valid", client_pair(&past("2101-01-01T00:00:00Z", "2102-01-01T00:00:00Z"))),
        ("version 1", version_1.unwrap()),
    ];
    for (name, pair) in pairs {
        let modern = world.client_showing(Profile::Secure, pair.certified_key());
        let mut old = ClientConfig::clone(&world.old_client());
        old.client_auth_cert_resolver = Arc::new(Shows(Arc::clone(pair.certified_key())));
        for client in [modern, Arc::new(old)] {
            let seen = handshake(&server, &client, "localhost").await.0;
            let seen = seen.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(seen.client_chain, pair.chain(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_client_without_the_private_key_of_its_certificate_is_refused() {
    let world = World::with_pair();
    let server = world.server(Profile::Default, &[]);
    let (mine, stolen) = (client_pair(&hour()), client_pair(&hour()));
    let forged = CertifiedKey::new(stolen.chain().to_vec(), Arc::clone(&mine.certified_key().key));
    let modern = world.client_showing(Profile::Secure, &Arc::new(forged.clone()));
    let mut old = ClientConfig::clone(&world.old_client());
    old.client_auth_cert_resolver = Arc::new(Shows(Arc::new(forged)));
    for client in [modern, Arc::new(old)] {
        let (client, server) = handshake(&server, &client, "localhost").await;
        client.unwrap_err();
        assert!(server.unwrap_err().to_string().contains("BadSignature"));
    }
}

#[tokio::test]
async fn a_client_presents_its_own_certificate() {
    let world = World::with_pair();
    let server = world.server(Profile::Default, &[]);
    let roots = || Roots::Bundle(CaBundle::from_pem(world.ca.certificate_pem().as_bytes()).unwrap());
    let pair = client_pair(&hour());
    let none = CipherRestriction::default();
    for (own, chain) in [(Some(&pair), pair.chain()), (None, &[])] {
        let client = client_config_with_certificate(Profile::Default, &none, roots(), own, &[]).unwrap();
        let seen = handshake(&server, &client, "localhost").await.0.unwrap();
        assert_eq!(seen.client_chain, chain);
    }
}

#[tokio::test]
async fn a_server_that_ignores_client_certificates_requests_none() {
    let world = World::with_pair();
    let none = CipherRestriction::default();
    let server =
        server_config(Profile::Secure, &none, &world.store, ClientCertificates::Ignore, &[ALPN_HTTP_1_1]);
    let pair = client_pair(&hour());
    let client = world.client_showing(Profile::Secure, pair.certified_key());
    let seen = handshake(&server, &client, "localhost").await.0.unwrap();
    assert!(seen.client_chain.is_empty());
    assert_eq!(seen.alpn.as_deref(), Some(ALPN_HTTP_1_1));
}

/// Records the CA names and presents no certificate.
#[derive(Debug, Default)]
struct Notes(std::sync::Mutex<Vec<Vec<u8>>>);

impl ResolvesClientCert for Notes {
    fn resolve(&self, hints: &[&[u8]], _schemes: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn hints_are_the_names_of_the_current_cas() {
    let world = World::with_pair();
    let signer = CertificateStore::signer("signer");
    let source = signer.clone();
    let hints: ClientCaHints = Arc::new(move || {
        let pair = source.current();
        pair.map(|pair| CaBundle::from_ders(pair.chain().to_vec()).subjects()).unwrap_or_default()
    });
    let server = world.server_with_hints(Profile::Default, &[], hints);
    let notes = Arc::new(Notes::default());
    for name in ["first", "second"] {
        let ca = CertificateAuthority::generate(name, &hour()).unwrap();
        signer.set(ca.certificate_pem().as_bytes(), ca.private_key_pem().as_bytes()).unwrap();
        for base in [world.client(Profile::Secure), world.old_client()] {
            let mut client = ClientConfig::clone(&base);
            client.client_auth_cert_resolver = Arc::clone(&notes) as Arc<dyn ResolvesClientCert>;
            handshake(&server, &Arc::new(client), "localhost").await.0.unwrap();
            let parsed = crate::certificate::parse(ca.certificate_der()).unwrap();
            assert_eq!(*notes.0.lock().unwrap(), [parsed.subject().as_raw()], "{name}");
        }
    }
}

#[tokio::test]
async fn sessions_are_not_resumed() {
    let world = World::with_pair();
    let server = world.server(Profile::Default, &[]);
    let client = world.client(Profile::Default);
    handshake(&server, &client, "localhost").await.0.unwrap();
    assert_eq!(server.send_tls13_tickets, 0);
    assert!(!server.session_storage.can_cache() && !server.ticketer.enabled());
}

#[tokio::test]
async fn a_self_signed_ca_is_trusted_as_server_when_it_is_in_the_bundle() {
    let key = TestKey::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.subject_alt_names.push(SanType::IpAddress("127.0.0.1".parse().unwrap()));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let cert = params.self_signed(&key).unwrap();
    let pair = CertificatePair::parse(cert.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(Arc::clone(pair.certified_key()))));
    let server = Arc::new(server);
    let client = |pem: &str| {
        let bundle = CaBundle::from_pem(pem.as_bytes()).unwrap();
        client_config(Profile::Default, Roots::Bundle(bundle), ALPN_HTTP).unwrap()
    };
    handshake(&server, &client(&cert.pem()), "localhost").await.0.unwrap();
    let error = handshake(&server, &client(&cert.pem()), "other.example").await.0.unwrap_err();
    assert!(error.to_string().contains("NotValidForName"), "{error}");
    let stranger = World::new();
    handshake(&server, &client(stranger.ca.certificate_pem()), "localhost").await.0.unwrap_err();
}

#[test]
fn a_client_needs_roots() {
    let error = client_config(Profile::Default, Roots::Bundle(CaBundle::default()), &[]).unwrap_err();
    assert!(error.to_string().starts_with("could not use CA bundle: "), "{error}");
}
