//! docs/howto/tls-delegation.md does what it says, with the gateway as it is installed.

use pinniped_test_support::wait;
use pinniped_test_support::world::World;
use serde_json::json;

use super::cluster::{Cluster, object};
use super::environment::backend;
use crate::installed::{self, SOON};
use crate::page;

const PAGE: &str = "docs/howto/tls-delegation.md";

#[tokio::test]
async fn a_certificate_is_delegated_renewed_and_taken_back_as_the_page_says() {
    let world = World::shared().unwrap();
    let Some(pods) = world.pods("the page about delegation") else { return };
    let _calm = installed::undisturbed().await;
    let blocks = page::of(PAGE);
    assert!(blocks.len() >= 10, "{} has only {} blocks", PAGE, blocks.len());
    // What the page says is there already.
    let cluster = Cluster::new(world.client().await.unwrap(), "shop");
    cluster.put(object("v1", "Namespace", "", "shop", json!({}))).await;
    cluster.service("shop", "web", backend().plain.port(), json!({})).await;
    // What a cluster does for a Service of type LoadBalancer.
    let balanced = wait::until_ok(SOON * 2, "the gateway's Service", async || {
        world.assign_load_balancer("pinniped-gateway", "pinniped-gateway").await
    });
    let (balanced, outcome) = tokio::join!(balanced, page::run_in(world, "tls-delegation", &blocks));
    let said = outcome.unwrap_or_else(|error| {
        panic!("{}\n{balanced:?}\n{error:#}", pods.log_tails("pinniped-gateway", 30))
    });
    let refused = "Secret \"certificates/example-com-wildcard\" certificate delegation not permitted\n";
    assert!(said.contains(refused), "{said}");
    for shown in ["wildcard of example.com", "renewed wildcard"] {
        assert!(
            said.lines().any(|line| line.starts_with("subject=") && line.ends_with(shown)),
            "{shown}: {said}"
        );
    }
    assert!(said.lines().any(|line| line == "yes"), "{said}");
    let last = said.lines().rev().find(|line| line.starts_with("shop ")).unwrap_or_default();
    assert!(last.contains(" invalid "), "{said}");
}
