//! The response of a login command to kubectl: the credential, or an error that explains how to
//! send the headers that the credential needs.

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::identity_digest::{IdentityDigest, NotADigest};
use pinniped_go_compat::json as gojson;
use pinniped_kube_types::client_auth::ExecCredential;

use crate::environment::{Environment, PINNIPED_EXPECTED_IDENTITY};
use crate::kubeconfig::identity::{Recorded, kubectl_flags, record};
use crate::login::delivery::{Change, DeliveryDecision, Refusal, decide};
use crate::login::session::Session;
use crate::login::{Login, request_headers};
use crate::printer::Printer;
use crate::{OutputError, write};

/// kubectl may not get the credential.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The variable is not a digest.
    #[error("{PINNIPED_EXPECTED_IDENTITY}")]
    ExpectedIdentity(#[from] NotADigest),
    /// The kubeconfig has another identity. The text explains to the user how to continue.
    #[error("{0}")]
    Identity(String),
    /// The configured delivery does not permit it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Prints the response for the result of `session`.
pub(super) fn respond(
    login: Login,
    session: &Session,
    environment: &Environment,
    printer: Printer,
) -> Result<(), ResponseError> {
    let expected = match environment.non_empty(PINNIPED_EXPECTED_IDENTITY) {
        Some(text) if login.impersonate.is_some() => Some(text.parse::<IdentityDigest>()?),
        _ => session.expected(),
    };
    let user = login.impersonate.as_ref();
    let mut credential = login.credential;
    match decide(user, expected, session.delivery(), environment.sends_request_headers()) {
        DeliveryDecision::Print => {}
        DeliveryDecision::PrintWithHeaders => credential.request_headers = request_headers(user),
        DeliveryDecision::Record(change) => {
            return Err(ResponseError::Identity(record_and_report(change, user, environment)));
        }
        DeliveryDecision::Refuse(refusal) => return Err(refusal.into()),
    }
    let response = gojson::to_string(&ExecCredential::with_status(credential));
    Ok(write(printer, format!("{response}\n").as_bytes())?)
}

/// The loss that a change of the kubeconfig could not avoid.
const COMMENTS_LOST: &str = " without its comments, which could not be preserved";

/// Records the identity and returns the error text: kubectl has already read its kubeconfig, so the
/// user must run it again in any case.
fn record_and_report(change: Change, user: Option<&ImpersonatedUser>, environment: &Environment) -> String {
    let lost = |comments_lost| if comments_lost { COMMENTS_LOST } else { "" };
    match (record(environment, user), change, user) {
        (Ok(Recorded::Written { path, comments_lost }), Change::First, _) => {
            format!(
                "identity recorded in {}{}; please re-run the command",
                path.display(),
                lost(comments_lost)
            )
        }
        (Ok(Recorded::Written { comments_lost, .. }), Change::Other, _) => format!(
            "your identity or group membership changed; kubeconfig updated{}, please re-run",
            lost(comments_lost)
        ),
        (Ok(Recorded::Written { comments_lost, .. }), Change::Gone, _) => format!(
            "the cluster does not need impersonation headers any more; kubeconfig updated{}, please re-run",
            lost(comments_lost)
        ),
        (Ok(Recorded::Already(path)), _, Some(user)) => format!(
            "identity recorded in {} by another run; please re-run the command. If kubectl reads another kubeconfig, \
             name it in KUBECONFIG, or {}",
            path.display(),
            by_flags(user)
        ),
        (Ok(Recorded::Already(path)), _, None) => {
            format!("kubeconfig {} was updated by another run; please re-run the command", path.display())
        }
        (Err(why), _, Some(user)) => format!(
            "this cluster requires impersonation headers, and the identity to impersonate could not be written to the \
             kubeconfig: {why}; {}",
            by_flags(user)
        ),
        (Err(why), _, None) => format!(
            "the cluster does not need impersonation headers any more, and that could not be written to the \
             kubeconfig: {why}; remove as, as-uid, as-groups, as-user-extra and --expected-identity from its user"
        ),
    }
}

fn by_flags(user: &ImpersonatedUser) -> String {
    format!(
        "run kubectl with {PINNIPED_EXPECTED_IDENTITY}={} in its environment and with these flags: {}",
        IdentityDigest::of(user),
        kubectl_flags(user)
    )
}
