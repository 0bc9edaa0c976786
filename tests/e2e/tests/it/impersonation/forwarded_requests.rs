//! The content of forwarded requests, from the API server's own audit log.

use pinniped_test_support::pods::NODE_IP;
use serde_json::json;

use super::{
    CREDENTIAL_ID, Connection, Protocol, audited, credential_id, get, large::front_proxy, send_request,
    service_account, signed, token_of, who_am_i, with,
};
use crate::installed::{self, Credentials, PROXY_ACCOUNT};

#[tokio::test]
async fn forwarded_requests_impersonate_the_user_as_the_proxys_account_without_the_clients_credentials() {
    let Some(installed) = installed::shared("what the API server sees").await else { return };
    let user = "seen-user";
    installed.allow(user, json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])).await;
    // A token that the API server would accept: if it were forwarded, the request would be
    // authenticated as its user.
    service_account(&installed, "seen").await;
    let token = token_of(&installed, "seen", json!({})).await;
    let pair = installed.certificate(user, Some("seen-group"));
    let id = credential_id(&pair.certificate_pem);
    let both = Credentials { certificate: Some(pair), token: Some(token) };

    for (protocol, agent) in [(Protocol::Http1, "seen/1.1"), (Protocol::Http2, "seen/2")] {
        let mut connection = Connection::open(&installed, protocol, &both).await;
        let request = with(
            get("/api/v1/namespaces/seen/configmaps?limit=1"),
            &[
                ("user-agent", agent),
                ("x-forwarded-for", "203.0.113.7"),
                ("X-Forwarded-For", "203.0.113.8, 203.0.113.9"),
                // Headers of a front proxy's client; this client is not a front proxy.
                ("x-remote-user", "somebody-else"),
                ("x-remote-group", "system:masters"),
            ],
        );
        let response = connection.send_request(request).await;
        assert_eq!(response.status, 200, "{response:?}");

        let event = audited(&installed, agent).await;
        assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
        assert_eq!(
            event["impersonatedUser"],
            json!({"username": user, "groups": ["seen-group", "system:authenticated"],
                "extra": {CREDENTIAL_ID: [id]}})
        );
        assert_eq!(event["sourceIPs"], json!([NODE_IP]), "the client's X-Forwarded-For was passed on");
        assert_eq!(event["requestURI"], "/api/v1/namespaces/seen/configmaps?limit=1");
        assert_eq!(event["responseStatus"]["code"], 200);
    }
}

#[tokio::test]
async fn a_certificate_with_a_uid_is_impersonated_with_it() {
    let Some(installed) = installed::shared("a certificate with a UID").await else { return };
    let pair = signed(&installed, "uid-user", |params| {
        let uid = rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        params.distinguished_name.push(uid, "0123-uid");
    });
    let id = credential_id(&pair.certificate_pem);
    let request = with(who_am_i(), &[("user-agent", "certificate-uid/1")]);
    let response = send_request(&installed, &pair.into(), request).await;
    assert_eq!(response.status, 201, "{response:?}");
    let event = audited(&installed, "certificate-uid/1").await;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    assert_eq!(
        event["impersonatedUser"],
        json!({"username": "uid-user", "uid": "0123-uid", "groups": ["system:authenticated"],
            "extra": {CREDENTIAL_ID: [id]}})
    );
}

#[tokio::test]
async fn only_a_front_proxy_can_name_the_user_in_headers() {
    let Some(installed) = installed::shared("a front proxy").await else { return };
    let front_proxy = front_proxy(&installed);
    let printed = [
        ("x-remote-user", "front-user"),
        ("x-remote-uid", "front-uid"),
        ("x-remote-group", "front-b"),
        ("x-remote-group", "front-a"),
        ("x-remote-extra-example.com%2Fcolour", "blue"),
        ("user-agent", "front-proxy/1"),
    ];
    let response = send_request(&installed, &front_proxy, with(who_am_i(), &printed)).await;
    assert_eq!(response.status, 201, "{response:?}");
    let event = audited(&installed, "front-proxy/1").await;
    assert_eq!(event["user"]["username"], PROXY_ACCOUNT);
    assert_eq!(
        event["impersonatedUser"],
        json!({"username": "front-user", "uid": "front-uid",
            "groups": ["front-b", "front-a", "system:authenticated"], "extra": {"example.com/colour": ["blue"]}})
    );
    // From any other client these headers have no effect, and are not forwarded.
    let response = send_request(&installed, &Credentials::none(), with(who_am_i(), &printed)).await;
    assert_eq!(response.json()["status"]["kubernetesUserInfo"]["user"]["username"], "system:anonymous");
}

#[tokio::test]
async fn responses_have_the_security_headers_and_the_audit_id_of_the_client() {
    let Some(installed) = installed::shared("security headers").await else { return };
    let pair = installed.certificate("headers-user", None);
    let mut connection = Connection::open(&installed, Protocol::Http2, &pair.into()).await;
    let id = "0f1e2d3c-0000-4000-8000-00000000c0de";
    for path in ["/version", "/api/v1/pods"] {
        let response = connection.send_request(with(get(path), &[("audit-id", id)])).await;
        let first = |name: &str| response.headers[name].to_str().unwrap().to_owned();
        // The API server's own log has the same id.
        let ids: Vec<_> = response.headers.get_all("audit-id").iter().collect();
        assert_eq!(ids, [id], "{response:?}");
        assert_eq!(first("cache-control"), "no-cache,no-store,max-age=0,must-revalidate");
        assert_eq!(first("content-security-policy"), "default-src 'none'; frame-ancestors 'none'");
        assert_eq!(first("x-frame-options"), "DENY");
        assert_eq!(first("x-content-type-options"), "nosniff");
    }
}
