//! Permissions of clients without credentials where the API server allows anonymous requests.

use pinniped_e2e::walkthrough::DECISION;
use serde_json::json;

use super::{LOGIN, get, post, send_request, with};
use crate::installed::{self, Credentials};

#[tokio::test]
async fn anonymous_clients_can_read_the_health_paths_and_are_refused_by_name_elsewhere() {
    let Some(installed) = installed::shared("anonymous clients").await else { return };
    let nobody = Credentials::none();
    for path in ["/healthz", "/readyz", "/livez"] {
        let response = send_request(&installed, &nobody, get(path)).await;
        assert_eq!((response.status, response.body.as_str()), (200, "ok"), "{path}");
    }

    let response = send_request(&installed, &nobody, get("/api/v1/namespaces/kube-system/pods/x")).await;
    let message = format!(
        "pods \"x\" is forbidden: User \"system:anonymous\" cannot get resource \"pods\" in API group \"\" in the \
         namespace \"kube-system\": {DECISION}"
    );
    assert_eq!(
        response.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": "Forbidden", "details": {"name": "x", "kind": "pods"}, "code": 403})
    );

    // Also as a user who impersonates an anonymous user.
    let admin = Credentials::from(installed.certificate("anonymous-admin", Some("system:masters")));
    let acting = [("impersonate-user", "system:anonymous"), ("impersonate-group", "system:unauthenticated")];
    let response = send_request(&installed, &admin, with(get("/healthz/log"), &acting)).await;
    let body = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\"message\":\"forbidden: \
         User \\\"system:anonymous\\\" cannot get path \\\"/healthz/log\\\": {DECISION}\",\"reason\":\"Forbidden\",\
         \"details\":{{}},\"code\":403}}\n"
    );
    assert_eq!((response.status, response.body), (403, body));
}

#[tokio::test]
async fn an_empty_login_through_the_proxy_gets_the_missing_fields() {
    let Some(installed) = installed::shared("an empty login").await else { return };
    let body =
        json!({"apiVersion": "login.concierge.pinniped.dev/v1alpha1", "kind": "TokenCredentialRequest"});
    let response = send_request(&installed, &Credentials::none(), post(LOGIN, &body)).await;
    let wanted = ".login.concierge.pinniped.dev \"\" is invalid: spec.token.value: Required value: token must be supplied";
    assert_eq!(response.message(), (422, wanted.to_owned()));
}
