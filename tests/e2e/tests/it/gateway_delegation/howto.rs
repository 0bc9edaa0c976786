//! Runs the commands of docs/howto/tls-delegation.md with the installed gateway.

use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::json;

use super::cluster::{Cluster, object};
use super::environment::backend;
use crate::howto_page;
use crate::installed::{self, TIME_LIMIT};

const PAGE: &str = "docs/howto/tls-delegation.md";

#[tokio::test]
async fn the_page_delegates_renews_and_revokes_a_certificate() {
    let world = World::shared().unwrap();
    let Some(pods) = world.pods("the page about delegation") else { return };
    let _calm = installed::undisturbed().await;
    let blocks = howto_page::of(PAGE);
    assert!(blocks.len() >= 10, "{} has only {} blocks", PAGE, blocks.len());
    // Creates the prerequisites of the page.
    let cluster = Cluster::new(world.client().await.unwrap(), "shop");
    cluster.put(object("v1", "Namespace", "", "shop", json!({}))).await;
    cluster.service("shop", "web", backend().plain.port(), json!({})).await;
    // Assigns an address, as a cluster does for a Service of type LoadBalancer.
    let balanced = wait::until_ok(TIME_LIMIT * 2, "the gateway's Service", async || {
        world.assign_load_balancer("pinniped-gateway", "pinniped-gateway").await
    });
    let (balanced, output) = tokio::join!(balanced, howto_page::run_in(world, "tls-delegation", &blocks));
    let printed = output.unwrap_or_else(|error| {
        panic!("{}\n{balanced:?}\n{error:#}", pods.log_tails("pinniped-gateway", 30))
    });
    let refused = "Secret \"certificates/example-com-wildcard\" certificate delegation not permitted\n";
    assert!(printed.contains(refused), "{printed}");
    for shown in ["wildcard of example.com", "renewed wildcard"] {
        assert!(
            printed.lines().any(|line| line.starts_with("subject=") && line.ends_with(shown)),
            "{shown}: {printed}"
        );
    }
    assert!(printed.lines().any(|line| line == "yes"), "{printed}");
    let last = printed.lines().rev().find(|line| line.starts_with("shop ")).unwrap_or_default();
    assert!(last.contains(" invalid "), "{printed}");
}
