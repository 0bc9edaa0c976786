//! The real kubectl with a kubeconfig that names the identity.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{Tokens, shared};
use super::webhook::token_of;
use crate::cli::Home;
use crate::installed::TIME_LIMIT;

/// Runs `get kubeconfig` for the strategy, with these further flags.
pub(super) async fn kubeconfig(tokens: &Tokens, home: &Home, flags: &[&str]) {
    let all = [
        "--concierge-mode=ServiceAccountToken",
        "--concierge-authenticator-type=webhook",
        "--concierge-authenticator-name=anybody",
        &format!("--concierge-api-group-suffix={}", tokens.own.suffix),
        &format!("--concierge-credential-issuer={}", tokens.issuer().1),
    ];
    home.get_kubeconfig(tokens.own.world, &[&all, flags].concat()).await;
}

/// Returns the refusal for a user without permissions.
pub(super) fn forbidden(user: &str) -> String {
    format!(
        "Error from server (Forbidden): pods is forbidden: User \"{user}\" cannot list resource \"pods\" in API group \
         \"\" at the cluster scope\n"
    )
}

#[tokio::test]
async fn a_static_tokens_kubeconfig_works_at_once_and_for_its_user_only() {
    let Some(tokens) = shared().await else { return };
    let world = tokens.own.world;
    let home = Home::new();
    let user = json!({"username": "kubeconfig-pinny", "uid": "u-1", "groups": ["kubeconfig-testers"],
        "extra": {"acme.io/k": ["x", "y"]}});
    kubeconfig(&tokens, &home, &[&format!("--static-token={}", token_of(&user))]).await;

    let get = ["get", "pods", "--all-namespaces"];
    let output = home.kubectl(world, &get, &[]).await;
    assert_eq!((output.code, output.stderr), (1, forbidden("kubeconfig-pinny")));
    let output = home.kubectl(world, &["auth", "whoami", "-o", "json"], &[]).await.success().unwrap();
    let me: Value = serde_json::from_str(&output.stdout).unwrap();
    let me = &me["status"]["userInfo"];
    assert_eq!((&me["username"], &me["uid"]), (&json!("kubeconfig-pinny"), &json!("u-1")));
    assert_eq!(me["groups"], json!(["kubeconfig-testers", "system:authenticated"]));
    assert_eq!(me["extra"]["acme.io/k"], json!(["x", "y"]));

    let suffix = format!("--api-group-suffix={}", tokens.own.suffix);
    let whoami = home.pinniped_with(&home.kubeconfig(), &["whoami", &suffix]).await.success().unwrap();
    let server = world.control_plane().server();
    assert!(whoami.stdout.contains(&format!("\nURL: {server}\n")), "{}", whoami.stdout);
    assert!(
        whoami
            .stdout
            .ends_with("Username: kubeconfig-pinny\nGroups: kubeconfig-testers, system:authenticated\n"),
        "{}",
        whoami.stdout
    );

    // The user has no permission to impersonate others.
    let output = home.kubectl(world, &[&get[..], &["--as", "other"]].concat(), &[]).await;
    assert_eq!(output.code, 1);
    assert!(
        output.stderr.contains("\"other\" is forbidden: User \"system:serviceaccount:"),
        "{}",
        output.stderr
    );

    // Bindings of the user's group take effect.
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubeconfig-testers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "kubeconfig-testers"}]});
    world.kubectl().apply(&binding.to_string()).await.unwrap();
    let listed = wait::until_ok(TIME_LIMIT, "the group's rights", async || {
        home.kubectl(world, &get, &[]).await.success().map(drop)
    });
    listed.await.unwrap();
}

#[tokio::test]
async fn an_identity_is_recorded_at_the_first_use_and_whenever_it_changes() {
    let Some(tokens) = shared().await else { return };
    let world = tokens.own.world;
    let home = Home::new();
    kubeconfig(&tokens, &home, &["--static-token-env=USER_TOKEN"]).await;
    let file = home.kubeconfig();
    let get = ["get", "pods", "--all-namespaces"];
    let with = |groups: &[&str]| token_of(&json!({"username": "kubeconfig-carol", "groups": groups}));
    let recorded = format!("Error: identity recorded in {}; please re-run the command\n", file.display());
    let changed =
        "Error: your identity or group membership changed; kubeconfig updated, please re-run\n".to_owned();
    for (groups, reported, entry) in [
        (&["a"][..], recorded, "as-groups:\n    - a\n"),
        (&["a", "b"], changed, "as-groups:\n    - a\n    - b\n"),
    ] {
        let token = with(groups);
        let env = [("USER_TOKEN", token.as_str())];
        let output = home.kubectl(world, &get, &env).await;
        assert!(output.code != 0 && output.stderr.starts_with(&reported), "{}", output.stderr);
        assert!(!output.stderr.contains("system:serviceaccount"), "{}", output.stderr);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("as: kubeconfig-carol\n") && text.contains(entry), "{text}");
        let output = home.kubectl(world, &get, &env).await;
        assert_eq!(output.stderr, forbidden("kubeconfig-carol"));
    }

    // Where the file is not writable, flags have the same effect.
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&file, permissions).unwrap();
    let token = with(&["c"]);
    let output = home.kubectl(world, &get, &[("USER_TOKEN", &token)]).await;
    let printed = output.stderr.lines().next().unwrap();
    assert!(printed.contains(&format!("{} is read-only", file.display())), "{printed}");
    let (before, flags) = printed.split_once(" in its environment and with these flags: ").unwrap();
    let (_, digest) = before.rsplit_once('=').unwrap();
    let args: Vec<&str> = get.into_iter().chain(flags.split(' ')).collect();
    let env = [("USER_TOKEN", token.as_str()), ("PINNIPED_EXPECTED_IDENTITY", digest)];
    assert_eq!(home.kubectl(world, &args, &env).await.stderr, forbidden("kubeconfig-carol"));
}

#[tokio::test]
async fn concurrent_kubectls_leave_one_complete_kubeconfig() {
    let Some(tokens) = shared().await else { return };
    let world = tokens.own.world;
    let home = Home::new();
    kubeconfig(&tokens, &home, &["--static-token-env=USER_TOKEN"]).await;
    let token = token_of(&json!({"username": "kubeconfig-many", "groups": ["a"]}));
    let env = [("USER_TOKEN", token.as_str())];
    let get = ["get", "pods", "--all-namespaces"];
    let runs = futures::future::join_all((0..4).map(|_| home.kubectl(world, &get, &env))).await;
    for output in runs {
        // A later process read the file that another one had written.
        let reported = output.stderr.contains("please re-run the command");
        assert!(reported || output.stderr == forbidden("kubeconfig-many"), "{}", output.stderr);
    }
    let text = std::fs::read_to_string(home.kubeconfig()).unwrap();
    assert_eq!(text.matches("--expected-identity=").count(), 1, "{text}");
    assert_eq!(home.kubectl(world, &get, &env).await.stderr, forbidden("kubeconfig-many"));
}

#[tokio::test]
async fn names_of_all_kinds_arrive_unchanged() {
    let Some(tokens) = shared().await else { return };
    let world = tokens.own.world;
    let long = "n".repeat(300);
    for name in ["Zoë Müller/Straße", "a: 'b' \"c\" #d", "null", "12", long.as_str()] {
        let home = Home::new();
        let user = json!({"username": format!("kubeconfig {name}"), "groups": ["a b/c", "größe", "true"]});
        kubeconfig(&tokens, &home, &[&format!("--static-token={}", token_of(&user))]).await;
        let output = home.kubectl(world, &["auth", "whoami", "-o", "json"], &[]).await.success().unwrap();
        let me: Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(me["status"]["userInfo"]["username"], user["username"]);
        assert_eq!(
            me["status"]["userInfo"]["groups"],
            json!(["a b/c", "größe", "true", "system:authenticated"])
        );
        let suffix = format!("--api-group-suffix={}", tokens.own.suffix);
        let whoami = home.pinniped_with(&home.kubeconfig(), &["whoami", &suffix]).await.success().unwrap();
        assert!(whoami.stdout.contains(&format!("\nUsername: kubeconfig {name}\n")), "{}", whoami.stdout);
    }
}
