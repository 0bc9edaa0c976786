//! An administrator's view of the shared node, with the product's image.

use std::process::Command;

use pinniped_e2e::environment::{Environment as _, OnNode, Step};
use pinniped_e2e::walkthrough::CONCIERGE;
use serde_json::Value;

/// The label that only the Concierge's own pods have.
pub(crate) const PODS: &str = "deployment.pinniped.dev=concierge";

/// kubectl of an administrator.
#[derive(Clone, Copy)]
pub(crate) struct Admin<'p>(pub(crate) &'p OnNode<'p>);

impl Admin<'_> {
    /// Runs kubectl, which must succeed; returns its standard output.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.input(args, None).await
    }

    /// Does the same with standard input.
    pub(crate) async fn input(&self, args: &[&str], input: Option<&str>) -> anyhow::Result<String> {
        let step = Step::inside(self.0, self.command(args));
        Ok(step.run(input).await?.success()?.stdout)
    }

    /// Returns the command, outside the node's network and not started.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.0.kubectl().command(args)
    }

    /// Runs `kubectl get` and parses its output.
    pub(crate) async fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&[&["get", "-o", "json"], args].concat()).await?)?)
    }

    /// Returns the names of the Concierge's pods, including terminating ones.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<String>> {
        let names = self.kubectl(&["get", "pods", "-n", CONCIERGE, "-l", PODS, "-o", "name"]).await?;
        Ok(names.lines().filter_map(|line| line.strip_prefix("pod/")).map(str::to_owned).collect())
    }

    /// Returns all kinds that `kubectl api-resources` lists with more arguments, as one argument of
    /// `kubectl get`, except those whose objects are created automatically, or by a Deployment or
    /// Service.
    pub(crate) async fn lasting_kinds(&self, more: &[&str]) -> anyhow::Result<String> {
        let args = [&["api-resources", "--verbs=list", "-o", "name"], more].concat();
        let listed = self.kubectl(&args).await?;
        let passing = [
            "componentstatuses",
            "endpoints",
            "endpointslices.discovery.k8s.io",
            "events",
            "events.events.k8s.io",
            "pods",
            "replicasets.apps",
        ];
        let kinds: Vec<&str> = listed.lines().filter(|kind| !passing.contains(kind)).collect();
        anyhow::ensure!(kinds.contains(&"secrets"), "{kinds:?}");
        Ok(kinds.join(","))
    }

    /// Returns the state of the cluster for a failure message.
    pub(crate) async fn existing_objects(&self) -> String {
        let mut output = String::new();
        for args in [
            &["get", "pods", "-A", "-o", "wide"][..],
            &["logs", "-n", CONCIERGE, "-l", PODS, "--prefix", "--tail=40"],
            &["get", "events", "-n", CONCIERGE],
        ] {
            output += &self.kubectl(args).await.unwrap_or_else(|error| format!("{error:#}\n"));
        }
        output
    }
}
