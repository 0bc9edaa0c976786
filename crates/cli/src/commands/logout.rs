//! `pinniped logout`: removes sessions and cached credentials, and revokes refresh tokens.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::Kubeconfig;
use pinniped_error::chain;
use pinniped_go_compat::json::quote;

use super::contexts::{self, ContextEntries};
use super::{StartError, block_on};
use crate::environment::Environment;
use crate::flags::{Parsed, Value};
use crate::kubeconfig::{self, LoadError, NoKubeconfig, ResolveError};
use crate::login::cache_file::CacheFileError;
use crate::login::exec_cache::ExecCache;
use crate::login::oidc::OidcLogin;
use crate::login::oidc::logout::Revocation;
use crate::login::session::{Session, SessionError, login_command};
use crate::login::session_cache::{SessionCache, SessionKey, StoredSession};
use crate::printer::{Printer, printable_line};
use crate::{OutputError, write};

/// The time limit of each revocation, as the help of the flag states.
const LIMIT: Duration = Duration::from_secs(30);

/// The user was not logged out.
#[derive(Debug, thiserror::Error)]
pub enum LogoutError {
    /// The runtime could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The flags contradict each other.
    #[error("only one of --all and --kubeconfig-context can be specified")]
    AllAndContext,
    /// A kubeconfig cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no kubeconfig.
    #[error(transparent)]
    NoKubeconfig(#[from] NoKubeconfig),
    /// The context is incomplete.
    #[error(transparent)]
    Context(#[from] ResolveError),
    /// The user of the context has another credential.
    #[error("user {} of context {} does not log in with this program", quote(.user), quote(.context))]
    OtherUser {
        /// The user.
        user: String,
        /// The context.
        context: String,
    },
    /// The login of the context is invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A cache cannot be changed.
    #[error(transparent)]
    Cache(#[from] CacheFileError),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Everything that was removed.
#[derive(Debug, Default)]
struct Removed {
    sessions: Vec<(StoredSession, Revocation)>,
    /// The issuers at which another process logs in.
    in_progress: Vec<String>,
    credentials: usize,
}

/// Logs the user of one context out, or removes all sessions.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), LogoutError> {
    let limit = match parsed.value("timeout") {
        Some(Value::Duration(limit)) => limit.to_std(),
        _ => LIMIT,
    };
    let config = kubeconfig::load(parsed.given("kubeconfig"), environment)?;
    let context = parsed.string("kubeconfig-context");
    let text = match (parsed.bool("all"), context.is_empty()) {
        (true, false) => return Err(LogoutError::AllAndContext),
        (true, true) => {
            let removed = block_on(all(&config, limit, environment, printer))?;
            text(&removed, None)
        }
        (false, _) => {
            kubeconfig::check_exists(parsed.given("kubeconfig"), environment)?;
            let context = kubeconfig::resolve(&config, &context)?.context;
            let removed = block_on(one(&config, &context, limit, environment, printer))?;
            text(&removed, token_in_kubeconfig(&config, &context))
        }
    };
    Ok(write(printer, text.as_bytes())?)
}

fn session(
    entries: &ContextEntries<'_>,
    environment: &Environment,
    printer: Printer,
) -> Result<Option<Session>, SessionError> {
    let (Some(user), Some(cluster)) = (entries.user, entries.cluster) else { return Ok(None) };
    Session::of_user(user, entries.cluster_name, cluster, environment, printer)
}

/// Returns the sessions of all contexts that have one. A login that is not valid has no session.
fn sessions(config: &Kubeconfig, environment: &Environment, printer: Printer) -> Vec<Session> {
    let contexts = contexts::of(config).into_iter();
    contexts.filter_map(|entries| session(&entries, environment, printer).ok()?).collect()
}

/// Returns whether two sessions use the same entry of the same session cache.
fn is_same(one: &OidcLogin, other: &OidcLogin) -> bool {
    let path = |login: &OidcLogin| login.session_cache().map(|cache| cache.path().to_owned());
    one.session_key() == other.session_key() && path(one) == path(other)
}

async fn one(
    config: &Kubeconfig,
    context: &str,
    limit: Duration,
    environment: &Environment,
    printer: Printer,
) -> Result<Removed, LogoutError> {
    let now = Timestamp::now();
    let all = contexts::of(config);
    let entries = all.iter().find(|entries| entries.name == context);
    let entries = entries.ok_or_else(|| ResolveError::Context(context.to_owned()))?;
    let session = session(entries, environment, printer)?.ok_or_else(|| LogoutError::OtherUser {
        user: entries.user_name.to_owned(),
        context: context.to_owned(),
    })?;
    let mut removed = Removed { credentials: usize::from(session.forget(now)?), ..Removed::default() };
    let Some(login) = session.oidc() else { return Ok(removed) };
    let found = login.remove_session(now).await?;
    // Credentials of other clusters come from the same session.
    for other in sessions(config, environment, printer) {
        if other.oidc().is_some_and(|other| is_same(login, other)) {
            removed.credentials += usize::from(other.forget(now)?);
        }
    }
    if let Some(found) = found {
        if found.login_in_progress {
            removed.in_progress.push(found.session.key.issuer.clone());
        }
        let revocation = revoke(login, &found.session, limit).await;
        removed.sessions.push((found.session, revocation));
    }
    Ok(removed)
}

async fn all(
    config: &Kubeconfig,
    limit: Duration,
    environment: &Environment,
    printer: Printer,
) -> Result<Removed, LogoutError> {
    let now = Timestamp::now();
    let known = sessions(config, environment, printer);
    let logins: Vec<&OidcLogin> = known.iter().filter_map(Session::oidc).collect();
    let mut credential_caches: BTreeSet<PathBuf> =
        known.iter().filter_map(|session| Some(session.cache()?.path().to_owned())).collect();
    let mut session_caches: BTreeSet<PathBuf> =
        logins.iter().filter_map(|login| Some(login.session_cache()?.path().to_owned())).collect();
    credential_caches.extend(environment.config_file("credentials.yaml").map(PathBuf::from));
    session_caches.extend(environment.config_file("sessions.yaml").map(PathBuf::from));

    let mut removed = Removed::default();
    for path in credential_caches {
        removed.credentials += ExecCache::new(path).clear(now)?;
    }
    let mut taken = Vec::new();
    for path in session_caches {
        taken.extend(SessionCache::new(path).take_all(now)?);
    }
    for session in taken {
        let login = logins.iter().find(|login| login.session_key() == session.key).copied().cloned();
        let revocation = match login.or_else(|| login_of(&session.key, environment, printer)) {
            Some(login) => revoke(&login, &session, limit).await,
            None => Revocation::NotOffered,
        };
        removed.sessions.push((session, revocation));
    }
    Ok(removed)
}

/// Returns the login of a session that the kubeconfig does not have: with the CA certificates of
/// the system, and without a client secret.
fn login_of(key: &SessionKey, environment: &Environment, printer: Printer) -> Option<OidcLogin> {
    let args = [
        "login".to_owned(),
        "oidc".to_owned(),
        format!("--issuer={}", key.issuer),
        format!("--client-id={}", key.client_id),
    ];
    OidcLogin::from_flags(&login_command(&args)?, environment, printer).ok()
}

async fn revoke(login: &OidcLogin, session: &StoredSession, limit: Duration) -> Revocation {
    let revocation = login.revoke(session);
    if limit.is_zero() {
        return revocation.await;
    }
    tokio::time::timeout(limit, revocation).await.unwrap_or(Revocation::TimedOut)
}

/// Returns the name of the user if the kubeconfig itself has the token.
fn token_in_kubeconfig<'a>(config: &'a Kubeconfig, context: &str) -> Option<&'a str> {
    let all = contexts::of(config);
    let entries = all.iter().find(|entries| entries.name == context)?;
    let login = login_command(entries.user?.exec.as_ref()?.args.as_deref()?)?;
    (!login.string("token").is_empty()).then_some(entries.user_name)
}

fn text(removed: &Removed, token_of: Option<&str>) -> String {
    let mut lines = Vec::new();
    for (session, revocation) in &removed.sessions {
        let session = format!("removed the cached session of {}", session.key.issuer);
        lines.push(match revocation {
            Revocation::Revoked => format!("{session}; its refresh token is revoked"),
            Revocation::NoToken => format!("{session}, which has no refresh token"),
            Revocation::NotOffered => {
                format!("{session}; the issuer does not offer to revoke its refresh token")
            }
            Revocation::TimedOut => {
                format!(
                    "{session}; its refresh token could not be revoked: the issuer did not respond in time"
                )
            }
            Revocation::Failed(error) => {
                format!("{session}; its refresh token could not be revoked: {}", chain(error))
            }
        });
    }
    for issuer in &removed.in_progress {
        lines.push(format!("another process logs in at {issuer}: its session will be stored"));
    }
    if removed.credentials > 0 {
        lines.push(format!("removed cached credentials: {}", removed.credentials));
    }
    if lines.is_empty() {
        lines.push("nothing to remove: there is no session and no cached credential".to_owned());
    }
    if let Some(user) = token_of {
        lines.push(format!("the token of user {user} is part of the kubeconfig, and stays valid"));
    }
    lines.iter().map(|line| format!("{}\n", printable_line(line))).collect()
}
