//! The shared node as an administrator sees it, with the product's image.

use std::process::Command;

use pinniped_e2e::environment::{OnNode, Place as _, Step};
use pinniped_e2e::walkthrough::CONCIERGE;
use serde_json::Value;

/// What the Concierge's own pods have, and no others.
pub(crate) const PODS: &str = "deployment.pinniped.dev=concierge";

/// An administrator's kubectl.
#[derive(Clone, Copy)]
pub(crate) struct Admin<'p>(pub(crate) &'p OnNode<'p>);

impl Admin<'_> {
    /// Has to succeed; gives standard output.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.input(args, None).await
    }

    /// The same with something on standard input.
    pub(crate) async fn input(&self, args: &[&str], input: Option<&str>) -> anyhow::Result<String> {
        let step = Step::inside(self.0, self.command(args));
        Ok(step.run(input).await?.success()?.stdout)
    }

    /// Not yet started, and not yet inside.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.0.kubectl().command(args)
    }

    /// `kubectl get`.
    pub(crate) async fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&[&["get", "-o", "json"], args].concat()).await?)?)
    }

    /// The names of the Concierge's pods, also of those that are ending.
    pub(crate) async fn pods(&self) -> anyhow::Result<Vec<String>> {
        let names = self.kubectl(&["get", "pods", "-n", CONCIERGE, "-l", PODS, "-o", "name"]).await?;
        Ok(names.lines().filter_map(|line| line.strip_prefix("pod/")).map(str::to_owned).collect())
    }

    /// For the message of a failure.
    pub(crate) async fn what_is_there(&self) -> String {
        let mut said = String::new();
        for args in [
            &["get", "pods", "-A", "-o", "wide"][..],
            &["logs", "-n", CONCIERGE, "-l", PODS, "--prefix", "--tail=40"],
            &["get", "events", "-n", CONCIERGE],
        ] {
            said += &self.kubectl(args).await.unwrap_or_else(|error| format!("{error:#}\n"));
        }
        said
    }
}
