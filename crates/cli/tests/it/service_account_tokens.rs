//! Logins with a service account token against a scripted cluster: the output and the files of the
//! plugin, the arguments of kubectl, and the requests of our own commands.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::support::{Home, ReceivedResponse, Run, Server};

mod generated;
mod kubectl;
mod ours;
mod plugin;

/// A cluster whose Concierge issues service account tokens, and whose whoami API returns the
/// impersonated user.
struct World {
    server: Server,
    status: Arc<Mutex<Value>>,
}

fn pinny(groups: &[&str]) -> Value {
    json!({"username": "pinny", "groups": groups})
}

fn in_seconds(seconds: i64) -> String {
    let whole = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    (whole + SignedDuration::from_secs(seconds)).to_string()
}

fn token_for(impersonate: &Value) -> Value {
    json!({
        "credential": {"token": "sa-token", "expirationTimestamp": in_seconds(300)},
        "impersonate": impersonate,
    })
}

fn certificate() -> Value {
    json!({"credential": {
        "clientCertificateData": "cert\n", "clientKeyData": "key\n", "expirationTimestamp": in_seconds(300),
    }})
}

impl World {
    /// Starts a cluster in which every login results in the user pinny in group `a`.
    fn start() -> Self {
        let status = Arc::new(Mutex::new(token_for(&pinny(&["a"]))));
        let response = status.clone();
        let frontend = json!({
            "type": "ServiceAccountToken",
            "serviceAccountTokenInfo": {"server": "https://not-used", "certificateAuthorityData": "bm90LXVzZWQ="},
        });
        let objects = Cluster {
            issuers: vec![cluster::issuer(
                "test-issuer",
                &[cluster::strategy("ServiceAccountToken", "Success", "Listening", &frontend)],
            )],
            webhooks: vec![cluster::webhook("test-webhook")],
            ..Cluster::default()
        };
        let server = Server::start(move |request| {
            let one = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
            if request.path.ends_with("/tokencredentialrequests") {
                let status = response.lock().unwrap().clone();
                return ReceivedResponse::json(&json!({"kind": "TokenCredentialRequest", "status": status}))
                    .with_status(201);
            }
            if request.path.ends_with("/whoamirequests") {
                let user = json!({"username": one("impersonate-user"), "groups": [one("impersonate-group")]});
                return ReceivedResponse::json(&json!({"status": {"kubernetesUserInfo": {"user": user}}}))
                    .with_status(201);
            }
            objects.respond(request)
        });
        Self { server, status }
    }

    /// Sets the response of the Concierge.
    fn responds_with(&self, status: Value) {
        *self.status.lock().unwrap() = status;
    }

    /// Returns the number of logins.
    fn logins(&self) -> usize {
        self.server.seen().iter().filter(|request| request.path.ends_with("/tokencredentialrequests")).count()
    }

    /// Returns the arguments of the plugin.
    fn args(&self, more: &[&str]) -> Vec<String> {
        let mut args = vec![
            "login".to_owned(),
            "static".to_owned(),
            "--enable-concierge".to_owned(),
            "--concierge-authenticator-name=test-webhook".to_owned(),
            "--concierge-authenticator-type=webhook".to_owned(),
            format!("--concierge-endpoint={}", self.server.url()),
            format!("--concierge-ca-bundle-data={}", self.server.ca_data()),
            "--concierge-credential-type=service-account-token".to_owned(),
            "--token=t".to_owned(),
        ];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args
    }

    /// Creates a home directory with a kubeconfig whose user logs in with these arguments.
    fn home(&self, more: &[&str]) -> (Home, PathBuf) {
        let mut home = Home::new();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": self.server.url(), "certificate-authority-data": self.server.ca_data(),
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1beta1",
                "command": env!("CARGO_BIN_EXE_pinniped"), "args": self.args(more), "provideClusterInfo": true,
            }}}],
        });
        let path = home.write("config", &config.to_string());
        home.set("KUBECONFIG", path.to_str().unwrap());
        (home, path)
    }
}

fn user_entry(path: &std::path::Path) -> Value {
    let document: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    document["users"][0]["user"].clone()
}

/// Returns the arguments with which kubectl would run the plugin.
fn plugin_args(path: &std::path::Path) -> Vec<String> {
    serde_json::from_value(user_entry(path)["exec"]["args"].clone()).unwrap()
}

/// Returns the printed token, or the error.
fn token(run: &Run) -> Result<String, String> {
    match run.code {
        0 => {
            let response: Value = serde_json::from_str(&run.stdout).unwrap();
            Ok(response["status"]["token"].as_str().unwrap_or_default().to_owned())
        }
        _ => {
            assert_eq!(run.stdout, "", "{run:?}");
            Err(run.last_error().unwrap().to_owned())
        }
    }
}
