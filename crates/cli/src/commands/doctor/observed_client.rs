//! The client's side: observes what a program does with the kubeconfig, up to the user that the
//! cluster authenticates.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{Request, header};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, Cluster, Kubeconfig};
use pinniped_error::chain;
use pinniped_http_client::https::host_of;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_client::tcp_dialer::TcpDialer;
use url::Url;

use super::Limits;
use super::observed::{EndpointProbe, Unreadable};
use super::probe::probe_endpoint;
use super::report::LoginFailed;
use crate::admin::{Admin, AdminError};
use crate::commands::{whoami, within};
use crate::environment::Environment;
use crate::exec_plugin::{ExecPluginError, PluginRun, find_program};
use crate::kubeconfig::{self, Resolved};
use crate::login::keyring::KeyringError;
use crate::login::session::{Session, login_command};
use crate::printer::{Level, Printer};

/// The timeout of `pinniped version` of the plugin.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The variables that select a proxy.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"];

/// The observed state of a client with one context of a kubeconfig.
#[derive(Clone, Debug)]
pub(super) struct ObservedClient {
    /// The kubeconfig, as messages name it.
    pub(super) file: String,
    /// The context.
    pub(super) context: String,
    /// The user entry of the context.
    pub(super) user: String,
    /// The URL of the cluster.
    pub(super) server: String,
    /// The CA certificates in PEM form; `None` if the kubeconfig disables the verification.
    pub(super) ca: Option<Result<Vec<u8>, Unreadable>>,
    /// The name that the certificate of the server must have.
    pub(super) server_name: String,
    /// The names of the variables about proxies that are set.
    pub(super) proxy_variables: Vec<&'static str>,
    /// Whether requests to the server go through a proxy.
    pub(super) proxied: Result<bool, String>,
    /// The plugin of the user, if it has one.
    pub(super) plugin: Option<ObservedPlugin>,
    /// The issuer, if the login failed.
    pub(super) issuer: Option<ObservedIssuer>,
    /// The addresses of the server's name, if the connection failed.
    pub(super) addresses: Option<Result<Vec<IpAddr>, String>>,
    /// The result of the probe of the server.
    pub(super) probe: EndpointProbe,
    /// The login.
    pub(super) login: LoginResult,
    /// The difference of the server's clock and this machine's, if the server sent its time.
    pub(super) clock_skew: Option<SignedDuration>,
    /// The user that the cluster authenticated, or the error.
    pub(super) user_info: Option<Result<AuthenticatedUser, RefusedRequest>>,
}

/// A user that a cluster authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuthenticatedUser {
    pub(super) name: String,
    pub(super) groups: usize,
}

/// A request for the user failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RefusedRequest {
    /// The cluster does not serve the API.
    NotServed(String),
    /// Any other error.
    Other(String),
}

/// The result of the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoginResult {
    /// There is a credential. It may not be accepted.
    LoggedIn {
        /// The end of its validity, if it is known.
        expires: Option<Timestamp>,
    },
    /// The user entry has no credential and no plugin.
    NoCredential,
    /// The plugin does not exist.
    NoPlugin(String),
    /// The plugin failed.
    Failed(String),
    /// The entries of the kubeconfig cannot be used.
    Invalid(String),
}

/// The reason why the issuer of a login does not respond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IssuerProblem {
    /// Its name has no address.
    Name(String),
    /// No server responds.
    Connection(String),
    /// The proxy in front of it does not respond.
    Proxy(String),
}

/// The issuer of a login that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedIssuer {
    /// Its URL.
    pub(super) url: String,
    /// The reason why it does not respond; `None` if a server responds.
    pub(super) problem: Option<IssuerProblem>,
}

/// The credential plugin of a kubeconfig user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedPlugin {
    /// The command.
    pub(super) command: String,
    /// The program that it names.
    pub(super) program: Option<PathBuf>,
    /// The version, if its arguments are those of a `pinniped login` command.
    pub(super) version: Option<Result<String, String>>,
    /// The authenticator that it logs in with: type and name.
    pub(super) authenticator: Option<(String, String)>,
    /// The URL of the Concierge that it logs in at.
    pub(super) concierge: Option<String>,
    /// The URL of the issuer that it logs in at.
    pub(super) issuer: Option<String>,
    /// Whether the keyring works, if the plugin stores refresh tokens in it.
    pub(super) keyring: Option<Result<(), KeyringError>>,
}

impl ObservedClient {
    /// Returns the place at which the login failed, as far as it is known.
    pub(super) fn login_failed(&self) -> LoginFailed {
        let (LoginResult::Failed(why), Some(plugin)) = (&self.login, &self.plugin) else {
            return LoginFailed::default();
        };
        // Another program, whose steps are not known.
        if plugin.version.is_none() || why.starts_with(NOT_FINISHED) {
            return LoginFailed::default();
        }
        let is_elsewhere = |url: Option<&String>| {
            let host = |url: &str| Url::parse(url).ok().map(|url| host_of(&url));
            url.is_some_and(|url| host(url) != host(&self.server))
        };
        match why {
            why if why.starts_with(AT_ISSUER) && is_elsewhere(plugin.issuer.as_ref()) => {
                LoginFailed::AtIssuer
            }
            why if why.starts_with(AT_CONCIERGE) && is_elsewhere(plugin.concierge.as_ref()) => {
                LoginFailed::AtConcierge
            }
            why if why.starts_with(AT_ISSUER) || why.starts_with(AT_CONCIERGE) => LoginFailed::AtCluster,
            _ => LoginFailed::OnThisMachine,
        }
    }
}

/// The beginning of the error of a login that failed at the issuer.
const AT_ISSUER: &str = "could not complete Pinniped login";
/// The beginning of the error of a login that failed at the Concierge.
const AT_CONCIERGE: &str = "could not complete Concierge credential exchange";
/// The beginning of the error of a plugin that was ended.
const NOT_FINISHED: &str = "the plugin did not finish";

/// Returns whether the error of a connection is about the proxy in front of the server.
pub(super) fn is_about_proxy(why: &str) -> bool {
    why.starts_with(PROXY_FAILED)
}

/// The beginning of an error that is about a proxy, as Go writes it.
const PROXY_FAILED: &str = "proxyconnect tcp: ";

/// Observes clients.
#[derive(Clone, Copy)]
pub(super) struct Observer<'a> {
    /// The API group suffix.
    pub(super) suffix: &'a str,
    /// The inputs of this process.
    pub(super) environment: &'a Environment,
    /// The time limits.
    pub(super) limits: Limits,
}

impl Observer<'_> {
    /// Observes the client. Runs the plugin of the user, which may involve the user. Returns the
    /// client for the API of the cluster, if the kubeconfig results in one.
    pub(super) async fn observe(
        self,
        mut config: Kubeconfig,
        resolved: &Resolved,
        file: &str,
    ) -> (ObservedClient, Option<Admin>) {
        let no_user = AuthInfo::default();
        let entry = config.auth_infos.iter().find(|named| named.name == resolved.user);
        let entry = entry.and_then(|named| named.auth_info.as_ref()).unwrap_or(&no_user).clone();
        let dialer = TcpDialer::new(self.environment);
        let mut observed = self.cluster(&resolved.cluster, resolved, file, &dialer).await;
        // Before the login, which may fail because the clocks differ.
        if matches!(observed.probe, EndpointProbe::Connected { .. })
            && let Ok(anonymous) = Admin::anonymous(config.clone(), &resolved.context, dialer.clone()).await
        {
            observed.clock_skew = clock_skew(&anonymous, self.limits.request()).await;
        }
        observed.plugin = self.plugin(&entry, resolved).await;
        if !has_credential(&entry) {
            observed.login = LoginResult::NoCredential;
            return (observed, None);
        }
        for named in config.auth_infos.iter_mut().filter(|named| named.name == resolved.user) {
            disable_cache(named.auth_info.as_mut());
        }
        let mut last_line = String::new();
        let run = PluginRun::Watched(&mut last_line);
        let login = Admin::with_plugin(config, &resolved.context, dialer.clone(), run);
        let admin = match within(self.limits.step, login).await {
            Ok(Ok(admin)) => admin,
            Ok(Err(error)) => {
                observed.login = failure(&error, &last_line);
                observed.issuer = self.issuer(&observed, &dialer).await;
                return (observed, None);
            }
            Err(_) => {
                observed.login = LoginResult::Failed(self.limits.no_login());
                observed.issuer = self.issuer(&observed, &dialer).await;
                return (observed, None);
            }
        };
        observed.login = LoginResult::LoggedIn { expires: admin.expires };
        let request = tokio::time::timeout(self.limits.request(), whoami::request(&admin, self.suffix));
        observed.user_info = Some(match request.await {
            Ok(Ok(response)) => {
                let user = response.status.kubernetes_user_info.user;
                Ok(AuthenticatedUser { name: user.username, groups: user.groups.len() })
            }
            Ok(Err(error @ whoami::WhoAmIError::NotServed(_))) => {
                Err(RefusedRequest::NotServed(chain(&error).to_string()))
            }
            Ok(Err(error)) => Err(RefusedRequest::Other(chain(&error).to_string())),
            Err(_) => Err(RefusedRequest::Other("no response in time".to_owned())),
        });
        (observed, Some(admin))
    }

    async fn cluster(
        self,
        cluster: &Cluster,
        resolved: &Resolved,
        file: &str,
        dialer: &TcpDialer,
    ) -> ObservedClient {
        let written = cluster.server.clone().unwrap_or_default();
        let server = kubeconfig::server_url(&resolved.cluster_name, &written, true).unwrap_or(written);
        let url = Url::parse(&server).ok();
        let host = url.as_ref().map(host_of).unwrap_or_default();
        let own_proxy = cluster.proxy_url.as_deref().filter(|proxy| !proxy.is_empty());
        let proxied = match (own_proxy, &url) {
            (Some(_), _) => Ok(true),
            (None, None) => Ok(false),
            (None, Some(url)) => self.is_proxied(url),
        };
        let ca = kubeconfig::certificate_authority(&resolved.cluster_name, cluster)
            .map_err(|error| Unreadable(chain(&error).to_string()));
        let ca = (cluster.insecure_skip_tls_verify != Some(true)).then_some(ca);
        let system = matches!(&ca, Some(Ok(pem)) if pem.is_empty());
        let dialer = dialer.clone().with_proxy(own_proxy);
        let probe = probe_endpoint(&dialer, &server, system, self.limits.request()).await;
        let failed = matches!(probe, EndpointProbe::Unreachable(_));
        let addresses = match failed && proxied == Ok(false) {
            true => self.resolve(&host).await,
            false => None,
        };
        ObservedClient {
            file: file.to_owned(),
            context: resolved.context.clone(),
            user: resolved.user.clone(),
            server,
            ca,
            server_name: cluster.tls_server_name.clone().filter(|name| !name.is_empty()).unwrap_or(host),
            proxy_variables: PROXY_VARIABLES
                .into_iter()
                .filter(|name| self.environment.non_empty(name).is_some())
                .collect(),
            proxied,
            plugin: None,
            issuer: None,
            addresses,
            probe,
            login: LoginResult::NoCredential,
            clock_skew: None,
            user_info: None,
        }
    }

    /// Returns whether the environment selects a proxy for requests to a server.
    fn is_proxied(self, url: &Url) -> Result<bool, String> {
        let proxy = ProxyEnvironment::from(self.environment).proxy_for(url);
        proxy.map(|proxy| proxy.is_some()).map_err(|error| chain(&error).to_string())
    }

    /// Resolves the name of a host; `None` if it is an address.
    async fn resolve(self, host: &str) -> Option<Result<Vec<IpAddr>, String>> {
        if host.is_empty() || host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let found = tokio::time::timeout(self.limits.request(), tokio::net::lookup_host((host, 443)));
        Some(match found.await {
            Ok(Ok(addresses)) => Ok(addresses.map(|address| address.ip()).collect()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no response in time".to_owned()),
        })
    }

    /// Observes the issuer, after a login that failed.
    async fn issuer(self, observed: &ObservedClient, dialer: &TcpDialer) -> Option<ObservedIssuer> {
        let url = observed.plugin.as_ref()?.issuer.clone()?;
        let parsed = Url::parse(&url).ok()?;
        let problem = match probe_endpoint(dialer, &url, false, self.limits.request()).await {
            EndpointProbe::Unreachable(why) if is_about_proxy(&why) => Some(IssuerProblem::Proxy(why)),
            EndpointProbe::Unreachable(why) => {
                let direct = self.is_proxied(&parsed) == Ok(false);
                let addresses = if direct { self.resolve(&host_of(&parsed)).await } else { None };
                Some(match addresses {
                    Some(Err(why)) => IssuerProblem::Name(why),
                    _ => IssuerProblem::Connection(why),
                })
            }
            EndpointProbe::Malformed(_)
            | EndpointProbe::NoCertificate(_)
            | EndpointProbe::Connected { .. } => None,
        };
        Some(ObservedIssuer { url, problem })
    }

    async fn plugin(self, user: &AuthInfo, resolved: &Resolved) -> Option<ObservedPlugin> {
        let exec = user.exec.as_ref()?;
        let command = exec.command.clone().unwrap_or_default();
        let program = find_program(&command, self.environment);
        let args = exec.args.clone().unwrap_or_default();
        let parsed = login_command(&args);
        let version = match (&program, &parsed) {
            (Some(program), Some(_)) => Some(version_of(program).await),
            _ => None,
        };
        let flag = |name: &str| {
            let parsed = parsed.as_ref()?;
            parsed.given(name).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let with_concierge = parsed.as_ref().is_some_and(|parsed| parsed.bool("enable-concierge"));
        let authenticator = parsed.as_ref().filter(|_| with_concierge).map(|parsed| {
            (
                parsed.string("concierge-authenticator-type").to_lowercase(),
                parsed.string("concierge-authenticator-name"),
            )
        });
        let (concierge, issuer) = (flag("concierge-endpoint").filter(|_| with_concierge), flag("issuer"));
        let keyring = check_keyring(user, resolved, self.environment).await;
        Some(ObservedPlugin { command, program, version, authenticator, concierge, issuer, keyring })
    }
}

/// Disables the credential cache of the plugin `pinniped`, because a cached credential would hide
/// that new logins fail.
fn disable_cache(user: Option<&mut AuthInfo>) {
    let Some(args) = user.and_then(|user| user.exec.as_mut()?.args.as_mut()) else { return };
    if login_command(args).is_some() {
        // Further arguments are no flags.
        let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
        args.insert(end, "--credential-cache=".to_owned());
    }
}

fn has_credential(user: &AuthInfo) -> bool {
    user.exec.is_some()
        || user.auth_provider.is_some()
        || user.token.is_some()
        || user.token_file.is_some()
        || user.username.is_some()
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// Returns the result of a failed login; `last_line` is the last error that the plugin printed.
fn failure(error: &AdminError, last_line: &str) -> LoginResult {
    match error {
        AdminError::Plugin(ExecPluginError::NotFound { name, hint }) => {
            let hint = hint.as_deref().filter(|hint| !hint.is_empty());
            LoginResult::NoPlugin(match hint {
                Some(hint) => format!("{name} ({hint})"),
                None => name.clone(),
            })
        }
        AdminError::Plugin(ExecPluginError::Failed { .. }) if !last_line.is_empty() => {
            LoginResult::Failed(last_line.to_owned())
        }
        AdminError::Plugin(error) => LoginResult::Failed(chain(error).to_string()),
        AdminError::Credential(_) => LoginResult::Failed(chain(error).to_string()),
        other => LoginResult::Invalid(chain(other).to_string()),
    }
}

/// Checks the keyring, if the plugin stores refresh tokens in it.
async fn check_keyring(
    user: &AuthInfo,
    resolved: &Resolved,
    environment: &Environment,
) -> Option<Result<(), KeyringError>> {
    let printer = Printer::new(Level::Warning);
    let session = Session::of_user(user, &resolved.cluster_name, &resolved.cluster, environment, printer);
    let session = session.ok()??;
    Some(session.oidc()?.keyring()?.check().await)
}

async fn version_of(program: &std::path::Path) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command.arg("version").stdin(std::process::Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(VERSION_TIMEOUT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(text.lines().next().unwrap_or_default().chars().take(100).collect())
        }
        Ok(Ok(output)) => Err(format!("`version` failed with {}", output.status)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("`version` did not finish in time".to_owned()),
    }
}

/// Returns the difference of the server's clock and this machine's.
async fn clock_skew(admin: &Admin, limit: Duration) -> Option<SignedDuration> {
    let request = Request::get("/version").body(kube::client::Body::empty()).ok()?;
    let before = Timestamp::now();
    let response = tokio::time::timeout(limit, admin.client.send(request)).await.ok()?.ok()?;
    let after = Timestamp::now();
    let date = response.headers().get(header::DATE)?.to_str().ok()?;
    let date = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    // The response was created at some time in between, and its time has full seconds.
    Some(if date < before - SignedDuration::from_secs(1) {
        date.duration_since(before)
    } else if date > after {
        date.duration_since(after)
    } else {
        SignedDuration::ZERO
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_of_our_plugin_does_not_use_the_cache() {
        for (args, wanted) in [
            ("login static --token=t", "login static --token=t --credential-cache="),
            (
                "login oidc --issuer=i --credential-cache=/c",
                "login oidc --issuer=i --credential-cache=/c --credential-cache=",
            ),
            ("login static --token=t --", "login static --token=t --credential-cache= --"),
            ("get-token", "get-token"),
        ] {
            let args = args.split(' ').map(str::to_owned).collect();
            let exec = kube::config::ExecConfig { args: Some(args), ..Default::default() };
            let mut user = AuthInfo { exec: Some(exec), ..AuthInfo::default() };
            disable_cache(Some(&mut user));
            assert_eq!(user.exec.unwrap().args.unwrap().join(" "), wanted);
        }
    }

    #[test]
    fn the_reason_of_a_failed_plugin_is_its_last_error() {
        let failed = |line: &str| {
            let error = ExecPluginError::Failed { name: "p".into(), code: 1 };
            failure(&AdminError::Plugin(error), line)
        };
        assert_eq!(failed("login failed: no"), LoginResult::Failed("login failed: no".into()));
        assert_eq!(failed(""), LoginResult::Failed("exec: executable p failed with exit code 1".into()));
        let missing = ExecPluginError::NotFound { name: "p".into(), hint: Some("install it".into()) };
        assert_eq!(failure(&AdminError::Plugin(missing), ""), LoginResult::NoPlugin("p (install it)".into()));
    }
}
