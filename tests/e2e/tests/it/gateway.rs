//! The installed gateway: our manifest unchanged, its program in two pods with exactly the
//! permissions of its ServiceAccount, real backends and real clients.
//!
//! The tests of delegated certificates are in `gateway_delegation`.

mod backend;
mod bad_input;
mod changes;
mod core_dumps;
mod environment;
mod memory_limit;
mod metrics;
mod passthrough;
mod replicas;
mod shutdown;
mod termination;

use pinniped_test_support::pods::Pods;
use serde_json::json;

/// The installed gateway, which serves one host with a certificate.
pub(crate) struct InstalledGateway {
    /// The namespace of the test.
    pub(crate) namespace: String,
    host: String,
    pods: &'static Pods,
}

impl InstalledGateway {
    /// Sends a request to every pod that is running now: another test may replace a pod.
    pub(crate) async fn send_requests(&self) -> anyhow::Result<()> {
        for door in environment::doors(self.pods) {
            environment::send_plain_request(door, &self.host, "/").await?;
        }
        Ok(())
    }
}

/// Installs the gateway if it is not installed, and creates a namespace for one test. Returns
/// `None` and records a skip where this machine cannot run it.
pub(crate) async fn installed(test: &'static str) -> Option<InstalledGateway> {
    let environment = environment::shared(test).await?;
    let host = environment.host("served");
    let spec = json!({
        "virtualhost": {"fqdn": host, "tls": {"secretName": "served"}},
        "routes": [{"services": [{"name": "none", "port": 80}]}],
    });
    let secret = environment.secret("served", &environment.serving("served", &host));
    environment.apply(&[secret, environment.proxy("served", spec)]).await;
    Some(InstalledGateway { namespace: environment.namespace.clone(), pods: environment.pods, host })
}
