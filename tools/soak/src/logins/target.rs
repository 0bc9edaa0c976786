//! The routes of a login, the login itself, and the use of its credential.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use pinniped_e2e::walkthrough::EXTERNAL_NAME;
use pinniped_test_support::certs::Pair;
use pinniped_test_support::rng::Rng;
use pinniped_test_support::{wait, wire};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use x509_parser::prelude::{AttributeTypeAndValue, parse_x509_pem};

use super::failure::Failure;
use super::users::{User, identity};
use crate::connection::{Connection, Protocol};
use crate::install::{Installed, Replica, TIME_LIMIT};

const LOGIN: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
/// A name in the certificate of the API server.
const API_SERVER: &str = "kubernetes.default.svc";
/// Port of the impersonation proxy in a pod.
const PROXY_PORT: u16 = 8444;
/// The group that the API server adds.
const AUTHENTICATED: &str = "system:authenticated";
/// The message of a refused login.
const REFUSED: &str = "authentication failed";
/// Time limit of a request, including its handshake.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of requests on a connection. Each new one reaches another replica of a Service.
const REQUESTS_PER_CONNECTION: u32 = 16;
/// Percentage of logins with the password of another user.
const WRONG: u64 = 5;
/// Percentage of logins whose credential is used.
const USED: u64 = 10;
/// Number of characters of a response in messages.
const SHOWN: usize = 200;

/// The server to which a login is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Route {
    /// The API server, which forwards the login to the aggregated API of a replica.
    ApiServer,
    /// The Service of the impersonation proxy.
    Service,
    /// The impersonation proxy of this replica.
    Replica(usize),
}

/// One login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) route: Route,
    /// The index of the user.
    pub(super) user: usize,
    /// The index of the user whose password is sent.
    pub(super) password_of: usize,
    /// Whether the credential is used.
    pub(super) is_used: bool,
}

impl Login {
    /// Chooses a login at random.
    pub(super) fn choose(rng: &mut Rng, users: usize, replicas: usize) -> Self {
        let route = match rng.below(3) {
            0 => Route::ApiServer,
            1 => Route::Service,
            _ => Route::Replica(rng.below(replicas)),
        };
        let user = rng.below(users);
        let password_of =
            if rng.in_hundred(WRONG) { (user + 1 + rng.below(users - 1)) % users } else { user };
        Self { route, user, password_of, is_used: rng.in_hundred(USED) }
    }

    /// Whether the login must be refused.
    pub(super) fn is_wrong(&self) -> bool {
        self.user != self.password_of
    }
}

/// A server, and the configuration of clients that verify its certificate.
struct Endpoint {
    address: SocketAddr,
    name: &'static str,
    roots: String,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Endpoint {
    fn new(address: SocketAddr, name: &'static str, roots: &str) -> anyhow::Result<Self> {
        let config = |protocol: Protocol| wire::verifying(roots, &[protocol.alpn()], None);
        let (http1, http2) = (config(Protocol::Http1)?, config(Protocol::Http2)?);
        Ok(Self { address, name, roots: roots.to_owned(), http1, http2 })
    }

    async fn open(&self, protocol: Protocol, client: Option<&Pair>) -> Result<Connection, Failure> {
        let config = match (client, protocol) {
            (Some(pair), _) => {
                wire::verifying(&self.roots, &[protocol.alpn()], Some(pair)).map_err(Failure::Unusable)?
            }
            (None, Protocol::Http1) => Arc::clone(&self.http1),
            (None, Protocol::Http2) => Arc::clone(&self.http2),
        };
        let connect = async {
            let tcp = TcpStream::connect(self.address).await.context("TCP")?;
            tcp.set_nodelay(true)?;
            let tls = TlsConnector::from(config).connect(ServerName::try_from(self.name)?, tcp).await;
            Connection::over(tls.context("TLS handshake")?, protocol, self.name).await
        };
        connect.await.map_err(Failure::of_connection)
    }
}

/// The servers and the users of the logins.
pub(super) struct Target {
    api_server: Endpoint,
    service: Endpoint,
    replicas: Vec<Endpoint>,
    users: Vec<User>,
}

impl Target {
    pub(super) async fn new(
        installed: &Installed,
        users: Vec<User>,
        replicas: &[Replica],
    ) -> anyhow::Result<Self> {
        let control_plane = installed.world.control_plane();
        let server = control_plane.server();
        let server = server.strip_prefix("https://").context("not a URL")?.parse()?;
        let service = tokio::net::lookup_host((EXTERNAL_NAME, 443)).await?.next().context("no address")?;
        let replica = |replica: &Replica| {
            Endpoint::new((replica.ip, PROXY_PORT).into(), EXTERNAL_NAME, &installed.ca_pem)
        };
        Ok(Self {
            api_server: Endpoint::new(server, API_SERVER, &control_plane.ca().certificate_pem)?,
            service: Endpoint::new(service, EXTERNAL_NAME, &installed.ca_pem)?,
            replicas: replicas.iter().map(replica).collect::<anyhow::Result<_>>()?,
            users,
        })
    }

    fn endpoint(&self, route: Route) -> &Endpoint {
        match route {
            Route::ApiServer => &self.api_server,
            Route::Service => &self.service,
            Route::Replica(replica) => &self.replicas[replica],
        }
    }

    /// Waits until every user can log in on every route.
    pub(super) async fn await_logins(&self) -> anyhow::Result<()> {
        let replicas = (0..self.replicas.len()).map(Route::Replica);
        let routes: Vec<Route> = [Route::ApiServer, Route::Service].into_iter().chain(replicas).collect();
        wait::until_ok(TIME_LIMIT, "all users to log in on all routes", async || {
            let mut connections = Connections::new(Protocol::Http1);
            for user in 0..self.users.len() {
                for route in &routes {
                    let login = Login { route: *route, user, password_of: user, is_used: false };
                    let sent = self.log_in(&login, &mut connections).await;
                    sent.map_err(|failure| anyhow!("{route:?}: {failure}"))?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Logs in, and checks that the identity in the credential is that of the user, or that the
    /// login is refused if it has the wrong password. Returns the credential.
    pub(super) async fn log_in(
        &self,
        login: &Login,
        connections: &mut Connections,
    ) -> Result<Option<Pair>, Failure> {
        let user = &self.users[login.user];
        let body = json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1",
            "kind": "TokenCredentialRequest",
            "spec": {"token": user.token(&self.users[login.password_of]),
                "authenticator": {"apiGroup": "authentication.concierge.pinniped.dev",
                    "kind": "WebhookAuthenticator", "name": "local-user-authenticator"}}});
        let limited = tokio::time::timeout(REQUEST_TIMEOUT, async {
            loop {
                let (connection, is_new) = connections.get(login.route, self.endpoint(login.route)).await?;
                match connection.exchange(post(LOGIN, &body)).await {
                    // All clients send such a request again. The API server closes connections over
                    // HTTP/2 after each response to an anonymous client.
                    Err(error) if !is_new && is_unsent(&error) => connections.forget(login.route),
                    result => return result.map_err(Failure::of_connection),
                }
            }
        });
        let response = limited.await.unwrap_or(Err(Failure::Timeout));
        if response.is_err() {
            connections.forget(login.route);
        }
        let (status, body) = response?;
        // The text of a response with a credential is never part of a message.
        let unexpected = |text: &str| Failure::Response { status, text: text.chars().take(SHOWN).collect() };
        if status != 201 {
            return Err(unexpected(&String::from_utf8_lossy(&body)));
        }
        let response: Value = serde_json::from_slice(&body).map_err(|_| unexpected("not JSON"))?;
        let credential = &response["status"]["credential"];
        let message = response["status"]["message"].as_str().unwrap_or_default();
        if login.is_wrong() && credential.is_null() && message == REFUSED {
            return Ok(None);
        }
        let part = |key: &str| credential[key].as_str().map(str::to_owned);
        let (Some(certificate_pem), Some(private_key_pem)) =
            (part("clientCertificateData"), part("clientKeyData"))
        else {
            return Err(unexpected(&format!("no credential, message {message:?}")));
        };
        let got = subject(&certificate_pem).map_err(Failure::Unusable)?;
        let expected = if login.is_wrong() { "a refusal".to_owned() } else { user.identity() };
        if got != expected {
            return Err(Failure::Identity { expected, got });
        }
        Ok(Some(Pair { certificate_pem, private_key_pem }))
    }

    /// Returns the route on which the credential of a login is used: the API server does not accept
    /// the credentials of the impersonation proxy.
    pub(super) fn route_of_use(route: Route) -> Route {
        if route == Route::ApiServer { Route::Service } else { route }
    }

    /// Uses a credential on a new connection, and checks the identity that the API server sees.
    pub(super) async fn use_credential(
        &self,
        login: &Login,
        credential: &Pair,
        protocol: Protocol,
    ) -> Result<(), Failure> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let endpoint = self.endpoint(Self::route_of_use(login.route));
        let limited = tokio::time::timeout(REQUEST_TIMEOUT, async {
            let mut connection = endpoint.open(protocol, Some(credential)).await?;
            connection.exchange(post(WHO_AM_I, &review)).await.map_err(Failure::of_connection)
        });
        let (status, body) = limited.await.unwrap_or(Err(Failure::Timeout))?;
        let text = String::from_utf8_lossy(&body);
        let unexpected = || Failure::Response { status, text: text.chars().take(SHOWN).collect() };
        let review: Value = serde_json::from_slice(&body).map_err(|_| unexpected())?;
        let found = &review["status"]["userInfo"];
        let (Some(name), 201) = (found["username"].as_str(), status) else { return Err(unexpected()) };
        let groups = found["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let got = identity(name, &sorted(groups.filter(|group| *group != AUTHENTICATED)));
        let expected = self.users[login.user].identity();
        if got == expected { Ok(()) } else { Err(Failure::Identity { expected, got }) }
    }
}

/// The connections of one client, one for each route.
pub(super) struct Connections {
    protocol: Protocol,
    open: HashMap<Route, (Connection, u32)>,
}

impl Connections {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, open: HashMap::new() }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the connection of a route, and whether it is new. It is replaced after some requests
    /// and when the server has closed it.
    async fn get(&mut self, route: Route, endpoint: &Endpoint) -> Result<(&mut Connection, bool), Failure> {
        let usable = |(connection, uses): &(Connection, u32)| {
            *uses < REQUESTS_PER_CONNECTION && !connection.is_closed()
        };
        let known = self.open.remove(&route).filter(usable);
        let (connection, uses) = match known {
            Some(known) => known,
            None => (endpoint.open(self.protocol, None).await?, 0),
        };
        Ok((&mut self.open.entry(route).or_insert((connection, uses + 1)).0, uses == 0))
    }

    /// Closes the connection of a route.
    fn forget(&mut self, route: Route) {
        self.open.remove(&route);
    }
}

/// Whether the connection had been closed before the request was written to it.
fn is_unsent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(|error| error.is_canceled() || error.is_closed())
}

fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::builder().path_and_query(path).build().unwrap_or_default();
    let json = http::HeaderValue::from_static("application/json");
    request.headers_mut().insert(http::header::CONTENT_TYPE, json);
    request
}

/// Returns the identity in the subject of a certificate: the common name and the organizations.
fn subject(pem: &str) -> anyhow::Result<String> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).context("not PEM")?;
    let certificate = pem.parse_x509().context("not a certificate")?;
    let text = |value: &AttributeTypeAndValue<'_>| Ok(value.as_str().context("not text")?.to_owned());
    let names: Vec<String> =
        certificate.subject().iter_common_name().map(text).collect::<anyhow::Result<_>>()?;
    let groups: Vec<String> =
        certificate.subject().iter_organization().map(text).collect::<anyhow::Result<_>>()?;
    Ok(identity(&names.join(" and "), &sorted(groups.iter().map(String::as_str))))
}

fn sorted<'g>(groups: impl Iterator<Item = &'g str>) -> Vec<String> {
    let mut groups: Vec<String> = groups.map(str::to_owned).collect();
    groups.sort();
    groups
}

#[cfg(test)]
mod tests {
    use pinniped_test_support::certs::Authority;

    use super::*;

    #[test]
    fn chosen_logins_cover_all_routes_and_depend_on_the_seed_only() {
        let choose = |seed| -> Vec<Login> {
            let mut rng = Rng::new(seed);
            (0..1_000).map(|_| Login::choose(&mut rng, 5, 3)).collect()
        };
        let logins = choose(1);
        assert_eq!(logins, choose(1));
        assert_ne!(logins, choose(2));
        let on = |route| logins.iter().filter(|login| login.route == route).count();
        assert!(on(Route::ApiServer) > 250 && on(Route::Service) > 250);
        assert!((0..3).all(|replica| on(Route::Replica(replica)) > 80));
        let wrong = logins.iter().filter(|login| login.is_wrong()).count();
        assert!((20..100).contains(&wrong), "{wrong}");
        assert!(logins.iter().all(|login| login.user < 5 && login.password_of < 5));
    }

    #[test]
    fn the_identity_of_a_certificate_is_its_name_with_its_groups() {
        let authority = Authority::new("test").unwrap();
        let pair = authority.client("user", Some("group")).unwrap();
        assert_eq!(subject(&pair.certificate_pem).unwrap(), "user in group");
        let pair = authority.client("user", None).unwrap();
        assert_eq!(subject(&pair.certificate_pem).unwrap(), "user in ");
        assert!(subject("no certificate").is_err());
    }
}
