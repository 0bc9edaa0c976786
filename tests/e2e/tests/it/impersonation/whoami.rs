//! The identity of the caller for every kind of credential.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::PostParams;
use pinniped_test_support::wait;
use serde_json::{Value, json};

use super::{
    CREDENTIAL_ID, audited, create_webhook_user, credential_id, get, log_in, post, send_request,
    service_account, token_of, who_am_i, with,
};
use crate::installed::{self, Credentials, Installed, TIME_LIMIT};

async fn user_of(installed: &Installed, credentials: &Credentials) -> Value {
    let response = send_request(installed, credentials, who_am_i()).await;
    assert_eq!(response.status, 201, "{response:?}");
    response.json()["status"]["kubernetesUserInfo"]["user"].clone()
}

#[tokio::test]
async fn a_certificate_from_a_login_names_its_user_and_groups() {
    let Some(installed) = installed::shared("whoami with the certificate of a login").await else { return };
    create_webhook_user(&installed, "whoami-user", "whoami-b,whoami-a").await;
    let login =
        wait::until_ok(TIME_LIMIT, "the user to be known", async || log_in(&installed, "whoami-user").await);
    let login = login.await.unwrap();
    let id = credential_id(&login.certificate.as_ref().unwrap().certificate_pem);
    // A certificate stores groups in one DER SET, so they are sorted by their encoding.
    assert_eq!(
        user_of(&installed, &login).await,
        json!({"username": "whoami-user", "groups": ["whoami-a", "whoami-b", "system:authenticated"],
            "extra": {CREDENTIAL_ID: [id]}})
    );
}

#[tokio::test]
async fn a_request_without_credentials_is_anonymous() {
    let Some(installed) = installed::shared("whoami without credentials").await else { return };
    assert_eq!(
        user_of(&installed, &Credentials::none()).await,
        json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]})
    );
}

#[tokio::test]
async fn a_legacy_service_account_token_names_its_account() {
    let Some(installed) = installed::shared("whoami with a legacy token").await else { return };
    let (name, _) = service_account(&installed, "legacy-token").await;
    let secrets = Api::<Secret>::namespaced(installed.admin().await, "legacy-token");
    let secret = json!({"metadata": {"name": "legacy", "annotations": {"kubernetes.io/service-account.name": "caller"}},
        "type": "kubernetes.io/service-account-token"});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let token = wait::until(TIME_LIMIT, "the legacy token", async || {
        let data = secrets.get("legacy").await.ok()?.data?;
        String::from_utf8(data.get("token")?.0.clone()).ok()
    })
    .await
    .unwrap();
    let user = user_of(&installed, &Credentials::token(&token)).await;
    assert_eq!(user["username"], json!(name));
    assert_eq!(user["groups"], account_groups("legacy-token"));
}

#[tokio::test]
async fn a_bound_service_account_token_names_account_and_pod_and_a_wrong_audience_is_rejected() {
    let Some(installed) = installed::shared("whoami with a bound token").await else { return };
    let (name, _) = service_account(&installed, "bound-token").await;
    let pod = json!({"metadata": {"name": "bound-to"}, "spec": {"serviceAccountName": "caller",
        "containers": [{"name": "none", "image": "example.com/none"}]}});
    let pods = Api::<Pod>::namespaced(installed.admin().await, "bound-token");
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let uid = pod.metadata.uid.unwrap();

    let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": "bound-to", "uid": uid});
    let token = token_of(&installed, "bound-token", json!({"boundObjectRef": reference})).await;
    let user = user_of(&installed, &Credentials::token(&token)).await;
    assert_eq!(user["username"], json!(name));
    assert_eq!(user["groups"], account_groups("bound-token"));
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["bound-to"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-uid"], json!([uid]));
    let id = user["extra"][CREDENTIAL_ID][0].as_str().unwrap_or_default();
    assert!(id.starts_with("JTI="), "{user}");

    let token = token_of(&installed, "bound-token", json!({"audiences": ["somebody-else"]})).await;
    let response = send_request(&installed, &Credentials::token(&token), who_am_i()).await;
    assert_eq!(response.status, 401);
    assert_eq!(response.body, UNAUTHORIZED);
}

#[tokio::test]
async fn service_account_tokens_are_forwarded_so_that_the_csr_api_records_the_uid() {
    let Some(installed) = installed::shared("tokens pass through").await else { return };
    let (name, uid) = service_account(&installed, "csr").await;
    let rules = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
        "verbs": ["create"]}]);
    installed.allow(&name, rules).await;
    let token = token_of(&installed, "csr", json!({})).await;

    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, request);
    let body = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "csr-of-an-account"},
        "spec": {"request": request, "signerName": "example.com/nobody", "usages": ["client auth"]}});
    let request = post("/apis/certificates.k8s.io/v1/certificatesigningrequests", &body);
    let request = with(request, &[("user-agent", "passed-through/1")]);
    let response = send_request(&installed, &Credentials::token(&token), request).await;
    assert_eq!(response.status, 201, "{response:?}");

    let requests = Api::<CertificateSigningRequest>::all(installed.admin().await);
    let spec = requests.get("csr-of-an-account").await.unwrap().spec;
    assert_eq!((spec.username, spec.uid), (Some(name.clone()), Some(uid.clone())));
    assert_eq!(json!(spec.groups), account_groups("csr"));
    let event = audited(&installed, "passed-through/1").await;
    assert_eq!(
        (&event["user"]["username"], &event["user"]["uid"], &event["impersonatedUser"]),
        (&json!(name), &json!(uid), &Value::Null)
    );
}

#[tokio::test]
async fn an_invalid_token_is_rejected_also_for_requests_that_anonymous_users_may_send() {
    let Some(installed) = installed::shared("bad tokens").await else { return };
    for path in ["/healthz", "/api/v1/pods"] {
        let response = send_request(&installed, &Credentials::token("not-a-token"), get(path)).await;
        assert_eq!((response.status, response.body.as_str()), (401, UNAUTHORIZED));
    }
}

/// The body of a 401, which ends with a line feed.
pub(super) const UNAUTHORIZED: &str = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\
    \"status\":\"Failure\",\"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}\n";

fn account_groups(namespace: &str) -> Value {
    json!(["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"])
}
