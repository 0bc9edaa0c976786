//! The installations in which tests of the APIs and of the walk-through run: the shared one, and a
//! second one with the API group suffix `tuna.io`, which the documentation and tests of upstream
//! use. Both use the same local-user-authenticator.

use std::time::Instant;

use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::{Names, Walk};
use pinniped_test_support::pods::RunningPod;
use pinniped_test_support::world::World;
use tokio::sync::OnceCell;

use crate::installed::{self, Installed, Walked};
use crate::separate_concierge::SeparateConcierge;

/// The names of the second installation.
pub(crate) const TUNA: Names = Names {
    app: "tuna",
    suffix: "tuna.io",
    external_name: "impersonation-proxy-tuna.local",
    user: "tuna-pinny",
    group: "group-for-tuna",
    binding: "tuna-admins",
};

/// An installation.
pub(crate) struct Site<'a> {
    pub(crate) world: &'static World,
    pub(crate) walked: &'a Walked,
    /// The number of replicas of the Concierge.
    pub(crate) replicas: usize,
}

impl Site<'_> {
    pub(crate) fn names(&self) -> Names {
        self.walked.names
    }

    /// Returns the path of a group, such as `login`, with its version.
    pub(crate) fn path(&self, group: &str) -> String {
        format!("/apis/{}/v1alpha1", self.names().group_of(group))
    }

    /// Returns the Concierge's pods whose process is running.
    pub(crate) fn running(&self) -> Vec<(String, RunningPod)> {
        installed::running(self.world.pods("the installation").expect("it has pods"), self.names().app)
    }
}

/// Returns both installations. The access to the shared one also excludes concurrent changes of
/// the second one.
pub(crate) async fn all(installed: &Installed) -> [Site<'_>; 2] {
    [Site { world: installed.world(), walked: &installed.walked, replicas: 2 }, tuna(installed).await]
}

/// Returns the second installation.
pub(crate) async fn tuna(installed: &Installed) -> Site<'static> {
    let (own, walked) = tuna_concierge(installed).await;
    Site { world: own.world, walked, replicas: 1 }
}

/// Returns the Concierge of the second installation. It stays until the end of this executable,
/// like the shared one.
pub(crate) async fn tuna_concierge(installed: &Installed) -> &'static (SeparateConcierge, Walked) {
    static INSTALLED: OnceCell<(SeparateConcierge, Walked)> = OnceCell::const_new();
    let world = installed.world();
    INSTALLED.get_or_init(|| install(world)).await
}

async fn install(world: &'static World) -> (SeparateConcierge, Walked) {
    let own = SeparateConcierge::install_with_suffix(TUNA.app, TUNA.suffix.to_owned(), &[], |text| text);
    let own = own.await.expect("the shared installation has pods, too");
    own.await_api().await;
    let walk = tuna_walk(world).unwrap();
    match Walked::new(world, &walk, TUNA).await {
        Ok(walked) => (own, walked),
        Err(error) => panic!("{}\n{error:#}", own.pods.log_tails(TUNA.app, 30)),
    }
}

/// Returns a walk through the second installation, as another user of the machine.
pub(crate) fn tuna_walk(world: &'static World) -> anyhow::Result<Walk<'static>> {
    Ok(Walk::new(world, Narrator::Silent, Instant::now())?.at_home("home-tuna")?.with_names(TUNA))
}
