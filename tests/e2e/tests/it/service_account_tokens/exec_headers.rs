//! Headers in the plugin's output, for a kubectl that supports them.

use kube::config::Kubeconfig;
use serde_json::{Value, json};

use super::environment::{SELF_REVIEW, shared};
use super::kubeconfig::kubeconfig;
use super::webhook::token_of;
use crate::cli::Home;

#[tokio::test]
async fn todays_kubectl_is_refused_and_one_that_sends_the_headers_is_the_user() {
    let Some(tokens) = shared().await else { return };
    let home = Home::new();
    let user = json!({"username": "headers pinny", "uid": "u-2", "groups": ["sea", "land"],
        "extra": {"acme.io/k": ["x", "y"]}});
    let token = format!("--static-token={}", token_of(&user));
    kubeconfig(&tokens, &home, &[&token, "--impersonation-delivery=exec-headers"]).await;

    let output = home.kubectl(tokens.own.world, &["get", "pods"], &[]).await;
    assert!(output.code != 0, "{}", output.stdout);
    assert!(
        output.stderr.starts_with(
            "Error: this cluster requires impersonation headers, which this kubectl does not support; \
             get another kubeconfig with --impersonation-delivery kubeconfig, wrapper or proxy"
        ),
        "{}",
        output.stderr
    );
    assert!(!output.stderr.contains("system:serviceaccount"), "{}", output.stderr);

    // Simulates a kubectl that declares the capability and sends the headers.
    let user = Kubeconfig::read_from(home.kubeconfig()).unwrap().auth_infos.remove(0).auth_info.unwrap();
    let args = user.exec.unwrap().args.unwrap();
    let response = home.plugin(&args, &[("PINNIPED_EXEC_REQUEST_HEADERS", "true")]).await.success().unwrap();
    let response: Value = serde_json::from_str(&response.stdout).unwrap();
    let mut headers = Vec::new();
    for (name, values) in response["status"]["requestHeaders"].as_object().unwrap() {
        for value in values.as_array().unwrap() {
            headers.push((name.clone(), value.as_str().unwrap().to_owned()));
        }
    }
    let token = response["status"]["token"].as_str().unwrap();
    let (code, me) = tokens.send_request(token, &headers, SELF_REVIEW).await;
    assert_eq!(code, 200, "{me}");
    let me = &me["status"]["userInfo"];
    assert_eq!((&me["username"], &me["uid"]), (&json!("headers pinny"), &json!("u-2")));
    assert_eq!(me["groups"], json!(["land", "sea", "system:authenticated"]));
    assert_eq!(me["extra"]["acme.io/k"], json!(["x", "y"]));
}
