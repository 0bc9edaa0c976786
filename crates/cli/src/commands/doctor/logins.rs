//! Checks the kubeconfig users that log in with a service account token: whether the cluster issues
//! one, and whether the entry impersonates the identity that its plugin expects.

use kube::config::{AuthInfo, Kubeconfig};
use pinniped_concierge_api::config::{StrategyStatus, StrategyType};
use pinniped_concierge_api::login::{CredentialType, ImpersonatedUser};
use pinniped_concierge_domain::identity_digest::IdentityDigest;

use super::finding::Finding;
use super::observed::Observed;
use crate::flags::parse::ParseResult;
use crate::flags::tree::ROOT;
use crate::flags::{Delivery, Parsed, Value, parse};
use crate::kubeconfig::identity::{NoUsername, read_user};

/// Such a user in a kubeconfig that is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoginEntry {
    /// The kubeconfig, as messages name it.
    pub(super) file: String,
    /// The name of the user.
    pub(super) user: String,
    /// The method that adds the impersonation headers.
    pub(super) delivery: Delivery,
    /// The user that its fields impersonate.
    pub(super) impersonated: Result<Option<ImpersonatedUser>, NoUsername>,
    /// The identity that its plugin expects.
    pub(super) expected: Option<IdentityDigest>,
}

/// Returns the parsed plugin arguments of a user that logs in with a service account token; `None`
/// for other users.
fn token_login(user: &AuthInfo) -> Option<Box<Parsed>> {
    let args = user.exec.as_ref()?.args.clone().unwrap_or_default();
    let ParseResult::Run(parsed) = parse(&ROOT, &args) else { return None };
    let type_ = parsed.value("concierge-credential-type");
    let wanted = Value::CredentialType(CredentialType::ServiceAccountToken);
    (type_ == Some(&wanted)).then_some(parsed)
}

/// Returns such users of a kubeconfig.
pub(super) fn logins_of(config: &Kubeconfig, file: &str) -> Vec<LoginEntry> {
    let users = config.auth_infos.iter().filter_map(|named| Some((&named.name, named.auth_info.as_ref()?)));
    users
        .filter_map(|(name, user)| {
            let parsed = token_login(user)?;
            Some(LoginEntry {
                file: file.to_owned(),
                user: name.clone(),
                delivery: match parsed.value("impersonation-delivery") {
                    Some(Value::Delivery(delivery)) => *delivery,
                    _ => Delivery::Auto,
                },
                impersonated: read_user(name, user),
                expected: match parsed.value("expected-identity") {
                    Some(Value::Identity(digest)) => Some(*digest),
                    _ => None,
                },
            })
        })
        .collect()
}

/// Returns whether all users of this cluster are such users. The cluster entry then refers to the
/// API server, not to the proxy.
pub(super) fn only_token_logins(config: &Kubeconfig, cluster: &str) -> bool {
    let contexts = config.contexts.iter().filter_map(|named| named.context.as_ref());
    let users = contexts.filter(|context| context.cluster == cluster).map(|context| &context.user);
    let mut any = false;
    for user in users {
        let entry = config.auth_infos.iter().find(|named| Some(&named.name) == user.as_ref());
        if entry.and_then(|named| token_login(named.auth_info.as_ref()?)).is_none() {
            return false;
        }
        any = true;
    }
    any
}

/// The remedy that makes the plugin write the fields and the digest again, together.
const START_AGAIN: &str = "remove as, as-uid, as-groups and as-user-extra from the user and --expected-identity from \
                           its plugin's arguments: the next login writes them again";

/// Checks the logins.
pub(super) fn check(observed: &Observed) -> Vec<Finding> {
    let check = |entry| match &observed.hidden {
        // The status has the strategies.
        Some(why) => Finding::unseen(login_name(entry), why.clone()),
        None => check_one(observed, entry),
    };
    observed.logins.iter().map(check).collect()
}

fn login_name(entry: &LoginEntry) -> String {
    format!("user {} of kubeconfig {}", entry.user, entry.file)
}

fn check_one(observed: &Observed, entry: &LoginEntry) -> Finding {
    let LoginEntry { delivery, impersonated, expected, .. } = entry;
    let name = login_name(entry);
    let mut strategies = observed.strategies().iter();
    let issued = strategies.any(|strategy| {
        strategy.type_ == StrategyType::ServiceAccountToken && strategy.status == StrategyStatus::Success
    });
    if !issued {
        return Finding::problem(
            format!("{name} logs in with a service account token, which this Concierge does not issue"),
            "set spec.serviceAccountTokens.mode: enabled, or make a kubeconfig of another mode: pinniped get kubeconfig",
        );
    }
    match (impersonated, expected) {
        (Err(why), _) => Finding::problem(format!("{name}: {why}"), START_AGAIN),
        (Ok(Some(found)), Some(expected)) if IdentityDigest::of(found) == *expected => Finding::Fine(
            format!("{name} logs in with a service account token and impersonates {}", found.username),
        ),
        (Ok(Some(found)), Some(_)) => Finding::problem(
            format!("{name} impersonates {}, but its plugin expects another identity", found.username),
            START_AGAIN,
        ),
        (Ok(None), Some(_)) => Finding::problem(
            format!(
                "{name} has no impersonation fields, but its plugin expects them: the token would be sent without impersonation headers"
            ),
            START_AGAIN,
        ),
        (Ok(_), None) => Finding::Fine(format!(
            "{name} logs in with a service account token, with impersonation by {}",
            match delivery {
                Delivery::Auto | Delivery::Kubeconfig => "fields that the first login writes",
                Delivery::Wrapper => "pinniped kubectl",
                Delivery::Proxy => "pinniped proxy",
                Delivery::ExecHeaders => "a kubectl that sends the headers of its plugin",
            }
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::{observed, problems, strategy};
    use super::*;

    fn pinny() -> ImpersonatedUser {
        ImpersonatedUser { username: "pinny".into(), ..ImpersonatedUser::default() }
    }

    fn kubeconfig(fields: &str, more_args: &str) -> Kubeconfig {
        Kubeconfig::from_yaml(&format!(
            "
contexts:
- {{name: a, context: {{cluster: direct, user: u}}}}
- {{name: b, context: {{cluster: mixed, user: u}}}}
- {{name: c, context: {{cluster: mixed, user: t}}}}
users:
- name: t
  user: {{token: t}}
- name: certificates
  user: {{exec: {{command: pinniped, args: [login, static, --token=t]}}}}
- name: u
  user:
    {fields}
    exec:
      command: pinniped
      args: [login, static, --token=t, --concierge-credential-type=service-account-token{more_args}]
"
        ))
        .unwrap()
    }

    #[test]
    fn the_impersonation_fields_must_match_the_expected_identity() {
        let good = IdentityDigest::of(&pinny());
        let other = "0".repeat(64);
        let works = strategy("ServiceAccountToken", "Success", "Listening", "ready");
        let fails = strategy("ServiceAccountToken", "Error", "Disabled", "off");
        for (fields, args, strategy, wanted) in [
            ("as: pinny", format!(", --expected-identity={good}"), &works, None),
            ("", String::new(), &works, None),
            ("", ", --impersonation-delivery=proxy".to_owned(), &works, None),
            ("as: pinny", format!(", --expected-identity={other}"), &works, Some("expects another identity")),
            (
                "",
                format!(", --expected-identity={good}"),
                &works,
                Some("would be sent without impersonation headers"),
            ),
            ("as-groups: [a]", String::new(), &works, Some("without impersonating a user")),
            ("as: pinny", format!(", --expected-identity={good}"), &fails, Some("does not issue")),
        ] {
            let logins = logins_of(&kubeconfig(fields, &args), "f");
            assert_eq!(logins.len(), 1, "{logins:?}");
            let all = Observed { logins, ..observed(json!(null), std::slice::from_ref(strategy)) };
            let found = problems(check(&all));
            assert_eq!(found.len(), usize::from(wanted.is_some()), "{fields} {args}: {found:?}");
            assert!(wanted.is_none_or(|wanted| found[0].0.contains(wanted)), "{fields} {args}: {found:?}");
        }
    }

    #[test]
    fn users_that_log_in_at_an_issuer_for_a_service_account_token_are_found() {
        let works = strategy("ServiceAccountToken", "Success", "Listening", "ready");
        for (type_, found) in [("service-account-token", 1), ("client-certificate", 0)] {
            let config = Kubeconfig::from_yaml(&format!(
                "users: [{{name: u, user: {{exec: {{command: pinniped, args: [login, oidc, --issuer=https://i, \
                 --concierge-credential-type={type_}, --impersonation-delivery=wrapper]}}}}}}]"
            ))
            .unwrap();
            let logins = logins_of(&config, "f");
            assert_eq!(logins.len(), found, "{type_}: {logins:?}");
            let all = Observed { logins, ..observed(json!(null), std::slice::from_ref(&works)) };
            assert_eq!(problems(check(&all)), [], "{type_}");
        }
    }

    #[test]
    fn a_cluster_with_token_logins_only_need_not_be_the_proxy() {
        let config = kubeconfig("", "");
        assert!(only_token_logins(&config, "direct"));
        assert!(!only_token_logins(&config, "mixed"));
        assert!(!only_token_logins(&config, "unused"));
    }
}
