//! `pinniped logout`: removes sessions and cached credentials, and revokes refresh tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use kube::config::Kubeconfig;
use pinniped_error::chain;
use pinniped_go_compat::duration::GoDuration;
use pinniped_go_compat::json::quote;
use serde_json::json;

use super::contexts::{self, ContextEntries};
use super::{StartError, block_on, within};
use crate::environment::{Environment, PINNIPED_REFRESH_TOKEN_STORE};
use crate::flags::{Parsed, RefreshTokenStore};
use crate::kubeconfig::{self, LoadError, NoKubeconfig, ResolveError};
use crate::login::cache_file::CacheFileError;
use crate::login::exec_cache::ExecCache;
use crate::login::keyring::{Keyring, KeyringError, Unlock};
use crate::login::oidc::OidcLogin;
use crate::login::oidc::logout::{RemovalError, Revocation, merge_keyring_session};
use crate::login::session::{Session, SessionError, login_command};
use crate::login::session_cache::{SessionCache, SessionKey, StoredSession};
use crate::printer::{Printer, printable_line};
use crate::{OutputError, write};

/// The time limit of each revocation, as the help of the flag states.
const LIMIT: Duration = Duration::from_secs(30);
/// The maximum length in characters of the text of an error: the issuer may determine it.
const MAX_ERROR: usize = 500;

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
    /// A kubeconfig that is named or exists cannot be loaded, so that nothing was removed.
    #[error(transparent)]
    LoadForAll(LoadError),
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
    /// A cache or the keyring cannot be changed.
    #[error(transparent)]
    Removal(#[from] RemovalError),
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
    /// The parts that could not be removed. They do not prevent the removal of the rest.
    errors: Vec<RemovalError>,
}

impl Removed {
    /// Returns the result, or nothing after an error. Several logins may have one cache, whose
    /// first error is recorded.
    fn or_record_error<T: Default>(&mut self, result: Result<T, CacheFileError>) -> T {
        result.unwrap_or_else(|error| {
            self.record(error.into());
            T::default()
        })
    }

    fn record(&mut self, error: RemovalError) {
        let is_same = |other: &RemovalError| match (other, &error) {
            (RemovalError::Cache(other), RemovalError::Cache(error)) => other.path() == error.path(),
            (RemovalError::Keyring(other), RemovalError::Keyring(error)) => other == error,
            _ => false,
        };
        if !self.errors.iter().any(is_same) {
            self.errors.push(error);
        }
    }

    fn is_nothing(&self) -> bool {
        self.sessions.is_empty() && self.in_progress.is_empty() && self.credentials == 0
    }
}

/// Logs the user of one context out, or removes all sessions.
pub(crate) fn run(parsed: &Parsed, environment: &Environment, printer: Printer) -> Result<(), LogoutError> {
    let limit = parsed.duration("timeout").unwrap_or(LIMIT.into());
    let kubeconfig = parsed.given("kubeconfig");
    let context = parsed.string("kubeconfig-context");
    let (mut removed, token_of) = match (parsed.bool("all"), context.is_empty()) {
        (true, false) => return Err(LogoutError::AllAndContext),
        (true, true) => {
            // Without the kubeconfig, sessions could be removed, but not revoked: it has the CA
            // certificates and client secrets.
            let config = kubeconfig::load(kubeconfig, environment).map_err(LogoutError::LoadForAll)?;
            (block_on(all(&config, limit, environment, printer))?, None)
        }
        (false, _) => {
            let config = kubeconfig::load_existing::<LogoutError>(kubeconfig, environment)?;
            let context = kubeconfig::resolve(&config, &context)?.context;
            let removed = block_on(one(&config, &context, limit, environment, printer))?;
            (removed, token_in_kubeconfig(&config, &context))
        }
    };
    if removed.errors.is_empty() || !removed.is_nothing() {
        write(printer, text(&removed, token_of.as_deref()).as_bytes())?;
    }
    let last = removed.errors.pop();
    for error in &removed.errors {
        printer
            .warn("a part of the login could not be removed", &[("error", json!(chain(error).to_string()))]);
    }
    last.map_or(Ok(()), |error| Err(error.into()))
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

async fn one(
    config: &Kubeconfig,
    context: &str,
    limit: GoDuration,
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
    let mut removed = Removed::default();
    removed.credentials += usize::from(removed.or_record_error(session.forget(now)));
    let Some(login) = session.oidc() else { return Ok(removed) };
    // A session that is removed is revoked before anything else can fail.
    let removal = login.remove_session(now).await;
    if let Some(session) = removal.sessions.first().filter(|_| removal.login_in_progress) {
        removed.in_progress.push(session.key.issuer.clone());
    }
    for session in removal.sessions {
        let revocation = revoke(login, &session, limit).await;
        removed.sessions.push((session, revocation));
    }
    for error in removal.errors {
        removed.record(error);
    }
    // Credentials of other clusters come from the same session.
    for other in sessions(config, environment, printer) {
        if other.oidc().is_some_and(|other| login.shares_session(other)) {
            removed.credentials += usize::from(removed.or_record_error(other.forget(now)));
        }
    }
    Ok(removed)
}

async fn all(
    config: &Kubeconfig,
    limit: GoDuration,
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
    for (caches, flag, name) in [
        (&mut credential_caches, "--credential-cache", "credentials.yaml"),
        (&mut session_caches, "--session-cache", "sessions.yaml"),
    ] {
        caches.extend(named_caches(config, flag));
        caches.extend(environment.config_file(name).map(PathBuf::from));
    }

    let mut removed = Removed::default();
    for path in credential_caches {
        removed.credentials += removed.or_record_error(ExecCache::new(path).clear(now));
    }
    // The keyring comes first, because it may wait for the user to unlock it. If the user stops the
    // program meanwhile, the sessions of the caches are not removed without their revocation.
    let (of_keyring, error) = take_all_from_keyring(&session_caches, environment, printer).await;
    // A keyring that no login uses need not work, unless it is known to have items.
    let uses_keyring = logins.iter().any(|login| login.keyring().is_some())
        || environment.non_empty(PINNIPED_REFRESH_TOKEN_STORE) == Some(RefreshTokenStore::Keyring.as_str());
    let has_items = matches!(error, Some(KeyringError::Locked | KeyringError::NotUnlocked));
    if let Some(error) = error.filter(|_| uses_keyring || has_items) {
        removed.record(error.into());
    }
    let mut taken = Vec::new();
    for path in &session_caches {
        taken.extend(removed.or_record_error(SessionCache::new(path).take_all(now)));
    }
    for session in of_keyring {
        merge_keyring_session(&mut taken, session);
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

/// Removes the refresh tokens of the sessions of these caches, and returns the sessions. Also
/// returns the last error.
async fn take_all_from_keyring(
    session_caches: &BTreeSet<PathBuf>,
    environment: &Environment,
    printer: Printer,
) -> (Vec<StoredSession>, Option<KeyringError>) {
    let unlock = Unlock::for_user(environment, printer);
    take_of_each(session_caches, async |path| Keyring::of_cache(path).take_all(unlock).await).await
}

/// Continues with the other caches after an error that may concern one item only. Stops after an
/// error that is the same for all caches, such as a locked keyring or a timeout.
async fn take_of_each(
    session_caches: &BTreeSet<PathBuf>,
    take_all: impl AsyncFn(&Path) -> (Vec<StoredSession>, Result<(), KeyringError>),
) -> (Vec<StoredSession>, Option<KeyringError>) {
    let (mut all, mut last) = (Vec::new(), None);
    for path in session_caches {
        let (taken, result) = take_all(path).await;
        all.extend(taken);
        match result {
            Ok(()) => {}
            Err(error @ (KeyringError::System(_) | KeyringError::Malformed)) => last = Some(error),
            Err(error) => return (all, Some(error)),
        }
    }
    (all, last)
}

/// Returns the caches that login commands name in this flag, also those that are not valid.
fn named_caches(config: &Kubeconfig, flag: &str) -> Vec<PathBuf> {
    let users = config.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()?.exec.as_ref());
    let logins = users
        .filter_map(|exec| exec.args.as_deref())
        .filter(|args| args.first().is_some_and(|word| word == "login"));
    let paths = logins.flat_map(|args| {
        args.iter().enumerate().filter_map(|(at, arg)| match arg.strip_prefix(flag)? {
            "" => args.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    });
    paths.filter(|path| !path.is_empty()).map(PathBuf::from).collect()
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

async fn revoke(login: &OidcLogin, session: &StoredSession, limit: GoDuration) -> Revocation {
    within(limit, Box::pin(login.revoke(session))).await.unwrap_or(Revocation::TimedOut)
}

/// Returns the name of the user if the kubeconfig itself has the token.
fn token_in_kubeconfig(config: &Kubeconfig, context: &str) -> Option<String> {
    let all = contexts::of(config);
    let entries = all.iter().find(|entries| entries.name == context)?;
    let login = login_command(entries.user?.exec.as_ref()?.args.as_deref()?)?;
    (!login.string("token").is_empty()).then(|| entries.user_name.to_owned())
}

/// Cuts a text of a server at [`MAX_ERROR`].
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_ERROR) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
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
                let error = shortened(&chain(error).to_string());
                format!("{session}; its refresh token could not be revoked: {error}")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::oidc::logout::RevocationError;
    use crate::login::session_cache::Tokens;

    fn session() -> StoredSession {
        let key = SessionKey {
            issuer: "https://i".into(),
            client_id: String::new(),
            scopes: Vec::new(),
            redirect_uri: String::new(),
            upstream_provider_name: String::new(),
        };
        StoredSession { key, tokens: Tokens::default(), last_used: None }
    }

    #[tokio::test]
    async fn an_item_that_cannot_be_removed_keeps_no_items_of_other_caches() {
        let caches: BTreeSet<PathBuf> = ["a", "b", "c"].map(PathBuf::from).into();
        for (error, expected) in [
            (KeyringError::System("the item is gone".into()), 3),
            (KeyringError::Malformed, 3),
            // It would be the same for the other caches, and may take long.
            (KeyringError::Timeout, 1),
            (KeyringError::NotUnlocked, 1),
        ] {
            let (taken, last) = take_of_each(&caches, async |path| {
                let is_first = path == Path::new("a");
                (vec![session()], if is_first { Err(error.clone()) } else { Ok(()) })
            })
            .await;
            assert_eq!((taken.len(), last), (expected, Some(error)));
        }
    }

    #[test]
    fn a_long_error_of_an_issuer_does_not_fill_the_output() {
        let error = RevocationError::Refused("x".repeat(10_000));
        let removed =
            Removed { sessions: vec![(session(), Revocation::Failed(error))], ..Removed::default() };
        let text = text(&removed, None);
        assert!(text.len() < 1000 && text.ends_with("xxx...\n"), "{text}");
    }

    #[test]
    fn the_text_of_an_error_is_cut() {
        assert_eq!(shortened("é"), "é");
        assert_eq!(shortened(&"é".repeat(MAX_ERROR)), "é".repeat(MAX_ERROR));
        assert_eq!(shortened(&"é".repeat(MAX_ERROR + 1)), format!("{}...", "é".repeat(MAX_ERROR)));
    }
}
