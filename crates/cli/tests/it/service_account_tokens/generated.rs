//! `get kubeconfig --concierge-mode ServiceAccountToken`.

use serde_json::{Value, json};

use super::{World, certificate, pinny, token_for};
use crate::cluster::{home_for, run};

const MODE: &str = "--concierge-mode=serviceaccounttoken";

fn user(text: &str) -> Value {
    let document: Value = serde_saphyr::from_str(text).unwrap();
    document["users"][0]["user"].clone()
}

#[test]
fn a_kubeconfig_with_a_static_token_contains_the_identity_immediately() {
    let world = World::start();
    let home = home_for(&world.server);
    for delivery in [&[][..], &["--impersonation-delivery=auto"], &["--impersonation-delivery=kubeconfig"]] {
        world.responds_with(token_for(
            &json!({"username": "pinny", "uid": "u1", "groups": ["a"], "extra": {"k": ["v"]}}),
        ));
        let flags: Vec<&str> = [MODE, "--static-token=t"].iter().chain(delivery).copied().collect();
        let result = run(&home, &flags);
        assert_eq!(result.code, 0, "{result:?}");
        let entry = user(&result.stdout);
        for (field, value) in [
            ("as", json!("pinny")),
            ("as-uid", json!("u1")),
            ("as-groups", json!(["a"])),
            ("as-user-extra", json!({"k": ["v"]})),
        ] {
            assert_eq!(entry[field], value, "{field}");
        }
        let args: Vec<String> = serde_json::from_value(entry["exec"]["args"].clone()).unwrap();
        assert_eq!(args[8], "--concierge-credential-type=service-account-token", "{args:?}");
        assert!(args[9].starts_with("--impersonation-delivery="), "{args:?}");
        assert_eq!(args[10], "--token=t");
        assert!(args[11].starts_with("--expected-identity="), "{args:?}");
        assert!(result.stdout.contains(&format!("server: {}\n", world.server.url())), "{result:?}");
        assert_eq!(
            result.log().last().unwrap(),
            "discovered identity to impersonate  {\"username\": \"pinny\"}"
        );

        // The kubeconfig works unchanged, but only for its own identity.
        let written = home.write("generated", &result.stdout);
        assert_eq!(super::token(&home.run(&super::plugin_args(&written))), Ok("sa-token".into()));
        std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
        world.responds_with(token_for(&pinny(&["other"])));
        assert!(super::token(&home.run(&super::plugin_args(&written))).is_err());
        let _ = std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml"));
    }
    assert!(!home.path().join(".config/pinniped/credentials.yaml").exists());
}

#[test]
fn an_unknown_identity_or_another_delivery_adds_no_impersonation_fields() {
    let world = World::start();
    let mut home = home_for(&world.server);
    home.set("T", "t");
    for (flags, delivery) in [
        (&["--static-token-env=T"][..], "auto"),
        (&["--static-token=t", "--impersonation-delivery=wrapper"], "wrapper"),
        (&["--static-token=t", "--impersonation-delivery=proxy"], "proxy"),
        (&["--static-token=t", "--impersonation-delivery=exec-headers"], "exec-headers"),
    ] {
        let flags: Vec<&str> = [MODE].iter().chain(flags).copied().collect();
        let result = run(&home, &flags);
        assert_eq!(result.code, 0, "{result:?}");
        let entry = user(&result.stdout);
        assert_eq!(entry.get("as"), None, "{entry}");
        let args = entry["exec"]["args"].to_string();
        assert!(args.contains(&format!("\"--impersonation-delivery={delivery}\"")), "{args}");
        assert!(!args.contains("--expected-identity"), "{args}");
        assert_eq!(
            entry["exec"]["env"],
            json!([]),
            "a plain kubectl drops headers and sends the token alone"
        );
    }
    assert_eq!(world.logins(), 0);
}

#[test]
fn a_failed_login_is_reported_and_a_certificate_needs_no_identity() {
    let world = World::start();
    let home = home_for(&world.server);
    world.responds_with(json!({"message": "authentication failed"}));
    let result = run(&home, &[MODE, "--static-token=t"]);
    assert_eq!(result.stdout, "", "{result:?}");
    assert_eq!(
        result.last_error().unwrap(),
        "could not log in with --static-token to determine the user that the kubeconfig impersonates: could not complete \
         Concierge credential exchange: login failed: authentication failed; if your token is good, retry in a few \
         seconds: the cluster may still be setting up your service account"
    );
    world.responds_with(certificate());
    let result = run(&home, &[MODE, "--static-token=t"]);
    assert_eq!(user(&result.stdout).get("as"), None, "{result:?}");
}

#[test]
fn service_account_tokens_are_never_selected_automatically() {
    let world = World::start();
    let result = run(&home_for(&world.server), &["--static-token=t"]);
    assert_eq!(result.last_error(), Some("could not autodiscover --concierge-mode"), "{result:?}");
}
