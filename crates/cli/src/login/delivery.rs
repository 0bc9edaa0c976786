//! Decides whether kubectl may get a credential, because the plugin does not learn which headers
//! kubectl sends.
//!
//! A service account token is only useful with the headers that impersonate its user. The plugin
//! therefore returns the token only if its arguments show that the headers are sent, or if its
//! caller has declared that it sends the headers in the response.

use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_domain::identity_digest::IdentityDigest;

use crate::flags::Delivery;

/// The action of the plugin for a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryDecision {
    /// Prints the credential.
    Print,
    /// Prints the credential and the headers that it needs.
    PrintWithHeaders,
    /// Writes the identity to the kubeconfig and fails, so that the user runs kubectl again.
    Record(Change),
    /// Prints no credential, and an error with the alternative.
    Refuse(Refusal),
}

/// The change of the identity in the kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There was no identity.
    First,
    /// There was another identity.
    Other,
    /// The identity must be removed: the credential needs none.
    Gone,
}

/// The reason why no credential is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kubeconfig is for `pinniped kubectl`.
    #[error(
        "this cluster requires impersonation headers, which this kubectl does not support; \
         run `pinniped kubectl -- ARGS` instead of `kubectl ARGS`"
    )]
    Wrapper,
    /// The kubeconfig is for `pinniped proxy`.
    #[error(
        "this cluster requires impersonation headers, which this kubectl does not support; \
         run `pinniped proxy` and use the kubeconfig that it prints"
    )]
    Proxy,
    /// The kubeconfig is for a kubectl that sends the headers of the plugin, and this kubectl has
    /// not declared that it does.
    #[error(
        "this cluster requires impersonation headers, which this kubectl does not support; \
         get another kubeconfig with --impersonation-delivery kubeconfig, wrapper or proxy \
         (a kubectl that sends the requestHeaders of its plugin sets PINNIPED_EXEC_REQUEST_HEADERS=true)"
    )]
    ExecHeaders,
    /// The identity changed while `pinniped kubectl` was running.
    #[error("your identity or group membership changed, please re-run the command")]
    ChangedMeanwhile,
}

/// Decides from the login's user to impersonate (none for a certificate), the identity that the
/// kubeconfig impersonates, the configured delivery, and whether the caller of the plugin sends the
/// returned headers.
pub fn decide(
    impersonate: Option<&ImpersonatedUser>,
    expected: Option<IdentityDigest>,
    delivery: Delivery,
    sends_request_headers: bool,
) -> DeliveryDecision {
    let found = impersonate.map(IdentityDigest::of);
    match (found, expected, delivery) {
        (None, None, _) => DeliveryDecision::Print,
        (Some(found), Some(expected), _) if found == expected => DeliveryDecision::Print,
        (_, Some(_), Delivery::Wrapper) => DeliveryDecision::Refuse(Refusal::ChangedMeanwhile),
        (None, Some(_), _) => DeliveryDecision::Record(Change::Gone),
        (Some(_), Some(_), _) => DeliveryDecision::Record(Change::Other),
        (Some(_), None, _) if sends_request_headers => DeliveryDecision::PrintWithHeaders,
        (Some(_), None, Delivery::Auto | Delivery::Kubeconfig) => DeliveryDecision::Record(Change::First),
        (Some(_), None, Delivery::Wrapper) => DeliveryDecision::Refuse(Refusal::Wrapper),
        (Some(_), None, Delivery::Proxy) => DeliveryDecision::Refuse(Refusal::Proxy),
        (Some(_), None, Delivery::ExecHeaders) => DeliveryDecision::Refuse(Refusal::ExecHeaders),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(groups: &[&str]) -> ImpersonatedUser {
        ImpersonatedUser {
            username: "pinny".into(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..ImpersonatedUser::default()
        }
    }

    #[test]
    fn a_token_is_only_returned_if_its_headers_are_sent() {
        use Delivery::{Auto, ExecHeaders, Kubeconfig, Proxy, Wrapper};
        let pinny = user(&["a"]);
        let same = Some(IdentityDigest::of(&pinny));
        let other = Some(IdentityDigest::of(&user(&["b"])));
        let refuse = DeliveryDecision::Refuse;
        for (who, expected, delivery, without, with_headers) in [
            (None, None, Auto, DeliveryDecision::Print, DeliveryDecision::Print),
            (None, None, Proxy, DeliveryDecision::Print, DeliveryDecision::Print),
            (
                None,
                same,
                Auto,
                DeliveryDecision::Record(Change::Gone),
                DeliveryDecision::Record(Change::Gone),
            ),
            (None, same, Wrapper, refuse(Refusal::ChangedMeanwhile), refuse(Refusal::ChangedMeanwhile)),
            (Some(&pinny), same, Auto, DeliveryDecision::Print, DeliveryDecision::Print),
            (Some(&pinny), same, Kubeconfig, DeliveryDecision::Print, DeliveryDecision::Print),
            (Some(&pinny), same, Wrapper, DeliveryDecision::Print, DeliveryDecision::Print),
            (
                Some(&pinny),
                other,
                Auto,
                DeliveryDecision::Record(Change::Other),
                DeliveryDecision::Record(Change::Other),
            ),
            (
                Some(&pinny),
                other,
                Kubeconfig,
                DeliveryDecision::Record(Change::Other),
                DeliveryDecision::Record(Change::Other),
            ),
            (
                Some(&pinny),
                other,
                Wrapper,
                refuse(Refusal::ChangedMeanwhile),
                refuse(Refusal::ChangedMeanwhile),
            ),
            (
                Some(&pinny),
                None,
                Auto,
                DeliveryDecision::Record(Change::First),
                DeliveryDecision::PrintWithHeaders,
            ),
            (
                Some(&pinny),
                None,
                Kubeconfig,
                DeliveryDecision::Record(Change::First),
                DeliveryDecision::PrintWithHeaders,
            ),
            (Some(&pinny), None, Wrapper, refuse(Refusal::Wrapper), DeliveryDecision::PrintWithHeaders),
            (Some(&pinny), None, Proxy, refuse(Refusal::Proxy), DeliveryDecision::PrintWithHeaders),
            (
                Some(&pinny),
                None,
                ExecHeaders,
                refuse(Refusal::ExecHeaders),
                DeliveryDecision::PrintWithHeaders,
            ),
        ] {
            let case = format!("{who:?} {expected:?} {delivery:?}");
            assert_eq!(decide(who, expected, delivery, false), without, "{case}");
            assert_eq!(decide(who, expected, delivery, true), with_headers, "{case}, sends headers");
        }
    }
}
