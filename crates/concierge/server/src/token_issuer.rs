//! Issues tokens of service accounts: one account for each identity, which may do nothing but impersonate it.
//!
//! ```text
//! verified?   a minute's memory of identities whose objects were looked at          nothing asked
//! ensure      service account, role, binding: made, or compared and repaired        ensure.rs
//! wait        until the API server's own RBAC allows the impersonation              5 s at most
//! token       a Secret of this login, and a token that ends with it                 two calls
//! ```
//!
//! Any replica may do this at any time, leader or not: names come from the identity, so whoever is first makes the object
//! and all others find it as they would have made it. Roles and bindings are written as a service account of its own,
//! which holds what it hands out; see [`Account`].

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
use pinniped_cache::Answers;
use pinniped_concierge_api::login::ImpersonatedUser;
use pinniped_concierge_controllers::service_account_tokens::{Account, AccountError, Active, Switch};
use pinniped_concierge_domain::service_account_tokens::limits::{self, TooLarge};
use pinniped_concierge_domain::service_account_tokens::objects::{account_username, whole_seconds};
use pinniped_concierge_domain::service_account_tokens::{Form, Maker, object_name};
use pinniped_controller::client::error_text;
use pinniped_kube_request::identity::digest::IdentityDigest;
use pinniped_secret::text::SecretString;
use serde::Deserialize;

/// The life that is asked for: the API server grants no less. The Secret ends it earlier.
const GRANTED_SECONDS: i64 = 600;

/// How long the API server may take until it knows a new role and its binding.
const RBAC_WITHIN: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How long objects count as verified, and of how many identities that is remembered.
const VERIFIED_FOR: Duration = Duration::from_secs(60);
const VERIFIED: u64 = 10_000;

/// A token of a service account, as it was issued.
#[derive(Debug)]
pub struct IssuedToken {
    /// The token itself.
    pub token: SecretString,
    /// When it ends; whole seconds.
    pub expires: Timestamp,
    /// The username of its service account.
    pub service_account: String,
    /// The Secret whose end is the token's, as `namespace/name`.
    pub bound_secret: String,
    /// Its id, as the API server's audit log has it.
    pub jti: String,
}

/// Why no token was issued.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TokenIssuerError {
    /// The strategy is off.
    #[error("service account tokens are not enabled")]
    Off,
    /// The role would be too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The account that writes roles cannot be used.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// An object is somebody else's.
    #[error("{what} {name:?} was made by another installation: {why}")]
    Foreign {
        /// Its kind.
        what: &'static str,
        /// Its name.
        name: String,
        /// What says so.
        why: String,
    },
    /// The API server refused, or could not be reached.
    #[error("could not {doing}: {problem}")]
    Api {
        /// What was tried.
        doing: &'static str,
        /// Its words.
        problem: String,
        /// The service account, or the namespace, was not there.
        not_found: bool,
    },
    /// The API server does not know the role yet. The next try finds it.
    #[error("the API server did not allow {account:?} to impersonate its user within {RBAC_WITHIN:?}")]
    RbacNotYetEffective {
        /// The service account's name.
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
    /// Issues a token whose holder may impersonate `user`.
    fn issue<'a>(
        &'a self,
        user: &'a ImpersonatedUser,
    ) -> BoxFuture<'a, Result<IssuedToken, TokenIssuerError>>;
}

/// What [`ServiceAccountTokens`] is made of.
#[derive(Clone)]
pub struct ServiceAccountTokensParams {
    /// The Concierge's own client: service accounts, Secrets, tokens, reviews.
    pub client: kube::Client,
    /// The account that writes roles and bindings.
    pub account: Account,
    /// Whether tokens are wanted, and how.
    pub switch: Switch,
    /// Labels of everything that the installation makes.
    pub labels: BTreeMap<String, String>,
    /// Whether objects may name people.
    pub name_users: bool,
}

/// Issues tokens while the strategy is on.
pub struct ServiceAccountTokens {
    params: ServiceAccountTokensParams,
    verified: Answers<Key, (), TokenIssuerError>,
}

/// What was verified: the objects of an identity, as the settings of that time want them.
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
    /// An issuer that has verified nothing yet.
    pub fn new(params: ServiceAccountTokensParams) -> Self {
        Self { params, verified: Answers::new(VERIFIED, VERIFIED_FOR) }
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
            // Removed since it was verified, by the idle timeout or by hand: made anew.
            Err(TokenIssuerError::Api { not_found: true, .. }) => {
                self.verified.known().remove(&key);
                self.verify(&key, &login).await?;
                login.token().await
            }
            outcome => outcome,
        }
    }

    /// Logins of one identity at the same time wait for the first one's verification.
    async fn verify(&self, key: &Key, login: &Login<'_>) -> Result<(), TokenIssuerError> {
        // Boxed: a future that may not run at all would make each login's larger.
        let look = Box::pin(async {
            login.ensure().await?;
            login.await_rbac().await
        });
        self.verified.get_or_ask(key.clone(), look).await
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

/// One login on its way.
struct Login<'a> {
    params: &'a ServiceAccountTokensParams,
    active: &'a Active,
    user: &'a ImpersonatedUser,
    digest: IdentityDigest,
    maker: Maker,
}

impl Login<'_> {
    /// Waits until the API server's authorizer knows the role and the binding. It may be one of several, of which others
    /// are slower; nobody can ask those.
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
                let answer = reviews.create(&PostParams::default(), &review).await;
                let answer =
                    answer.map_err(TokenIssuerError::api("review the rights of a service account"))?;
                if answer.status.is_some_and(|status| status.allowed) {
                    return Ok(());
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        };
        let in_time = tokio::time::timeout(RBAC_WITHIN, allowed).await;
        in_time.unwrap_or(Err(TokenIssuerError::RbacNotYetEffective { account }))
    }

    /// A Secret for this login, and a token that is bound to it.
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
                // No audience is the API server's own.
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
        let answer = accounts
            .create_token_request(&name, &PostParams::default(), &request)
            .await
            .map_err(TokenIssuerError::api("request a token of a service account"))?;
        let status = answer.status.unwrap_or_default();
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

/// The id in a token, which nobody has to verify here: it was just issued. Empty if it has none.
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
