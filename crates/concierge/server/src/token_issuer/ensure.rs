//! The persistent objects of an identity: created if they are missing, compared and repaired
//! otherwise.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Resource};
use pinniped_concierge_api::names::ANNOTATION_LAST_USED;
use pinniped_concierge_domain::service_account_tokens::collection::last_used;
use pinniped_concierge_domain::service_account_tokens::drift::{Compare, Drift};
use pinniped_concierge_domain::service_account_tokens::objects::time;
use pinniped_controller::client::error_text;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Login, TokenIssuerError};

/// Maximum number of attempts for an object that other clients change at the same time.
const TRIES: u32 = 5;

impl Login<'_> {
    /// Ensures that all three objects exist in the required form. The role and its binding are
    /// written with the account that has the permissions that they grant.
    pub(super) async fn ensure(&self) -> Result<(), TokenIssuerError> {
        let (maker, digest) = (&self.maker, &self.digest);
        let role = maker.cluster_role(digest, self.user);
        self.check_role_size(&role)?;
        let writer = self.params.account.client().await?;
        let result = async {
            let roles = Api::all(writer.clone());
            let (account, role) = tokio::try_join!(self.account(), ensure(&roles, &role))?;
            let binding =
                maker.cluster_role_binding(digest, role.metadata.uid.as_deref().unwrap_or_default());
            ensure::<ClusterRoleBinding>(&Api::all(writer), &binding).await?;
            self.note_use(account).await;
            Ok(())
        };
        result.await.map_err(|error: Failed| error.into_issuer_error())
    }

    async fn account(&self) -> Result<ServiceAccount, Failed> {
        let wanted = self.maker.service_account(&self.digest, self.user, Timestamp::now());
        ensure(&self.accounts(), &wanted).await
    }

    fn accounts(&self) -> Api<ServiceAccount> {
        Api::namespaced(self.params.client.clone(), &self.maker.namespace)
    }

    /// Records that the account is in use, unless this was done recently. A conflict means that
    /// another login recorded it.
    async fn note_use(&self, mut account: ServiceAccount) {
        let now = Timestamp::now();
        let noted = last_used(&account)
            .and_then(|last| last.checked_add(self.active.settings.last_used_within()).ok());
        if noted.is_some_and(|until| until > now) {
            return;
        }
        let annotations = account.metadata.annotations.get_or_insert_default();
        annotations.insert(ANNOTATION_LAST_USED.to_owned(), time(now));
        let name = account.metadata.name.clone().unwrap_or_default();
        if let Err(error) = self.accounts().replace(&name, &PostParams::default(), &account).await {
            tracing::info!(
                serviceAccount = %name, error = %error_text(&error),
                "could not note the last use of a service account"
            );
        }
    }
}

/// The reasons why an object could not be ensured.
pub(super) enum Failed {
    Api { doing: &'static str, error: kube::Error },
    Foreign { what: &'static str, name: String, why: String },
    Contended { what: &'static str, name: String },
}

impl Failed {
    fn into_issuer_error(self) -> TokenIssuerError {
        match self {
            Self::Api { doing, error } => TokenIssuerError::api(doing)(error),
            Self::Foreign { what, name, why } => TokenIssuerError::Foreign { what, name, why },
            Self::Contended { what, name } => TokenIssuerError::Api {
                doing: "repair an object of an identity",
                problem: format!("{what} {name:?} is repeatedly changed by another client"),
                not_found: false,
            },
        }
    }
}

/// A kind that is created for identities.
pub(super) trait Made:
    Compare + Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned
{
    const WHAT: &'static str;
    const GETTING: &'static str;
    const CREATING: &'static str;
    const REPAIRING: &'static str;
}

impl Made for ServiceAccount {
    const WHAT: &'static str = "ServiceAccount";
    const GETTING: &'static str = "get a ServiceAccount";
    const CREATING: &'static str = "create a ServiceAccount";
    const REPAIRING: &'static str = "repair a ServiceAccount";
}

impl Made for ClusterRole {
    const WHAT: &'static str = "ClusterRole";
    const GETTING: &'static str = "get a ClusterRole";
    const CREATING: &'static str = "create a ClusterRole";
    const REPAIRING: &'static str = "repair a ClusterRole";
}

impl Made for ClusterRoleBinding {
    const WHAT: &'static str = "ClusterRoleBinding";
    const GETTING: &'static str = "get a ClusterRoleBinding";
    const CREATING: &'static str = "create a ClusterRoleBinding";
    const REPAIRING: &'static str = "repair a ClusterRoleBinding";
}

/// Returns the object in the required form, after creating or repairing it.
pub(super) async fn ensure<K: Made>(api: &Api<K>, wanted: &K) -> Result<K, Failed> {
    let name = wanted.meta().name.clone().unwrap_or_default();
    for _ in 0..TRIES {
        let found = api.get_opt(&name).await.map_err(|error| Failed::Api { doing: K::GETTING, error })?;
        let Some(found) = found else {
            match api.create(&PostParams::default(), wanted).await {
                Ok(created) => return Ok(created),
                // Another login created it first.
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                Err(error) => return Err(Failed::Api { doing: K::CREATING, error }),
            }
        };
        let changed = match wanted.drift(&found) {
            Drift::None => return Ok(found),
            Drift::Foreign(why) => return Err(Failed::Foreign { what: K::WHAT, name, why }),
            Drift::Repair(repaired, why) => {
                warn(K::WHAT, &name, &why.join(", "));
                match api.replace(&name, &PostParams::default(), &repaired).await {
                    Ok(repaired) => return Ok(repaired),
                    Err(error) => error,
                }
            }
            Drift::Recreate(why) => {
                warn(K::WHAT, &name, why);
                let exactly = Preconditions { uid: found.meta().uid.clone(), resource_version: None };
                match api.delete(&name, &DeleteParams::default().preconditions(exactly)).await {
                    Ok(_) => continue,
                    Err(error) => error,
                }
            }
        };
        if !is_race(&changed) {
            return Err(Failed::Api { doing: K::REPAIRING, error: changed });
        }
    }
    Err(Failed::Contended { what: K::WHAT, name })
}

fn warn(kind: &str, name: &str, why: &str) {
    tracing::warn!(kind, name, why, "an object of an identity was changed by another client, restoring it");
}

/// Returns whether the object was created, changed or deleted concurrently; reading it again
/// resolves the conflict.
fn is_race(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}
