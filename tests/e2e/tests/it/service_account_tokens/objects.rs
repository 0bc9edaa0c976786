//! The objects of an identity, and the limits on creating more of them.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{MANIFEST, SUBJECT, Tokens, account_of, shared};
use crate::installed::{self, PROXY_ACCOUNT, TIME_LIMIT};

async fn object(tokens: &Tokens, kind: &str, name: &str) -> Value {
    let users = tokens.users();
    let args = ["get", kind, name, "-n", &users, "-o", "json"];
    serde_json::from_str(&tokens.own.world.kubectl().output(&args).await.unwrap()).unwrap()
}

/// Patches a cluster-scoped object as its administrator.
async fn patch(tokens: &Tokens, kind: &str, name: &str, patch: Value) {
    let args = ["patch", kind, name, "--type=json", "-p", &patch.to_string()];
    tokens.own.world.kubectl().output(&args).await.unwrap();
}

#[tokio::test]
async fn an_identity_has_exactly_the_documented_objects() {
    let Some(tokens) = shared().await else { return };
    let user = json!({"username": "objects/First Last", "uid": "u", "groups": ["b", "a"], "extra": {"acme.io/k": ["x"]}});
    let (name, _) = account_of(&tokens.log_in(&user).await);
    let digest = name.trim_start_matches("pinniped-user-");
    let labels = json!({"app": tokens.own.app, SUBJECT: digest});

    let account = object(&tokens, "serviceaccounts", &name).await;
    assert_eq!(account["automountServiceAccountToken"], false);
    assert_eq!(account["metadata"]["labels"], labels);
    assert!(account["secrets"].is_null());
    let annotations = account["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        ["concierge.pinniped.dev/last-used"],
        "nobody is named"
    );

    let role = object(&tokens, "clusterroles", &name).await;
    let rule = |group: &str, resource: &str, names: &[&str]| json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": ["impersonate"]});
    assert_eq!(
        role["rules"],
        json!([
            rule("", "users", &["objects/First Last"]),
            rule("", "groups", &["a", "b", "system:authenticated"]),
            rule("authentication.k8s.io", "uids", &["u"]),
            rule("authentication.k8s.io", "userextras/acme.io/k", &["x"]),
        ])
    );
    assert_eq!(role["metadata"]["labels"], labels);

    let binding = object(&tokens, "clusterrolebindings", &name).await;
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "ServiceAccount", "name": name, "namespace": tokens.users()}])
    );
    assert_eq!(binding["metadata"]["ownerReferences"][0]["uid"], role["metadata"]["uid"]);

    let users = tokens.users();
    let selector = format!("{SUBJECT}={digest}");
    let args = ["get", "secrets", "-n", &users, "-l", &selector, "-o", "json"];
    let secrets: Value =
        serde_json::from_str(&tokens.own.world.kubectl().output(&args).await.unwrap()).unwrap();
    let secret = &secrets["items"][0];
    assert_eq!(secret["type"], "concierge.pinniped.dev/bound-token");
    assert!(secret["data"].is_null());
    assert!(secret["metadata"]["annotations"]["concierge.pinniped.dev/expires-at"].is_string());
}

#[tokio::test]
async fn a_role_with_additional_permissions_is_restored_or_removed() {
    let Some(tokens) = shared().await else { return };
    let more = json!([{"op": "add", "path": "/rules/-", "value":
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}}]);
    let (name, _) = account_of(&tokens.log_in(&json!({"username": "objects-more"})).await);
    let made = object(&tokens, "clusterroles", &name).await["rules"].clone();
    patch(&tokens, "clusterrole", &name, more).await;

    let (other, _) = account_of(&tokens.log_in(&json!({"username": "objects-group"})).await);
    let masters = json!([{"op": "add", "path": "/rules/1/resourceNames/-", "value": "system:masters"}]);
    patch(&tokens, "clusterrole", &other, masters).await;

    let (bound, _) = account_of(&tokens.log_in(&json!({"username": "objects-bound"})).await);
    let subject = json!([{"op": "add", "path": "/subjects/-", "value":
        {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mallory"}},
        {"op": "remove", "path": "/metadata/ownerReferences"}]);
    patch(&tokens, "clusterrolebinding", &bound, subject).await;

    let time_limit = 2 * TIME_LIMIT;
    let restored = wait::until_ok(time_limit, "the role to be restored", async || {
        let rules = object(&tokens, "clusterroles", &name).await["rules"].clone();
        anyhow::ensure!(rules == made, "{rules}");
        Ok(())
    });
    restored.await.unwrap();
    let restored = wait::until_ok(time_limit, "the binding to be restored", async || {
        let binding = object(&tokens, "clusterrolebindings", &bound).await;
        anyhow::ensure!(binding["subjects"].as_array().map(Vec::len) == Some(1), "{binding}");
        anyhow::ensure!(binding["metadata"]["ownerReferences"][0]["kind"] == "ClusterRole", "{binding}");
        Ok(())
    });
    restored.await.unwrap();
    let gone = wait::until(time_limit, "the identity that cannot be told any more to go", async || {
        let left = tokens.count("clusterroles", Some(&other)).await
            + tokens.count("clusterrolebindings", Some(&other)).await
            + tokens.count("serviceaccounts", Some(&other)).await;
        (left == 0).then_some(())
    });
    gone.await.unwrap();
    let logs = tokens.own.pods.logs(tokens.own.app);
    let warned =
        |name: &str| logs.lines().any(|line| line.contains("\"warning\":true") && line.contains(name));
    for name in [&name, &other, &bound] {
        assert!(warned(name), "no warning about {name}");
    }
    // Its user can recover: the next login creates the missing objects, at the latest when no cache
    // contains them.
    let again = wait::until_ok(3 * TIME_LIMIT, "a login that works again", async || {
        let login = tokens.log_in(&json!({"username": "objects-group"})).await;
        let (code, response) =
            tokens.send_request(&login.token, &login.headers(), super::environment::SELF_REVIEW).await;
        anyhow::ensure!(code == 200, "{response}");
        Ok(())
    });
    again.await.unwrap();
}

/// Runs kubectl as a service account of the installation, as a dry run unless it requests a token.
/// Returns the error, or an empty text.
async fn try_as(tokens: &Tokens, account: &str, args: &[&str]) -> String {
    let app = tokens.own.app;
    let identity = format!("--as=system:serviceaccount:{app}:{account}");
    let dry_run: &[&str] = if args[1] == "token" { &[] } else { &["--dry-run=server"] };
    let args = [args, dry_run, &[&identity]].concat();
    tokens.own.world.kubectl().run(&args).await.unwrap().stderr
}

#[tokio::test]
async fn the_concierge_may_write_the_objects_of_users_and_no_others() {
    let Some(tokens) = shared().await else { return };
    let (name, _) = account_of(&tokens.log_in(&json!({"username": "objects-policy"})).await);
    let (own, users) = (tokens.own.app, tokens.users());
    let writer = format!("{own}-service-account-tokens");
    let subject = format!("--serviceaccount={users}:{name}");
    let other_subject = format!("--serviceaccount={users}:default");
    let role_of_user = format!("--clusterrole={name}");
    let role_of_writer = format!("--clusterrole={writer}");
    let new = "pinniped-user-0123456789abcdef";
    let impersonate = ["--verb=impersonate", "--resource=users"];
    let groups = ["--verb=impersonate", "--resource=groups"];
    let role =
        |name: &'static str, rules: &[&'static str]| [&["create", "clusterrole", name], rules].concat();

    let names = "the Concierge may write only the objects of users, whose names begin with pinniped-user-";
    let binds = "the binding of a user grants the role of that user to the service account of that user";
    let grants = "the role of a user names the user and the groups that it lets be impersonated";
    let refused = [
        (&writer[..], role("other", &[impersonate[0], impersonate[1], "--resource-name=u"]), names),
        (&writer, role(new, &impersonate), grants),
        (&writer, role(new, &[groups[0], groups[1], "--resource-name=*"]), grants),
        (&writer, role(new, &[groups[0], groups[1], "--resource-name=system:masters"]), grants),
        (&writer, vec!["delete", "clusterrole", "view"], names),
        (&writer, vec!["delete", "clusterrolebinding", "cluster-admin"], names),
        (&writer, vec!["create", "clusterrolebinding", "other", &role_of_user, &subject], names),
        (&writer, vec!["create", "clusterrolebinding", new, &role_of_writer, &subject], binds),
        (&writer, vec!["create", "clusterrolebinding", &name, &role_of_user, &other_subject], binds),
        (own, vec!["create", "serviceaccount", "other", "-n", &users], names),
        (own, vec!["delete", "serviceaccount", "default", "-n", &users], names),
        (own, vec!["delete", "serviceaccount", own, "-n", own], names),
        (own, vec!["create", "token", "default", "-n", &users], names),
        (own, vec!["create", "token", own, "-n", own], names),
        (own, vec!["create", "secret", "generic", "other", "-n", &users], names),
    ];
    for (account, args, reason) in refused {
        // A policy takes effect a moment after it was applied.
        let denied = wait::until_ok(TIME_LIMIT, format!("{args:?} to be refused"), async || {
            let error = try_as(&tokens, account, &args).await;
            anyhow::ensure!(error.contains("ValidatingAdmissionPolicy") && error.contains(reason), "{error}");
            Ok(())
        });
        denied.await.unwrap();
    }
    let proxy = format!("{own}-impersonation-proxy");
    for (account, args) in [
        (&writer[..], role(new, &[impersonate[0], impersonate[1], "--resource-name=u"])),
        (&writer, role(new, &[groups[0], groups[1], "--resource-name=g"])),
        (&writer, vec!["delete", "clusterrole", &name]),
        (&writer, vec!["delete", "clusterrolebinding", &name]),
        (own, vec!["create", "serviceaccount", new, "-n", &users]),
        (own, vec!["create", "token", &name, "-n", &users]),
        (own, vec!["create", "token", &proxy, "-n", own]),
        (own, vec!["create", "token", &writer, "-n", own]),
        (own, vec!["create", "secret", "generic", new, "-n", &users]),
        (own, vec!["create", "secret", "generic", "other", "-n", own]),
    ] {
        assert_eq!(try_as(&tokens, account, &args).await, "", "{account} {args:?}");
    }
    // The administrator is not restricted.
    let args = ["create", "clusterrole", "other", "--verb=get", "--resource=pods", "--dry-run=server"];
    tokens.own.world.kubectl().output(&args).await.unwrap();
}

#[tokio::test]
async fn the_permissions_belong_to_a_third_account_and_not_to_the_other_two() {
    let Some(installed) = installed::shared("the rights of the third account").await else { return };
    let Some(tokens) = shared().await else { return };
    // Upstream's own test compares this role with exactly these two rules.
    let args = ["get", "clusterrole", "pinniped-concierge-impersonation-proxy", "-o", "jsonpath={.rules}"];
    let rules: Value =
        serde_json::from_str(&installed.world().kubectl().output(&args).await.unwrap()).unwrap();
    assert_eq!(
        rules,
        json!([
            {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["*"], "verbs": ["impersonate"]},
        ])
    );
    let app = tokens.own.app;
    let account = |name: &str| format!("system:serviceaccount:{app}:{name}");
    let writer = account(&format!("{app}-service-account-tokens"));
    let proxy = account(&format!("{app}-impersonation-proxy"));
    assert!(PROXY_ACCOUNT.ends_with("-impersonation-proxy"));
    let may = async |who: &str, args: &[&str]| {
        let args = [&["auth", "can-i", "--as", who][..], args].concat();
        tokens.own.world.kubectl().run(&args).await.unwrap().stdout.trim() == "yes"
    };
    for (who, wanted) in [(&writer, true), (&proxy, false), (&account(app), false)] {
        assert_eq!(may(who, &["create", "clusterroles.rbac.authorization.k8s.io"]).await, wanted, "{who}");
    }
    assert!(!may(&account(app), &["impersonate", "users"]).await);
    for verb in ["escalate", "bind"] {
        assert!(!may(&writer, &[verb, "clusterroles.rbac.authorization.k8s.io"]).await, "{verb}");
    }
    for resource in ["secrets", "serviceaccounts", "pods"] {
        assert!(!may(&writer, &["create", resource, "-n", app]).await, "{resource}");
    }
    let manifest = crate::separate_concierge::manifest("x", "y.z", MANIFEST);
    assert!(!manifest.contains("[escalate") && !manifest.contains("bind]"));
}
