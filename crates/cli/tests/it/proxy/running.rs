//! A running `pinniped proxy` and its clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::config::Kubeconfig;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{Profile, Roots, client_config};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::api_server::ApiServer;
use crate::support::Home;

/// The timeout for the start of the proxy.
const PATIENCE: Duration = Duration::from_secs(30);

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Returns a kubeconfig like that of `get kubeconfig --impersonation-delivery proxy`; `base` is a
/// path of the server.
pub(super) fn kubeconfig(server: &ApiServer, base: &str) -> String {
    let (url, ca) = (server.url(), server.ca_data());
    format!(
        "apiVersion: v1
kind: Config
current-context: context
contexts:
- {{name: context, context: {{cluster: cluster, user: user, namespace: ns}}}}
clusters:
- {{name: cluster, cluster: {{server: '{url}{base}', certificate-authority-data: {ca}}}}}
users:
- name: user
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: /no/such/program
      args:
      - login
      - static
      - --enable-concierge
      - --concierge-api-group-suffix=pinniped.dev
      - --concierge-authenticator-name=a
      - --concierge-authenticator-type=webhook
      - --concierge-endpoint={url}
      - --concierge-ca-bundle-data={ca}
      - --concierge-credential-type=service-account-token
      - --impersonation-delivery=proxy
      - --token=right
      provideClusterInfo: true
"
    )
}

/// The result of a completed run.
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stderr: String,
}

/// The process; dropping the value kills it.
pub(super) struct Running {
    child: Child,
    stderr: BufReader<tokio::process::ChildStderr>,
    said: String,
    pub(super) file: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) secret: String,
    ca: CaBundle,
}

impl Running {
    /// Starts a proxy that writes its kubeconfig to a file.
    pub(super) async fn start(home: &Home, config: &str) -> Self {
        let file = home.path().join("proxy.yaml");
        let (child, stderr, printed) = spawn(home, config, &["--output", file.to_str().unwrap()]).await;
        let text = std::fs::read_to_string(&file).unwrap();
        Self::reading(&text, child, stderr, printed, file)
    }

    /// Starts a proxy that prints its kubeconfig.
    pub(super) async fn printing(home: &Home, config: &str, port: u16) -> Self {
        let (mut child, stderr, printed) = spawn(home, config, &["--port", &port.to_string()]).await;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut text = String::new();
        while !text.contains("token: ") {
            text.push_str(&lines.next_line().await.unwrap().unwrap());
            text.push('\n');
        }
        Self::reading(&text, child, stderr, printed, PathBuf::new())
    }

    fn reading(
        text: &str,
        child: Child,
        stderr: BufReader<tokio::process::ChildStderr>,
        said: String,
        file: PathBuf,
    ) -> Self {
        let config: serde_json::Value = serde_json::to_value(Kubeconfig::from_yaml(text).unwrap()).unwrap();
        assert_eq!(config["contexts"][0]["context"]["namespace"], "ns");
        let cluster = &config["clusters"][0]["cluster"];
        let ca = cluster["certificate-authority-data"].as_str().unwrap();
        let ca = pinniped_go_compat::base64::decode(ca.as_bytes()).unwrap();
        // Read from the text, because the library's type does not expose it.
        let secret = text.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
        Self {
            child,
            stderr,
            said,
            file,
            address: cluster["server"].as_str().unwrap().strip_prefix("https://").unwrap().parse().unwrap(),
            secret: secret.to_owned(),
            ca: CaBundle::from_pem(&ca).unwrap(),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub(super) fn signal(&self, name: &str) {
        let kill =
            std::process::Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    pub(super) async fn wait(&mut self) -> Ended {
        let mut stderr = std::mem::take(&mut self.said);
        self.stderr.read_to_string(&mut stderr).await.unwrap();
        Ended { code: self.child.wait().await.unwrap().code(), stderr }
    }

    /// Returns a request with the secret.
    pub(super) fn request(&self, path: &str) -> http::request::Builder {
        Request::get(format!("https://{}{path}", self.address))
            .header("authorization", format!("Bearer {}", self.secret))
    }

    pub(super) async fn connect(&self, protocol: Protocol) -> Client {
        let alpn: &[u8] = if protocol == Protocol::Http2 { b"h2" } else { b"http/1.1" };
        let config = client_config(Profile::Secure, Roots::Bundle(self.ca.clone()), &[alpn]).unwrap();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(alpn));
        let io = TokioIo::new(tls);
        let mut driver = JoinSet::new();
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                driver.spawn(async move { drop(connection.with_upgrades().await) });
                Sender::Http1(sender)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                driver.spawn(async move { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Client { sender, _driver: driver }
    }

    /// Sends a GET request and returns the complete response.
    pub(super) async fn get(&self, path: &str) -> Response<String> {
        self.send_request(Protocol::Http2, self.request(path).body(String::new()).unwrap()).await
    }

    /// Sends one request on a new connection and returns the complete response.
    pub(super) async fn send_request(
        &self,
        protocol: Protocol,
        request: Request<String>,
    ) -> Response<String> {
        let asking = async {
            let (head, body) = self.connect(protocol).await.send(request).await.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            Response::from_parts(head, String::from_utf8_lossy(&bytes).into_owned())
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap()
    }
}

async fn spawn(
    home: &Home,
    config: &str,
    more: &[&str],
) -> (Child, BufReader<tokio::process::ChildStderr>, String) {
    let config = home.write("kubeconfig.yaml", config);
    let args = [&["proxy", "--kubeconfig", config.to_str().unwrap()], more].concat();
    let mut child = Command::from(home.command(&args))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut printed = String::new();
    let reading = async {
        while !printed.contains("until interrupted") {
            assert_ne!(stderr.read_line(&mut printed).await.unwrap(), 0, "it ended: {printed}");
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap();
    (child, stderr, printed)
}

enum Sender {
    Http1(http1::SendRequest<String>),
    Http2(http2::SendRequest<String>),
}

/// A connection to the proxy.
pub(super) struct Client {
    sender: Sender,
    _driver: JoinSet<()>,
}

impl Client {
    /// Sends a request and returns the head of the response. Over HTTP/1.1, adds the `Host` header.
    pub(super) async fn send(&mut self, mut request: Request<String>) -> Response<Incoming> {
        match &mut self.sender {
            Sender::Http2(sender) => sender.send_request(request).await.unwrap(),
            Sender::Http1(sender) => {
                let host = request.uri().authority().unwrap().as_str().parse().unwrap();
                request.headers_mut().insert("host", host);
                let path = request.uri().path_and_query().unwrap().as_str().parse().unwrap();
                *request.uri_mut() = path;
                sender.send_request(request).await.unwrap()
            }
        }
    }
}
