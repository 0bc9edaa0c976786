//! Identifies the client of a request.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use pinniped_delegated_auth::request::{
    AuthenticationResult, CachedVerification, Method, Peer, RequestAuthenticator,
};
use pinniped_http_server::Connection;
use pinniped_kube_request::identity::{KnownUser, User};

use crate::refusal::Refusal;

/// An identified client.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The user.
    pub(crate) user: KnownUser,
    /// The authentication method; `None` for the anonymous user.
    pub(crate) method: Option<Method>,
}

/// The values that are the same for all requests of a connection.
pub(crate) struct Client {
    verification: CachedVerification,
    /// The address of the client, in the format of `X-Forwarded-For`.
    pub(crate) address: Option<HeaderValue>,
}

impl Client {
    /// Returns the value of this connection, or `None` when a value of another type is stored
    /// there.
    pub(crate) fn of(connection: &Connection) -> Option<&Self> {
        connection.extension.get_or_init(|| Self {
            verification: CachedVerification::default(),
            address: address(connection.peer_addr.ip()),
        })
    }
}

fn address(ip: IpAddr) -> Option<HeaderValue> {
    HeaderValue::try_from(ip.to_canonical().to_string()).ok()
}

static ANONYMOUS: LazyLock<KnownUser> = LazyLock::new(|| User::anonymous().into());

/// Identifies the client and removes its credentials from the headers. Each request is
/// authenticated by itself, so an expired certificate is refused with the next request.
///
/// # Errors
/// [`Refusal::Unauthenticated`] for an invalid credential, and for an anonymous client unless
/// `admits_anonymous`. [`Refusal::Overloaded`] when a token cannot be reviewed now.
pub(crate) async fn authenticate(
    authenticator: &RequestAuthenticator,
    admits_anonymous: bool,
    headers: &mut HeaderMap,
    connection: Option<&Connection>,
) -> Result<Caller, Refusal> {
    let result = authenticator.authenticate(headers, peer(connection), Timestamp::now()).await;
    let caller = match result {
        AuthenticationResult::User { user, method } => Caller { user, method: Some(method) },
        AuthenticationResult::Anonymous => Caller { user: ANONYMOUS.clone(), method: None },
        AuthenticationResult::Overloaded => return Err(Refusal::Overloaded),
        AuthenticationResult::Rejected { reason } => {
            tracing::debug!(reason, "request could not be authenticated");
            return Err(Refusal::Unauthenticated);
        }
    };
    if caller.user.is_anonymous() {
        return if admits_anonymous { Ok(caller) } else { Err(Refusal::Unauthenticated) };
    }
    if let Some(connection) = connection {
        connection.permit.confirm();
    }
    Ok(caller)
}

/// Returns whether the certificate identifies the client of a new connection.
pub(crate) fn recognizes_client(authenticator: &RequestAuthenticator, connection: &Connection) -> bool {
    let cached = Client::of(connection).map(|client| &client.verification);
    authenticator.recognizes_client(
        Peer { chain: &connection.peer_certificates, cached, address: None },
        Timestamp::now(),
    )
}

/// Returns the user of a request if no token must be reviewed for that.
pub(crate) fn user_without_review(
    authenticator: &RequestAuthenticator,
    headers: &HeaderMap,
    connection: Option<&Connection>,
) -> Option<KnownUser> {
    authenticator.user_without_review(headers, peer(connection), Timestamp::now())
}

fn peer(connection: Option<&Connection>) -> Peer<'_> {
    Peer {
        chain: connection.map_or(&[][..], |connection| &connection.peer_certificates),
        cached: connection.and_then(Client::of).map(|client| &client.verification),
        address: connection.map(|connection| connection.peer_addr.ip()),
    }
}

/// Returns whether the client was identified before its token was read.
pub(crate) fn by_certificate(caller: &Result<Caller, Refusal>) -> bool {
    matches!(caller, Ok(Caller { method: Some(Method::FrontProxy | Method::ClientCertificate), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_mapped_address_is_written_as_ipv4() {
        for (ip, wanted) in
            [("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::7")]
        {
            assert_eq!(address(ip.parse().unwrap()).unwrap(), wanted);
        }
    }
}
