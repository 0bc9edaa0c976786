//! The demo with a real Prometheus.

use std::path::Path;

use anyhow::Context as _;
use pinniped_e2e::prometheus::{Programs, Prometheus};
use pinniped_e2e::walkthrough::Walk;
use pinniped_test_support::control_plane::free_port;

use crate::relay::Relay;

/// The programs, and the way from the machine to Prometheus.
pub(crate) struct Params {
    programs: Programs,
    relay: Option<Relay>,
}

impl Params {
    /// Finds the programs, and takes one of the relays if there is one.
    pub(crate) fn new(relays: &mut Vec<Relay>) -> anyhow::Result<Self> {
        let programs = Programs::find().context("Prometheus is built by `cargo xtask demo --observe`")?;
        Ok(Self { programs, relay: relays.pop() })
    }

    /// Starts Prometheus after the installation.
    pub(crate) async fn start(&self, walk: &Walk<'_>) -> anyhow::Result<Prometheus> {
        let port = match &self.relay {
            Some(relay) => {
                relay.start()?;
                relay.port()
            }
            None => free_port()?,
        };
        walk.start_prometheus(&self.programs, port).await
    }

    /// Shows the panels after the walk.
    pub(crate) async fn report(
        &self,
        walk: &Walk<'_>,
        prometheus: &Prometheus,
        kubeconfig: &Path,
    ) -> anyhow::Result<()> {
        walk.make_traffic(prometheus, kubeconfig).await?;
        walk.show_panels(prometheus).await?;
        println!("\n{}", self.address(prometheus));
        Ok(())
    }

    /// Describes how to reach Prometheus.
    pub(crate) fn address(&self, prometheus: &Prometheus) -> String {
        let url = prometheus.url();
        let place = if self.relay.is_some() { "" } else { ", inside the network namespace of the demo" };
        let pages = match self.programs.have_pages() {
            true => format!("graphs: {url}/query, alerts: {url}/alerts"),
            false => "without pages, only its HTTP API: these need Node.js 20".to_owned(),
        };
        format!("Prometheus: {url}{place} ({pages})")
    }
}
