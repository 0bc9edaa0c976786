//! Does the opt-in manifest lie in the cluster? Asked right by right, so that what is missing has a name.

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

/// How long rights that were there are believed to be there still. Whoever uses them notices otherwise.
const BELIEVED: Duration = Duration::from_secs(600);

/// One right: verbs on a resource.
struct Right {
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verbs: &'static [&'static str],
}

const fn right(
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    verbs: &'static [&'static str],
) -> Right {
    Right { group, resource, subresource, verbs }
}

/// What the Concierge's own account needs in the namespace of the service accounts.
const OWN: [Right; 3] = [
    right("", "serviceaccounts", "", &["get", "list", "create", "update", "delete"]),
    right("", "serviceaccounts", "token", &["create"]),
    right("", "secrets", "", &["list", "create", "delete"]),
];

const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// What the account that writes roles needs.
const WRITER: [Right; 5] = [
    right(RBAC, "clusterroles", "", &["get", "list", "create", "update", "delete"]),
    right(RBAC, "clusterrolebindings", "", &["get", "list", "create", "update", "delete"]),
    right("", "users", "", &["impersonate"]),
    right("", "groups", "", &["impersonate"]),
    // UIDs and extras: only all of the group covers whatever key there may be.
    right(AUTHENTICATION, "*", "", &["impersonate"]),
];

/// What it needs beside that to hand out constrained impersonation.
const CONSTRAINED: [Right; 2] = [
    right(AUTHENTICATION, "*", "", &["impersonate:user-info"]),
    right("*", "*", "", &["impersonate-on:user-info:get", "impersonate-on:user-info:deletecollection"]),
];

/// What was found out, and when.
#[derive(Default)]
pub(super) struct Rights {
    there: Option<(Settings, Form, Instant)>,
}

impl Rights {
    /// Whether everything is there; else the first thing that is not, and what to do.
    pub(super) async fn check(
        &mut self,
        own: &kube::Client,
        account: &Account,
        settings: &Settings,
        form: Form,
    ) -> Result<(), String> {
        let believed = self.there.as_ref().is_some_and(|(of, in_form, since)| {
            of == settings && *in_form == form && since.elapsed() < BELIEVED
        });
        if believed {
            return Ok(());
        }
        self.there = None;
        let writer = account.client().await.map_err(|error| error.to_string())?;
        let further = if form == Form::Constrained { &CONSTRAINED[..] } else { &[] };
        for right in WRITER.iter().chain(further) {
            if let Some(verb) = missing(&writer, right, None).await? {
                return Err(told(&account.username(), verb, right, None));
            }
        }
        for right in &OWN {
            if let Some(verb) = missing(own, right, Some(&settings.namespace)).await? {
                return Err(told("the Concierge's service account", verb, right, Some(&settings.namespace)));
            }
        }
        self.there = Some((settings.clone(), form, Instant::now()));
        Ok(())
    }

    /// Something that should have been allowed was not: look again the next time.
    pub(super) fn doubt(&mut self) {
        self.there = None;
    }
}

/// The first verb that is not allowed.
async fn missing(
    client: &kube::Client,
    right: &Right,
    namespace: Option<&str>,
) -> Result<Option<&'static str>, String> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for verb in right.verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(right.group.to_owned()),
                    resource: Some(right.resource.to_owned()),
                    subresource: Some(right.subresource.to_owned()).filter(|name| !name.is_empty()),
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

fn told(who: &str, verb: &str, right: &Right, namespace: Option<&str>) -> String {
    let slash = if right.subresource.is_empty() { "" } else { "/" };
    let dot = if matches!(right.group, "" | "*") { String::new() } else { format!(".{}", right.group) };
    let resource = format!("{}{slash}{}{dot}", right.resource, right.subresource);
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    format!("{who} may not {verb} {resource}{place}: apply {MANIFEST}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_told_with_its_remedy() {
        assert_eq!(
            told("x", "create", &OWN[1], Some("users")),
            "x may not create serviceaccounts/token in namespace users: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
        assert_eq!(
            told("x", "impersonate", &WRITER[4], None),
            "x may not impersonate *.authentication.k8s.io: \
             apply install-pinniped-concierge-service-account-tokens.yaml"
        );
    }
}
