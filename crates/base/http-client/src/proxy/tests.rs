use tokio::net::TcpListener;
use tokio::task::JoinHandle;

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
        echoes(proxy.connect("a.example", 443).await.unwrap(), task).await;
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
        let error = Proxy::parse(&address).unwrap().connect("a.example", 443).await.unwrap_err();
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
        echoes(proxy.connect(host, 443).await.unwrap(), task).await;
    }
}

#[tokio::test]
async fn a_refusal_of_a_socks5_proxy_names_the_proxy_and_the_server() {
    let script: &[(&[u8], &[u8])] =
        &[(&[5, 1, 0], &[5, 0]), (&[5, 1, 0, 1, 192, 0, 2, 1, 1, 187], &[5, 4, 0, 1, 0, 0, 0, 0, 0, 0])];
    let (address, _task) = scripted(script.to_vec().leak()).await;
    let error = Proxy::parse(&format!("socks5://{address}")).unwrap().connect("192.0.2.1", 443).await;
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
        let error = Proxy::parse(proxy).unwrap().connect("a.example", 443).await.unwrap_err();
        assert_eq!(error.to_string(), text, "{proxy}");
    }
}

#[test]
fn a_proxy_has_the_default_port_of_its_scheme() {
    for (proxy, address) in [
        ("proxy.example", "proxy.example:80"),
        ("http://proxy.example", "proxy.example:80"),
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
