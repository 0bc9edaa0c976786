//! Constrained impersonation, where the API server supports it.

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{Tokens, account_of};
use crate::installed::TIME_LIMIT;

async fn rules(tokens: &Tokens, name: &str) -> Value {
    let args = ["get", "clusterrole", name, "-o", "jsonpath={.rules}"];
    serde_json::from_str(&tokens.own.world.kubectl().output(&args).await.unwrap()).unwrap()
}

#[tokio::test]
async fn roles_use_constrained_impersonation_where_the_api_server_supports_it() {
    let Some(tokens) = Tokens::install("token-constrained", 1, true).await else { return };
    tokens.enable(json!({"constrainedImpersonation": "auto"})).await;
    let mut user = json!({"username": "constrained-user", "groups": ["a", "b", "c", "d", "e"], "uid": "u"});
    user["extra"] = json!({"acme.io/k": ["x"]});
    let login = tokens.log_in(&user).await;
    let (name, account) = account_of(&login);
    let verb = rules(&tokens, &name).await[0]["verbs"][0].clone();
    // Determined from the feature gate and thus differently from the Concierge.
    if !tokens.own.world.control_plane().has_feature("ConstrainedImpersonation").await.unwrap() {
        assert_eq!(verb, "impersonate");
        return;
    }
    assert_eq!(verb, "impersonate:user-info");
    let me = tokens.who_am_i(&login).await;
    assert_eq!((&me["username"], &me["uid"]), (&json!("constrained-user"), &json!("u")));
    assert_eq!(me["extra"]["acme.io/k"], json!(["x"]));
    for target in ["/version", "/api/v1/nodes", "/apis"] {
        let (code, response) = tokens.send_request(&login.token, &login.headers(), target).await;
        // This user may not impersonate nodes; the refusal names the user.
        assert!(
            code == 200 || response.to_string().contains("User \\\"constrained-user\\\" cannot"),
            "{response}"
        );
    }
    let event = tokens.own.world.control_plane().await_audit_event(
        "the request of the user",
        "constrained-user",
        |event| event["impersonatedUser"]["username"] == "constrained-user",
    );
    let event = event.await.unwrap();
    assert_eq!(event["user"]["username"], account);
    assert_eq!(event["authenticationMetadata"]["impersonationConstraint"], "impersonate:user-info");

    let other = [("Impersonate-User".to_owned(), "other".to_owned())];
    let (code, message) = tokens.send_request(&login.token, &other, "/api/v1/pods").await;
    assert_eq!(code, 403);
    let denied = "cannot impersonate:user-info resource \"users\" in API group \"authentication.k8s.io\"";
    assert!(message.as_str().unwrap().contains(denied), "{message}");

    // An extra with an empty value is not possible with constrained impersonation; its user has a
    // role of the old form.
    let odd = json!({"username": "constrained-odd", "extra": {"acme.io/k": [""]}});
    let login = tokens.log_in(&odd).await;
    assert_eq!(rules(&tokens, &account_of(&login).0).await[0]["verbs"][0], "impersonate");
    tokens.who_am_i(&login).await;

    // After the feature is disabled, a login restores the old form of its role.
    tokens.configure(json!({"constrainedImpersonation": "disabled"})).await;
    let old = wait::until_ok(TIME_LIMIT, "the old form", async || {
        tokens.log_in(&user).await;
        let rules = rules(&tokens, &name).await;
        anyhow::ensure!(rules[0]["verbs"][0] == "impersonate", "{rules}");
        Ok(())
    });
    tokens.own.check(old.await);
}
