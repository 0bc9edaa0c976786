//! Permission to delegate: no role grants it unless an administrator adds it by name.

use pinniped_test_support::wait;
use serde_json::json;

use super::cluster::object;
use super::environment::{self, KINDS};
use crate::installed::TIME_LIMIT;

#[tokio::test]
async fn editors_and_administrators_of_a_namespace_have_no_permission_to_delegate_its_certificates() {
    let Some(environment) = environment::shared("rights").await else { return };
    let namespace = environment.cluster.namespace("app").await;
    for role in ["view", "edit", "admin"] {
        let user = format!("rights-{role}");
        let binding = object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            &namespace,
            role,
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            }),
        );
        environment.world.kubectl().apply(&binding.to_string()).await.unwrap();
        let who = format!("--as={user}");
        let can_i =
            async |verb: &str, what: &str| environment.can_i(&[verb, what, "-n", &namespace, &who]).await;
        // Proves that the binding is effective.
        let (verb, what) = if role == "view" { ("get", "services") } else { ("create", "secrets") };
        wait::until(TIME_LIMIT, format!("{user} to have rights"), async || {
            (can_i(verb, what).await == "yes").then_some(())
        })
        .await
        .unwrap();
        for kind in KINDS.into_iter().filter(|kind| kind.starts_with("tlscertificatedelegations.")) {
            for verb in ["create", "update", "patch", "delete", "deletecollection"] {
                assert_eq!(can_i(verb, kind).await, "no", "{user}: {verb} {kind}");
            }
        }
        assert_eq!(can_i("create", "tlscertificatedelegations").await, "no", "{user}");
    }
    // The gateway reads delegations and has no permission to create them either.
    let who = "--as=system:serviceaccount:delegation-gateway:delegation-gateway";
    for kind in KINDS.into_iter().filter(|kind| kind.starts_with("tlscertificatedelegations.")) {
        for (verb, wanted) in [("watch", "yes"), ("create", "no"), ("update", "no"), ("delete", "no")] {
            assert_eq!(environment.can_i(&[verb, kind, "-A", who]).await, wanted, "{verb} {kind}");
        }
    }
    // An administrator can grant the permission to a user by name, as in
    // docs/howto/tls-delegation.md.
    let rules = [
        "create",
        "role",
        "delegates",
        "-n",
        &namespace,
        "--verb=create",
        "--resource=tlscertificatedelegations.projectcontour.io",
    ];
    environment.kubectl(&rules).await.unwrap();
    let bind =
        ["create", "rolebinding", "delegates", "-n", &namespace, "--role=delegates", "--user=rights-edit"];
    environment.kubectl(&bind).await.unwrap();
    wait::until(TIME_LIMIT, "the right to delegate", async || {
        let response = environment.can_i(&["create", KINDS[0], "-n", &namespace, "--as=rights-edit"]).await;
        (response == "yes").then_some(())
    })
    .await
    .unwrap();
}
