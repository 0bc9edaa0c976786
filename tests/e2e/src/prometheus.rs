//! A real Prometheus that reads the metrics of an installation, and the queries of the dashboard in
//! `deploy/monitoring`.
//!
//! It authenticates at the Concierge with the token of a service account that may read only
//! `/metrics`, as `docs/howto/monitoring.md` describes. In place of discovery, it has a file with
//! the addresses of the pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};

use crate::environment::{Environment, Running, Step};
use crate::third_party::{MADE_BY_WALK, kubectl};
use crate::walkthrough::{CONCIERGE, GATEWAY};

/// Environment variable with the folder in which Prometheus finds its pages; `cargo xtask test` and
/// `cargo xtask demo --observe` set it.
const UI_ENV: &str = "PINNIPED_PROMETHEUS_UI";
/// The namespace, and the service account in it.
pub const NAMESPACE: &str = "prometheus";
/// The service account of Prometheus.
pub const ACCOUNT: &str = "prometheus";
/// The ClusterRole that allows reading `/metrics`; the Helm chart has it, too.
pub const READER: &str = "pinniped-concierge-metrics-reader";
/// The name in the certificate of the aggregated API.
const SERVER_NAME: &str = "pinniped-concierge-api.pinniped-concierge.svc";
/// An APIService of the Concierge, which has the authority of this certificate.
const API_SERVICE: &str = "v1alpha1.login.concierge.pinniped.dev";
const RULES: &str = "deploy/monitoring/prometheus-rules.yaml";
const DASHBOARD: &str = "deploy/monitoring/grafana-dashboard.json";
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The locations of the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Folder of `prometheus` and `promtool`.
    dir: PathBuf,
    /// The working folder that has the pages.
    ui: Option<PathBuf>,
}

impl Programs {
    /// Returns the locations, if the programs are built.
    #[must_use]
    pub fn find() -> Option<Self> {
        let folder = |name| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        Some(Self { dir: folder(tools::PROMETHEUS_ENV)?, ui: folder(UI_ENV) })
    }

    /// Returns the locations for a test. Returns `None` and records a skip where the programs are
    /// not built.
    #[must_use]
    pub fn for_test(test: &str) -> Option<Self> {
        let found = Self::find();
        if found.is_none() {
            tools::skip(test, "no Prometheus: `cargo xtask test` builds it");
        }
        found
    }

    /// Whether the pages of Prometheus are built.
    #[must_use]
    pub fn have_pages(&self) -> bool {
        self.ui.is_some()
    }
}

/// A value of a query, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value. It is not a number where a quantile or a ratio has no observation.
    pub value: f64,
}

/// A panel of the dashboard.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title of the row.
    pub row: String,
    /// The title.
    pub title: String,
    /// The unit, as Grafana names it.
    unit: String,
    /// The condition under which it has values, if it does not always have some.
    pub condition: Option<String>,
    /// Expressions with the format of their legends.
    pub queries: Vec<(String, String)>,
}

impl Panel {
    /// Returns all panels of the dashboard.
    ///
    /// # Errors
    /// Returns an error when the file is not a dashboard.
    pub fn all() -> anyhow::Result<Vec<Self>> {
        let text = std::fs::read_to_string(tools::repository().join(DASHBOARD));
        let dashboard: Value = serde_json::from_str(&text.context("could not read the dashboard")?)?;
        let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut row = String::new();
        let mut found = Vec::new();
        for panel in panels {
            let title = text(&panel["title"]);
            if panel["type"] == "row" {
                row = title;
                continue;
            }
            let targets = panel["targets"].as_array().context("a panel has no queries")?;
            let query = |target: &Value| (text(&target["expr"]), text(&target["legendFormat"]));
            found.push(Self {
                row: row.clone(),
                title,
                unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
                condition: panel["description"].as_str().map(str::to_owned),
                queries: targets.iter().map(query).collect(),
            });
        }
        Ok(found)
    }

    /// Returns a value as the panel shows it.
    #[must_use]
    pub fn shown(&self, value: f64) -> String {
        match self.unit.as_str() {
            "s" if value >= 3600.0 => format!("{:.1} h", value / 3600.0),
            "s" => format!("{value:.4} s"),
            "reqps" => format!("{value:.4} /s"),
            "binBps" => format!("{value:.1} B/s"),
            "percentunit" => format!("{:.1} %", value * 100.0),
            _ => format!("{value}"),
        }
    }
}

/// Returns the legend of a sample.
#[must_use]
pub fn legend(format: &str, sample: &Sample) -> String {
    let mut text = format.to_owned();
    for (name, value) in &sample.labels {
        text = text.replace(&format!("{{{{{name}}}}}"), value);
    }
    text
}

/// A running Prometheus.
#[derive(Debug)]
pub struct Prometheus {
    programs: Programs,
    port: u16,
    targets: PathBuf,
    _running: Running,
}

impl Prometheus {
    /// Creates a service account that may read the metrics of the Concierge, starts Prometheus on a
    /// port of the loopback interface, and waits until it has read the metrics of every pod.
    ///
    /// # Errors
    /// Returns an error that contains the end of the log when it does not start, or does not reach
    /// a pod.
    pub async fn start(
        environment: &dyn Environment,
        programs: &Programs,
        port: u16,
    ) -> anyhow::Result<Self> {
        let dir = environment.dir().join("prometheus");
        std::fs::create_dir_all(&dir).context("could not create a folder for Prometheus")?;
        kubectl(environment, &["apply", "--filename", "-"], Some(&account().to_string())).await?;
        let token = ["create", "token", ACCOUNT, "--namespace", NAMESPACE, "--duration=24h"];
        let token = kubectl(environment, &token, None).await?;
        let bundle = ["get", "apiservice", API_SERVICE, "--output=jsonpath={.spec.caBundle}"];
        let bundle = STANDARD.decode(kubectl(environment, &bundle, None).await?);
        let files = [
            ("token", token.into_bytes()),
            ("ca.pem", bundle.context("the CA bundle of the APIService is not base64")?),
            ("prometheus.yml", configuration(&dir).to_string().into_bytes()),
        ];
        for (name, content) in files {
            let file = dir.join(name);
            std::fs::write(&file, content).with_context(|| format!("could not write {}", file.display()))?;
        }
        let mut command = Command::new(programs.dir.join("prometheus"));
        command.arg("--config.file").arg(dir.join("prometheus.yml"));
        command.arg("--storage.tsdb.path").arg(dir.join("data"));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.current_dir(programs.ui.as_ref().unwrap_or(&dir));
        let targets = dir.join("targets.json");
        let running = environment.start("prometheus", command)?;
        let this = Self { programs: programs.clone(), port, targets, _running: running };
        this.find_pods(environment).await.map_err(|error| {
            error.context(format!("the log of Prometheus ends:\n{}", environment.log_tail("prometheus")))
        })?;
        Ok(this)
    }

    /// The address, on the loopback interface of the environment.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Tells Prometheus the current pods, and waits until it has read the metrics of all of them.
    ///
    /// # Errors
    /// Returns an error when a pod does not respond.
    pub async fn find_pods(&self, environment: &dyn Environment) -> anyhow::Result<()> {
        wait::until_ok(TIME_LIMIT, "Prometheus to read the metrics of every pod", async || {
            let pods = pods(environment).await?;
            anyhow::ensure!(!pods.is_empty(), "the Concierge has no ready pod");
            let target = |(job, pod, address): &(&str, String, String)| {
                json!({"targets": [address], "labels": {"job": job, "namespace": job, "pod": pod}})
            };
            let text = Value::from_iter(pods.iter().map(target)).to_string();
            // Prometheus reads a file that is replaced as a whole.
            let fresh = self.targets.with_extension("fresh");
            std::fs::write(&fresh, text).context("could not write the targets")?;
            std::fs::rename(&fresh, &self.targets).context("could not replace the targets")?;
            let up = self.query(environment, "up").await?;
            for (_, pod, _) in &pods {
                let is_up = |sample: &&Sample| sample.labels.get("pod") == Some(pod) && sample.value == 1.0;
                anyhow::ensure!(up.iter().any(|sample| is_up(&sample)), "it has not read {pod}: {up:?}");
            }
            Ok(())
        })
        .await
    }

    /// Returns the current values of an expression.
    ///
    /// # Errors
    /// Returns an error when Prometheus does not respond, or does not understand the expression.
    pub async fn query(
        &self,
        environment: &dyn Environment,
        expression: &str,
    ) -> anyhow::Result<Vec<Sample>> {
        let mut command = Command::new(self.programs.dir.join("promtool"));
        command.args(["query", "instant", "--format=json", &self.url(), expression]);
        let output = Step::inside(environment, command).run(None).await?.success()?;
        let samples: Vec<Value> = serde_json::from_str(&output.stdout)
            .with_context(|| format!("the values of {expression} are not JSON: {}", output.stdout))?;
        samples.iter().map(|sample| sample_of(sample).context("not a sample")).collect()
    }
}

fn sample_of(sample: &Value) -> Option<Sample> {
    let labels = sample["metric"].as_object()?;
    let labels = labels.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
    Some(Sample { labels: labels.collect::<Option<_>>()?, value: sample["value"][1].as_str()?.parse().ok()? })
}

/// Returns the job, the name and the address of every ready pod with metrics.
async fn pods(environment: &dyn Environment) -> anyhow::Result<Vec<(&'static str, String, String)>> {
    let mut found = Vec::new();
    for (namespace, service, port) in
        [(CONCIERGE, "pinniped-concierge-api", 10250), (GATEWAY, "pinniped-gateway", 8000)]
    {
        let selector = format!("--selector=kubernetes.io/service-name={service}");
        let args = ["get", "endpointslices", "--namespace", namespace, &selector, "--output=json"];
        let slices: Value = serde_json::from_str(&kubectl(environment, &args, None).await?)?;
        let slices = slices["items"].as_array().into_iter().flatten();
        for endpoint in slices.filter_map(|slice| slice["endpoints"].as_array()).flatten() {
            let (pod, address) = (&endpoint["targetRef"]["name"], &endpoint["addresses"][0]);
            if let (Some(pod), Some(address)) = (pod.as_str(), address.as_str())
                && endpoint["conditions"]["ready"] != false
            {
                found.push((namespace, pod.to_owned(), format!("{address}:{port}")));
            }
        }
    }
    Ok(found)
}

/// The namespace and the service account of Prometheus, and its permission.
fn account() -> Value {
    let (key, value) = MADE_BY_WALK.split_once('=').unwrap_or_default();
    let labels = json!({key: value});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}},
        {"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": ACCOUNT, "namespace": NAMESPACE, "labels": labels}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": READER, "labels": labels},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": READER, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READER},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]}]})
}

/// Returns the configuration, as JSON, which YAML contains. The jobs have the same file of targets,
/// of which each keeps its own.
fn configuration(dir: &Path) -> Value {
    let job = |name: &str, more: Value| {
        let mut job = json!({"job_name": name,
            "file_sd_configs": [{"files": [dir.join("targets.json")], "refresh_interval": "1s"}],
            "relabel_configs": [{"source_labels": ["job"], "regex": name, "action": "keep"}]});
        if let (Some(job), Value::Object(more)) = (job.as_object_mut(), more) {
            job.extend(more);
        }
        job
    };
    let concierge = json!({"scheme": "https", "authorization": {"credentials_file": dir.join("token")},
        "tls_config": {"ca_file": dir.join("ca.pem"), "server_name": SERVER_NAME}});
    json!({"global": {"scrape_interval": "1s", "evaluation_interval": "1s",
            "scrape_native_histograms": true, "always_scrape_classic_histograms": true},
        "rule_files": [tools::repository().join(RULES)],
        "scrape_configs": [job(CONCIERGE, concierge), job(GATEWAY, json!({}))]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_has_the_labels_of_its_sample() {
        let labels = [("verb", "get"), ("group", "")].map(|(name, value)| (name.into(), value.into()));
        let sample = Sample { labels: labels.into(), value: 1.0 };
        assert_eq!(legend("{{verb}} x{{group}}", &sample), "get x");
    }

    #[test]
    fn the_panels_of_the_dashboard_have_queries() {
        let panels = Panel::all().unwrap();
        assert!(panels.len() > 15, "{}", panels.len());
        for panel in panels {
            assert!(!panel.row.is_empty() && !panel.queries.is_empty(), "{panel:?}");
            assert!(
                panel.queries.iter().all(|(expression, _)| expression.contains("pinniped_")),
                "{panel:?}"
            );
        }
    }
}
