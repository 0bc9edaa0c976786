//! Logins, and the permissions of a token.

use std::collections::BTreeSet;

use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::environment::{Login, Tokens, account_of, secret_of, shared};
use crate::installed::TIME_LIMIT;

/// Path of a request that needs permission and has no effect.
const PODS: &str = "/api/v1/pods";

fn user(name: &str, groups: &[&str]) -> Value {
    json!({"username": name, "groups": groups})
}

/// Returns the refusal of a request with this login's token and other headers.
async fn denied(tokens: &Tokens, login: &Login, change: impl FnOnce(&mut Vec<(String, String)>)) -> String {
    let mut headers = login.headers();
    change(&mut headers);
    let (code, message) = tokens.send_request(&login.token, &headers, PODS).await;
    assert_eq!(code, 403, "{message}");
    message.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_strategy_is_the_last_of_the_list_and_the_default_is_another() {
    let Some(tokens) = shared().await else { return };
    let strategies = tokens.strategies().await.unwrap();
    let types: Vec<_> = strategies.iter().map(|entry| entry["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["KubeClusterSigningCertificate", "ImpersonationProxy", "ServiceAccountToken"]);
    let entry = &strategies[2];
    assert_eq!(entry["frontend"]["type"], "ServiceAccountToken");
    let info = &entry["frontend"]["serviceAccountTokenInfo"];
    assert_eq!(info["server"], tokens.own.world.control_plane().server());
    assert!(info["certificateAuthorityData"].as_str().is_some_and(|ca| ca.starts_with("LS0tLS1CRUdJTi")));
    let (resource, name) = tokens.issuer();
    let row = tokens.own.kubectl(&["get", &resource, &name, "--no-headers"]).await.unwrap();
    assert!(row.contains(" ImpersonationProxy "), "{row}");
}

#[tokio::test]
async fn a_token_can_impersonate_its_own_user_only() {
    let Some(tokens) = shared().await else { return };
    let mut pinny = user("exchange-pinny", &["sea", "land", "sea"]);
    pinny["uid"] = json!("uid-7");
    pinny["extra"] = json!({"acme.io/k": ["x", "y"]});
    let login = tokens.log_in(&pinny).await;
    assert_eq!(
        login.impersonate,
        json!({"username": "exchange-pinny", "uid": "uid-7", "groups": ["land", "sea"],
            "extra": {"acme.io/k": ["x", "y"]}})
    );
    let me = tokens.who_am_i(&login).await;
    assert_eq!((&me["username"], &me["uid"]), (&json!("exchange-pinny"), &json!("uid-7")));
    assert_eq!(me["groups"], json!(["land", "sea", "system:authenticated"]));
    assert_eq!(me["extra"]["acme.io/k"], json!(["x", "y"]));

    // A refusal names the user.
    let own = denied(&tokens, &login, |_| {}).await;
    assert_eq!(
        own,
        "pods is forbidden: User \"exchange-pinny\" cannot list resource \"pods\" in API group \"\" at the cluster scope"
    );
    let (_, account) = account_of(&login);
    let push = |name: &str, value: &str| {
        let header = (name.to_owned(), value.to_owned());
        move |headers: &mut Vec<(String, String)>| headers.push(header)
    };
    let replace = |name: &'static str, value: &'static str| {
        move |headers: &mut Vec<(String, String)>| {
            headers.iter_mut().find(|(found, _)| found == name).unwrap().1 = value.to_owned();
        }
    };
    for (message, named) in [
        (denied(&tokens, &login, replace("Impersonate-User", "other")).await, "users \"other\" is forbidden"),
        (
            denied(&tokens, &login, push("Impersonate-Group", "admins")).await,
            "groups \"admins\" is forbidden",
        ),
        (denied(&tokens, &login, push("Impersonate-Group", "system:masters")).await, "\"system:masters\""),
        (denied(&tokens, &login, replace("Impersonate-Uid", "uid-8")).await, "uids"),
        (
            denied(&tokens, &login, push("Impersonate-Extra-acme.io%2Fk", "z")).await,
            "cannot impersonate resource \"userextras/acme.io/k\"",
        ),
        (
            denied(&tokens, &login, push("Impersonate-Extra-acme.io%2Fother", "x")).await,
            "\"userextras/acme.io/other\"",
        ),
    ] {
        assert!(message.contains(named), "{message}");
        assert!(message.contains(&format!("User \"{account}\" cannot impersonate")), "{message}");
    }

    // Without headers the token authenticates its service account, which has no permissions.
    let (code, message) = tokens.send_request(&login.token, &[], PODS).await;
    assert_eq!(code, 403);
    assert!(message.as_str().unwrap().contains(&format!("User \"{account}\" cannot list")), "{message}");
}

#[tokio::test]
async fn both_audit_logs_contain_the_user_and_the_service_account() {
    let Some(tokens) = shared().await else { return };
    let mut audited = user("exchange-audited", &["sea"]);
    audited["uid"] = json!("uid-9");
    let login = tokens.log_in(&audited).await;
    tokens.who_am_i(&login).await;
    let event = tokens.own.world.control_plane().await_audit_event(
        "the request of the user",
        "exchange-audited",
        |event| event["impersonatedUser"]["username"] == "exchange-audited",
    );
    let event = event.await.unwrap();
    let (name, account) = account_of(&login);
    assert_eq!(event["user"]["username"], account);
    let credential = event["user"]["extra"]["authentication.kubernetes.io/credential-id"][0].clone();
    assert_eq!(event["impersonatedUser"]["uid"], "uid-9");
    assert_eq!(event["impersonatedUser"]["groups"], json!(["sea", "system:authenticated"]));

    let lines = tokens.audit_lines();
    let issued = lines
        .iter()
        .map(|line| &line["issuedServiceAccountToken"])
        .find(|issued| issued["serviceAccount"] == account)
        .unwrap();
    assert_eq!(credential, format!("JTI={}", issued["jti"].as_str().unwrap()));
    assert_eq!(issued["notAfter"], login.expires);
    let secret = issued["boundSecret"].as_str().unwrap();
    assert!(secret.starts_with(&format!("{}/{name}-", tokens.users())), "{secret}");
    assert!(!tokens.own.pods.logs(tokens.own.app).contains("exchange-audited"), "people are not named");
}

#[tokio::test]
async fn a_client_that_does_not_request_a_token_never_gets_one() {
    let Some(tokens) = shared().await else { return };
    for accept in [&[][..], &["ClientCertificate"]] {
        let status = tokens.try_log_in(&user("exchange-old", &[]), accept).await.unwrap();
        assert!(status["credential"]["clientCertificateData"].is_string(), "{status}");
        assert!(status["credential"]["token"].is_null() && status["impersonate"].is_null(), "{status}");
    }
    // A UID does not fit into a certificate; the token carries it.
    let mut with_uid = user("exchange-uid", &[]);
    with_uid["uid"] = json!("u-1");
    let line = tokens.refused(&with_uid, &[]).await;
    assert_eq!(line["err"], "UIDs are not supported");
    let login = tokens.log_in(&with_uid).await;
    assert_eq!(tokens.who_am_i(&login).await["uid"], "u-1");
    assert_eq!(tokens.count("clusterroles", None).await, tokens.count("clusterrolebindings", None).await);
}

#[tokio::test]
async fn two_logins_share_their_objects_and_each_can_be_revoked_alone() {
    let Some(tokens) = shared().await else { return };
    let twice = user("exchange-twice", &["sea"]);
    let (one, other) = (tokens.log_in(&twice).await, tokens.log_in(&twice).await);
    let (name, account) = account_of(&one);
    assert_eq!(account_of(&other).1, account);
    for (kind, wanted) in
        [("serviceaccounts", 1), ("clusterroles", 1), ("clusterrolebindings", 1), ("secrets", 2)]
    {
        assert_eq!(tokens.count(kind, Some(&name)).await, wanted, "{kind}");
    }
    // Each replica has its own log, so their order does not show which login came first.
    let lines = tokens.audit_lines();
    let recorded: BTreeSet<&str> = lines
        .iter()
        .map(|line| &line["issuedServiceAccountToken"])
        .filter(|issued| issued["serviceAccount"] == account)
        .map(|issued| issued["boundSecret"].as_str().unwrap().rsplit('/').next().unwrap())
        .collect();
    let (secret, kept) = (secret_of(&one), secret_of(&other));
    assert_eq!(recorded, BTreeSet::from([&*secret, &*kept]));
    tokens.who_am_i(&one).await;
    let users = tokens.users();
    tokens.own.world.kubectl().output(&["delete", "secret", "-n", &users, &secret]).await.unwrap();
    let revoked = wait::until_ok(TIME_LIMIT, "the token to be revoked", async || {
        let (code, response) =
            tokens.send_request(&one.token, &one.headers(), super::environment::SELF_REVIEW).await;
        anyhow::ensure!(code == 401, "{code} {response}");
        Ok(())
    });
    revoked.await.unwrap();
    tokens.who_am_i(&other).await;
}

#[tokio::test]
async fn a_changed_group_creates_another_identity_and_the_old_token_keeps_its_permissions() {
    let Some(tokens) = shared().await else { return };
    let before = tokens.log_in(&user("exchange-moved", &["sea"])).await;
    let after = tokens.log_in(&user("exchange-moved", &["land"])).await;
    assert_ne!(account_of(&before).0, account_of(&after).0);
    tokens.who_am_i(&before).await;
    let into_land = |headers: &mut Vec<(String, String)>| {
        headers.push(("Impersonate-Group".to_owned(), "land".to_owned()));
    };
    let message = denied(&tokens, &before, into_land).await;
    assert!(message.contains("groups \"land\" is forbidden"), "{message}");
    assert_eq!(tokens.who_am_i(&after).await["groups"], json!(["land", "system:authenticated"]));
}

#[tokio::test]
async fn concurrent_first_logins_on_all_replicas_create_one_set_of_objects() {
    let Some(tokens) = shared().await else { return };
    let crowd = user("exchange-crowd", &["sea"]);
    // One connection each, which the Service distributes over the replicas.
    let logins = futures::future::join_all((0..20).map(|_| tokens.log_in(&crowd))).await;
    let (name, _) = account_of(&logins[0]);
    let accounts: BTreeSet<_> = logins.iter().map(|login| account_of(login).1).collect();
    assert_eq!(accounts.len(), 1);
    let different: BTreeSet<_> = logins.iter().map(|login| &login.token).collect();
    assert_eq!(different.len(), 20, "tokens are never shared");
    for (kind, wanted) in
        [("serviceaccounts", 1), ("clusterroles", 1), ("clusterrolebindings", 1), ("secrets", 20)]
    {
        assert_eq!(tokens.count(kind, Some(&name)).await, wanted, "{kind}");
    }
    for login in &logins {
        assert_eq!(tokens.who_am_i(login).await["username"], "exchange-crowd");
    }
}

#[tokio::test]
async fn a_repeated_login_sends_two_requests() {
    let Some(tokens) = Tokens::install("token-warm", 1, true).await else { return };
    tokens.enable(json!({})).await;
    let warm = user("exchange-warm", &["sea"]);
    let (name, _) = account_of(&tokens.log_in(&warm).await);
    let calls = || -> Vec<String> {
        let ours = format!("system:serviceaccount:{app}:{app}", app = tokens.own.app);
        let events = tokens.own.world.control_plane().audit_events(&ours).unwrap();
        let about = |event: &Value| {
            let object = &event["objectRef"];
            object["name"].as_str().is_some_and(|found| found.starts_with(&name))
                || object["resource"] == "subjectaccessreviews"
                    && event["requestObject"].to_string().contains(&name)
        };
        events
            .iter()
            .filter(|event| event["user"]["username"].as_str().is_some_and(|user| user.starts_with(&ours)))
            .filter(|event| event["stage"] == "ResponseComplete" && about(event))
            .map(|event| {
                let object = &event["objectRef"];
                let sub = object["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
                format!("{} {}{sub}", event["verb"].as_str().unwrap(), object["resource"].as_str().unwrap())
            })
            .collect()
    };
    let counted = wait::until(TIME_LIMIT, "the calls of the first login", async || {
        let calls = calls();
        calls.iter().any(|call| call == "create serviceaccounts/token").then_some(calls)
    });
    let cold = counted.await.unwrap();
    assert!(cold.contains(&"create clusterroles".to_owned()), "{cold:?}");
    tokens.log_in(&warm).await;
    let counted = wait::until(TIME_LIMIT, "the calls of the second login", async || {
        let calls = calls().split_off(cold.len());
        calls.iter().any(|call| call == "create serviceaccounts/token").then_some(calls)
    });
    // The collector does not read objects by name.
    assert_eq!(counted.await.unwrap(), ["create secrets", "create serviceaccounts/token"]);
}
