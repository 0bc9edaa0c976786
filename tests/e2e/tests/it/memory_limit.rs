//! Unauthenticated clients cannot make the kernel kill a Concierge within the memory limit of the
//! install, and a user is served meanwhile. The limit is the limit of a real cgroup.
//!
//! `gateway/memory_limit.rs` has the test of the gateway.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use pinniped_e2e::requests_under_attack::{Client, under_attack};
use pinniped_e2e::walkthrough::CONCIERGE;
use pinniped_test_support::attacks::Attack;
use pinniped_test_support::cgroup::Cgroup;
use pinniped_test_support::pods::RunningPod;
use pinniped_test_support::world::World;
use pinniped_test_support::{tools, wait};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::installed::{self, TIME_LIMIT};

const USER: &str = "memory-user";

#[tokio::test]
async fn no_unauthenticated_client_terminates_a_concierge_within_the_shipped_memory_limit() {
    let test = "attacks on a Concierge with a memory limit";
    let Some(installed) = installed::alone(test).await else { return };
    let running = || installed.running();
    let concierge =
        AttackedDeployment { world: installed.world(), app: CONCIERGE, port: 8444, running: &running };
    let manifest = "deploy/install-pinniped-concierge-resources.yaml";
    let Some(cgroup) = concierge.cgroup_with_limit(test, manifest) else { return };
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    installed.allow(USER, rules).await;
    let user = Client::of_proxy(installed.certificate(USER, None));
    concierge.survives(&cgroup, &Attack::BEFORE_AUTHENTICATION, &user).await;
}

/// A Deployment whose only pod is attacked in a cgroup with a memory limit.
pub(crate) struct AttackedDeployment<'t> {
    pub(crate) world: &'static World,
    /// The namespace, and the name of the Deployment.
    pub(crate) app: &'static str,
    /// The attacked port.
    pub(crate) port: u16,
    /// Returns the running pods of the Deployment.
    pub(crate) running: &'t dyn Fn() -> Vec<(String, RunningPod)>,
}

impl AttackedDeployment<'_> {
    /// Creates a cgroup with the memory limit of a manifest. Returns `None` and records a skip
    /// where this process may not create one.
    pub(crate) fn cgroup_with_limit(&self, test: &str, manifest: &str) -> Option<Cgroup> {
        // The suffix marks a cgroup that a program other than a node owns: tests of nodes, which
        // may run at the same time, ignore it when they look for cgroups that a node left behind.
        let name = format!("{}-e2e-{}.scope", self.app, std::process::id());
        let cgroup = Cgroup::with_memory_limit(&name, shipped_limit(manifest));
        if cgroup.is_none() {
            tools::skip(test, "there is no cgroup hierarchy for memory that this process may use");
        }
        cgroup
    }

    /// Moves the Deployment into the cgroup and attacks it, then restores it. Panics if the kernel
    /// killed the pod, or if the client got no response.
    pub(crate) async fn survives(&self, cgroup: &Cgroup, attacks: &[Attack], client: &Client) {
        let args = ["get", "deployment", self.app, "-n", self.app, "-o", "jsonpath={.spec}"];
        let spec = self.world.kubectl().output(&args).await.unwrap();
        let spec: Value = serde_json::from_str(&spec).unwrap();
        // The pods start one after the other: the limit has no room for two at once.
        let one_by_one = json!({"type": "Recreate", "rollingUpdate": null});
        self.roll_out(&json!(cgroup.folder().to_str()), &json!(1), &one_by_one).await;

        let (name, pod) = (self.running)().into_iter().next().unwrap();
        let survived = self.attack(cgroup, &pod, attacks, client).await;
        let usage = cgroup.usage();
        let kills = cgroup.kills();
        let now = (self.running)().into_iter().find(|(other, _)| *other == name);
        self.roll_out(&Value::Null, &spec["replicas"], &spec["strategy"]).await;
        wait::until_ok(TIME_LIMIT, "the cgroup to be empty", async || {
            ensure!(cgroup.is_empty()?, "there is still a process");
            Ok(())
        })
        .await
        .unwrap();

        survived.unwrap();
        assert_eq!(kills.unwrap(), 0, "{usage}");
        assert_eq!(now.expect("the pod is gone").1.restarts, pod.restarts);
        eprintln!("{usage}");
    }

    /// Moves the Deployment into this cgroup, or out of it, and waits until its pods listen.
    async fn roll_out(&self, cgroup: &Value, replicas: &Value, strategy: &Value) {
        let patch = json!({"spec": {
            "replicas": replicas,
            "strategy": strategy,
            "template": {"metadata": {"annotations": {"stand-in-kubelet/cgroup": cgroup}}},
        }});
        let (admin, app) = (self.world.kubectl(), self.app);
        let deployment = format!("deployment/{app}");
        admin.output(&["patch", &deployment, "-n", app, "-p", &patch.to_string()]).await.unwrap();
        admin.output(&["rollout", "status", &deployment, "-n", app, "--timeout=120s"]).await.unwrap();
        wait::until_ok(2 * TIME_LIMIT, "the pods to listen", async || {
            let running = (self.running)();
            ensure!(json!(running.len()) == *replicas, "{} run", running.len());
            for (_, pod) in running {
                TcpStream::connect((pod.ip.context("no address")?, self.port)).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    }

    async fn attack(
        &self,
        cgroup: &Cgroup,
        pod: &RunningPod,
        attacks: &[Attack],
        client: &Client,
    ) -> anyhow::Result<()> {
        let server = SocketAddr::from((pod.ip.context("no address")?, self.port));
        let served = async || client.send_request(server).await;
        wait::until_ok(TIME_LIMIT, "the client to be served", served).await?;
        for attack in attacks {
            let requests = under_attack(*attack, server, client).await?;
            ensure!(cgroup.kills()? == 0, "{attack:?}: killed for its memory");
            eprintln!("{attack:?}: {requests}; memory {}", cgroup.usage());
            requests.are_quick()?;
        }
        Ok(())
    }
}

/// Returns the memory limit of a manifest.
fn shipped_limit(manifest: &str) -> u64 {
    let manifest = std::fs::read_to_string(tools::repository().join(manifest)).unwrap();
    let limits = manifest.split_once("limits:").unwrap().1;
    let mebibytes = limits.split_once("memory: ").unwrap().1.split_once("Mi").unwrap().0;
    mebibytes.parse::<u64>().unwrap() << 20
}
