//! The service account that writes the roles of users and their bindings.
//!
//! RBAC lets nobody hand out what he does not hold, and what is handed out here is impersonation. So that neither the
//! Concierge's own account nor the impersonation proxy's needs more rights than it has, a third one holds them. Its token
//! is requested when something is to be written, kept in memory only, and requested again in good time, or when the API
//! server has refused it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use pinniped_cache::Answers;
use pinniped_secret::{Token, TokenSource};

use pinniped_controller::client::error_text;
use pinniped_controller::clock::Clock;
use pinniped_controller::service_account_token::{ServiceAccountToken, TokenRequestError};

/// The life that is asked for.
const LIFETIME: Duration = Duration::from_secs(3600);

/// How long an answer keeps others from asking the same: they take the token that it brought.
const ANSWERED: Duration = Duration::from_secs(1);
/// There is one; a cache wants room to work with.
const ACCOUNTS: u64 = 8;

/// Why there is no client that acts as the account.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccountError {
    /// Its manifest was not applied.
    #[error("there is no ServiceAccount \"{namespace}/{name}\": apply {MANIFEST}")]
    Missing {
        /// Where it should be.
        namespace: String,
        /// What it should be called.
        name: String,
    },
    /// The API server refused, or could not be reached.
    #[error("could not request a token of ServiceAccount \"{namespace}/{name}\": {problem}")]
    Refused {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The API server's words.
        problem: String,
    },
}

/// The file that brings the account and its rights.
pub const MANIFEST: &str = "install-pinniped-concierge-service-account-tokens.yaml";

/// A client that acts as the account. Cheap to clone.
#[derive(Clone)]
pub struct Account {
    accounts: Api<ServiceAccount>,
    namespace: String,
    name: String,
    held: HeldToken,
    asking: Arc<Answers<(), (), AccountError>>,
    client: kube::Client,
}

/// The token of the moment; requests take it from here.
#[derive(Clone, Default)]
struct HeldToken(Arc<ArcSwapOption<ServiceAccountToken>>);

impl TokenSource for HeldToken {
    fn token(&self) -> Option<Arc<Token>> {
        self.0.load().as_ref().map(|held| Arc::clone(held.token()))
    }

    /// Forgets it: its account may have been deleted and created again. The next client brings another one.
    fn refused(&self, token: &Arc<Token>) {
        self.0.rcu(|held| held.clone().filter(|held| !Arc::ptr_eq(held.token(), token)));
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("namespace", &self.namespace).field("name", &self.name).finish()
    }
}

impl Account {
    /// The account `name` in `namespace`, whose tokens `client` may request. `acting` makes a client that sends the token
    /// of the moment, and reports a refusal of it to its source.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        name: &str,
        acting: impl FnOnce(Arc<dyn TokenSource>) -> kube::Client,
    ) -> Self {
        let held = HeldToken::default();
        Self {
            accounts: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            client: acting(Arc::new(held.clone())),
            held,
            asking: Arc::new(Answers::new(ACCOUNTS, ANSWERED)),
        }
    }

    /// The username of the account.
    pub fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// The client, with a token that lasts.
    ///
    /// # Errors
    /// [`AccountError`]: there is no such account, or no token of it.
    pub async fn client(&self) -> Result<kube::Client, AccountError> {
        let clock = Clock::default();
        let fresh = self.held.0.load().as_ref().is_some_and(|held| !held.renew_in(&clock).is_zero());
        if !fresh {
            self.asking.get_or_ask((), self.ask()).await?;
        }
        Ok(self.client.clone())
    }

    async fn ask(&self) -> Result<(), AccountError> {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let requested =
            ServiceAccountToken::request(&self.accounts, &name, LIFETIME, &Clock::default()).await;
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
        self.held.0.store(Some(Arc::new(token)));
        Ok(())
    }
}
