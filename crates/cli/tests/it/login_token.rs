//! `login token` with the tokens of workloads.

use pinniped_jose::Algorithm;
use pinniped_jose::test_util::Signer;
use serde_json::{Value, json};

use crate::support::{Home, ReceivedResponse, Server};

fn jwt(subject: &str) -> String {
    let expiry = jiff::Timestamp::now().as_second() + 600;
    Signer::generate(Algorithm::Es256, "key").sign(&json!({"sub": subject, "exp": expiry}))
}

#[test]
fn a_token_without_a_concierge_is_the_credential() {
    let home = Home::new();
    let token = jwt("a");
    let path = home.write("token", &format!("{token}\n"));
    let run = home.run(&["login", "token", "--from=file", &format!("--token-file={}", path.display())]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    let credential: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(credential["status"]["token"], token.as_str());
    assert!(credential["status"]["expirationTimestamp"].is_string());

    home.write("token", "no JWT");
    home.run(&["login", "token", "--from=file", &format!("--token-file={}", path.display())]).fails_with(
        &format!(
            "could not log in with the token of this workload: file {} does not contain a JWT",
            path.display()
        ),
    );
    home.run(&["login", "token"]).fails_with("required flag(s) \"from\" not set");
    home.run(&["login", "token", "--from=x"]).fails_with(
        "invalid argument \"x\" for \"--from\" flag: invalid source \"x\", valid sources are file, env, github-actions, gitlab and kubernetes",
    );
}

#[test]
fn a_job_of_github_actions_presents_its_token_to_the_concierge() {
    let token = jwt("repo:org/repo");
    let service = Server::start({
        let token = token.clone();
        move |request| {
            if request.path.starts_with("/token") {
                assert_eq!(request.path, "/token?api-version=2&audience=some-cluster");
                assert_eq!(request.headers["authorization"], "Bearer some-permission");
                return ReceivedResponse::json(&json!({"value": token}));
            }
            let body: Value = serde_json::from_str(&request.body).unwrap();
            assert_eq!(body["spec"]["authenticator"]["kind"], "JWTAuthenticator");
            let expiry = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 300).unwrap();
            ReceivedResponse::json(&json!({
                "kind": "TokenCredentialRequest", "apiVersion": "login.concierge.pinniped.dev/v1alpha1",
                "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}},
                "status": {"credential": {
                    "expirationTimestamp": expiry.to_string(),
                    "clientCertificateData": body["spec"]["token"], "clientKeyData": "key",
                }},
            }))
        }
    });
    let mut home = Home::new();
    let ca = home.write("ca.crt", &service.ca);
    home.set("SSL_CERT_FILE", ca.to_str().unwrap());
    home.set("ACTIONS_ID_TOKEN_REQUEST_URL", &format!("{}/token?api-version=2", service.url()));
    home.set("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "some-permission");
    let args = [
        "login",
        "token",
        "--from=github-actions",
        "--audience=some-cluster",
        "--enable-concierge",
        "--concierge-authenticator-name=a",
        "--concierge-authenticator-type=jwt",
        &format!("--concierge-endpoint={}", service.url()),
        &format!("--concierge-ca-bundle-data={}", service.ca_data()),
    ];
    let run = home.run(&args);
    assert_eq!(run.code, 0, "{run:?}");
    let credential: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(credential["status"]["clientCertificateData"], token.as_str());
    assert_eq!(home.run(&args).stdout, run.stdout);
    assert_eq!(service.seen().len(), 2, "the second run used the cache");
    // Another job has another permission, and gets a credential of its own.
    home.set("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "other");
    assert_eq!(home.run(&args).code, 1);
}
