//! Who sends the request, and whether nobody may.

use std::sync::Arc;

use http::HeaderMap;
use jiff::Timestamp;
use pinniped_authn::request::{Method, Outcome, RequestAuthenticator};
use pinniped_core::anonymous::AnonymousPolicy;
use pinniped_core::identity::User;
use pinniped_core::request_info::RequestInfo;
use pinniped_serve::Connection;

use super::refusal::Refusal;

/// A client with a name.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) user: Arc<User>,
    /// `None` for the anonymous user.
    pub(super) method: Option<Method>,
}

/// Recognises the client and removes its credentials from the headers. Judged anew for each request, so an expired
/// certificate ends at the next one.
pub(super) async fn authenticate(
    authenticator: &RequestAuthenticator,
    policy: AnonymousPolicy,
    info: &RequestInfo,
    headers: &mut HeaderMap,
    connection: &Connection,
) -> Result<Caller, Refusal> {
    let outcome = authenticator.authenticate(headers, &connection.peer_certificates, Timestamp::now()).await;
    let caller = match outcome {
        Outcome::User { user, method } => Caller { user, method: Some(method) },
        Outcome::Anonymous => Caller { user: Arc::new(User::anonymous()), method: None },
        Outcome::Rejected { reason } => {
            tracing::debug!(reason, "request could not be authenticated");
            return Err(Refusal::Unauthenticated);
        }
    };
    if caller.user.is_anonymous() && !policy.admits(info) {
        return Err(Refusal::Unauthenticated);
    }
    Ok(caller)
}

/// Was the client recognised before anybody looked for a token?
pub(super) fn by_certificate(caller: &Result<Caller, Refusal>) -> bool {
    matches!(caller, Ok(Caller { method: Some(Method::FrontProxy | Method::ClientCertificate), .. }))
}
