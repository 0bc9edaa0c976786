use std::time::Duration;

use jiff::Timestamp;
use pinniped_pki::tls::{ALPN_HTTP, CipherRestriction, Profile, Roots, client_config_with};
use pinniped_pki::{CaBundle, CertificateAuthority, Validity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A proxy that expects and sends bytes in turns. The task returns the connection.
async fn scripted(script: &'static [(&'static [u8], &'static [u8])]) -> (String, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for (expected, response) in script {
            let mut received = vec![0; expected.len()];
            stream.read_exact(&mut received).await.unwrap();
            assert_eq!(received, *expected, "{}", String::from_utf8_lossy(&received));
            stream.write_all(response).await.unwrap();
        }
        stream
    });
    (address, task)
}

/// Checks that the connection carries the bytes after the handshake.
async fn echoes(mut near: TcpStream, task: JoinHandle<TcpStream>) {
    let mut far = task.await.unwrap();
    near.write_all(b"there").await.unwrap();
    far.read_exact(&mut [0; 5]).await.unwrap();
    far.write_all(b"back").await.unwrap();
    near.read_exact(&mut [0; 4]).await.unwrap();
}

#[tokio::test]
async fn connect_requests_carry_the_decoded_credentials_of_the_url() {
    const HEAD: &str = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n";
    const LOGIN: &str = "Proxy-Authorization: Basic dXNlcjpwQHNz\r\n";
    for (user, header, response) in [
        ("", "", &b"HTTP/1.1 200 OK\r\n\r\n"[..]),
        ("user:p%40ss@", LOGIN, b"HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n"),
    ] {
        let script = vec![(format!("{HEAD}{header}\r\n").leak().as_bytes(), response)].leak();
        let (address, task) = scripted(script).await;
        let proxy = Proxy::parse(&format!("http://{user}{address}")).unwrap();
        echoes(proxy.connect(&Target::new("a.example", 443)).await.unwrap(), task).await;
    }
}

#[tokio::test]
async fn a_refused_tunnel_has_the_text_of_go() {
    for (response, text) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "Proxy Authentication Required"),
        (b"HTTP/1.1 403\r\n\r\n", "unknown status code"),
        (b"HTTP/1.1 2", "proxyconnect tcp: EOF"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response).await.unwrap();
        });
        let error =
            Proxy::parse(&address).unwrap().connect(&Target::new("a.example", 443)).await.unwrap_err();
        assert_eq!(error.to_string(), text);
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_socks5_proxy_resolves_names_and_receives_credentials() {
    let bound: &[u8] = &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80];
    let by_name: &[u8] = &[5, 1, 0, 3, 9, b'a', b'.', b'e', b'x', b'a', b'm', b'p', b'l', b'e', 1, 187];
    let by_address: &[u8] = &[5, 1, 0, 1, 192, 0, 2, 1, 1, 187];
    let by_v6: &[u8] = &[5, 1, 0, 4, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 187];
    let anonymous: (&[u8], &[u8]) = (&[5, 1, 0], &[5, 0]);
    let login: (&[u8], &[u8]) = (&[1, 1, b'u', 3, b'p', b'@', b's'], &[1, 0]);
    for (scheme, user, host, script) in [
        ("socks5", "", "a.example", vec![anonymous, (by_name, bound)]),
        ("socks5h", "", "a.example", vec![anonymous, (by_name, bound)]),
        ("socks5", "", "192.0.2.1", vec![anonymous, (by_address, bound)]),
        ("socks5", "", "fd00::1", vec![anonymous, (by_v6, bound)]),
        ("socks5", "u:p%40s@", "a.example", vec![(&[5, 1, 2][..], &[5, 2][..]), login, (by_name, bound)]),
    ] {
        let (address, task) = scripted(script.leak()).await;
        let proxy = Proxy::parse(&format!("{scheme}://{user}{address}")).unwrap();
        echoes(proxy.connect(&Target::new(host, 443)).await.unwrap(), task).await;
    }
}

#[tokio::test]
async fn a_refusal_of_a_socks5_proxy_names_the_proxy_and_the_server() {
    let script: &[(&[u8], &[u8])] =
        &[(&[5, 1, 0], &[5, 0]), (&[5, 1, 0, 1, 192, 0, 2, 1, 1, 187], &[5, 4, 0, 1, 0, 0, 0, 0, 0, 0])];
    let (address, _task) = scripted(script.to_vec().leak()).await;
    let error =
        Proxy::parse(&format!("socks5://{address}")).unwrap().connect(&Target::new("192.0.2.1", 443)).await;
    let text = format!("socks connect tcp {address}->192.0.2.1:443: host unreachable");
    assert_eq!(error.unwrap_err().to_string(), text);
}

#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_an_error() {
    for (proxy, text) in [
        ("https://127.0.0.1:1", "proxyconnect tcp: proxies with scheme https are not supported"),
        ("socks4://127.0.0.1:1", "proxyconnect tcp: proxies with scheme socks4 are not supported"),
        ("http://127.0.0.1:1", "proxyconnect tcp: dial tcp 127.0.0.1:1: connect: connection refused"),
        ("socks5://127.0.0.1:1", "proxyconnect tcp: dial tcp 127.0.0.1:1: connect: connection refused"),
    ] {
        let error = Proxy::parse(proxy).unwrap().connect(&Target::new("a.example", 443)).await.unwrap_err();
        assert_eq!(error.to_string(), text, "{proxy}");
    }
}

/// A certificate authority, and acceptors for TLS servers on loopback.
struct Authority(CertificateAuthority);

impl Authority {
    fn new() -> Self {
        pinniped_pki::install_crypto_provider();
        Self(CertificateAuthority::generate("ca", &Self::validity()).unwrap())
    }

    fn validity() -> Validity {
        Validity::starting(Timestamp::now(), Duration::from_secs(3600))
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        let roots = Roots::Bundle(CaBundle::from_pem(self.0.certificate_pem().as_bytes()).unwrap());
        client_config_with(Profile::Default, &CipherRestriction::default(), roots, ALPN_HTTP).unwrap()
    }

    /// Returns an acceptor with a certificate for this name, which prefers HTTP/2.
    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let (dns, ips) = match name.parse() {
            Ok(ip) => (vec![], vec![ip]),
            Err(_) => (vec![name.to_owned()], vec![]),
        };
        let pair = self.0.issue_server(&dns, &ips, &Self::validity()).unwrap();
        let certificate = CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.private_key_pem.as_bytes()).unwrap();
        let builder = rustls::ServerConfig::builder().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = ALPN_HTTP.iter().map(|protocol| protocol.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// The server is behind a proxy on loopback, and both speak TLS.
#[tokio::test]
async fn an_https_proxy_carries_the_encrypted_connection_to_the_server() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    for (user, response, proxy, server, expected) in [
        ("", "HTTP/1.1 200 OK\r\n\r\n", (&authority, "127.0.0.1"), (&authority, "a.example"), Ok("h2")),
        (
            "user:p%40ss@",
            "HTTP/1.1 200 OK\r\n\r\n",
            (&authority, "127.0.0.1"),
            (&authority, "a.example"),
            Ok("h2"),
        ),
        (
            "",
            "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            (&authority, "127.0.0.1"),
            (&authority, "a.example"),
            Err("Proxy Authentication Required"),
        ),
        (
            "",
            "",
            (&foreign, "127.0.0.1"),
            (&authority, "a.example"),
            Err(
                "proxyconnect tcp: tls: failed to verify certificate: x509: certificate signed by unknown authority",
            ),
        ),
        (
            "",
            "",
            (&authority, "proxy.example"),
            (&authority, "a.example"),
            Err(
                "proxyconnect tcp: tls: failed to verify certificate: x509: cannot validate certificate for \
                 127.0.0.1 because it doesn't contain any IP SANs",
            ),
        ),
        (
            "",
            "HTTP/1.1 200 OK\r\n\r\n",
            (&authority, "127.0.0.1"),
            (&foreign, "a.example"),
            Err("tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (proxy_tls, server_tls) = (proxy.0.acceptor(proxy.1), server.0.acceptor(server.1));
        let task = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = proxy_tls.accept(stream).await.ok()?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            // The other end of the tunnel.
            let mut stream = server_tls.accept(stream).await.ok()?;
            let mut text = [0; 5];
            stream.read_exact(&mut text).await.ok()?;
            stream.write_all(&text).await.ok()?;
            stream.flush().await.ok()?;
            Some(String::from_utf8(request).unwrap())
        });
        let dialer = crate::dial::Dialer {
            target: Target::new("a.example", 443),
            proxy: Some(Proxy::parse(&format!("https://{user}{address}")).unwrap()),
            tls: authority.client_config(),
        };
        match (dialer.dial().await, expected) {
            (Ok(mut stream), Ok(protocol)) => {
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
                stream.write_all(b"there").await.unwrap();
                stream.flush().await.unwrap();
                let mut echo = [0; 5];
                stream.read_exact(&mut echo).await.unwrap();
                assert_eq!(&echo, b"there");
                let request = task.await.unwrap().unwrap();
                assert!(request.starts_with("CONNECT a.example:443 HTTP/1.1\r\n"), "{request}");
                let has_credentials = request.contains("Proxy-Authorization: Basic dXNlcjpwQHNz\r\n");
                assert_eq!(has_credentials, !user.is_empty(), "{request}");
            }
            (Err(error), Err(text)) => assert_eq!(error.to_string(), text),
            (result, expected) => panic!("{result:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn a_proxy_has_the_default_port_of_its_scheme() {
    for (proxy, address) in [
        ("proxy.example", "proxy.example:80"),
        ("http://proxy.example", "proxy.example:80"),
        ("https://proxy.example", "proxy.example:443"),
        ("socks5://proxy.example", "proxy.example:1080"),
        ("socks5h://proxy.example", "proxy.example:1080"),
        ("socks5://[fd00::1]:1", "[fd00::1]:1"),
    ] {
        assert_eq!(Proxy::parse(proxy).unwrap().address().unwrap().to_string(), address, "{proxy}");
    }
}

#[test]
fn debug_prints_no_password() {
    let proxy = Proxy::parse("http://user:secret@proxy").unwrap();
    assert_eq!(format!("{proxy:?}"), "Proxy(\"proxy\")");
}
