//! Tests of the control plane itself.

use pinniped_test_support::control_plane::{AnonymousAccess, ControlPlane, ControlPlaneParams};
use pinniped_test_support::tools;
use pinniped_test_support::world::World;

#[tokio::test]
async fn kubectl_and_server_have_the_selected_version() {
    let release = tools::kubernetes_release();
    let (major, minor) = release.split_once('.').unwrap();
    let text = World::shared().unwrap().kubectl().output(&["version", "-o", "json"]).await.unwrap();
    let version: serde_json::Value = serde_json::from_str(&text).unwrap();
    for side in ["clientVersion", "serverVersion"] {
        assert_eq!(
            (&version[side]["major"], &version[side]["minor"]),
            (&major.into(), &minor.into()),
            "{version}"
        );
    }
}

#[tokio::test]
async fn the_audit_log_contains_user_verb_and_object() {
    let world = World::shared().unwrap();
    let client = world.control_plane().client_as("jane", &["system:masters", "team"]).await.unwrap();
    let maps = kube::Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client, "default");
    assert!(maps.get_opt("audit-me").await.unwrap().is_none());
    let event = world
        .control_plane()
        .await_audit_event("the read", "audit-me", |event| event["objectRef"]["name"] == "audit-me")
        .await
        .unwrap();
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    assert_eq!(event["impersonatedUser"]["username"], "jane");
    assert_eq!(event["impersonatedUser"]["groups"][1], "team");
}

#[tokio::test]
async fn anonymous_requests_are_refused_where_anonymous_auth_is_off() {
    let params =
        ControlPlaneParams { anonymous_access: AnonymousAccess::Nowhere, ..ControlPlaneParams::default() };
    let plane = ControlPlane::start(params).await.unwrap();
    let port: u16 = plane.server().rsplit_once(':').unwrap().1.parse().unwrap();
    let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let tls = pinniped_test_support::wire::connect_unverified(tcp, "kubernetes", &[b"http/1.1"], None)
        .await
        .unwrap();
    let request = b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n";
    let response = pinniped_test_support::wire::raw_request(tls, request).await.unwrap();
    assert_eq!(response.status, 401, "{}", response.head);
}
