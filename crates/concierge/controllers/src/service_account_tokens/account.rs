//! The service account that writes the roles of users and their bindings.
//!
//! RBAC lets no subject grant permissions that it does not have, and these roles grant
//! impersonation. A separate account has this permission, so that neither the account of the
//! Concierge nor that of the impersonation proxy needs it. Its token is requested when there is
//! something to write, kept only in memory, and requested again before it expires or when the API
//! server has rejected it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use pinniped_cache::QueryCache;
use pinniped_secret::{Token, TokenSource};

use pinniped_controller::client::error_text;
use pinniped_controller::clock::Clock;
use pinniped_controller::service_account_token::{ServiceAccountToken, TokenRequestError};

/// The requested lifetime of a token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

/// Time for which a completed request prevents others: concurrent callers use the token that it
/// returned.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Capacity of the cache, which has a single entry but needs some room.
const CACHE_CAPACITY: u64 = 8;

/// Reasons why there is no client with the account's credentials.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccountError {
    /// The account does not exist, because its manifest was not applied.
    #[error("there is no ServiceAccount \"{namespace}/{name}\": apply {MANIFEST}")]
    Missing {
        /// The expected namespace.
        namespace: String,
        /// The expected name.
        name: String,
    },
    /// The API server refused the request or could not be reached.
    #[error("could not request a token of ServiceAccount \"{namespace}/{name}\": {problem}")]
    Refused {
        /// Namespace of the account.
        namespace: String,
        /// Name of the account.
        name: String,
        /// The API server's error text.
        problem: String,
    },
}

/// The file with the manifest of the account and its permissions.
pub const MANIFEST: &str = "install-pinniped-concierge-service-account-tokens.yaml";

/// A client with the account's credentials. Cheap to clone.
#[derive(Clone)]
pub struct Account {
    accounts: Api<ServiceAccount>,
    namespace: String,
    name: String,
    current: CurrentToken,
    requests: Arc<QueryCache<(), (), AccountError>>,
    client: kube::Client,
}

/// The current token, from which requests read.
#[derive(Clone, Default)]
struct CurrentToken(Arc<ArcSwapOption<ServiceAccountToken>>);

impl TokenSource for CurrentToken {
    fn token(&self) -> Option<Arc<Token>> {
        self.0.load().as_ref().map(|current| Arc::clone(current.token()))
    }

    /// Drops the token, because its account may have been deleted and created again. The next
    /// client requests a new token.
    fn refused(&self, token: &Arc<Token>) {
        self.0.rcu(|current| current.clone().filter(|current| !Arc::ptr_eq(current.token(), token)));
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("namespace", &self.namespace).field("name", &self.name).finish()
    }
}

impl Account {
    /// Returns the account `name` in `namespace`, whose tokens `client` may request. `acting`
    /// builds a client that sends the current token and reports a rejection to the token's source.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        name: &str,
        acting: impl FnOnce(Arc<dyn TokenSource>) -> kube::Client,
    ) -> Self {
        let current = CurrentToken::default();
        Self {
            accounts: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            client: acting(Arc::new(current.clone())),
            current,
            requests: Arc::new(QueryCache::new(CACHE_CAPACITY, REQUEST_INTERVAL)),
        }
    }

    /// Returns the username of the account.
    pub fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// Returns the client, with a token that is not about to expire.
    ///
    /// # Errors
    ///
    /// Returns [`AccountError`] if the account does not exist or no token can be requested.
    pub async fn client(&self) -> Result<kube::Client, AccountError> {
        let clock = Clock::default();
        let fresh = self.current.0.load().as_ref().is_some_and(|current| !current.renew_in(&clock).is_zero());
        if !fresh {
            self.requests.get_or_query((), self.request_token()).await?;
        }
        Ok(self.client.clone())
    }

    async fn request_token(&self) -> Result<(), AccountError> {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let requested =
            ServiceAccountToken::request(&self.accounts, &name, TOKEN_LIFETIME, &Clock::default()).await;
        let token = requested.map_err(|error| match error {
            TokenRequestError::Kube(kube::Error::Api(status)) if status.code == 404 => {
                AccountError::Missing { namespace, name }
            }
            TokenRequestError::Kube(error) => {
                AccountError::Refused { namespace, name, problem: error_text(&error) }
            }
            error @ TokenRequestError::NoToken => {
                AccountError::Refused { namespace, name, problem: error.to_string() }
            }
        })?;
        self.current.0.store(Some(Arc::new(token)));
        Ok(())
    }
}
