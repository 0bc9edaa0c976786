//! A scripted HTTPS server, a home directory, and runs of the program in it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ProtocolVersion, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// The timeout for clients of these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
    pub(crate) client_certificate: bool,
    pub(crate) tls: Option<ProtocolVersion>,
}

/// The response of the server: status, extra header lines, body.
pub(crate) struct ReceivedResponse {
    status: u16,
    headers: Cow<'static, str>,
    body: String,
}

impl ReceivedResponse {
    pub(crate) fn json(value: &Value) -> Self {
        Self { status: 200, headers: "Content-Type: application/json\r\n".into(), body: value.to_string() }
    }

    pub(crate) fn text(status: u16, body: &str) -> Self {
        Self { status, headers: "Content-Type: text/plain\r\n".into(), body: body.to_owned() }
    }

    pub(crate) fn redirect(location: &str) -> Self {
        Self { status: 303, headers: format!("Location: {location}\r\n").into(), body: String::new() }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds the time of a server whose clock is ahead by `skew`.
    pub(crate) fn with_date(self, skew: jiff::SignedDuration) -> Self {
        let now = (jiff::Timestamp::now() + skew).to_zoned(jiff::tz::TimeZone::UTC);
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT");
        Self { headers: format!("Content-Type: application/json\r\nDate: {date}\r\n").into(), ..self }
    }

    pub(crate) fn with_audit_id(self) -> Self {
        Self { headers: "Content-Type: application/json\r\nAudit-Id: some-audit-id\r\n".into(), ..self }
    }

    /// Returns the `Status` of a Kubernetes API server for a missing object.
    pub(crate) fn not_found(message: &str) -> Self {
        Self::json(&json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "NotFound", "code": 404,
        }))
        .with_status(404)
    }

    pub(crate) fn list(items: &[Value]) -> Self {
        Self::json(
            &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
        )
    }
}

/// An HTTPS server with its own certificate; dropping it stops the server.
pub(crate) struct Server {
    address: SocketAddr,
    pub(crate) ca: String,
    seen: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that calls `script` for every response.
    pub(crate) fn start(script: impl Fn(&Request) -> ReceivedResponse + Send + Sync + 'static) -> Self {
        Self::start_with(tls(), script)
    }

    /// Starts a server with a certificate that is its own CA, as `openssl req -x509` creates it.
    pub(crate) fn start_self_signed(
        script: impl Fn(&Request) -> ReceivedResponse + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(self_signed(), script)
    }

    fn start_with(
        (ca, tls): (String, Arc<ServerConfig>),
        script: impl Fn(&Request) -> ReceivedResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let accepting = std::thread::spawn({
            let (seen, stop) = (seen.clone(), stop.clone());
            move || {
                std::thread::scope(|scope| {
                    for stream in listener.incoming() {
                        if stop.load(Ordering::SeqCst) {
                            break;
                        }
                        let (tls, seen, script) = (tls.clone(), &seen, &script);
                        scope.spawn(move || stream.and_then(|stream| converse(stream, tls, seen, script)));
                    }
                });
            }
        });
        Self { address, ca, seen, stop, accepting: Some(accepting) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the CA certificate in the form of flags and kubeconfigs.
    pub(crate) fn ca_data(&self) -> String {
        pinniped_go_compat::base64::encode(self.ca.as_bytes())
    }

    /// Returns all requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the request lines: `GET /path`, `POST /path`, ...
    pub(crate) fn seen_lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; if the connection fails, the thread is already awake.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn tls() -> (String, Arc<ServerConfig>) {
    pinniped_pki::install_crypto_provider();
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut ca_params = rcgen::CertificateParams::default();
    ca_params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca_params.distinguished_name.push(rcgen::DnType::CommonName, "test CA");
    let ca = ca_params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca_params, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = ["127.0.0.1".to_owned(), "concierge.test".to_owned()];
    let leaf = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();

    // The server requests client certificates, so that the tests can check whether the client sends
    // one.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots))
        .allow_unauthenticated()
        .build()
        .unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(leaf.pem().as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    (ca.pem(), Arc::new(config))
}

fn self_signed() -> (String, Arc<ServerConfig>) {
    pinniped_pki::install_crypto_provider();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let private_key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private_key)
        .unwrap();
    (certificate.pem(), Arc::new(config))
}

fn converse(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    seen: &Mutex<Vec<Request>>,
    script: &(impl Fn(&Request) -> ReceivedResponse + Sync),
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
    let mut headers = HashMap::<String, String>::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let all: &mut String = headers.entry(name.to_lowercase()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(value.trim());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let connection = &stream.get_ref().conn;
    let request = Request {
        method,
        path,
        headers,
        body: String::from_utf8(body).unwrap(),
        client_certificate: connection.peer_certificates().is_some(),
        tls: connection.protocol_version(),
    };
    let response = script(&request);
    seen.lock().unwrap().push(request);
    let stream = stream.get_mut();
    write!(
        stream,
        "HTTP/1.1 {} X\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        response.status,
        response.headers,
        response.body.len(),
        response.body
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Fails the test unless the run failed with exactly this text.
    #[track_caller]
    pub(crate) fn fails_with(&self, error: &str) {
        assert_eq!(self.last_error(), Some(error), "{self:?}");
        assert_eq!((self.code, self.stdout.as_str()), (1, ""), "{self:?}");
    }

    /// Returns the text after the last `Error: `.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.stderr.lines().rev().find_map(|line| line.strip_prefix("Error: "))
    }

    /// Returns messages and pairs of the log, without time and location.
    pub(crate) fn log(&self) -> Vec<String> {
        self.stderr
            .lines()
            .filter(|line| !line.starts_with("Error: "))
            .map(|line| line.splitn(3, "  ").nth(2).unwrap_or(line).to_owned())
            .collect()
    }
}

/// A home directory for runs of the program.
pub(crate) struct Home {
    dir: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs the program with only `HOME` and the variables set here.
    pub(crate) fn run<S: AsRef<str>>(&self, args: &[S]) -> Run {
        finish(self.command(args))
    }

    /// Returns the command of such a run.
    pub(crate) fn command<S: AsRef<str>>(&self, args: &[S]) -> Command {
        let mut command = self.bare(args);
        command.env("HOME", self.dir.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the program as the last arguments of another program.
    pub(crate) fn run_program<S: AsRef<str>>(&self, words: &[&str], args: &[S]) -> Run {
        finish(self.program(words, args))
    }

    /// Returns the command of such a run.
    pub(crate) fn program<S: AsRef<str>>(&self, words: &[&str], args: &[S]) -> Command {
        let mut command = self.any_program(words);
        command.arg(env!("CARGO_BIN_EXE_pinniped")).args(args.iter().map(AsRef::as_ref));
        command
    }

    /// Returns the command of another program, with only `HOME` and the variables set here.
    pub(crate) fn any_program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.env_clear().current_dir(self.dir.path()).stdin(Stdio::null()).args(&words[1..]);
        command.env("HOME", self.dir.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the program without environment variables.
    pub(crate) fn run_without_variables<S: AsRef<str>>(&self, args: &[S]) -> Run {
        finish(self.bare(args))
    }

    fn bare<S: AsRef<str>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinniped"));
        command.env_clear().current_dir(self.dir.path()).stdin(Stdio::null());
        command.args(args.iter().map(AsRef::as_ref));
        command
    }
}

fn finish(mut command: Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Opens a terminal: the side of the user, and the side of the programs.
#[cfg(unix)]
pub(crate) fn pseudo_terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    #[cfg(target_os = "linux")]
    let flags = flags | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    // macOS has no such flag for openpt.
    #[cfg(not(target_os = "linux"))]
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = PathBuf::from(ptsname(&master, Vec::new()).unwrap().into_string().unwrap());
    (master.into(), std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap())
}

/// Returns an administrator's kubeconfig for `server` with a bearer token.
pub(crate) fn admin_kubeconfig(server: &str, cluster_extra: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: kind-context
contexts:
- name: kind-context
  context: {{cluster: kind-cluster, user: kind-user, namespace: some-namespace}}
- name: other-context
  context: {{cluster: kind-cluster, user: kind-user}}
clusters:
- name: kind-cluster
  cluster:
    server: {server}
{cluster_extra}
users:
- name: kind-user
  user: {{token: admin-token}}
"
    )
}

/// Returns a kubeconfig whose user logs in with the plugin of this program.
pub(crate) fn plugin_kubeconfig(server: &str, ca_data: &str, args: &[String]) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca_data}}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": env!("CARGO_BIN_EXE_pinniped"), "args": args, "provideClusterInfo": true,
        }}}],
    })
    .to_string()
}
