//! Issues tokens of service accounts: one account for each identity, whose only permission is to
//! impersonate it.
//!
//! ```text
//! verified?   identities whose objects were checked within the last minute          no request
//! ensure      service account, role, binding: created, or compared and repaired     ensure.rs
//! wait        until the API server's own RBAC allows the impersonation              5 s at most
//! token       a Secret for this login, and a token that is bound to it              two requests
//! ```
//!
//! Any replica may do this at any time, leader or not: names are derived from the identity, so the
//! first replica creates an object, and all others find it in the form in which they would have
//! created it. Roles and bindings are written with a separate service account, which has the
//! permissions that it grants; see [`Account`].

mod ensure;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use pinniped_cache::QueryCache;
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_controllers::service_account_tokens::{Account, AccountError, Active, Switch};
use pinniped_concierge_domain::identity_digest::IdentityDigest;
use pinniped_concierge_domain::service_account_tokens::limits::{self, TooLarge};
use pinniped_concierge_domain::service_account_tokens::objects::{account_username, whole_seconds};
use pinniped_concierge_domain::service_account_tokens::{Form, Maker, object_name};
use pinniped_controller::client::error_text;
use pinniped_secret::text::SecretString;
use serde::Deserialize;

/// The requested lifetime, which is the minimum of the API server. The deletion of the Secret
/// invalidates the token earlier.
const GRANTED_SECONDS: i64 = 600;

/// How long the API server may take until a new role and its binding are effective.
const RBAC_WITHIN: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long objects count as verified, and the maximum number of such identities.
const VERIFIED_FOR: Duration = Duration::from_secs(60);
const VERIFIED: u64 = 10_000;

/// An issued token of a service account.
#[derive(Debug)]
pub struct IssuedToken {
    /// The token.
    pub token: SecretString,
    /// The time of expiry, in whole seconds.
    pub expires: Timestamp,
    /// The username of its service account.
    pub service_account: String,
    /// The Secret to which the token is bound, as `namespace/name`.
    pub bound_secret: String,
    /// The ID of the token, as in the API server's audit log.
    pub jti: String,
}

/// The reasons why no token was issued.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TokenIssuerError {
    /// The strategy is disabled.
    #[error("service account tokens are not enabled")]
    Off,
    /// The role would exceed the size limit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The account that writes roles cannot be used.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// An object with this name does not belong to this installation.
    #[error("{what} {name:?} was made by another installation: {why}")]
    Foreign {
        /// The kind of the object.
        what: &'static str,
        /// The name of the object.
        name: String,
        /// The evidence.
        why: String,
    },
    /// The API server refused the request, or could not be reached.
    #[error("could not {doing}: {problem}")]
    Api {
        /// The action that failed.
        doing: &'static str,
        /// The message of the API server.
        problem: String,
        /// Whether the service account, or the namespace, does not exist.
        not_found: bool,
    },
    /// The role is not effective yet. A retry succeeds later.
    #[error("the API server did not allow {account:?} to impersonate its user within {RBAC_WITHIN:?}")]
    RbacNotYetEffective {
        /// The name of the service account.
        account: String,
    },
}

impl TokenIssuerError {
    fn api(doing: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |error| {
            let not_found = matches!(&error, kube::Error::Api(status) if status.code == 404);
            Self::Api { doing, problem: error_text(&error), not_found }
        }
    }
}

/// A source of service account tokens.
pub trait TokenIssuer: Send + Sync {
    /// Issues a token that is allowed to impersonate `user`.
    fn issue<'a>(
        &'a self,
        user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>>;
}

/// The parameters of [`ServiceAccountTokens`].
#[derive(Clone)]
pub struct ServiceAccountTokensParams {
    /// The Concierge's own client, for service accounts, Secrets, tokens and reviews.
    pub client: kube::Client,
    /// The account that writes roles and bindings.
    pub account: Account,
    /// Whether tokens are enabled, and their settings.
    pub switch: Switch,
    /// Labels of all objects that the installation creates.
    pub labels: BTreeMap<String, String>,
    /// Whether objects may contain user names.
    pub name_users: bool,
}

/// Issues tokens while the strategy is enabled.
pub struct ServiceAccountTokens {
    params: ServiceAccountTokensParams,
    verified: QueryCache<Key, (), TokenIssuerError>,
}

/// The key of a verification: an identity and the settings for its objects.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    digest: IdentityDigest,
    namespace: String,
    form: Form,
}

impl fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountTokens").finish_non_exhaustive()
    }
}

impl ServiceAccountTokens {
    /// Creates an issuer without verified identities.
    pub fn new(params: ServiceAccountTokensParams) -> Self {
        Self { params, verified: QueryCache::new(VERIFIED, VERIFIED_FOR) }
    }

    async fn issue_while(
        &self,
        active: &Active,
        user: &ImpersonatedUser,
    ) -> Result<IssuedToken, TokenIssuerError> {
        let login = Login {
            params: &self.params,
            active,
            user,
            digest: IdentityDigest::of(user),
            maker: Maker {
                namespace: active.settings.namespace.clone(),
                labels: self.params.labels.clone(),
                form: active.form,
                name_users: self.params.name_users,
            },
        };
        let key =
            Key { digest: login.digest, namespace: active.settings.namespace.clone(), form: active.form };
        self.verify(&key, &login).await?;
        match login.token().await {
            // Deleted since the verification, after the idle timeout or manually: create it again.
            Err(TokenIssuerError::Api { not_found: true, .. }) => {
                self.verified.known().remove(&key);
                self.verify(&key, &login).await?;
                login.token().await
            }
            result => result,
        }
    }

    /// Verifies the objects of an identity. Concurrent logins of one identity wait for the first
    /// verification.
    async fn verify(&self, key: &Key, login: &Login<'_>) -> Result<(), TokenIssuerError> {
        // Boxed because it is rarely needed; otherwise the future of each login would reserve space
        // for it.
        let verification = Box::pin(async {
            login.ensure().await?;
            login.await_rbac().await
        });
        self.verified.get_or_query(key.clone(), verification).await
    }
}

impl TokenIssuer for ServiceAccountTokens {
    fn issue<'a>(
        &'a self,
        user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>> {
        Box::pin(async move {
            let active = self.params.switch.active().ok_or(TokenIssuerError::Off)?;
            self.issue_while(&active, user).await
        })
    }
}

/// A login in progress.
struct Login<'a> {
    params: &'a ServiceAccountTokensParams,
    active: &'a Active,
    user: &'a ImpersonatedUser,
    digest: IdentityDigest,
    maker: Maker,
}

impl Login<'_> {
    /// Waits until the role and the binding are effective in the API server's authorizer. There may
    /// be several API servers, of which others are slower; those cannot be queried.
    async fn await_rbac(&self) -> Result<(), TokenIssuerError> {
        let (namespace, account) = (&self.maker.namespace, object_name(&self.digest));
        let form = self.maker.form.for_identity(self.user);
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(account_username(namespace, &account)),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(form.verb().to_owned()),
                    group: Some(form.group().to_owned()),
                    resource: Some("users".to_owned()),
                    name: Some(self.user.username.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.params.client.clone());
        let allowed = async {
            let mut pause = FIRST_PAUSE;
            loop {
                let response = reviews.create(&PostParams::default(), &review).await;
                let response =
                    response.map_err(TokenIssuerError::api("review the permissions of a service account"))?;
                if response.status.is_some_and(|status| status.allowed) {
                    return Ok(());
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        };
        let in_time = tokio::time::timeout(RBAC_WITHIN, allowed).await;
        in_time.unwrap_or(Err(TokenIssuerError::RbacNotYetEffective { account }))
    }

    /// Creates a Secret for this login, and a token that is bound to it.
    async fn token(&self) -> Result<IssuedToken, TokenIssuerError> {
        let (client, namespace) = (&self.params.client, &self.maker.namespace);
        let expires = Timestamp::now() + self.active.settings.token_lifetime;
        let random = uuid::Uuid::new_v4().simple().to_string();
        let secret = self.maker.bound_secret(&self.digest, &random[..8], expires);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets
            .create(&PostParams::default(), &secret)
            .await
            .map_err(TokenIssuerError::api("create the Secret of a token"))?;
        let secret_name = secret.metadata.name.unwrap_or_default();

        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                // Without an audience, the token is for the API server itself.
                audiences: None,
                expiration_seconds: Some(GRANTED_SECONDS),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(secret_name.clone()),
                    uid: secret.metadata.uid,
                }),
            }),
            ..TokenRequest::default()
        };
        let name = object_name(&self.digest);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let response = accounts
            .create_token_request(&name, &PostParams::default(), &request)
            .await
            .map_err(TokenIssuerError::api("request a token of a service account"))?;
        let status = response.status.unwrap_or_default();
        let token = SecretString::new(status.token.unwrap_or_default());
        if token.is_empty() {
            return Err(TokenIssuerError::Api {
                doing: "request a token of a service account",
                problem: "found no token in the API server's response".to_owned(),
                not_found: false,
            });
        }
        let granted = status.expiration_timestamp.map_or(expires, |time| time.0);
        Ok(IssuedToken {
            jti: jti(token.expose()),
            expires: whole_seconds(granted.min(expires)),
            token,
            service_account: account_username(namespace, &name),
            bound_secret: format!("{namespace}/{secret_name}"),
        })
    }

    fn check_role_size(&self, role: &impl serde::Serialize) -> Result<(), TokenIssuerError> {
        let bytes = serde_json::to_vec(role).map_or(usize::MAX, |text| text.len());
        Ok(limits::check_role(bytes)?)
    }
}

/// Returns the ID in a token. The token was just issued, so it is not verified. Empty without an
/// ID.
fn jti(token: &str) -> String {
    #[derive(Deserialize)]
    struct Claims {
        jti: String,
    }
    let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
    let claims = claims.and_then(|claims| serde_json::from_slice::<Claims>(&claims).ok());
    claims.map(|claims| claims.jti).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests;
