//! `pinniped proxy`: a server on the loopback interface that authenticates every client as the user
//! of a login with a service account token, even if the client cannot send impersonation headers.
//!
//! ```text
//! stack        the handler chain: authentication, forwarding, the response
//! gate         the host that a request must name, and the secret that it must present
//! logins       the current login, renewed while it is in use
//! identity     a login as headers
//! target       the API server, from the kubeconfig's cluster entry
//! kubeconfig   the kubeconfig for clients: address, temporary CA, secret
//! ```
//!
//! Port, CA and secret are created for one run and discarded at its end. Neither a cluster token
//! nor the secret appears on a command line or in a log line.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use pinniped_go_compat::json::quote;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_http_client::upstream::Upstream;
use pinniped_http_server::tunnels::Tunnels;
use pinniped_http_server::{Limits, Listener, ServerHandle, serve};
use pinniped_kube_client::ApiServerConfigError;
use pinniped_pki::tls::{CipherRestriction, ClientCertificates, Profile, server_config};
use pinniped_pki::{CertificateAuthority, CertificateStore, IssueError, SetError, Validity};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{StartError, block_on};
use crate::OutputError;
use crate::environment::Environment;
use crate::flags::{Parsed, Value};
use crate::kubeconfig::{LoadError, NoKubeconfig, ResolveError};
use crate::login::session::{Session, SessionError};
use crate::platform::StopSignals;
use crate::printer::Printer;
use crate::{kubeconfig as kubeconfigs, kubeconfig::Resolved};

mod gate;
mod identity;
mod kubeconfig;
mod logins;
mod stack;
mod target;

use gate::Gate;
use kubeconfig::{ConnectionParams, Written, WrittenError};
use logins::{Logins, RenewalError};
use stack::Stack;
use target::{Target, TargetError};

/// The grace period for running requests at shutdown.
const GRACE: Duration = Duration::from_secs(2);
/// The lifetime of the certificates: longer than any run of the proxy.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The command that creates a suitable kubeconfig.
const REMEDY: &str = "create a kubeconfig with `pinniped get kubeconfig --concierge-mode ServiceAccountToken \
                      --impersonation-delivery proxy`";

/// The proxy did not start, or terminated.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The process could not be prepared.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals cannot be received.
    #[error("could not watch for signals")]
    Signals(#[source] io::Error),
    /// A kubeconfig cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// The context is incomplete.
    #[error("could not use the kubeconfig")]
    Context(#[from] ResolveError),
    /// The plugin of the user is invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The user has another kind of login.
    #[error(
        "user {} of context {} does not log in with a service account token: {REMEDY}",
        quote(.user),
        quote(.context)
    )]
    OtherLogin {
        /// The user.
        user: String,
        /// The context.
        context: String,
    },
    /// The cluster entry is invalid.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The address of the cluster cannot be used.
    #[error("could not use cluster {}", quote(.cluster))]
    Upstream {
        /// The name of the cluster entry.
        cluster: String,
        /// The error of the connection pool.
        #[source]
        source: ApiServerConfigError,
    },
    /// The first login failed.
    #[error(transparent)]
    Login(#[from] Arc<RenewalError>),
    /// The port cannot be opened.
    #[error("could not listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The failed call.
        #[source]
        source: io::Error,
    },
    /// The CA or the certificate cannot be created.
    #[error("could not create a certificate")]
    Issue(#[from] IssueError),
    /// The certificate cannot be served.
    #[error("could not create a certificate")]
    Certificate(#[from] SetError),
    /// There is no secret for clients.
    #[error("could not create a secret: the system's random number generator failed")]
    Secret,
    /// The kubeconfig for clients cannot be written.
    #[error(transparent)]
    Kubeconfig(#[from] WrittenError),
    /// The kubeconfig for clients cannot be printed.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The server terminated without a request to stop.
    #[error("the proxy terminated unexpectedly: {0}")]
    Ended(String),
}

/// Serves until a signal stops it.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), ProxyError> {
    pinniped_http_server::platform::disable_core_dumps().map_err(StartError)?;
    block_on(proxy(parsed, environment, printer))
}

async fn proxy(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), ProxyError> {
    let mut stop = StopSignals::install().map_err(ProxyError::Signals)?;
    let config = kubeconfigs::load_existing::<ProxyError>(parsed.given("kubeconfig"), environment)?;
    let source = kubeconfigs::resolve(&config, &parsed.string("kubeconfig-context"))?;
    let user = config.auth_infos.iter().find(|named| named.name == source.user);
    let user = user.and_then(|named| named.auth_info.clone()).unwrap_or_default();
    let session = Session::of_user(&user, &source.cluster_name, &source.cluster, environment, printer)?
        .filter(Session::wants_service_account_token)
        .ok_or_else(|| ProxyError::OtherLogin {
            user: source.user.clone(),
            context: source.context.clone(),
        })?;
    let target = Target::of(&source.cluster_name, &source.cluster, TcpDialer::new(environment))?;
    let upstream = Upstream::new(target.params).map_err(|error| ProxyError::Upstream {
        cluster: source.cluster_name.clone(),
        source: error.into(),
    })?;

    let logins = tokio::select! {
        logins = Logins::begin(Box::new(session), printer) => Arc::new(logins?),
        () = stop.requested() => return Ok(()),
    };
    let port = match parsed.value("port") {
        Some(Value::Uint16(port)) => *port,
        _ => 0,
    };
    let proxy = Proxy::start(port, upstream, target.base, Arc::clone(&logins))?;
    let _written = give(parsed, &config, &source, &proxy.given, printer)?;
    printer.line(&format!(
        "Serving {} as {} at {}, until interrupted",
        source.cluster.server.as_deref().unwrap_or_default(),
        quote(logins.now().username()),
        proxy.given.server
    ));
    let failed = tokio::select! {
        why = proxy.server.failed() => Some(why),
        () = stop.requested() => None,
    };
    tokio::select! {
        () = proxy.stop() => {}
        // A second signal skips the grace period.
        () = stop.requested() => {}
    }
    match failed {
        None => Ok(()),
        Some(why) => Err(ProxyError::Ended(why)),
    }
}

/// Prints or writes the kubeconfig for clients.
fn give(
    parsed: &Parsed,
    config: &kube::config::Kubeconfig,
    source: &Resolved,
    given: &ConnectionParams,
    printer: Printer,
) -> Result<Option<Written>, ProxyError> {
    let named = config.contexts.iter().find(|named| named.name == source.context);
    let namespace = named.and_then(|named| named.context.as_ref()?.namespace.as_deref());
    let text = kubeconfig::document(source, namespace, given);
    match parsed.given("output").filter(|path| !path.is_empty()) {
        Some(path) => Ok(Some(Written::write(path.into(), text)?)),
        None => {
            crate::write(printer, text.as_bytes())?;
            Ok(None)
        }
    }
}

/// A running proxy.
struct Proxy {
    given: ConnectionParams,
    server: ServerHandle,
    tunnels: Tunnels,
    ended: CancellationToken,
    renewing: JoinHandle<()>,
}

impl Proxy {
    fn start(port: u16, upstream: Upstream, base: String, logins: Arc<Logins>) -> Result<Self, ProxyError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = Listener::bind(address).map_err(|source| ProxyError::Listen { address, source })?;
        let address = listener.local_addr();
        let (authority, serving) = certificates()?;
        let (gate, secret) = Gate::new().map_err(|_| ProxyError::Secret)?;
        let given = ConnectionParams { server: format!("https://{address}"), authority, secret };

        let ended = CancellationToken::new();
        let tunnels = Tunnels::new();
        let stack = Stack::new(gate, Arc::clone(&logins), upstream, base, tunnels.clone(), ended.clone());
        let alpn: [&[u8]; 2] = [b"h2", b"http/1.1"];
        let ciphers = CipherRestriction::default();
        let tls = server_config(Profile::Default, &ciphers, &serving, ClientCertificates::Ignore, &alpn);
        let server = serve(listener, tls, stack, Limits::default());
        let renewing = tokio::spawn(logins.renew_when_due(ended.clone()));
        Ok(Self { given, server, tunnels, ended, renewing })
    }

    /// Closes the port, waits up to the grace period for requests, then terminates the rest.
    async fn stop(self) {
        let Self { given: _, server, tunnels, ended, renewing } = self;
        tokio::join!(server.drain(GRACE), tunnels.drain(GRACE));
        ended.cancel();
        // The task only waits for this.
        let _ended = renewing.await;
    }
}

/// Returns a CA certificate, and a serving certificate for this machine that it signed. The CA key
/// is discarded on return, so that no other certificate can be issued.
fn certificates() -> Result<(String, CertificateStore), ProxyError> {
    let validity = Validity::starting(Timestamp::now(), LIFETIME);
    let authority = CertificateAuthority::generate("pinniped proxy", &validity)?;
    let pair = authority.issue_server(&["localhost".to_owned()], &[Ipv4Addr::LOCALHOST.into()], &validity)?;
    let serving = CertificateStore::serving("pinniped-proxy");
    serving.set(pair.certificate_pem.as_bytes(), pair.private_key_pem.as_bytes())?;
    Ok((authority.certificate_pem().to_owned(), serving))
}

/// Returns a path below the server's own path.
fn below(base: &str, path: &Uri) -> Option<Uri> {
    let path = path.path_and_query().map_or("/", |path| path.as_str());
    if base.is_empty() { path.parse().ok() } else { format!("{base}{path}").parse().ok() }
}
