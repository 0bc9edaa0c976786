//! `login static` against a scripted Concierge.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rustls::ProtocolVersion;
use serde_json::{Value, json};

use crate::support::{Home, ReceivedResponse, Server};

fn in_seconds(seconds: i64) -> String {
    let now = Timestamp::now();
    let whole = Timestamp::from_second(now.as_second()).unwrap();
    (whole + SignedDuration::from_secs(seconds)).to_string()
}

/// Returns a Concierge whose credentials have this lifetime in seconds; each credential has a
/// different key.
pub(crate) fn concierge(lifetime: i64) -> Server {
    let count = std::sync::atomic::AtomicUsize::new(0);
    Server::start(move |_| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        ReceivedResponse::json(&json!({
            "kind": "TokenCredentialRequest",
            "apiVersion": "login.concierge.pinniped.dev/v1alpha1",
            "metadata": {},
            "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}},
            "status": {"credential": {
                "expirationTimestamp": in_seconds(lifetime),
                "clientCertificateData": "cert\n",
                "clientKeyData": format!("key {number}\n"),
            }},
        }))
        .with_status(201)
        .with_audit_id()
    })
}

pub(crate) fn args(server: &Server, token: &str) -> Vec<String> {
    vec![
        "login".into(),
        "static".into(),
        "--enable-concierge".into(),
        "--concierge-api-group-suffix=pinniped.dev".into(),
        "--concierge-authenticator-name=a".into(),
        "--concierge-authenticator-type=webhook".into(),
        format!("--concierge-endpoint={}", server.url()),
        format!("--concierge-ca-bundle-data={}", server.ca_data()),
        token.into(),
    ]
}

#[test]
fn without_a_concierge_the_token_is_the_credential() {
    let mut home = Home::new();
    home.set("TOKEN", "a<b").set("EMPTY", "");
    let expected = "{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1beta1\",\"spec\":{\"interactive\":false},\"status\":{\"token\":\"a\\u003cb\"}}\n";
    for flags in [&["--token=a<b"][..], &["--token-env", "TOKEN"], &["--token=other", "--token-env=TOKEN"]] {
        let args: Vec<&str> = ["login", "static"].iter().chain(flags).copied().collect();
        let run = home.run(&args);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, expected, ""), "{flags:?}");
    }
    home.run(&["login", "static", "--token-env=NOPE"]).fails_with("--token-env variable \"NOPE\" is not set");
    home.run(&["login", "static", "--token-env=EMPTY"]).fails_with("--token-env variable \"EMPTY\" is empty");
    assert!(!home.path().join(".config").exists(), "nothing was worth keeping");
}

#[test]
fn the_token_is_exchanged_once_and_then_cached() {
    let server = concierge(300);
    let home = Home::new();
    let args = args(&server, "--token=pinny:password");
    let run = home.run(&args);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let credential: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(credential["status"]["clientCertificateData"], "cert\n");
    assert_eq!(credential["status"]["clientKeyData"], "key 0\n");

    let seen = &server.seen()[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("POST", "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests")
    );
    assert_eq!(
        seen.body,
        "{\"kind\":\"TokenCredentialRequest\",\"apiVersion\":\"login.concierge.pinniped.dev/v1alpha1\",\"metadata\":{},\"spec\":{\"token\":\"pinny:password\",\"authenticator\":{\"apiGroup\":\"authentication.concierge.pinniped.dev\",\"kind\":\"WebhookAuthenticator\",\"name\":\"a\"}},\"status\":{}}\n"
    );
    assert_eq!(seen.headers["content-type"], "application/json");
    assert_eq!(seen.headers["accept"], "application/json");
    assert!(!seen.headers.contains_key("authorization"));
    assert!(!seen.client_certificate);
    assert_eq!(seen.tls, Some(ProtocolVersion::TLSv1_3));

    // The second run prints the same bytes without a request.
    let again = home.run(&args);
    assert_eq!((again.code, again.stdout), (0, run.stdout));
    assert_eq!(server.seen().len(), 1);
    assert!(home.path().join(".config/pinniped/credentials.yaml").exists());

    // Another cluster in KUBERNETES_EXEC_INFO results in another key; so do other arguments.
    let mut other = args;
    other.push("--concierge-namespace=x".into());
    let run = home.run(&other);
    assert_eq!(run.stderr, "Flag --concierge-namespace has been deprecated, not needed anymore\n");
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn debug_logs_contain_the_steps() {
    let server = concierge(300);
    let mut home = Home::new();
    home.set("PINNIPED_DEBUG", "true");
    let args = args(&server, "--token=t");
    let endpoint = server.url();
    assert_eq!(
        home.run(&args).log(),
        [
            format!(
                "exchanging static token for cluster credential  {{\"endpoint\": \"{endpoint}\", \"authenticator type\": \"webhook\", \"authenticator name\": \"a\"}}"
            ),
            "Received auditID for failed request  {\"path\": \"/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests\", \"statusCode\": 201, \"auditID\": \"some-audit-id\"}".to_owned(),
            "exchanged static token for cluster credential".to_owned(),
        ]
    );
    assert_eq!(home.run(&args).log(), ["using cached cluster credential."]);
}

#[test]
fn an_expiring_credential_is_returned_and_renewed_in_the_background() {
    let server = concierge(30);
    let home = Home::new();
    let args = args(&server, "--token=t");
    let first = home.run(&args);
    let second = home.run(&args);
    assert_eq!(first.stdout, second.stdout, "the cached credential is printed immediately");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(home.path().join(".config/pinniped/credentials.yaml"))
        .unwrap()
        .contains("key 1")
    {
        assert!(Instant::now() < deadline, "the credential was not renewed");
        std::thread::yield_now();
    }
    assert_eq!(server.seen().len(), 2);
    let third: Value = serde_json::from_str(&home.run(&args).stdout).unwrap();
    assert_ne!(third["status"]["clientKeyData"], "key 0\n");
}

#[test]
fn refusals_and_failures_have_different_errors() {
    const PREFIX: &str = "could not complete Concierge credential exchange: ";
    let status =
        |status: Value| ReceivedResponse::json(&json!({"kind": "TokenCredentialRequest", "status": status}));
    let server = Server::start(move |request| {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        match body["spec"]["token"].as_str().unwrap() {
            "refused" => status(json!({"message": "authentication failed"})),
            "empty" => status(json!({})),
            "forbidden" => {
                ReceivedResponse::json(&json!({"kind": "Status", "message": "some message", "code": 403}))
                    .with_status(403)
            }
            "missing" => ReceivedResponse::text(404, "404 page not found"),
            _ => ReceivedResponse::text(500, "oops"),
        }
    });
    let home = Home::new();
    for (token, error) in [
        ("refused", "login failed: authentication failed"),
        ("empty", "login failed: unknown cause"),
        ("forbidden", "could not login: some message"),
        (
            "missing",
            "could not login: the server could not find the requested resource (post tokencredentialrequests.login.concierge.pinniped.dev)",
        ),
        (
            "other",
            "could not login: an error on the server (\"oops\") has prevented the request from succeeding (post tokencredentialrequests.login.concierge.pinniped.dev)",
        ),
    ] {
        home.run(&args(&server, &format!("--token={token}"))).fails_with(&format!("{PREFIX}{error}"));
    }
    assert!(!home.path().join(".config/pinniped/credentials.yaml").exists());
}

#[test]
fn an_unreachable_or_untrusted_concierge_is_reported() {
    const PREFIX: &str = "could not complete Concierge credential exchange: could not login: Post ";
    const PATH: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
    let home = Home::new();
    let server = concierge(300);
    let mut wrong_ca = args(&server, "--token=t");
    let other = concierge(300);
    wrong_ca[7] = format!("--concierge-ca-bundle-data={}", other.ca_data());
    home.run(&wrong_ca).fails_with(&format!(
        "{PREFIX}\"{}{PATH}\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
        server.url()
    ));
    assert_eq!(server.seen().len(), 0);

    let mut gone = args(&server, "--token=t");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    gone[6] = format!("--concierge-endpoint=https://{address}/prefix/");
    home.run(&gone).fails_with(&format!(
        "{PREFIX}\"https://{address}/prefix{PATH}\": dial tcp {address}: connect: connection refused"
    ));
}

#[test]
fn invalid_parameters_are_refused_before_a_request_is_sent() {
    let server = concierge(300);
    let home = Home::new();
    let mut bad = args(&server, "--token=t");
    bad[5] = "--concierge-authenticator-type=foo".into();
    home.run(&bad).fails_with(
        "invalid Concierge parameters: invalid authenticator type: \"foo\", supported values are \"webhook\" and \"jwt\"",
    );
    let mut bad = args(&server, "--token=t");
    bad[6] = "--concierge-endpoint=".into();
    home.run(&bad).fails_with("invalid Concierge parameters: endpoint must not be empty");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn the_request_goes_through_the_proxy() {
    let server = concierge(300);
    // Only the proxy can resolve this name.
    let mut through = args(&server, "--token=t");
    through[6] = "--concierge-endpoint=https://concierge.test".into();

    let mut home = Home::new();
    let proxy = Proxy::start(server.address());
    home.set("HTTPS_PROXY", &format!("http://user:p%40ss@{}", proxy.address));
    let run = home.run(&through);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert_eq!(
        proxy.join(),
        "CONNECT concierge.test:443 HTTP/1.1\r\nHost: concierge.test:443\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n\r\n"
    );
    assert_eq!(server.seen().len(), 1);

    let mut home = Home::new();
    home.set("HTTPS_PROXY", "http://127.0.0.1:1");
    home.run(&through).fails_with(
        "could not complete Concierge credential exchange: could not login: Post \"https://concierge.test/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests\": proxyconnect tcp: dial tcp 127.0.0.1:1: connect: connection refused",
    );
}

/// A proxy for one connection, which always connects to `target`.
struct Proxy {
    address: SocketAddr,
    thread: JoinHandle<String>,
}

impl Proxy {
    fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            let mut server = TcpStream::connect(target).unwrap();
            std::thread::scope(|scope| {
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                scope.spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(Shutdown::Both);
            });
            String::from_utf8(head).unwrap()
        });
        Self { address, thread }
    }

    /// Returns the head of the request.
    fn join(self) -> String {
        self.thread.join().unwrap()
    }
}
