//! A login session: the options of a login command, and the steps from them to a credential.
//!
//! The options come from the command line, when kubectl runs the program as a plugin, or from the
//! plugin entry of a kubeconfig user, when `pinniped kubectl` or `pinniped proxy` log in. Both use
//! the same cache entries.

use std::collections::HashMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{AuthInfo, ExecConfig};
use serde_json::{Value as Json, json};

use pinniped_concierge_api::login::CredentialType;
use pinniped_concierge_domain::identity_digest::IdentityDigest;
use pinniped_go_compat::base64 as gobase64;
use pinniped_go_compat::{json as gojson, json::quote};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_kube_types::client_auth::{Cluster, ExecCredentialStatus};
use pinniped_secret::SecretString;

use super::cache_file::CacheFileError;
use super::exec_cache::{ExecCache, Hit, oidc_key, static_key};
use super::oidc::{OidcError, OidcLogin, OidcOptionsError};
use super::workload::{WorkloadError, WorkloadToken};
use super::{Login, exec_info};
use crate::concierge::{Concierge, ConciergeParams, ExchangeError, ParamsError};
use crate::environment::{Environment, KUBERNETES_EXEC_INFO};
use crate::flags::parse::ParseResult;
use crate::flags::tree::{Action, DEFAULT_SUFFIX, ROOT};
use crate::flags::{Delivery, Parsed, Value, parse};
use crate::kubeconfig::{self, ClusterCaError};
use crate::printer::Printer;

/// The timeout of the exchange.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(30);
/// The flag with the expected identity, which does not affect the login.
pub const EXPECTED_IDENTITY: &str = "--expected-identity=";
/// The flag with the delivery of the headers, which does not affect the login.
pub const DELIVERY: &str = "--impersonation-delivery=";

/// A login that can be repeated.
#[derive(Clone)]
pub struct Session {
    token: TokenSource,
    concierge: Option<Concierge>,
    /// A description for the log.
    described: Vec<(&'static str, Json)>,
    credential_type: CredentialType,
    delivery: Delivery,
    expected: Option<IdentityDigest>,
    cache: Option<ExecCache>,
    key: String,
    dialer: TcpDialer,
    printer: Printer,
}

/// The source of the token that the Concierge exchanges.
#[derive(Clone)]
enum TokenSource {
    Static(SecretString),
    Oidc(OidcLogin),
    Workload(WorkloadToken),
}

/// The options of a login are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no token.
    #[error("one of --token or --token-env must be set")]
    NoToken,
    /// The variable with the token does not exist.
    #[error("--token-env variable {} is not set", quote(.0))]
    TokenVariableNotSet(String),
    /// The variable with the token is empty.
    #[error("--token-env variable {} is empty", quote(.0))]
    TokenVariableEmpty(String),
    /// The Concierge cannot be used.
    #[error("invalid Concierge parameters")]
    Concierge(#[from] ParamsError),
    /// The default path of the cache is not known.
    #[error(
        "could not find the credential cache: neither XDG_CONFIG_HOME nor HOME is set, \
         set one of them or use --credential-cache"
    )]
    NoCachePath,
    /// The options of an OIDC login are invalid.
    #[error(transparent)]
    Oidc(#[from] OidcOptionsError),
    /// The token of the workload cannot be found.
    #[error("could not log in with the token of this workload")]
    Workload(#[from] WorkloadError),
    /// The cluster entry cannot be passed to the plugin.
    #[error("invalid configuration")]
    Cluster(#[from] ClusterCaError),
}

/// There is no credential.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// The login at the OIDC issuer failed.
    #[error("could not complete Pinniped login")]
    Oidc(#[source] Box<OidcError>),
    /// The token of the workload cannot be used.
    #[error("could not log in with the token of this workload")]
    Workload(#[from] WorkloadError),
    /// The exchange of the token for a credential failed.
    #[error("could not complete Concierge credential exchange")]
    Exchange(#[from] ExchangeError),
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("concierge", &self.concierge)
            .field("credential_type", &self.credential_type)
            .field("delivery", &self.delivery)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Creates the session of a parsed `login` command; `args` are its arguments.
    ///
    /// # Errors
    ///
    /// Returns an error for the first flag that is wrong or missing.
    pub fn from_flags(
        parsed: &Parsed,
        args: &[String],
        environment: &Environment,
        printer: Printer,
    ) -> Result<Self, SessionError> {
        let cluster = exec_info::cluster(environment.variable(KUBERNETES_EXEC_INFO));
        Self::new(parsed, args, cluster.as_ref(), environment, printer)
    }

    /// Creates the session of a kubeconfig user's plugin without running the plugin. Returns
    /// `Ok(None)` if the user has no plugin that is a `login` command of this program.
    ///
    /// # Errors
    ///
    /// Returns an error if the plugin's arguments or its cluster entry are invalid.
    pub fn of_user(
        user: &AuthInfo,
        cluster_name: &str,
        cluster: &kube::config::Cluster,
        environment: &Environment,
        printer: Printer,
    ) -> Result<Option<Self>, SessionError> {
        let Some(exec) = &user.exec else { return Ok(None) };
        let args = exec.args.clone().unwrap_or_default();
        let Some(parsed) = login_command(&args) else { return Ok(None) };
        let environment = environment.with_variables(variables(exec));
        let info = match exec.provide_cluster_info {
            true => Some(cluster_info(cluster_name, cluster)?),
            false => None,
        };
        Self::new(&parsed, &args, info.as_ref(), &environment, printer).map(Some)
    }

    fn new(
        parsed: &Parsed,
        args: &[String],
        cluster: Option<&Cluster>,
        environment: &Environment,
        printer: Printer,
    ) -> Result<Self, SessionError> {
        if parsed.action == Action::LoginStatic
            && parsed.string("token").is_empty()
            && parsed.string("token-env").is_empty()
        {
            return Err(SessionError::NoToken);
        }
        let credential_type = match parsed.value("concierge-credential-type") {
            Some(Value::CredentialType(given)) => given.clone(),
            _ => CredentialType::ClientCertificate,
        };
        let params = concierge_params(parsed, credential_type.clone());
        let concierge = match parsed.bool("enable-concierge") {
            true => Some(Concierge::new(&params)?),
            false => None,
        };
        let token = match parsed.action {
            Action::LoginOidc => TokenSource::Oidc(OidcLogin::from_flags(parsed, environment, printer)?),
            Action::LoginToken => TokenSource::Workload(WorkloadToken::from_flags(parsed, environment)?),
            _ => TokenSource::Static(static_token(parsed, environment)?),
        };
        let cache = credential_cache(parsed, environment)?;
        // Sessions that differ only in the expected identity share the credential.
        let lasting =
            args.iter().filter(|arg| ![EXPECTED_IDENTITY, DELIVERY].iter().any(|flag| arg.starts_with(flag)));
        let lasting: Vec<String> = lasting.cloned().collect();
        let key = match &token {
            TokenSource::Static(token) => static_key(&lasting, token.expose(), cluster),
            TokenSource::Oidc(_) => oidc_key(&lasting, cluster),
            TokenSource::Workload(token) => static_key(&lasting, token.identity().expose(), cluster),
        };
        Ok(Self {
            token,
            concierge,
            described: vec![
                ("endpoint", json!(params.endpoint)),
                ("authenticator type", json!(params.authenticator_type)),
                ("authenticator name", json!(params.authenticator_name)),
            ],
            credential_type,
            delivery: match parsed.value("impersonation-delivery") {
                Some(Value::Delivery(delivery)) => *delivery,
                _ => Delivery::Auto,
            },
            expected: match parsed.value("expected-identity") {
                Some(Value::Identity(digest)) => Some(*digest),
                _ => None,
            },
            cache,
            key,
            dialer: TcpDialer::new(environment),
            printer,
        })
    }

    /// Returns the configured delivery of the headers.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Returns the identity that the kubeconfig already impersonates.
    pub fn expected(&self) -> Option<IdentityDigest> {
        self.expected
    }

    /// Returns whether the login requests a service account token.
    pub fn wants_service_account_token(&self) -> bool {
        self.concierge.is_some() && self.credential_type == CredentialType::ServiceAccountToken
    }

    /// Returns whether another login results in a credential that is valid for longer.
    pub fn can_renew(&self) -> bool {
        self.concierge.is_some() || matches!(self.token, TokenSource::Oidc(_))
    }

    /// Returns a session that never involves the user.
    #[must_use]
    pub fn in_background(&self) -> Self {
        let mut session = self.clone();
        if let TokenSource::Oidc(login) = &self.token {
            session.token = TokenSource::Oidc(login.in_background());
        }
        session
    }

    /// Returns the cache; `None` if it is disabled.
    pub fn cache(&self) -> Option<&ExecCache> {
        self.cache.as_ref()
    }

    /// Returns a cached login, if it is valid at `now`. Reads a file.
    pub fn cached(&self, now: Timestamp) -> Option<Hit> {
        let hit = self.cache.as_ref()?.get(&self.key, now)?;
        // Another program that rewrote the file may have dropped unknown fields. A token without
        // the user to impersonate is useless.
        let half = self.wants_service_account_token()
            && !hit.login.credential.token.is_empty()
            && hit.login.impersonate.is_none();
        (!half).then_some(hit)
    }

    /// Returns the cached login that is valid at `now`, without a change of the cache.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the read.
    pub fn peek(&self, now: Timestamp) -> Result<Option<Login>, CacheFileError> {
        self.cache.as_ref().map_or(Ok(None), |cache| cache.peek(&self.key, now))
    }

    /// Removes the cached login. Returns whether there was one that is valid at `now`.
    ///
    /// # Errors
    ///
    /// Returns the error that prevented the change.
    pub fn forget(&self, now: Timestamp) -> Result<bool, CacheFileError> {
        self.cache.as_ref().map_or(Ok(false), |cache| cache.remove(&self.key, now))
    }

    /// Returns the login at an OIDC issuer, if the token comes from one.
    pub fn oidc(&self) -> Option<&OidcLogin> {
        match &self.token {
            TokenSource::Oidc(login) => Some(login),
            TokenSource::Static(_) | TokenSource::Workload(_) => None,
        }
    }

    /// Logs in without reading the cache, and stores the result in it.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no credential.
    pub async fn fresh(&self) -> Result<Login, LoginError> {
        let login = self.exchange().await?;
        if let (Some(cache), true) = (&self.cache, self.can_renew()) {
            if matches!(self.token, TokenSource::Oidc(_)) {
                self.printer.debug("caching cluster credential for future use.", &[]);
            }
            // A credential that cannot be cached is still valid.
            let _ = cache.put(&self.key, &login, Timestamp::now());
        }
        Ok(login)
    }

    /// Logs in without using the cache of cluster credentials.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no credential.
    pub async fn exchange(&self) -> Result<Login, LoginError> {
        let (before, after) = self.token.messages();
        let (token, expiration_timestamp) = self.token().await?;
        let Some(concierge) = &self.concierge else {
            if matches!(self.token, TokenSource::Oidc(_)) {
                self.printer.debug("No concierge configured, skipping token credential exchange", &[]);
            }
            let credential =
                ExecCredentialStatus { token, expiration_timestamp, ..ExecCredentialStatus::default() };
            return Ok(Login { credential, impersonate: None });
        };
        self.printer.debug(before, &self.described);
        let exchange = concierge.exchange(token.expose(), self.dialer.clone(), self.printer);
        let login =
            tokio::time::timeout(EXCHANGE_LIMIT, exchange).await.unwrap_or(Err(ExchangeError::Timeout))?;
        self.printer.debug(after, &[]);
        Ok(login)
    }

    /// Returns the token for the Concierge, and the end of its validity, if it is known.
    async fn token(&self) -> Result<(SecretString, Option<Time>), LoginError> {
        match &self.token {
            TokenSource::Static(token) => Ok((token.clone(), None)),
            TokenSource::Workload(workload) => Ok(workload.token(self.dialer.clone()).await?),
            TokenSource::Oidc(login) => {
                self.printer.debug("Performing OIDC login", &login.description());
                let token = login.id_token().await.map_err(|error| LoginError::Oidc(Box::new(error)))?;
                Ok((token.token, token.expiry))
            }
        }
    }

    /// Returns a login that is valid for at least `left`: a cached one, or a fresh one, which may
    /// have a shorter lifetime.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no credential.
    pub async fn login(&self, left: SignedDuration) -> Result<Login, LoginError> {
        let session = self.clone();
        // Another process may hold the lock of the file for a while.
        let stored = tokio::task::spawn_blocking(move || {
            let now = Timestamp::now();
            let login = session.cached(now)?.login;
            let good = login.expires().is_some_and(|end| end.duration_since(now) >= left);
            good.then_some(login)
        });
        match stored.await {
            Ok(Some(login)) => Ok(login),
            _ => self.fresh().await,
        }
    }
}

/// Parses the arguments of a plugin; `None` if they are no `login` command of this program.
pub fn login_command(args: &[String]) -> Option<Parsed> {
    match parse(&ROOT, args) {
        ParseResult::Run(parsed)
            if matches!(parsed.action, Action::LoginStatic | Action::LoginOidc | Action::LoginToken) =>
        {
            Some(*parsed)
        }
        _ => None,
    }
}

impl TokenSource {
    /// Returns the log messages before and after the exchange.
    fn messages(&self) -> (&'static str, &'static str) {
        match self {
            Self::Oidc(_) => (
                "Exchanging token for cluster credential",
                "Successfully exchanged token for cluster credential.",
            ),
            Self::Static(_) => (
                "exchanging static token for cluster credential",
                "exchanged static token for cluster credential",
            ),
            Self::Workload(_) => (
                "exchanging the token of the workload for cluster credential",
                "exchanged the token of the workload for cluster credential",
            ),
        }
    }
}

/// Returns the token of `login static`.
fn static_token(parsed: &Parsed, environment: &Environment) -> Result<SecretString, SessionError> {
    let variable = parsed.string("token-env");
    if variable.is_empty() {
        return Ok(parsed.string("token").into());
    }
    match environment.variable(&variable) {
        None => Err(SessionError::TokenVariableNotSet(variable)),
        Some("") => Err(SessionError::TokenVariableEmpty(variable)),
        Some(token) => Ok(token.into()),
    }
}

fn concierge_params(parsed: &Parsed, credential_type: CredentialType) -> ConciergeParams {
    ConciergeParams {
        endpoint: parsed.string("concierge-endpoint"),
        ca_bundle_data: parsed.string("concierge-ca-bundle-data"),
        authenticator_type: parsed.string("concierge-authenticator-type"),
        authenticator_name: parsed.string("concierge-authenticator-name"),
        api_group_suffix: parsed.string_or("concierge-api-group-suffix", DEFAULT_SUFFIX),
        credential_type,
    }
}

/// Returns the requested cache; `None` if it is disabled.
fn credential_cache(parsed: &Parsed, environment: &Environment) -> Result<Option<ExecCache>, SessionError> {
    let path = match parsed.given("credential-cache") {
        Some(path) => path.to_owned(),
        None => environment.config_file("credentials.yaml").ok_or(SessionError::NoCachePath)?,
    };
    Ok((!path.is_empty()).then(|| ExecCache::new(path)))
}

fn variables(exec: &ExecConfig) -> HashMap<String, String> {
    let entries = exec.env.iter().flatten();
    entries.filter_map(|entry| Some((entry.get("name")?.clone(), entry.get("value")?.clone()))).collect()
}

/// Returns the cluster information that kubectl would pass to the plugin of a user.
fn cluster_info(name: &str, cluster: &kube::config::Cluster) -> Result<Cluster, ClusterCaError> {
    const EXTENSION: &str = "client.authentication.k8s.io/exec";
    let ca = kubeconfig::certificate_authority(name, cluster)?;
    let config = cluster.extensions.iter().flatten().find(|named| named.name == EXTENSION);
    Ok(Cluster {
        server: cluster.server.clone().unwrap_or_default(),
        tls_server_name: cluster.tls_server_name.clone().unwrap_or_default(),
        insecure_skip_tls_verify: cluster.insecure_skip_tls_verify.unwrap_or_default(),
        certificate_authority_data: gobase64::encode(&ca),
        proxy_url: cluster.proxy_url.clone().unwrap_or_default(),
        disable_compression: cluster.disable_compression.unwrap_or_default(),
        config: config.and_then(|named| {
            serde_json::value::RawValue::from_string(gojson::to_string(&named.extension)).ok()
        }),
    })
}
