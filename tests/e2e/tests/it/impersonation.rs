//! The impersonation proxy of the installed Concierge, tested from outside with real TLS, real
//! tokens, and the API server's own audit log as the record of the requests that reached it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::wire;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use crate::installed::{Credentials, Installed, TIME_LIMIT};

mod agreement;
mod anonymous;
mod bad_input;
mod bystanders;
mod client_impersonation;
mod forwarded_requests;
mod large;
mod permissions;
mod port_in_use;
mod rotation;
mod streams;
mod trust;
mod whoami;
mod withdrawn;

/// The collection of WhoAmIRequests.
const WHOAMI: &str = "/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests";
/// The collection of TokenCredentialRequests.
const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
/// The extra key under which the API server receives the user who impersonated through the proxy.
const ORIGINAL_USER: &str = "original-user-info.impersonation-proxy.concierge.pinniped.dev";
/// The extra key that identifies the credential.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection to the proxy. It adds nothing to requests except the authority, so that a test
/// controls the exact bytes.
struct Connection {
    sender: Sender,
    token: Option<String>,
    _driver: JoinSet<()>,
}

/// A complete response.
#[derive(Debug)]
struct ReceivedResponse {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl ReceivedResponse {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Returns the code and message of a `Status`.
    fn message(&self) -> (u16, String) {
        (self.status, self.json()["message"].as_str().unwrap_or_default().to_owned())
    }
}

/// Returns a request without a body.
fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).body(Full::default()).unwrap()
}

/// Returns a request with a JSON body.
fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Full::from(body.to_string())).unwrap()
}

/// Returns the same request with more headers.
fn with(mut request: Request<Full<Bytes>>, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    request
}

/// Returns a request for the caller's identity.
fn who_am_i() -> Request<Full<Bytes>> {
    let body = json!({"apiVersion": "identity.concierge.pinniped.dev/v1alpha1", "kind": "WhoAmIRequest"});
    post(WHOAMI, &body)
}

async fn tls(installed: &Installed, alpn: &[&[u8]], client: Option<&Pair>) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect((installed.address, 443)).await.unwrap();
    wire::connect_unverified(tcp, EXTERNAL_NAME, alpn, client).await.unwrap()
}

impl Connection {
    async fn open(installed: &Installed, protocol: Protocol, credentials: &Credentials) -> Self {
        let mut driver = JoinSet::new();
        let certificate = credentials.certificate.as_ref();
        let sender = match protocol {
            Protocol::Http1 => {
                let io = TokioIo::new(tls(installed, &[b"http/1.1"], certificate).await);
                let (sender, connection) = http1::handshake(io).await.unwrap();
                driver.spawn(async move { drop(connection.await) });
                Sender::Http1(sender)
            }
            Protocol::Http2 => Self::http2(tls(installed, &[b"h2"], certificate).await, &mut driver).await,
        };
        Self { sender, token: credentials.token.clone(), _driver: driver }
    }

    /// Connects to the API server directly, without the proxy.
    async fn to_api_server(installed: &Installed, credentials: &Credentials) -> Self {
        let server = installed.world().control_plane().server();
        let tcp = TcpStream::connect(server.trim_start_matches("https://")).await.unwrap();
        let tls = wire::connect_unverified(tcp, "localhost", &[b"h2"], credentials.certificate.as_ref());
        let mut driver = JoinSet::new();
        let sender = Self::http2(tls.await.unwrap(), &mut driver).await;
        Self { sender, token: credentials.token.clone(), _driver: driver }
    }

    async fn http2(stream: TlsStream<TcpStream>, driver: &mut JoinSet<()>) -> Sender {
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        driver.spawn(async move { drop(connection.await) });
        Sender::Http2(sender)
    }

    /// Sends a request whose URI is only a path, and returns the head of the response.
    async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Response<Incoming> {
        if let Some(token) = &self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let response = async {
            match &mut self.sender {
                Sender::Http1(sender) => {
                    request.headers_mut().insert("host", EXTERNAL_NAME.parse().unwrap());
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Sender::Http2(sender) => {
                    let uri = format!("https://{EXTERNAL_NAME}{}", request.uri());
                    *request.uri_mut() = uri.parse().unwrap();
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        tokio::time::timeout(TIME_LIMIT, response).await.unwrap().unwrap()
    }

    /// Sends a request and reads the whole response.
    async fn send_request(&mut self, request: Request<Full<Bytes>>) -> ReceivedResponse {
        let (head, body) = self.send(request).await.into_parts();
        let body = tokio::time::timeout(TIME_LIMIT, body.collect()).await.unwrap().unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        ReceivedResponse { status: head.status.as_u16(), headers: head.headers, body }
    }
}

/// Sends one request on a separate HTTP/2 connection.
async fn send_request(
    installed: &Installed,
    credentials: &Credentials,
    request: Request<Full<Bytes>>,
) -> ReceivedResponse {
    Connection::open(installed, Protocol::Http2, credentials).await.send_request(request).await
}

/// The lines of an endless body, such as that of a watch.
struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    fn of(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), 200, "{response:?}");
        Self { body: response.into_body(), rest: Vec::new() }
    }

    /// Returns the next line as JSON, or `None` when none arrives within `deadline`.
    async fn next_within(&mut self, deadline: Duration) -> Option<Value> {
        let read = async {
            loop {
                if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.rest.drain(..=end).collect();
                    return serde_json::from_slice(&line).unwrap();
                }
                let frame = self.body.frame().await.expect("the watch ended").expect("the watch broke");
                self.rest.extend_from_slice(&frame.into_data().expect("data"));
            }
        };
        tokio::time::timeout(deadline, read).await.ok()
    }

    async fn next(&mut self) -> Value {
        self.next_within(TIME_LIMIT).await.expect("a line in time")
    }
}

/// Creates a user of the local-user-authenticator whose password is its name.
async fn create_webhook_user(installed: &Installed, name: &str, groups: &str) {
    let hash = bcrypt::hash(name, 4).unwrap();
    let yaml = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: local-user-authenticator}}\n\
         stringData: {{groups: '{groups}', passwordHash: '{hash}'}}\n"
    );
    installed.world().kubectl().apply(&yaml).await.unwrap();
}

/// Exchanges the token of a webhook user for a client certificate, anonymously and through the
/// proxy.
async fn log_in(installed: &Installed, name: &str) -> anyhow::Result<Credentials> {
    let request = json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest",
        "spec": {"token": format!("{name}:{name}"), "authenticator": {
            "apiGroup": "authentication.concierge.pinniped.dev", "kind": "WebhookAuthenticator",
            "name": "local-user-authenticator"}}});
    let response = send_request(installed, &Credentials::none(), post(LOGIN, &request)).await;
    let credential = &response.json()["status"]["credential"];
    let text = |field: &str| credential[field].as_str().map(str::to_owned);
    let (Some(certificate_pem), Some(private_key_pem)) =
        (text("clientCertificateData"), text("clientKeyData"))
    else {
        anyhow::bail!("no credential: {response:?}");
    };
    Ok(Pair { certificate_pem, private_key_pem }.into())
}

/// Issues a client certificate of the cluster's CA with parameters modified by `change`.
fn signed(installed: &Installed, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
    let named = |common_name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params
    };
    let ca = installed.world().control_plane().ca();
    let issuer = Issuer::new(named("kubernetes-ca"), KeyPair::from_pem(&ca.private_key_pem).unwrap());
    let mut params = named(common_name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Pair { certificate_pem: certificate.pem(), private_key_pem: key.serialize_pem() }
}

/// Returns the value of the extra [`CREDENTIAL_ID`] for a certificate.
fn credential_id(certificate_pem: &str) -> String {
    let base64: String = certificate_pem
        .lines()
        .skip_while(|line| !line.starts_with("-----BEGIN"))
        .skip(1)
        .take_while(|line| !line.starts_with("-----END"))
        .collect();
    let digest = sha256_hex(&STANDARD.decode(base64).unwrap());
    format!("X509SHA256={digest}")
}

/// Uses a program of the machine, independent of the product's code.
fn sha256_hex(bytes: &[u8]) -> String {
    use std::io::Write as _;
    let mut child = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()[..64].to_owned()
}

/// Returns the audit event of the request with this user agent.
async fn audited(installed: &Installed, user_agent: &str) -> Value {
    let control_plane = installed.world().control_plane();
    control_plane
        .await_audit_event(&format!("the request of {user_agent}"), user_agent, |e| {
            e["userAgent"] == user_agent
        })
        .await
        .unwrap()
}

/// Creates a namespace with ServiceAccount `caller`, and returns its name and UID.
async fn service_account(installed: &Installed, namespace: &str) -> (String, String) {
    installed.namespace(namespace).await;
    let accounts = kube::Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(
        installed.admin().await,
        namespace,
    );
    let account = serde_json::from_value(json!({"metadata": {"name": "caller"}})).unwrap();
    let made = accounts.create(&kube::api::PostParams::default(), &account).await.unwrap();
    (format!("system:serviceaccount:{namespace}:caller"), made.metadata.uid.unwrap())
}

/// Requests a token of ServiceAccount `caller`, with `spec` as the TokenRequest's spec.
async fn token_of(installed: &Installed, namespace: &str, spec: Value) -> String {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/caller/token");
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let response: Value = installed.admin().await.request(request).await.unwrap();
    response["status"]["token"].as_str().unwrap().to_owned()
}
