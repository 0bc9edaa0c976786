//! Users who impersonate other users through the proxy.

use pinniped_e2e::walkthrough::DECISION;
use serde_json::{Value, json};

use super::{
    CREDENTIAL_ID, ORIGINAL_USER, audited, credential_id, get, send_request, service_account, token_of,
    who_am_i, with,
};
use crate::installed::{self, Credentials, PROXY_ACCOUNT};

const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

#[tokio::test]
async fn a_regular_user_may_not_impersonate() {
    let Some(installed) = installed::shared("a regular user impersonates").await else { return };
    let user = Credentials::from(installed.certificate("nested-regular", None));
    let response =
        send_request(&installed, &user, with(get("/api/v1/namespaces"), &[("impersonate-user", "other")]))
            .await;
    let wanted = format!(
        "namespaces is forbidden: User \"nested-regular\" cannot impersonate-on:user-info:list resource \
         \"namespaces\" in API group \"\" at the cluster scope: {DECISION}"
    );
    assert_eq!(response.message(), (403, wanted));
}

#[tokio::test]
async fn an_editor_may_impersonate_a_service_account_without_extras_and_the_original_user_is_recorded() {
    let Some(installed) = installed::shared("an editor impersonates").await else { return };
    let editor = "nested-editor";
    installed
        .bind(
            editor,
            "edit",
            json!({"resourceAttributes": {"verb": "impersonate", "resource": "serviceaccounts"}}),
        )
        .await;
    let pair = installed.certificate(editor, Some("nested-editors"));
    let id = credential_id(&pair.certificate_pem);
    let credentials = Credentials::from(pair);

    let acting = [("impersonate-user", COLLECTOR), ("user-agent", "nested-editor/1")];
    let response = send_request(&installed, &credentials, with(who_am_i(), &acting)).await;
    assert_eq!(response.status, 201, "{response:?}");
    let groups =
        json!(["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"]);
    let original = format!(
        "{{\"username\":\"{editor}\",\"groups\":[\"nested-editors\",\"system:authenticated\"],\
         \"extra\":{{\"{CREDENTIAL_ID}\":[\"{id}\"]}}}}"
    );
    let target = json!({"username": COLLECTOR, "groups": groups, "extra": {ORIGINAL_USER: [original]}});
    assert_eq!(response.json()["status"]["kubernetesUserInfo"]["user"], target);

    // All three identities are in the API server's audit log.
    let event = audited(&installed, "nested-editor/1").await;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    assert_eq!(event["impersonatedUser"], target);

    let acting = [("impersonate-user", COLLECTOR), ("impersonate-extra-some-fancy-key", "v")];
    let response = send_request(&installed, &credentials, with(who_am_i(), &acting)).await;
    let wanted = format!(
        "userextras.authentication.k8s.io \"v\" is forbidden: User \"{editor}\" cannot impersonate resource \
         \"userextras/some-fancy-key\" in API group \"authentication.k8s.io\" at the cluster scope: {DECISION}"
    );
    assert_eq!(response.message(), (403, wanted));
}

#[tokio::test]
async fn a_service_account_needs_permission_to_impersonate_another() {
    let Some(installed) = installed::shared("a service account impersonates").await else { return };
    let (without, _) = service_account(&installed, "nested-sa-without").await;
    let token = Credentials::token(&token_of(&installed, "nested-sa-without", json!({})).await);
    let other = "system:serviceaccount:nested-sa-without:default";
    let response = send_request(&installed, &token, with(who_am_i(), &[("impersonate-user", other)])).await;
    let wanted = format!(
        "whoamirequests.identity.concierge.pinniped.dev is forbidden: User \"{without}\" cannot \
         impersonate-on:serviceaccount:create resource \"whoamirequests\" in API group \
         \"identity.concierge.pinniped.dev\" at the cluster scope: {DECISION}"
    );
    assert_eq!(response.message(), (403, wanted));

    let (granted, uid) = service_account(&installed, "nested-sa").await;
    let rules = json!([{"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}]);
    installed.allow(&granted, rules).await;
    let token = Credentials::token(&token_of(&installed, "nested-sa", json!({})).await);
    let other = "system:serviceaccount:nested-sa:default";
    let response = send_request(&installed, &token, with(who_am_i(), &[("impersonate-user", other)])).await;
    assert_eq!(response.status, 201, "{response:?}");
    let user = &response.json()["status"]["kubernetesUserInfo"]["user"];
    assert_eq!(user["username"], json!(other));
    let original: Value = serde_json::from_str(user["extra"][ORIGINAL_USER][0].as_str().unwrap()).unwrap();
    assert_eq!((&original["username"], &original["uid"]), (&json!(granted), &json!(uid)));
    let groups = ["system:serviceaccounts", "system:serviceaccounts:nested-sa", "system:authenticated"];
    assert_eq!(original["groups"], json!(groups));
}

#[tokio::test]
async fn an_administrator_may_impersonate_any_user_with_groups_extras_and_uid() {
    let Some(installed) = installed::shared("an administrator impersonates").await else { return };
    let admin = Credentials::from(installed.certificate("nested-admin", Some("system:masters")));
    let acting = [
        ("Impersonate-User", "nested-target"),
        ("Impersonate-Group", "g1"),
        ("Impersonate-Group", "g2"),
        ("Impersonate-Extra-ROAR", "tiger"),
        ("Impersonate-Extra-example.com%2fkey", "one"),
        ("Impersonate-Extra-example.com%2fkey", "two"),
        ("Impersonate-UID", "0x0042"),
        ("User-Agent", "nested-admin/1"),
    ];
    let response = send_request(&installed, &admin, with(who_am_i(), &acting)).await;
    assert_eq!(response.status, 201, "{response:?}");
    let event = audited(&installed, "nested-admin/1").await;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    let target = &event["impersonatedUser"];
    assert_eq!((&target["username"], &target["uid"]), (&json!("nested-target"), &json!("0x0042")));
    assert_eq!(target["groups"], json!(["g1", "g2", "system:authenticated"]));
    assert_eq!(target["extra"]["roar"], json!(["tiger"]));
    assert_eq!(target["extra"]["example.com/key"], json!(["one", "two"]));
    assert_eq!(target["extra"][CREDENTIAL_ID], Value::Null, "the administrator's own");
    let original = target["extra"][ORIGINAL_USER][0].as_str().unwrap();
    assert!(original.starts_with(r#"{"username":"nested-admin","groups":["system:masters"#), "{original}");
}

#[tokio::test]
async fn invalid_impersonation_targets_are_refused_with_the_known_bodies() {
    let Some(installed) = installed::shared("refused impersonation").await else { return };
    let admin = Credentials::from(installed.certificate("nested-refused", Some("system:masters")));
    let unable = "unimplemented functionality - unable to act as current user";
    let internal = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\
         \"message\":\"Internal error occurred: {unable}\",\"reason\":\"InternalError\",\
         \"details\":{{\"causes\":[{{\"message\":\"{unable}\"}}]}},\"code\":500}}\n"
    );
    for key in ["x.impersonation-proxy.concierge.pinniped.dev", "party~~time"] {
        let extra = format!("impersonate-extra-{key}");
        let acting = [("impersonate-user", "other"), (extra.as_str(), "v")];
        let response = send_request(&installed, &admin, with(who_am_i(), &acting)).await;
        assert_eq!((response.status, response.body.as_str()), (500, internal.as_str()), "{key}");
    }

    let response =
        send_request(&installed, &admin, with(get("/api/v1/namespaces"), &[("impersonate-uid", "007")]))
            .await;
    let message = r#"requested &user.DefaultInfo{Name:"", UID:"007", Groups:[]string(nil), Extra:map[string][]string(nil)} without impersonating a user name"#;
    assert_eq!(
        response.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "BadRequest", "code": 400})
    );

    let response =
        send_request(&installed, &admin, with(get("/api/v1/namespaces"), &[("impersonate-something", "x")]))
            .await;
    assert_eq!(response.message(), (500, "Internal error occurred: invalid impersonation".to_owned()));
}
