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

use super::observed::{EndpointProbe, Unreadable};
use super::probe::probe_endpoint;
use super::read::READ_TIMEOUT;
use crate::admin::{Admin, AdminError};
use crate::commands::whoami;
use crate::environment::Environment;
use crate::exec_plugin::{ExecPluginError, PluginRun};
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
    /// Whether the keyring works, if the plugin stores refresh tokens in it.
    pub(super) keyring: Option<Result<(), KeyringError>>,
}

/// Observes the client. Runs the plugin of the user, which may involve the user. Returns the client
/// for the API of the cluster, if the kubeconfig results in one.
pub(super) async fn observe(
    config: Kubeconfig,
    resolved: &Resolved,
    file: &str,
    suffix: &str,
    environment: &Environment,
) -> (ObservedClient, Option<Admin>) {
    let no_user = AuthInfo::default();
    let entry = config.auth_infos.iter().find(|named| named.name == resolved.user);
    let entry = entry.and_then(|named| named.auth_info.as_ref()).unwrap_or(&no_user).clone();
    let dialer = TcpDialer::new(environment);
    let mut observed = of_cluster(&resolved.cluster, resolved, file, environment, &dialer).await;
    observed.plugin = plugin(&entry, resolved, environment).await;
    if !has_credential(&entry) {
        observed.login = LoginResult::NoCredential;
        return (observed, None);
    }
    let mut last_line = String::new();
    let run = PluginRun::Watched(&mut last_line);
    let admin = match Admin::with_plugin(config, &resolved.context, dialer, run).await {
        Ok(admin) => admin,
        Err(error) => {
            observed.login = failure(&error, &last_line);
            return (observed, None);
        }
    };
    observed.login = LoginResult::LoggedIn { expires: admin.expires };
    observed.clock_skew = clock_skew(&admin).await;
    let request = tokio::time::timeout(READ_TIMEOUT, whoami::request(&admin, suffix));
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

async fn of_cluster(
    cluster: &Cluster,
    resolved: &Resolved,
    file: &str,
    environment: &Environment,
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
        (None, Some(url)) => ProxyEnvironment::from(environment)
            .proxy_for(url)
            .map(|proxy| proxy.is_some())
            .map_err(|error| chain(&error).to_string()),
    };
    let ca = kubeconfig::certificate_authority(&resolved.cluster_name, cluster)
        .map_err(|error| Unreadable(chain(&error).to_string()));
    let ca = (cluster.insecure_skip_tls_verify != Some(true)).then_some(ca);
    let system = matches!(&ca, Some(Ok(pem)) if pem.is_empty());
    let probe = probe_endpoint(&dialer.clone().with_proxy(own_proxy), &server, system).await;
    let failed = matches!(probe, EndpointProbe::Unreachable(_));
    let named = !host.is_empty() && host.parse::<IpAddr>().is_err();
    let addresses = match failed && named && proxied == Ok(false) {
        true => Some(resolve(&host).await),
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
            .filter(|name| environment.non_empty(name).is_some())
            .collect(),
        proxied,
        plugin: None,
        addresses,
        probe,
        login: LoginResult::NoCredential,
        clock_skew: None,
        user_info: None,
    }
}

async fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    match tokio::time::timeout(READ_TIMEOUT, tokio::net::lookup_host((host, 443))).await {
        Ok(Ok(addresses)) => Ok(addresses.map(|address| address.ip()).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no response in time".to_owned()),
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

async fn plugin(user: &AuthInfo, resolved: &Resolved, environment: &Environment) -> Option<ObservedPlugin> {
    let exec = user.exec.as_ref()?;
    let command = exec.command.clone().unwrap_or_default();
    let program = find_program(&command, environment);
    let args = exec.args.clone().unwrap_or_default();
    let parsed = login_command(&args);
    let version = match (&program, &parsed) {
        (Some(program), Some(_)) => Some(version_of(program).await),
        _ => None,
    };
    let authenticator = parsed.filter(|parsed| parsed.bool("enable-concierge")).map(|parsed| {
        (
            parsed.string("concierge-authenticator-type").to_lowercase(),
            parsed.string("concierge-authenticator-name"),
        )
    });
    let keyring = check_keyring(user, resolved, environment).await;
    Some(ObservedPlugin { command, program, version, authenticator, keyring })
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

/// Returns the file that runs for a command: a path, or a name in one of the folders of `PATH`.
fn find_program(command: &str, environment: &Environment) -> Option<PathBuf> {
    if command.is_empty() {
        return None;
    }
    let is_path = command.contains(std::path::is_separator);
    let folders: Vec<PathBuf> = match is_path {
        true => vec![PathBuf::new()],
        false => std::env::split_paths(environment.variable("PATH").unwrap_or_default()).collect(),
    };
    let suffix = std::env::consts::EXE_SUFFIX;
    let names = [command.to_owned(), format!("{command}{suffix}")];
    let mut candidates = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
    candidates.find(|path| path.is_file())
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
async fn clock_skew(admin: &Admin) -> Option<SignedDuration> {
    let request = Request::get("/version").body(kube::client::Body::empty()).ok()?;
    let before = Timestamp::now();
    let response = tokio::time::timeout(READ_TIMEOUT, admin.client.send(request)).await.ok()?.ok()?;
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
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_program_is_found_by_its_path_or_in_the_folders_of_path() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tool");
        std::fs::write(&program, "").unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        let environment = Environment::new(Vec::new(), HashMap::from([("PATH".to_owned(), path)]));
        let absolute = program.to_str().unwrap();
        for (command, found) in [
            ("tool", Some(&program)),
            (absolute, Some(&program)),
            ("other", None),
            ("", None),
            ("./no/tool", None),
        ] {
            assert_eq!(find_program(command, &environment).as_ref(), found, "{command}");
        }
        assert_eq!(find_program("tool", &Environment::default()), None);
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
