//! The HTTPS clients of the commands: Concierge, OIDC discovery, validation of a kubeconfig.

use std::time::Duration;

use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects};
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::tls::{ALPN_HTTP, Profile, Roots, TlsError, client_config};

use crate::version;

/// The maximum size of a response body in bytes, far above every expected response.
const MAX_BODY: usize = 8 * 1024 * 1024;

/// Creates a client for a profile and a set of roots. It follows no redirect, and the caller sets
/// the deadlines.
///
/// # Errors
///
/// Returns an error if the roots cannot be used.
pub fn client(dialer: TcpDialer, profile: Profile, roots: Roots) -> Result<HttpsClient, TlsError> {
    client_with(dialer, profile, roots, None, Redirects::Return)
}

/// Creates a client with a deadline for each request. Its requests to one server share a connection
/// if they follow each other.
///
/// # Errors
///
/// Returns an error if the roots cannot be used.
pub fn client_with(
    dialer: TcpDialer,
    profile: Profile,
    roots: Roots,
    timeout: Option<Duration>,
    redirects: Redirects,
) -> Result<HttpsClient, TlsError> {
    pinniped_pki::install_crypto_provider();
    Ok(HttpsClient::new(HttpsClientParams {
        dialer,
        tls: client_config(profile, roots, ALPN_HTTP)?,
        user_agent: version::user_agent(),
        max_body: MAX_BODY,
        timeout,
        redirects,
        connections: Connections::Keep,
    }))
}
