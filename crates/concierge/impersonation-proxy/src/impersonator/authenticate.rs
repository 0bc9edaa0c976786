//! Identifies the caller and decides whether anonymous access is allowed.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use pinniped_delegated_auth::request::{KeptVerdict, Method, Outcome, Peer, RequestAuthenticator};
use pinniped_http_server::Connection;
use pinniped_kube_request::anonymous::AnonymousPolicy;
use pinniped_kube_request::identity::{KnownUser, User};
use pinniped_kube_request::request_info::RequestInfo;

use super::refusal::Refusal;

/// An identified client.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) user: KnownUser,
    /// The authentication method; `None` for the anonymous user.
    pub(super) method: Option<Method>,
}

/// The values that are the same for all requests of a connection.
pub(super) struct Client {
    verification: KeptVerdict,
    /// The address of the client, as written to `X-Forwarded-For`.
    pub(super) address: Option<HeaderValue>,
}

impl Client {
    /// Returns the value of this connection, or `None` when a value of another type is stored
    /// there.
    pub(super) fn of(connection: &Connection) -> Option<&Self> {
        connection.kept.get_or_init(|| Self {
            verification: KeptVerdict::default(),
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
pub(super) async fn authenticate(
    authenticator: &RequestAuthenticator,
    policy: AnonymousPolicy,
    info: &RequestInfo,
    headers: &mut HeaderMap,
    connection: &Connection,
    client: Option<&Client>,
) -> Result<Caller, Refusal> {
    let peer = Peer {
        chain: &connection.peer_certificates,
        kept: client.map(|client| &client.verification),
        address: Some(connection.peer_addr.ip()),
    };
    let result = authenticator.authenticate(headers, peer, Timestamp::now()).await;
    let caller = match result {
        Outcome::User { user, method } => Caller { user, method: Some(method) },
        Outcome::Anonymous => Caller { user: ANONYMOUS.clone(), method: None },
        Outcome::Overloaded => return Err(Refusal::Overloaded),
        Outcome::Rejected { reason } => {
            tracing::debug!(reason, "request could not be authenticated");
            return Err(Refusal::Unauthenticated);
        }
    };
    if caller.user.is_anonymous() {
        return if policy.admits(info) { Ok(caller) } else { Err(Refusal::Unauthenticated) };
    }
    connection.permit.confirm();
    Ok(caller)
}

/// Returns whether the certificate identifies the client of a new connection.
pub(super) fn knows(authenticator: &RequestAuthenticator, connection: &Connection) -> bool {
    let cached = Client::of(connection).map(|client| &client.verification);
    authenticator
        .knows(Peer { chain: &connection.peer_certificates, kept: cached, address: None }, Timestamp::now())
}

/// Returns whether the client was identified before its token was read.
pub(super) fn by_certificate(caller: &Result<Caller, Refusal>) -> bool {
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
