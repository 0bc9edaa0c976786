//! Runs a real cert-manager: its three programs as processes next to the API server, with
//! administrators' permissions.
//!
//! ```text
//! controller     issues certificates and renews them
//! webhook        admission at https://localhost:PORT, without a Service
//! cainjector     writes the webhook's CA into its configurations
//! ```
//!
//! The release post installs 1.12.3 in pods. 1.11.5 is the version that Go modules can build here;
//! both behave the same for the objects of the post.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pinniped_test_support::control_plane::free_port;
use pinniped_test_support::wait;
use serde_json::json;

use crate::environment::{Environment, Running};
use crate::third_party::{MADE_BY_WALK, define, kubectl, refuse_another};

/// Environment variable with the folder of the programs; `cargo xtask test` and `cargo xtask demo
/// --with-cert-manager` build them and set it.
pub const CERT_MANAGER_ENV: &str = "PINNIPED_CERT_MANAGER";
/// cert-manager's namespace, which contains the Secrets of its cluster issuers.
pub const NAMESPACE: &str = "cert-manager";

const WEBHOOK: &str = "cert-manager-webhook";
/// Each program has one replica.
const NO_LEADER_ELECTION: &str = "--leader-elect=false";
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A running cert-manager.
#[derive(Debug)]
pub struct CertManager {
    _programs: Vec<Running>,
}

impl CertManager {
    /// Returns the folder of the programs, if there is one.
    #[must_use]
    pub fn programs() -> Option<PathBuf> {
        std::env::var_os(CERT_MANAGER_ENV).filter(|dir| !dir.is_empty()).map(PathBuf::from)
    }

    /// Installs the definitions, starts the programs and waits until an issuer would be admitted.
    ///
    /// # Errors
    /// Returns an error that contains the end of the logs when a program is missing or does not
    /// work in time, and an error when the cluster already has another cert-manager.
    pub async fn start(environment: &dyn Environment, programs: &Path) -> anyhow::Result<Self> {
        refuse_another(environment, &format!("namespace/{NAMESPACE}"), "--with-cert-manager").await?;
        define(environment, &programs.join("crds.yaml")).await?;
        let (port, healthz) = (free_port()?, free_port()?);
        let mut running = Vec::new();
        for (program, flags) in [
            ("controller", controller_flags()),
            ("webhook", webhook_flags(port, healthz)),
            ("cainjector", cainjector_flags()),
        ] {
            let file = programs.join(program);
            anyhow::ensure!(file.is_file(), "{} is missing: run `cargo xtask test`", file.display());
            let mut command = Command::new(file);
            command.args(flags);
            command.arg("--kubeconfig").arg(environment.admin_kubeconfig());
            running.push(environment.start(&format!("cert-manager-{program}"), command)?);
        }
        kubectl(environment, &["apply", "--filename", "-"], Some(&installed(port).to_string())).await?;
        Self::await_admission(environment).await?;
        Ok(Self { _programs: running })
    }

    /// Waits until issuers are admitted. Before that they are rejected: the webhook creates its own
    /// certificate, and the injector distributes its CA.
    async fn await_admission(environment: &dyn Environment) -> anyhow::Result<()> {
        let probe = json!({"apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer",
            "metadata": {"name": "probe"}, "spec": {"selfSigned": {}}});
        let args = ["apply", "--dry-run=server", "--filename", "-"];
        wait::until_ok(TIME_LIMIT, "cert-manager to admit an issuer", async || {
            kubectl(environment, &args, Some(&probe.to_string())).await
        })
        .await
        .map(drop)
        .map_err(|error| {
            let tails = ["controller", "webhook", "cainjector"].map(|program| {
                let name = format!("cert-manager-{program}");
                format!("\n{name}'s log ends:\n{}", environment.log_tail(&name))
            });
            error.context(tails.concat())
        })
    }
}

fn controller_flags() -> Vec<String> {
    let metrics = "--metrics-listen-address=127.0.0.1:0".to_owned();
    vec![metrics, format!("--cluster-resource-namespace={NAMESPACE}"), NO_LEADER_ELECTION.to_owned()]
}

fn cainjector_flags() -> Vec<String> {
    vec!["--namespace=".to_owned(), NO_LEADER_ELECTION.to_owned()]
}

fn webhook_flags(port: u16, healthz: u16) -> Vec<String> {
    vec![
        format!("--secure-port={port}"),
        format!("--healthz-port={healthz}"),
        format!("--dynamic-serving-ca-secret-namespace={NAMESPACE}"),
        format!("--dynamic-serving-ca-secret-name={WEBHOOK}-ca"),
        "--dynamic-serving-dns-names=localhost".to_owned(),
    ]
}

/// Returns the namespace and the webhook configurations of the project's chart with another address
/// of the webhook.
fn installed(port: u16) -> serde_json::Value {
    let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
    let configuration = |kind: &str, path: &str| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": WEBHOOK, "labels": {key: value},
                "annotations": {"cert-manager.io/inject-ca-from-secret": format!("{NAMESPACE}/{WEBHOOK}-ca")}},
            "webhooks": [{"name": "webhook.cert-manager.io", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("https://localhost:{port}/{path}")},
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
                "rules": [{"apiGroups": ["cert-manager.io", "acme.cert-manager.io"], "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"], "resources": ["*/*"]}]}]})
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {key: value}}},
        configuration("ValidatingWebhookConfiguration", "validate"),
        configuration("MutatingWebhookConfiguration", "mutate"),
    ]})
}
