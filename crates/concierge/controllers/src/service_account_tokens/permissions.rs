//! Checks whether the permissions of the opt-in manifest exist, one by one, so that an error names
//! the missing one.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use pinniped_concierge_domain::service_account_tokens::{Form, Settings};
use tokio::time::Instant;

use super::account::{Account, MANIFEST};
use pinniped_controller::client::error_text;

/// Time for which a successful check is cached. A caller that is refused in the meantime reports
/// it.
const CACHE_LIFETIME: Duration = Duration::from_secs(600);

/// A permission: verbs on a resource.
struct Permission {
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verbs: &'static [&'static str],
}

const fn permission(
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verbs: &'static [&'static str],
) -> Permission {
    Permission { group, resource, subresource, verbs }
}

/// The permissions of the Concierge's account in the namespace of the service accounts.
const OWN: [Permission; 3] = [
    permission("", "serviceaccounts", "", &["get", "list", "create", "update", "delete"]),
    permission("", "serviceaccounts", "token", &["create"]),
    permission("", "secrets", "", &["list", "create", "delete"]),
];

const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The permissions of the account that writes roles.
const WRITER: [Permission; 5] = [
    permission(RBAC, "clusterroles", "", &["get", "list", "create", "update", "delete"]),
    permission(RBAC, "clusterrolebindings", "", &["get", "list", "create", "update", "delete"]),
    permission("", "users", "", &["impersonate"]),
    permission("", "groups", "", &["impersonate"]),
    // UIDs and extra attributes: only a wildcard on the group covers all extra keys.
    permission(AUTHENTICATION, "*", "", &["impersonate"]),
];

/// The additional permissions of that account for granting constrained impersonation.
const CONSTRAINED: [Permission; 2] = [
    permission(AUTHENTICATION, "*", "", &["impersonate:user-info"]),
    permission("*", "*", "", &["impersonate-on:user-info:get", "impersonate-on:user-info:deletecollection"]),
];

/// The cached result of the check and its time.
#[derive(Default)]
pub(super) struct Rights {
    there: Option<(Settings, Form, Instant)>,
}

impl Rights {
    /// Checks all permissions. The error names the first missing permission and its remedy.
    pub(super) async fn check(
        &mut self,
        own: &kube::Client,
        account: &Account,
        settings: &Settings,
        form: Form,
    ) -> Result<(), String> {
        let is_cached = self.there.as_ref().is_some_and(|(of, in_form, since)| {
            of == settings && *in_form == form && since.elapsed() < CACHE_LIFETIME
        });
        if is_cached {
            return Ok(());
        }
        self.there = None;
        let writer = account.client().await.map_err(|error| error.to_string())?;
        let further = if form == Form::Constrained { &CONSTRAINED[..] } else { &[] };
        for permission in WRITER.iter().chain(further) {
            if let Some(verb) = missing(&writer, permission, None).await? {
                return Err(missing_text(&account.username(), verb, permission, None));
            }
        }
        for permission in &OWN {
            if let Some(verb) = missing(own, permission, Some(&settings.namespace)).await? {
                return Err(missing_text(
                    "the Concierge's service account",
                    verb,
                    permission,
                    Some(&settings.namespace),
                ));
            }
        }
        self.there = Some((settings.clone(), form, Instant::now()));
        Ok(())
    }

    /// Discards the cached result after a request was refused unexpectedly.
    pub(super) fn doubt(&mut self) {
        self.there = None;
    }
}

/// Returns the first verb that is not allowed.
async fn missing(
    client: &kube::Client,
    permission: &Permission,
    namespace: Option<&str>,
) -> Result<Option<&'static str>, String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for verb in permission.verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(permission.group.to_owned()),
                    resource: Some(permission.resource.to_owned()),
                    subresource: Some(permission.subresource.to_owned()).filter(|name| !name.is_empty()),
                    namespace: namespace.map(str::to_owned),
                    verb: Some((*verb).to_owned()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(|error| {
            format!("could not review the rights for service account tokens: {}", error_text(&error))
        })?;
        if !answer.status.is_some_and(|status| status.allowed) {
            return Ok(Some(verb));
        }
    }
    Ok(None)
}

fn missing_text(who: &str, verb: &str, permission: &Permission, namespace: Option<&str>) -> String {
    let slash = if permission.subresource.is_empty() { "" } else { "/" };
    let dot =
        if matches!(permission.group, "" | "*") { String::new() } else { format!(".{}", permission.group) };
    let resource = format!("{}{slash}{}{dot}", permission.resource, permission.subresource);
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    format!("{who} may not {verb} {resource}{place}: apply {MANIFEST}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_is_reported_with_its_remedy() {
        assert_eq!(
            missing_text("x", "create", &OWN[1], Some("users")),
            "x may not create serviceaccounts/token in namespace users: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
        assert_eq!(
            missing_text("x", "impersonate", &WRITER[4], None),
            "x may not impersonate *.authentication.k8s.io: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
    }
}
