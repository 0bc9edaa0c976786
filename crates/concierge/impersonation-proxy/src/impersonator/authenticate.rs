//! Who sends the request, and whether nobody may.

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

/// A client with a name.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) user: KnownUser,
    /// `None` for the anonymous user.
    pub(super) method: Option<Method>,
}

/// What is the same for all requests of a connection.
pub(super) struct Client {
    verdict: KeptVerdict,
    /// Its address, as `X-Forwarded-For` has it.
    pub(super) address: Option<HeaderValue>,
}

impl Client {
    /// That of this connection; `None` when something else is kept there.
    pub(super) fn of(connection: &Connection) -> Option<&Self> {
        connection.kept.get_or_init(|| Self {
            verdict: KeptVerdict::default(),
            address: address(connection.peer_addr.ip()),
        })
    }
}

fn address(ip: IpAddr) -> Option<HeaderValue> {
    HeaderValue::try_from(ip.to_canonical().to_string()).ok()
}

static ANONYMOUS: LazyLock<KnownUser> = LazyLock::new(|| User::anonymous().into());

/// Recognises the client and removes its credentials from the headers. Judged anew for each request, so an expired
/// certificate ends at the next one.
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
        kept: client.map(|client| &client.verdict),
        address: Some(connection.peer_addr.ip()),
    };
    let outcome = authenticator.authenticate(headers, peer, Timestamp::now()).await;
    let caller = match outcome {
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

/// Whether the client of a new connection is known by its certificate.
pub(super) fn knows(authenticator: &RequestAuthenticator, connection: &Connection) -> bool {
    let kept = Client::of(connection).map(|client| &client.verdict);
    authenticator.knows(Peer { chain: &connection.peer_certificates, kept, address: None }, Timestamp::now())
}

/// Was the client recognised before anybody looked for a token?
pub(super) fn by_certificate(caller: &Result<Caller, Refusal>) -> bool {
    matches!(caller, Ok(Caller { method: Some(Method::FrontProxy | Method::ClientCertificate), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_fourth_version_is_written_as_one_however_it_came() {
        for (ip, wanted) in
            [("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "10.0.0.7"), ("2001:db8::7", "2001:db8::7")]
        {
            assert_eq!(address(ip.parse().unwrap()).unwrap(), wanted);
        }
    }
}
