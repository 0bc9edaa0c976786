//! Metrics: a real Prometheus that reads them, and the queries of the dashboard.

use std::path::Path;

use super::{LOCAL_USER_AUTHENTICATOR, TIME_LIMIT, Walk};
use crate::narrator::Show;
use crate::prometheus::{ACCOUNT, NAMESPACE, Panel, Programs, Prometheus, READER, Sample, legend};
use pinniped_test_support::wait;
use serde_json::json;

/// The command that the user repeats.
const LISTING: [&str; 3] = ["get", "pods", "-A"];
/// Queries that have values only after Prometheus has seen traffic increase.
const TRAFFIC: [&str; 2] = [
    "rate(pinniped_logins_total{result=\"rejected\"}[5m]) > 0",
    "rate(pinniped_requests_total{verb=\"list\"}[5m]) > 0",
];

impl Walk<'_> {
    /// Starts Prometheus on a port of the loopback interface, and waits until it has read the
    /// metrics of every pod of the Concierge, and of the gateway if it is installed.
    ///
    /// # Errors
    /// Returns an error when it does not start, or does not reach a pod.
    pub async fn start_prometheus(&self, programs: &Programs, port: u16) -> anyhow::Result<Prometheus> {
        self.heading("Start a Prometheus that reads the metrics");
        let prometheus = Prometheus::start(self.environment, programs, port).await?;
        let account = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
        self.kubectl(&["get", "clusterrole", READER, "-o", "jsonpath={.rules}"], None, Show::Output).await?;
        self.narrator.print(&format!("(the only permission of {account})"));
        let jobs = prometheus.query(self.environment, "count by (job) (up == 1)").await?;
        for job in jobs {
            let name = job.labels.get("job").map_or("", String::as_str);
            self.narrator.print(&format!("reads {} pods of {name}", job.value));
        }
        Ok(prometheus)
    }

    /// Logs in with a valid and with a wrong password and lists pods as the user, until Prometheus
    /// has seen the numbers increase.
    ///
    /// # Errors
    /// Returns an error when it does not see that in time.
    pub async fn make_traffic(&self, prometheus: &Prometheus, kubeconfig: &Path) -> anyhow::Result<()> {
        self.heading("Some logins and requests, for the metrics");
        let path = format!("/apis/{}/v1alpha1/tokencredentialrequests", self.names.group_of("login"));
        let step = || self.user_kubectl(kubeconfig, &LISTING);
        self.narrator.show_command(&format!("while sleep 1; do {}; ...; done", step().shown()));
        wait::until_ok(TIME_LIMIT, "Prometheus to see logins and requests", async || {
            prometheus.find_pods(self.environment).await?;
            for password in ["password123", "wrong"] {
                let login = json!({"apiVersion": format!("{}/v1alpha1", self.names.group_of("login")),
                    "kind": "TokenCredentialRequest",
                    "spec": {"token": format!("{}:{password}", self.names.user),
                        "authenticator": {"apiGroup": self.names.group_of("authentication"),
                            "kind": "WebhookAuthenticator", "name": LOCAL_USER_AUTHENTICATOR}}});
                let args = ["create", "--raw", &path, "--filename", "-"];
                self.admin_step(&args).run(Some(&login.to_string())).await?.success()?;
            }
            step().run(None).await?.success()?;
            for query in TRAFFIC {
                let seen = prometheus.query(self.environment, query).await?;
                anyhow::ensure!(!seen.is_empty(), "{query} has no value");
            }
            Ok(())
        })
        .await
    }

    /// Shows every panel of the dashboard: its queries, and their current values.
    ///
    /// # Errors
    /// Returns an error when Prometheus does not respond to a query.
    pub async fn show_panels(&self, prometheus: &Prometheus) -> anyhow::Result<()> {
        self.heading("The panels of the dashboard in deploy/monitoring");
        let mut row = String::new();
        for panel in Panel::all()? {
            if panel.row != row {
                self.narrator.print("");
                self.narrator.print(&format!("-- {}", panel.row));
                row.clone_from(&panel.row);
            }
            self.narrator.print(&panel.title);
            for (expression, format) in &panel.queries {
                self.narrator.print(&format!("  {expression}"));
                let samples = prometheus.query(self.environment, expression).await?;
                let shown = |sample: &&Sample| sample.value != 0.0 && !sample.value.is_nan();
                for sample in samples.iter().filter(shown) {
                    let value = panel.shown(sample.value);
                    self.narrator.print(&format!("    {:<44} {value}", legend(format, sample)));
                }
                let zeros = samples.iter().filter(|sample| sample.value == 0.0).count();
                let idle = samples.iter().filter(|sample| sample.value.is_nan()).count();
                for (count, text) in [(zeros, "times 0"), (idle, "without an observation")] {
                    if count > 0 {
                        self.narrator.print(&format!("    ({count} {text})"));
                    }
                }
                if samples.is_empty() {
                    let condition = panel.condition.as_deref().unwrap_or("This has not happened yet.");
                    self.narrator.print(&format!("    (no value. {condition})"));
                }
            }
        }
        Ok(())
    }
}
