//! `pinniped status`: prints the state of each context of the kubeconfig from local files, and with
//! `--check` the user that its cluster authenticates.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use kube::config::{AuthInfo, Kubeconfig};
use pinniped_error::chain;
use pinniped_go_compat::base64 as gobase64;
use pinniped_go_compat::duration::GoDuration;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::Certificate;
use serde::Serialize;
use tokio::sync::Mutex;

use super::contexts::{self, ContextEntries};
use super::output_format::{OutputFormat, UnknownFormat};
use super::{StartError, block_on, whoami, within};
use crate::admin::Admin;
use crate::environment::Environment;
use crate::exec_plugin::{self, PluginRun, find_program};
use crate::flags::tree::{Action, DEFAULT_SUFFIX};
use crate::flags::{Delivery, Parsed, RefreshTokenStore};
use crate::kubeconfig::{self, LoadError, NoKubeconfig, ResolveError, identity};
use crate::login::Login;
use crate::login::keyring::Keyring;
use crate::login::oidc::OidcLogin;
use crate::login::session::{LoginError, Session, login_command};
use crate::printer::{Printer, printable_line};
use crate::{OutputError, write};

/// The time limit of the check of each context, as the help of the flag states.
const LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of contexts that are checked at the same time.
const CONCURRENT_CHECKS: usize = 8;

/// The state was not printed, or a check failed.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A kubeconfig cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// The context does not exist.
    #[error(transparent)]
    Context(#[from] ResolveError),
    /// The format is unknown.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// The state cannot be encoded.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The state was printed, and checks have failed.
    #[error("{failed} of {all} checks failed")]
    FailedChecks {
        /// The number of failed checks.
        failed: usize,
        /// The number of all checks.
        all: usize,
    },
}

/// The state of all contexts.
#[derive(Debug, Serialize)]
struct Status {
    contexts: Vec<ContextStatus>,
}

/// The state of a context.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextStatus {
    name: String,
    current: bool,
    cluster: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    server: String,
    user: String,
    login: Method,
    #[serde(skip_serializing_if = "Option::is_none")]
    authenticator: Option<Authenticator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credential: Option<Credential>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionState>,
    /// The reason why the login cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
}

impl ContextStatus {
    /// Returns whether the cluster authenticated no user.
    fn has_failed(&self) -> bool {
        self.check.as_ref().is_some_and(|check| check.error.is_some())
    }
}

/// The method by which the user of a context authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    /// `pinniped login oidc`.
    Oidc,
    /// `pinniped login static`.
    StaticToken,
    /// `pinniped login token`.
    WorkloadToken,
    /// Another plugin.
    OtherPlugin,
    /// A client certificate of the kubeconfig.
    ClientCertificate,
    /// A token of the kubeconfig.
    Token,
    /// Username and password of the kubeconfig.
    Password,
    /// There is no credential.
    None,
}

impl Method {
    fn of(user: Option<&AuthInfo>) -> Self {
        let Some(user) = user else { return Self::None };
        let arguments = user.exec.as_ref().map(|exec| exec.args.as_deref().unwrap_or_default());
        match arguments.map(|args| login_command(args).map(|login| login.action)) {
            Some(Some(Action::LoginOidc)) => Self::Oidc,
            Some(Some(Action::LoginToken)) => Self::WorkloadToken,
            Some(Some(_)) => Self::StaticToken,
            Some(None) => Self::OtherPlugin,
            None if user.token.is_some() || user.token_file.is_some() => Self::Token,
            None if user.client_certificate.is_some() || user.client_certificate_data.is_some() => {
                Self::ClientCertificate
            }
            None if user.username.is_some() => Self::Password,
            None => Self::None,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Oidc => "OIDC",
            Self::StaticToken => "static token",
            Self::WorkloadToken => "token of the workload",
            Self::OtherPlugin => "another plugin",
            Self::ClientCertificate => "client certificate of the kubeconfig",
            Self::Token => "token of the kubeconfig",
            Self::Password => "username and password of the kubeconfig",
            Self::None => "none",
        }
    }
}

#[derive(Debug, Serialize)]
struct Authenticator {
    #[serde(rename = "type")]
    type_: String,
    name: String,
}

/// A credential for the cluster: that of the cache, or of the kubeconfig.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Credential {
    #[serde(rename = "type")]
    type_: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
}

/// A session of the session cache.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionState {
    refresh_token: bool,
    /// The store of the refresh token, if it is not the session cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token_store: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id_token_expires: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used: Option<Timestamp>,
}

/// The user that the cluster authenticates, or the reason why there is none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints the state.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), StatusError> {
    let format = OutputFormat::parse(&parsed.string_or("output", "text"))?;
    let config = kubeconfig::load_existing::<StatusError>(parsed.given("kubeconfig"), environment)?;
    let only = parsed.string("kubeconfig-context");
    let mut all = contexts::of(&config);
    all.retain(|entries| only.is_empty() || entries.name == only);
    if all.is_empty() && !only.is_empty() {
        return Err(ResolveError::Context(only).into());
    }
    let now = Timestamp::now();
    let mut status = Status { contexts: Vec::new() };
    let mut sessions = Vec::new();
    for entries in &all {
        let (mut context, session) = read(entries, now, environment, printer);
        context.current = config.current_context.as_deref() == Some(entries.name);
        status.contexts.push(context);
        sessions.push(session);
    }
    let has_keyring = |session: &Option<Session>| keyring_of(session.as_ref()).is_some();
    if sessions.iter().any(has_keyring) {
        block_on(async {
            add_keyring(&mut status.contexts, &sessions).await;
            Ok::<_, StartError>(())
        })?;
    }
    if parsed.bool("check") {
        let limit = parsed.duration("timeout").unwrap_or(LIMIT.into());
        let turns = turns(&sessions);
        let checks = all.iter().zip(sessions).zip(turns);
        let checks = checks.map(|((entries, session), turn)| {
            let login = session.map(|session| LoginInTurn { session, turn });
            check(&config, entries, login, limit, environment)
        });
        let checks = stream::iter(checks).buffered(CONCURRENT_CHECKS).collect::<Vec<_>>();
        let checks = block_on(async { Ok::<_, StartError>(checks.await) })?;
        for (context, check) in status.contexts.iter_mut().zip(checks) {
            context.check = Some(check);
        }
    }
    let text = format.output(&status, || status.text())?;
    write(printer, text.as_bytes())?;
    let all = status.contexts.len();
    match status.contexts.iter().filter(|context| context.has_failed()).count() {
        0 => Ok(()),
        failed => Err(StatusError::FailedChecks { failed, all }),
    }
}

/// Returns the login and the keyring of a session whose refresh token is in the keyring.
fn keyring_of(session: Option<&Session>) -> Option<(&OidcLogin, &Keyring)> {
    let login = session?.oidc()?;
    Some((login, login.keyring()?))
}

/// Adds the refresh tokens of the keyring, without their values. After the first error, the keyring
/// is not called again.
async fn add_keyring(contexts: &mut [ContextStatus], sessions: &[Option<Session>]) {
    let mut failed = None;
    for (context, session) in contexts.iter_mut().zip(sessions) {
        let Some((login, keyring)) = keyring_of(session.as_ref()) else { continue };
        let found = match failed.take() {
            Some(error) => Err(error),
            None => keyring.contains(&login.session_key()).await,
        };
        match found {
            Ok(true) => {
                let session = context.session.get_or_insert_default();
                session.refresh_token = true;
                session.refresh_token_store = Some(RefreshTokenStore::Keyring.as_str());
            }
            Ok(false) => {}
            Err(error) => {
                let text = format!("the keyring cannot be used: {}", chain(&error));
                context.problem.get_or_insert(text);
                failed = Some(error);
            }
        }
    }
}

/// Reads the state of a context from local files.
fn read(
    entries: &ContextEntries<'_>,
    now: Timestamp,
    environment: &Environment,
    printer: Printer,
) -> (ContextStatus, Option<Session>) {
    let mut context = ContextStatus {
        name: entries.name.to_owned(),
        current: false,
        cluster: entries.cluster_name.to_owned(),
        server: entries.cluster.and_then(|cluster| cluster.server.clone()).unwrap_or_default(),
        user: entries.user_name.to_owned(),
        login: Method::of(entries.user),
        authenticator: None,
        issuer: None,
        credential: entries.user.and_then(of_kubeconfig),
        session: None,
        problem: None,
        check: None,
    };
    let (Some(user), Some(cluster)) = (entries.user, entries.cluster) else {
        let what = if entries.user.is_none() { "user" } else { "cluster" };
        context.problem = Some(format!("the kubeconfig does not have the {what}"));
        return (context, None);
    };
    let arguments = user.exec.as_ref().and_then(|exec| exec.args.as_deref());
    if let Some(login) = arguments.and_then(login_command) {
        if login.bool("enable-concierge") {
            let (type_, name) =
                (login.string("concierge-authenticator-type"), login.string("concierge-authenticator-name"));
            context.authenticator = Some(Authenticator { type_, name });
        }
        context.issuer = Some(login.string("issuer")).filter(|issuer| !issuer.is_empty());
    }
    context.problem = missing_plugin(user, environment);
    let session = match Session::of_user(user, entries.cluster_name, cluster, environment, printer) {
        Ok(session) => session,
        Err(error) => {
            context.problem = Some(chain(&error).to_string());
            None
        }
    };
    if let Some(session) = &session {
        match session.peek(now) {
            Ok(login) => context.credential = login.as_ref().and_then(of_cache),
            Err(error) => context.problem = Some(chain(&error).to_string()),
        }
        match session.oidc().map(|login| login.stored_session(now)) {
            Some(Ok(stored)) => {
                context.session = stored.map(|stored| SessionState {
                    refresh_token: stored.tokens.refresh_token().is_some(),
                    refresh_token_store: None,
                    id_token_expires: stored.tokens.id.and_then(|id| Some(id.expiry?.0)),
                    last_used: stored.last_used,
                });
            }
            Some(Err(error)) => context.problem = Some(chain(&error).to_string()),
            None => {}
        }
    }
    (context, session)
}

fn of_certificate(certificate: Certificate) -> Credential {
    Credential {
        type_: "client-certificate",
        username: Some(certificate.subject_cn).filter(|name| !name.is_empty()),
        expires: Some(certificate.not_after),
    }
}

/// Returns the credential in a user entry.
fn of_kubeconfig(user: &AuthInfo) -> Option<Credential> {
    if user.token.is_some() || user.token_file.is_some() {
        return Some(Credential { type_: "token", username: None, expires: None });
    }
    kubeconfig::client_certificate(user).map(of_certificate)
}

/// Returns the credential of a cached login.
fn of_cache(login: &Login) -> Option<Credential> {
    let expires = login.expires();
    if !login.credential.client_certificate_data.is_empty() {
        let certificate = Certificate::parse_pem(login.credential.client_certificate_data.as_bytes());
        return Some(Credential { expires, ..of_certificate(certificate.ok()?) });
    }
    let username = login.impersonate.as_ref().map(|user| user.username.clone());
    (!login.credential.token.is_empty()).then_some(Credential { type_: "token", username, expires })
}

/// A login that waits for those of the same session before it.
struct LoginInTurn {
    session: Session,
    turn: Arc<Mutex<()>>,
}

impl LoginInTurn {
    /// Logs in without the user. A login in the background does not wait for the lock of its
    /// session: another process that holds it may wait for the user.
    async fn log_in(&self) -> Result<Login, LoginError> {
        let _turn = self.turn.lock().await;
        self.session.in_background().login(SignedDuration::ZERO).await
    }
}

/// Returns the lock of the login of each session, which is the same for those that share an entry
/// of a session cache.
fn turns(sessions: &[Option<Session>]) -> Vec<Arc<Mutex<()>>> {
    let mut turns: Vec<Arc<Mutex<()>>> = Vec::new();
    let oidc = |session: &'_ Option<Session>| session.as_ref().and_then(Session::oidc).cloned();
    for session in sessions {
        let shared = oidc(session).and_then(|login| {
            let before = sessions.iter().zip(&turns);
            let mut same =
                before.filter(|(other, _)| oidc(other).is_some_and(|other| login.shares_session(&other)));
            same.next().map(|(_, turn)| Arc::clone(turn))
        });
        turns.push(shared.unwrap_or_default());
    }
    turns
}

/// Requests the user that the cluster authenticates. The login involves no user.
async fn check(
    config: &Kubeconfig,
    entries: &ContextEntries<'_>,
    login: Option<LoginInTurn>,
    limit: GoDuration,
    environment: &Environment,
) -> Check {
    let work = Box::pin(username(config, entries, login, environment));
    match within(limit, work).await.unwrap_or_else(|_| Err("no response in time".to_owned())) {
        Ok(username) => Check { username: Some(username), error: None },
        Err(error) => Check { username: None, error: Some(error) },
    }
}

async fn username(
    config: &Kubeconfig,
    entries: &ContextEntries<'_>,
    login: Option<LoginInTurn>,
    environment: &Environment,
) -> Result<String, String> {
    // Our plugin is a part of this program, and the check would succeed without it.
    if let Some(missing) = entries.user.and_then(|user| missing_plugin(user, environment)) {
        return Err(missing);
    }
    let mut config = config.clone();
    let mut suffix = DEFAULT_SUFFIX.to_owned();
    let arguments = entries.user.and_then(|user| user.exec.as_ref()?.args.as_deref());
    if let Some(command) = arguments.and_then(login_command) {
        suffix = command.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX);
        let login = login.ok_or("the login cannot be used")?.log_in().await;
        let login = login.map_err(|error| chain(&error).to_string())?;
        let user = config.auth_infos.iter_mut().find(|named| named.name == entries.user_name);
        if let Some(user) = user.and_then(|named| named.auth_info.as_mut()) {
            use_login(user, &login);
        }
    }
    let dialer = TcpDialer::new(environment);
    let admin = Admin::with_plugin(config, entries.name, dialer, PluginRun::InBackground).await;
    let admin = admin.map_err(|error| chain(&error).to_string())?;
    let response = whoami::request(&admin, &suffix).await;
    let response = response.map_err(|error| chain(&error).to_string())?;
    Ok(response.status.kubernetes_user_info.user.username)
}

/// Returns the problem that kubectl does not find the plugin of the user.
fn missing_plugin(user: &AuthInfo, environment: &Environment) -> Option<String> {
    if exec_plugin::is_overridden(user) {
        return None;
    }
    let command = user.exec.as_ref()?.command.as_deref().filter(|command| !command.is_empty())?;
    find_program(command, environment).is_none().then(|| format!("there is no program {command}"))
}

/// Replaces the plugin of a user with the result of its login.
fn use_login(user: &mut AuthInfo, login: &Login) {
    let credential = &login.credential;
    user.exec = None;
    if let Some(impersonate) = &login.impersonate {
        identity::write_user(user, impersonate, Delivery::Auto);
    }
    if !credential.token.is_empty() {
        user.token = Some(credential.token.expose().to_owned().into());
    }
    if !credential.client_certificate_data.is_empty() {
        user.client_certificate_data = Some(gobase64::encode(credential.client_certificate_data.as_bytes()));
        user.client_key_data = Some(gobase64::encode(credential.client_key_data.expose().as_bytes()).into());
    }
}

impl Status {
    fn text(&self) -> String {
        if self.contexts.is_empty() {
            return "the kubeconfig has no context\n".to_owned();
        }
        let all: Vec<String> = self.contexts.iter().map(ContextStatus::text).collect();
        all.join("\n")
    }
}

impl ContextStatus {
    fn text(&self) -> String {
        let mut text =
            format!("{}{}\n", printable_line(&self.name), if self.current { " (current)" } else { "" });
        let mut row = |name: &str, value: String| {
            text.push_str(&format!("  {:<15}{}\n", format!("{name}:"), printable_line(&value)));
        };
        row("cluster", format!("{} ({})", self.cluster, self.server));
        row("user", self.user.clone());
        let issuer = self.issuer.as_ref().map(|issuer| format!(" at {issuer}")).unwrap_or_default();
        row("login", format!("{}{issuer}", self.login.description()));
        if let Some(Authenticator { type_, name }) = &self.authenticator {
            row("authenticator", format!("{name} ({type_})"));
        }
        let credential = match (&self.credential, self.login) {
            (Some(credential), _) => credential.text(),
            (None, Method::OtherPlugin) => "not known".to_owned(),
            (None, Method::Oidc | Method::StaticToken | Method::WorkloadToken) => {
                "none in the cache".to_owned()
            }
            (None, _) => "none".to_owned(),
        };
        row("credential", credential);
        if self.login == Method::Oidc {
            row("session", self.session.as_ref().map_or("none".to_owned(), SessionState::text));
        }
        if let Some(problem) = &self.problem {
            row("problem", problem.clone());
        }
        match &self.check {
            Some(Check { username: Some(username), .. }) => row("check", format!("logs in as {username}")),
            Some(Check { error: Some(error), .. }) => row("check", format!("fails: {error}")),
            _ => {}
        }
        text
    }
}

impl Credential {
    fn text(&self) -> String {
        let mut text = match self.type_ {
            "token" => "token".to_owned(),
            _ => "client certificate".to_owned(),
        };
        if let Some(username) = &self.username {
            text.push_str(&format!(" of {username}"));
        }
        if let Some(expires) = self.expires {
            text.push_str(&format!(", until {expires:.0}"));
        }
        text
    }
}

impl SessionState {
    fn text(&self) -> String {
        let mut text = match (self.refresh_token, self.refresh_token_store) {
            (true, Some(_)) => "with a refresh token in the keyring",
            (true, None) => "with a refresh token",
            (false, _) => "without a refresh token",
        }
        .to_owned();
        match self.id_token_expires {
            Some(expires) => text.push_str(&format!(", ID token until {expires:.0}")),
            None => text.push_str(", no valid ID token"),
        }
        text
    }
}
