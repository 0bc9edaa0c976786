//! The release post's ingress: clients connect by name through a gateway that passes TLS through.
//! The gateway is ours, or a real Contour with Envoy; objects and commands are the same.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pinniped_test_support::kubectl::CommandOutput;
use pinniped_test_support::wait;
use serde_json::Value;

use super::proxy::{BINDING, EXTERNAL_NAME, Serving};
use super::{CONCIERGE, DECISION, TIME_LIMIT, TIMEOUT_FLAG, Walk};
use crate::contour::{self, Contour, HTTP_PROXIES};
use crate::environment::Step;
use crate::narrator::Show;
use crate::third_party::{await_defined, refuse_another};

/// The namespace of the gateway, and the name of its Deployment and Service.
pub const GATEWAY: &str = "pinniped-gateway";
/// The kinds that the gateway serves, which a Contour has, too.
const DEFINITIONS: [&str; 2] =
    ["deploy/install-tls-certificate-delegation.yaml", "deploy/install-gateway-crds.yaml"];
/// The manifest of the gateway.
pub(super) const GATEWAY_FILE: &str = "deploy/install-pinniped-gateway.yaml";
/// The file with the authority's certificate as PEM, for clients that verify without a kubeconfig.
const AUTHORITY_PEM: &str = "self-signed-ca-for-kind-testing.pem";
/// The command that the user runs.
const LISTING: [&str; 3] = ["get", "pods", "-A"];
/// The file in which the post saves its ingress.
const FILE: &str = "contour-ingress-impersonation-proxy.yaml";
/// The post's ingress, unchanged.
const PASSTHROUGH: &str = "\
---
apiVersion: projectcontour.io/v1
kind: HTTPProxy
metadata:
  name: impersonation-proxy
  namespace: pinniped-concierge
spec:
  virtualhost:
    fqdn: impersonation-proxy-mtls.local
    tls:
      passthrough: true
  tcpproxy:
    services:
    - name: pinniped-concierge-impersonation-proxy-cluster-ip
      port: 443
";
/// The configuration that the post warns of: the gateway terminates TLS, with the same certificate,
/// and opens another TLS connection to the proxy.
const TERMINATION: &str = "\
---
apiVersion: projectcontour.io/v1
kind: HTTPProxy
metadata:
  name: impersonation-proxy
  namespace: pinniped-concierge
spec:
  virtualhost:
    fqdn: impersonation-proxy-mtls.local
    tls:
      secretName: impersonation-proxy-tls-serving-cert
  routes:
  - services:
    - name: pinniped-concierge-impersonation-proxy-cluster-ip
      port: 443
      protocol: tls
      validation:
        caSecret: impersonation-proxy-tls-serving-cert
        subjectName: impersonation-proxy-mtls.local
";

/// The ingress in front of the proxy.
#[derive(Clone, Debug)]
pub enum Ingress {
    /// Our gateway, in pods from `deploy/`.
    Gateway,
    /// A real Contour with Envoy, as processes.
    Contour(contour::Programs),
}

/// A running ingress. Dropping this value terminates a Contour.
#[derive(Debug)]
pub struct Entrance {
    address: IpAddr,
    contour: Option<Contour>,
}

impl Walk<'_> {
    /// Installs an ingress and waits until it works.
    ///
    /// # Errors
    /// Returns an error when the cluster already has another one, or when it does not become ready
    /// in time.
    pub async fn install_ingress(&self, ingress: &Ingress) -> anyhow::Result<Entrance> {
        match ingress {
            Ingress::Gateway => self.install_gateway().await,
            Ingress::Contour(programs) => {
                self.heading("Install Contour (1.33, with Envoy; its programs as processes)");
                let contour = Contour::start(self.environment, programs).await?;
                self.narrator.print("(Contour watches the cluster and configures Envoy)");
                Ok(Entrance { address: Contour::ADDRESS, contour: Some(contour) })
            }
        }
    }

    async fn install_gateway(&self) -> anyhow::Result<Entrance> {
        self.heading("Install the gateway");
        refuse_another(self.environment, HTTP_PROXIES, "--with-gateway").await?;
        for file in DEFINITIONS {
            self.kubectl(&["apply", "-f", file], None, Show::Output).await?;
            await_defined(self.environment, file).await?;
        }
        self.kubectl(&["apply", "-f", GATEWAY_FILE], None, Show::Output).await?;
        let deployment = format!("deployment/{GATEWAY}");
        let args = ["rollout", "status", &deployment, "--namespace", GATEWAY, TIMEOUT_FLAG];
        self.kubectl(&args, None, Show::Output).await?;
        let args = ["get", "service", GATEWAY, "--namespace", GATEWAY, "-o", "jsonpath={.spec.clusterIP}"];
        let address = self.kubectl(&args, None, Show::Output).await?.stdout;
        let address = address.parse().context("the gateway's Service has no ClusterIP")?;
        Ok(Entrance { address, contour: None })
    }

    /// Removes our gateway and the kinds that it serves, including all objects of these kinds.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn remove_gateway(&self) -> anyhow::Result<()> {
        self.heading("Remove the gateway");
        for file in [GATEWAY_FILE].iter().chain(DEFINITIONS.iter().rev()) {
            let args = ["delete", "-f", file, "--ignore-not-found", "--wait=true", TIMEOUT_FLAG];
            self.kubectl(&args, None, Show::Output).await?;
        }
        Ok(())
    }

    /// Runs the post's steps through an ingress, from its ingress object to its last command; then
    /// shows the effect of an ingress that terminates TLS, and restores passthrough. Returns the
    /// outputs of the commands in order.
    ///
    /// # Errors
    /// Returns the error of the first step that fails.
    pub async fn through_ingress(
        &self,
        entrance: &Entrance,
        serving: &Serving,
    ) -> anyhow::Result<Vec<CommandOutput>> {
        let reported = |error: anyhow::Error| match entrance.contour {
            Some(_) => error.context(contour::log_tails(self.environment)),
            None => error,
        };
        self.all_through_ingress(entrance, serving).await.map_err(reported)
    }

    async fn all_through_ingress(
        &self,
        entrance: &Entrance,
        serving: &Serving,
    ) -> anyhow::Result<Vec<CommandOutput>> {
        let mut printed = vec![self.route(entrance, serving).await?];
        printed.push(self.kubeconfig().await?);
        // A previous walk may have granted access to the user, and the grant is cached for a while.
        printed
            .push(wait::until_ok(Duration::from_secs(20), "a refusal", async || self.refused().await).await?);
        printed.push(self.allow_and_list().await?);
        printed.push(self.whoami().await?);
        if let Serving::Secret { .. } = serving {
            self.check_bundles().await?;
        }
        printed.extend(self.terminate().await?);
        printed.extend(self.pass_through_again().await?);
        Ok(printed)
    }

    /// Revokes the permission that [`Walk::allow_and_list`] granted to the user's group.
    ///
    /// # Errors
    /// Returns an error when kubectl fails.
    pub async fn withdraw(&self) -> anyhow::Result<()> {
        self.kubectl(&["delete", "clusterrolebinding", BINDING], None, Show::Output).await.map(drop)
    }

    /// Applies the post's ingress object, makes the name resolve, and waits until the proxy
    /// responds under it.
    async fn route(&self, entrance: &Entrance, serving: &Serving) -> anyhow::Result<CommandOutput> {
        self.heading("An ingress in front of the proxy, with TLS passthrough");
        let shown = self.apply_ingress(PASSTHROUGH).await?;
        let ip = entrance.address;
        self.environment.set_host(EXTERNAL_NAME, ip)?;
        self.narrator.print(&format!("(/etc/hosts in there: {ip} {EXTERNAL_NAME})"));
        if let Serving::Secret { authority, .. } = serving {
            self.verified_at_the_name(authority).await?;
        }
        Ok(shown)
    }

    /// Queries the readiness of the cluster by the external name as an administrator. The query
    /// verifies the server's certificate and is authenticated by a client certificate, so both
    /// passed through the ingress.
    async fn verified_at_the_name(&self, authority: &str) -> anyhow::Result<()> {
        let file = self.home.join(AUTHORITY_PEM);
        let pem = STANDARD.decode(authority.trim()).context("the authority is not base64")?;
        std::fs::write(&file, pem).context("could not save the certificate authority")?;
        let file = file.to_str().context("the home folder has no readable name")?;
        let server = format!("https://{EXTERNAL_NAME}");
        let args = ["get", "--raw", "/readyz", "--server", &server, "--certificate-authority", file];
        let ready = |output: &CommandOutput| output.code == 0 && output.stdout == "ok";
        self.narrator.run_until(TIME_LIMIT, || self.admin_step(&args), Show::Output, ready).await.map(drop)
    }

    /// Applies an HTTPProxy, waits until its current generation is valid, and shows it.
    async fn apply_ingress(&self, object: &str) -> anyhow::Result<CommandOutput> {
        std::fs::write(self.home.join(FILE), object).context("could not write a file")?;
        self.kubectl(&["apply", "--filename", "-"], Some(object), Show::Output).await?;
        let name = ["httpproxies.projectcontour.io", "impersonation-proxy", "--namespace", CONCIERGE];
        let as_json = [&["get"][..], &name, &["--output=json"]].concat();
        wait::until_ok(TIME_LIMIT, "the ingress to be found valid", async || {
            let output = self.admin_step(&as_json).run(None).await?.success()?;
            let object: Value = serde_json::from_str(&output.stdout)?;
            let (status, generation) = (&object["status"], &object["metadata"]["generation"]);
            anyhow::ensure!(
                status["currentStatus"] == "valid"
                    && status["conditions"][0]["observedGeneration"] == *generation,
                "of generation {generation} its status is {status}"
            );
            Ok(())
        })
        .await?;
        self.kubectl(&["get", "httpproxy", "--namespace", CONCIERGE], None, Show::Output).await
    }

    /// Lets the ingress terminate TLS: the user's certificate does not reach the proxy, which sees
    /// an unknown client.
    async fn terminate(&self) -> anyhow::Result<Vec<CommandOutput>> {
        self.heading("Why TLS passthrough is required: the ingress terminates TLS instead");
        let mut printed = vec![self.apply_ingress(TERMINATION).await?];
        let refused = format!(
            "Error from server (Forbidden): pods is forbidden: User \"system:anonymous\" cannot list resource \
             \"pods\" in API group \"\" at the cluster scope: {DECISION}\n"
        );
        let step = || self.user_kubectl(&self.user_kubeconfig(), &LISTING);
        let fits = |output: &CommandOutput| output.code == 1 && output.stderr == refused;
        printed.push(self.narrator.run_until(TIME_LIMIT, step, Show::Output, fits).await?);
        self.narrator
            .print("(the login itself succeeds: it needs no certificate. The next line is kubectl's plugin)");
        printed.push(self.log_in_again().await?);
        Ok(printed)
    }

    /// Runs kubectl's plugin as in the user's kubeconfig, but without the cache. Its output
    /// contains a key, so only its kind and the names of its fields are recorded.
    async fn log_in_again(&self) -> anyhow::Result<CommandOutput> {
        let file = self.user_kubeconfig();
        let file = file.to_str().context("the home folder has no readable name")?;
        let args = ["config", "view", "--raw", "--output=json", "--kubeconfig", file];
        let view: Value = serde_json::from_str(&self.admin_step(&args).run(None).await?.success()?.stdout)?;
        let exec = &view["users"][0]["user"]["exec"];
        let words = exec["args"].as_array().context("the kubeconfig has no plugin")?;
        let mut command = std::process::Command::new(&self.pinniped);
        command.args(words.iter().filter_map(Value::as_str)).arg("--credential-cache=");
        let shown = "pinniped login static --token=pinny:password123 ... --credential-cache=";
        let step = Step::inside(self.environment, self.settled(command)).shown_as(shown);
        let mut output = self.narrator.run(step, None, Show::Size).await?.success()?;
        let credential: Value = serde_json::from_str(&output.stdout).context("it is no credential")?;
        let mut fields: Vec<&str> =
            credential["status"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        fields.sort_unstable();
        anyhow::ensure!(fields.contains(&"clientCertificateData"), "the credential has only {fields:?}");
        output.stdout =
            format!("{}: {}\n", credential["kind"].as_str().unwrap_or_default(), fields.join(", "));
        Ok(output)
    }

    /// Restores the configuration of the post.
    async fn pass_through_again(&self) -> anyhow::Result<Vec<CommandOutput>> {
        self.heading("Back to TLS passthrough");
        let mut printed = vec![self.apply_ingress(PASSTHROUGH).await?];
        let step = || self.user_kubectl(&self.user_kubeconfig(), &LISTING);
        printed
            .push(self.narrator.run_until(TIME_LIMIT, step, Show::Output, |output| output.code == 0).await?);
        Ok(printed)
    }
}
