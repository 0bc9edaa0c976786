//! Our own commands send the same headers as kubectl.

use serde_json::json;

use super::{World, plugin_args, token, token_for, user_entry};

#[test]
fn whoami_uses_the_identity_of_the_plugin_or_the_kubeconfig() {
    let world = World::start();
    world.responds_with(token_for(&json!({
        "username": "Zoë", "uid": "u1", "groups": ["a", "b"], "extra": {"example.com/k": ["v"]},
    })));
    for delivery in ["auto", "wrapper", "proxy", "exec-headers"] {
        let (home, path) = world.home(&[&format!("--impersonation-delivery={delivery}")]);
        // First from the plugin, then from the kubeconfig that contains the identity.
        for recorded in [false, true] {
            if recorded && delivery == "auto" {
                token(&home.run(&plugin_args(&path))).unwrap_err();
                assert_eq!(user_entry(&path)["as"], "Zoë");
            }
            let run = home.run(&["whoami"]);
            assert!(run.stdout.ends_with("Username: Zoë\nGroups: a, b\n"), "{delivery} {run:?}");
            let seen = world.server.seen().pop().unwrap();
            for (header, value) in [
                ("authorization", "Bearer sa-token"),
                ("impersonate-user", "Zoë"),
                ("impersonate-uid", "u1"),
                ("impersonate-group", "a, b"),
                ("impersonate-extra-example.com%2fk", "v"),
            ] {
                assert_eq!(seen.headers.get(header).map(String::as_str), Some(value), "{delivery} {header}");
            }
        }
    }
}

#[test]
fn the_kubeconfig_takes_precedence_over_its_plugin_and_must_be_complete() {
    let world = World::start();
    let (home, path) = world.home(&["--impersonation-delivery=wrapper"]);
    let text = std::fs::read_to_string(&path).unwrap();
    home.write("config", &text.replace("\"exec\":", "\"as\":\"other\",\"exec\":"));
    let run = home.run(&["whoami"]);
    assert!(run.stdout.ends_with("Username: other\nGroups: \n"), "{run:?}");

    home.write("config", &text.replace("\"exec\":", "\"as-groups\":[\"a\"],\"exec\":"));
    home.run(&["whoami"]).fails_with(
        "could not configure Kubernetes client: invalid configuration: requesting uid, groups or user-extra for u without impersonating a user",
    );
}
