//! Checks whether the permissions of the opt-in manifest exist, one by one, so that an error names
//! the missing one.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use pinniped_concierge_domain::service_account_tokens::{Form, Settings};
use tokio::time::Instant;

use super::account::{Account, AccountError, MANIFEST};
use pinniped_controller::client::error_text;

/// Time for which a successful check is cached. A caller that is refused in the meantime reports
/// it.
const CACHE_TIME: Duration = Duration::from_secs(600);

/// A permission: verbs on a resource. Printed as the resource.
#[derive(Debug)]
pub(super) struct Permission {
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verbs: &'static [&'static str],
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let dot = if matches!(self.group, "" | "*") { "" } else { "." };
        let group = if dot.is_empty() { "" } else { self.group };
        write!(f, "{}{slash}{}{dot}{group}", self.resource, self.subresource)
    }
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
static OWN: [Permission; 3] = [
    permission("", "serviceaccounts", "", &["get", "list", "create", "update", "delete"]),
    permission("", "serviceaccounts", "token", &["create"]),
    permission("", "secrets", "", &["list", "create", "delete"]),
];

/// The account of the Concierge in messages.
const OWN_ACCOUNT: &str = "the Concierge's service account";

const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The permissions of the account that writes roles.
static WRITER: [Permission; 5] = [
    permission(RBAC, "clusterroles", "", &["get", "list", "create", "update", "delete"]),
    permission(RBAC, "clusterrolebindings", "", &["get", "list", "create", "update", "delete"]),
    permission("", "users", "", &["impersonate"]),
    permission("", "groups", "", &["impersonate"]),
    // UIDs and extra attributes: only a wildcard on the group covers all extra keys.
    permission(AUTHENTICATION, "*", "", &["impersonate"]),
];

/// The additional permissions of that account for granting constrained impersonation.
static CONSTRAINED: [Permission; 2] = [
    permission(AUTHENTICATION, "*", "", &["impersonate:user-info"]),
    permission("*", "*", "", &["impersonate-on:user-info:get", "impersonate-on:user-info:deletecollection"]),
];

/// Reasons why the permissions are not sufficient.
#[derive(Debug, thiserror::Error)]
pub(super) enum PermissionError {
    /// The account that writes roles cannot be used.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// A permission could not be checked.
    #[error("could not review the permissions for service account tokens: {}", error_text(.0))]
    Review(#[from] kube::Error),
    /// A permission is missing.
    #[error("{subject} may not {verb} {resource}{}: apply {MANIFEST}", in_namespace(.namespace.as_deref()))]
    Missing {
        /// The account without the permission.
        subject: String,
        /// The verb.
        verb: &'static str,
        /// The resource.
        resource: &'static Permission,
        /// The namespace; `None` for cluster-scoped resources.
        namespace: Option<String>,
    },
}

fn in_namespace(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default()
}

/// The cached result of the check and its time.
#[derive(Default)]
pub(super) struct PermissionCheck {
    succeeded: Option<(Settings, Form, Instant)>,
}

impl PermissionCheck {
    /// Checks all permissions. The error names the first missing permission and its remedy.
    pub(super) async fn check(
        &mut self,
        own: &kube::Client,
        account: &Account,
        settings: &Settings,
        form: Form,
    ) -> Result<(), PermissionError> {
        let is_cached = self.succeeded.as_ref().is_some_and(|(of, in_form, since)| {
            of == settings && *in_form == form && since.elapsed() < CACHE_TIME
        });
        if is_cached {
            return Ok(());
        }
        self.succeeded = None;
        let writer = account.client().await?;
        let further = if form == Form::Constrained { &CONSTRAINED[..] } else { &[] };
        for permission in WRITER.iter().chain(further) {
            if let Some(verb) = missing(&writer, permission, None).await? {
                return Err(PermissionError::Missing {
                    subject: account.username(),
                    verb,
                    resource: permission,
                    namespace: None,
                });
            }
        }
        for permission in &OWN {
            if let Some(verb) = missing(own, permission, Some(&settings.namespace)).await? {
                return Err(PermissionError::Missing {
                    subject: OWN_ACCOUNT.to_owned(),
                    verb,
                    resource: permission,
                    namespace: Some(settings.namespace.clone()),
                });
            }
        }
        self.succeeded = Some((settings.clone(), form, Instant::now()));
        Ok(())
    }

    /// Discards the cached result after a request was refused unexpectedly.
    pub(super) fn invalidate(&mut self) {
        self.succeeded = None;
    }
}

/// Returns the first verb that is not allowed.
async fn missing(
    client: &kube::Client,
    permission: &Permission,
    namespace: Option<&str>,
) -> Result<Option<&'static str>, kube::Error> {
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
        let review = reviews.create(&PostParams::default(), &review).await?;
        if !review.status.is_some_and(|status| status.allowed) {
            return Ok(Some(verb));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_is_reported_with_its_remedy() {
        let missing = |verb, resource, namespace: Option<&str>| {
            let (subject, namespace) = ("x".to_owned(), namespace.map(str::to_owned));
            PermissionError::Missing { subject, verb, resource, namespace }.to_string()
        };
        assert_eq!(
            missing("create", &OWN[1], Some("users")),
            "x may not create serviceaccounts/token in namespace users: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
        assert_eq!(
            missing("impersonate", &WRITER[4], None),
            "x may not impersonate *.authentication.k8s.io: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
    }
}
