//! The demo with an identity provider, as a process.

use pinniped_test_support::browser::Programs;
use pinniped_test_support::identity_provider::Kind;

use crate::demo::{has_in_order, run_demo};

#[tokio::test]
async fn the_demo_with_oidc_logs_in_with_a_browser_and_uses_the_group() {
    let test = "the demo with oidc-provider";
    // The other provider, whose pages other tests use, takes longer to start.
    if Kind::OidcProvider.for_test(test).is_none() || Programs::for_test(test).is_none() {
        return;
    }
    let flags = ["--with-oidc", "--provider", "oidc-provider"];
    let Some(printed) = run_demo(test, &flags).await else { return };
    let steps = [
        "== Start oidc-provider",
        "jwtauthenticator.authentication.concierge.pinniped.dev/oidc-provider created",
        "pinniped get kubeconfig",
        "(it logs in as pinny with a password)",
        "(the browser shows \"You are signed in\")",
        "User \"pinny\" cannot list resource \"pods\"",
        "clusterrolebinding.rbac.authorization.k8s.io/oidc-provider-developers created",
        "frontend",
        "Username: pinny\nGroups: developers, system:authenticated",
        "== Done in",
    ];
    has_in_order(&printed, &steps);
}
