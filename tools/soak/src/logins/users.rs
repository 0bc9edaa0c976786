//! Users of the local-user-authenticator.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use pinniped_e2e::walkthrough::LOCAL_USER_AUTHENTICATOR;
use pinniped_test_support::rng::Rng;
use serde_json::json;

use crate::install::Installed;

/// The lowest cost of bcrypt, so that the logins do not wait for the hashes of their passwords.
const COST: u32 = 4;

/// A user. It has no `Debug`, because of the password.
pub(super) struct User {
    pub(super) name: String,
    password: String,
    /// Sorted.
    pub(super) groups: Vec<String>,
}

impl User {
    /// Returns the token of this user with the password of a user, its own or another one.
    pub(super) fn token(&self, password_of: &Self) -> String {
        format!("{}:{}", self.name, password_of.password)
    }

    /// Returns the identity as text, for messages.
    pub(super) fn identity(&self) -> String {
        identity(&self.name, &self.groups)
    }
}

/// Returns an identity as text: the name, and the groups in the given order.
pub(super) fn identity(name: &str, groups: &[String]) -> String {
    format!("{name} in {}", groups.join(", "))
}

/// Creates `count` users, each with a group of its own and one that it shares with others.
pub(super) async fn create(installed: &Installed, rng: &mut Rng, count: usize) -> anyhow::Result<Vec<User>> {
    let secrets = Api::<Secret>::namespaced(installed.world.client().await?, LOCAL_USER_AUTHENTICATOR);
    let mut users = Vec::with_capacity(count);
    for index in 0..count {
        let user = User {
            name: format!("soak-login-{index}"),
            password: format!("{:016x}", rng.number()),
            groups: vec![format!("soak-own-{index}"), format!("soak-shared-{}", index % 3)],
        };
        let hash = bcrypt::hash(&user.password, COST).context("could not hash the password")?;
        let secret = json!({"metadata": {"name": user.name},
            "stringData": {"groups": user.groups.join(","), "passwordHash": hash}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        users.push(user);
    }
    Ok(users)
}
