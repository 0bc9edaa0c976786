//! Builds an authenticator: discovers the issuer, fetches its keys and compiles the spec.

use std::time::Duration;

use jiff::Timestamp;
use pinniped_concierge_api::authentication::JwtAuthenticatorSpec;
use pinniped_concierge_domain::jwt_authenticator::conditions::{Progress, check_keys_url};
use pinniped_concierge_domain::jwt_authenticator::validation::{self, Source};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_error::chain;
use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_jose::{Algorithm, MAX_KEY_SET_SIZE};
use pinniped_oidc::{IdTokenVerifier, RemoteKeySet, WaitLimits, discover};
use pinniped_pki::tls::{ALPN_HTTP, CipherRestriction, Profile, Roots, TlsError, client_config_with};
use url::Url;

use super::JwtAuthenticator;
use super::distributed::DistributedClaim;
use super::expression::ExpressionCompiler;

/// Deadline of one request to a provider.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response of a provider, in bytes.
const MAX_RESPONSE: usize = MAX_KEY_SET_SIZE;

/// The time by which the clock of the issuer may be ahead.
const NOT_BEFORE_LEEWAY: Duration = Duration::from_secs(60);

/// The limits on logins that wait for the keys of an issuer. Such a login holds a permit.
///
/// An issuer in operation responds in less than a second, and requests begin a second apart, so a
/// login that waits for two requests completes within the limit. The number is half of the
/// logins that one authenticator can have at once (`exchange.rs` of the server), so that clients
/// that invent keys leave permits for logins with known keys while an issuer does not respond.
pub(super) const KEY_WAIT_LIMITS: WaitLimits =
    WaitLimits { max_wait: Duration::from_secs(5), max_callers: 48 };

/// The algorithms of tokens. Those of upstream: the one that every provider has, and the one of the
/// Supervisor.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Rs256, Algorithm::Es256];

/// Parameters of connections to a provider.
#[derive(Clone, Debug)]
pub struct ProviderParams<'a> {
    /// The roots to trust.
    pub roots: Roots,
    /// The proxies between this pod and providers.
    pub proxies: &'a ProxyEnvironment,
    /// The TLS 1.2 cipher suites that are allowed.
    pub ciphers: &'a CipherRestriction,
}

/// Builds an authenticator for a spec whose issuer is a URL. Its keys are fetched.
///
/// # Errors
///
/// Returns the step that failed.
pub async fn validate(
    spec: &JwtAuthenticatorSpec,
    params: ProviderParams<'_>,
) -> Result<JwtAuthenticator, Progress> {
    let client = client(params).map_err(|error| Progress::DiscoveryFailed(StatusText::of(&chain(&error))))?;
    let provider = discover(&client, &spec.issuer).await;
    let provider = provider.map_err(|error| Progress::DiscoveryFailed(StatusText::of(&chain(&error))))?;
    check_keys_url(&provider.jwks_uri).map_err(Progress::KeysUrlInvalid)?;
    let not_fetched = |error: &dyn std::fmt::Display| {
        Progress::KeysNotFetched(StatusText::from(format!("fetching keys {error}")))
    };
    let url = Url::parse(&provider.jwks_uri).map_err(|error| not_fetched(&error))?;
    let keys = RemoteKeySet::new(url, client.clone()).with_wait_limits(KEY_WAIT_LIMITS);
    keys.fetch().await.map_err(|error| not_fetched(&error))?;
    let rules = validation::validate(spec, &ExpressionCompiler::default()).map_err(Progress::SpecInvalid)?;
    let groups = match &rules.groups {
        Source::Claim(name) => Some(DistributedClaim::new(name, client)),
        Source::Expression(_) => None,
    };
    let verifier = IdTokenVerifier {
        issuer: spec.issuer.clone(),
        audience: spec.audience.clone(),
        algorithms: ALGORITHMS.to_vec(),
        not_before_leeway: NOT_BEFORE_LEEWAY,
    };
    Ok(JwtAuthenticator { verifier, keys, rules, groups, now: Timestamp::now })
}

fn client(params: ProviderParams<'_>) -> Result<HttpsClient, TlsError> {
    let ProviderParams { roots, proxies, ciphers } = params;
    Ok(HttpsClient::new(HttpsClientParams {
        dialer: TcpDialer::new(proxies.clone()),
        tls: client_config_with(Profile::Default, ciphers, roots, ALPN_HTTP)?,
        user_agent: crate::user_agent(),
        max_body: MAX_RESPONSE,
        timeout: Some(REQUEST_TIMEOUT),
        redirects: Redirects::Follow,
        connections: Connections::Close,
    }))
}
