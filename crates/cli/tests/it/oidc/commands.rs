//! Commands that log in as the plugin of a kubeconfig would.

use serde_json::{Value, json};

use super::browser::{Desktop, visit};
use super::issuer::{Issuer, Settings};
use crate::support::{ReceivedResponse, Server, plugin_kubeconfig};

/// Returns a Concierge that issues service account tokens for the subject of the ID token.
fn concierge() -> Server {
    Server::start(|request| {
        let request: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(request["spec"]["authenticator"]["kind"], "JWTAuthenticator");
        let expiry = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 300).unwrap();
        ReceivedResponse::json(&json!({
            "kind": "TokenCredentialRequest",
            "status": {
                "credential": {"token": "sa-token", "expirationTimestamp": expiry.to_string()},
                "impersonate": {"username": "pinny", "groups": ["a"]},
            },
        }))
    })
}

#[test]
fn kubectl_runs_with_the_identity_of_an_oidc_login() {
    let (issuer, concierge) = (Issuer::start(Settings::default()), concierge());
    let args = issuer.args(&[
        "--enable-concierge",
        "--concierge-authenticator-name=a",
        "--concierge-authenticator-type=jwt",
        &format!("--concierge-endpoint={}", concierge.url()),
        &format!("--concierge-ca-bundle-data={}", concierge.ca_data()),
        "--concierge-credential-type=service-account-token",
        "--impersonation-delivery=wrapper",
    ]);
    let mut desktop = Desktop::with_browser("#!/bin/sh\necho \"$1\" >> \"$OPENED\"\n");
    let config = plugin_kubeconfig(&concierge.url(), &concierge.ca_data(), &args);
    let path = desktop.home.write("config", &config);
    let directory = desktop.home.path().to_str().unwrap().to_owned();
    desktop.home.set("KUBECONFIG", path.to_str().unwrap()).set("TMPDIR", &directory);
    // A script in the place of kubectl prints the kubeconfig that it gets.
    let kubectl = desktop.home.write("bin/show", "#!/bin/sh\n/bin/cat \"$KUBECONFIG\"\n");
    std::fs::set_permissions(&kubectl, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let command = ["kubectl".to_owned(), format!("--kubectl-path={}", kubectl.display()), "get".to_owned()];

    let running = desktop.start(&command);
    let url = desktop.first_opened();
    visit(&url, &issuer.authorize(&url));
    let run = running.finish();
    let shown: Value = serde_saphyr::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"));
    assert_eq!(shown["users"][0]["user"]["as"], "pinny", "{run:?}");
    // The plugin in that kubeconfig, and the next run, use the same caches.
    assert_eq!(desktop.home.run(&command).stdout, run.stdout);
    assert_eq!((desktop.opened().len(), concierge.seen().len()), (1, 1));
}
