//! Tests that the program terminates when one of its tasks terminates unexpectedly, and that its
//! error names the task.

use std::time::Duration;

use pinniped_logging::log::{self, LogFormat, LogLevel};
use pinniped_program::downward_api::PodInfo;
use pinniped_program::in_cluster::InCluster;
use pinniped_program::stop::Shutdown;
use pinniped_program::test_util::error_of;
use pinniped_tasks::TaskMonitor;
use serde_json::{Value, json};

use crate::config::reload::ConfigFile;
use crate::{concierge, config};

/// Returns the objects that the Concierge reads before it starts its tasks.
fn object(path: &str) -> Option<Value> {
    let object = |api_version: &str, kind: &str, owner: Option<(&str, &str)>| {
        let owners = owner.map(|(kind, name)| {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": true}])
        });
        let metadata = json!({"namespace": "ns", "name": "n", "uid": "1", "ownerReferences": owners});
        Some(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}))
    };
    match path {
        "/api/v1/namespaces/ns/pods/pod" => object("v1", "Pod", Some(("ReplicaSet", "set"))),
        "/apis/apps/v1/namespaces/ns/replicasets/set" => {
            object("meta.k8s.io/v1", "PartialObjectMetadata", Some(("Deployment", "deployment")))
        }
        "/apis/apps/v1/namespaces/ns/deployments/deployment" => object("apps/v1", "Deployment", None),
        "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.login.concierge.pinniped.dev" => {
            object("apiregistration.k8s.io/v1", "APIService", None)
        }
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication" => {
            object("v1", "ConfigMap", None)
        }
        _ => None,
    }
}

fn at_once() -> Shutdown {
    Shutdown { delay: Duration::ZERO, grace: Duration::ZERO }
}

fn a_concierge(
    pod: PodInfo,
    surroundings: InCluster,
    monitor: TaskMonitor,
) -> impl Future<Output = anyhow::Result<()>> {
    let mut config = config::tests::only_names();
    (config.aggregated_api_server_port, config.impersonation_proxy_server_port) = (0, 0);
    config.shutdown = at_once();
    let file = ConfigFile {
        path: concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/names.yaml").into(),
        content: config::tests::NAMES.to_owned(),
        level: log::init(LogLevel::Warning, LogFormat::Json, concierge::LOG_TARGETS),
    };
    concierge::run(config, file, pod, surroundings, monitor)
}

const RETURNED: &str = "task \"watch of secrets\" ended unexpectedly";
const PANICKED: &str = "task \"watch of secrets\" panicked: no";

#[tokio::test]
async fn the_concierge_fails_and_names_a_terminated_task() {
    assert_eq!(error_of(object, a_concierge, "/secrets", async {}).await, RETURNED);
}

#[tokio::test]
async fn the_concierge_fails_and_names_a_panicked_task() {
    assert_eq!(error_of(object, a_concierge, "/secrets", async { panic!("no") }).await, PANICKED);
}
