//! Replaces the proxy's external certificate repeatedly under a steady load: no handshake and no
//! request may fail, and the memory of no pod may grow.
//!
//! Each rotation uses one of the methods by which certificates are replaced in practice, in turn:
//!
//! * the Secret is updated in place, as cert-manager does;
//! * the Secret is deleted and created again, as administrators do; the proxy keeps serving the
//!   previous certificate in between;
//! * the CredentialIssuer refers to another Secret.
//!
//! A rotation is complete when every pod presents the new certificate. Every seventh leaf has an
//! RSA key.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pinniped_e2e::steady_load::{self, Done, Load, Params};
use pinniped_e2e::walkthrough::{CONCIERGE, CREDENTIAL_ISSUER, EXTERNAL_NAME};
use pinniped_test_support::certs::{Authority, Pair};
use pinniped_test_support::wait;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::install::{self, Installed, TIME_LIMIT};
use crate::usage::{Series, Usage, usage};

const NAMESPACE: &str = "soak";
const USER: &str = "soak-rotations";
const SECRETS: [&str; 2] = ["soak-serving-0", "soak-serving-1"];
/// Number of rotations per line of progress.
const REPORT: u32 = 50;

/// Flags of `rotations`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How many.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Requests a second all the while.
    #[arg(long, default_value_t = 200)]
    rate: u32,
}

/// Runs the rotations and prints the result.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    install::run(runtime, async |installed| soak(installed, options).await)
}

async fn soak(installed: &Installed, options: &Options) -> anyhow::Result<()> {
    installed.namespace(NAMESPACE).await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    installed.allow(&[USER.to_owned()], &rules).await?;
    let mut rotating = Rotating::start(installed).await?;
    let load = Load::start(Params {
        address: tokio::net::lookup_host((EXTERNAL_NAME, 443)).await?.next().context("no address")?,
        name: EXTERNAL_NAME,
        roots: rotating.authority.certificate_pem.clone(),
        client: installed.certificate(USER)?,
        path: format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
        per_second: options.rate,
    })?;
    let pods: Vec<u32> = installed.running()?.iter().filter_map(|(_, pod)| pod.pid).collect();
    eprintln!("{} rotations, {} requests a second", options.count, options.rate);

    let began = Instant::now();
    let mut samples: Vec<Vec<Usage>> = vec![Vec::new(); pods.len()];
    let mut slowest = Duration::ZERO;
    for turn in 1..=options.count {
        let started = Instant::now();
        rotating.rotate(installed, turn).await.with_context(|| format!("rotation {turn}"))?;
        slowest = slowest.max(started.elapsed());
        for (pid, samples) in pods.iter().zip(&mut samples) {
            samples.push(usage(*pid).context("a pod terminated under the load")?);
        }
        if turn.is_multiple_of(REPORT) {
            eprintln!("{turn} rotations after {} s: {}", began.elapsed().as_secs(), load.so_far());
        }
    }
    let took = began.elapsed();
    let due = load.due();
    let done = load.end().await;
    println!(
        "{} rotations in {} s, the slowest took {} ms",
        options.count,
        took.as_secs(),
        slowest.as_millis()
    );
    println!("{done}; {:.0} requests a second", done.requests as f64 / took.as_secs_f64());
    check(&samples, &done, due)
}

fn check(samples: &[Vec<Usage>], done: &Done, due: usize) -> anyhow::Result<()> {
    let mut growing = Vec::new();
    for (index, samples) in samples.iter().enumerate() {
        println!("pod {index}");
        for one in Series::of_process(samples) {
            println!("  {}", one.print());
            if one.grows() {
                growing.push(format!("{} of pod {index}", one.name));
            }
        }
    }
    done.check(due)?;
    ensure!(growing.is_empty(), "growing: {}", growing.join(", "));
    Ok(())
}

/// The served certificate and its CA.
struct Rotating {
    authority: Authority,
    secrets: Api<Secret>,
    /// The index of the Secret to which the CredentialIssuer refers.
    named: usize,
}

impl Rotating {
    async fn start(installed: &Installed) -> anyhow::Result<Self> {
        let secrets = Api::namespaced(installed.world.client().await?, CONCIERGE);
        let this = Self { authority: Authority::new("soak rotations")?, secrets, named: 0 };
        let leaf = this.leaf(0)?;
        this.secrets.create(&PostParams::default(), &this.secret(SECRETS[0], &leaf)?).await?;
        this.name_secret(installed).await?;
        await_shown(installed, &leaf).await?;
        Ok(this)
    }

    fn leaf(&self, turn: u32) -> anyhow::Result<Pair> {
        if turn.is_multiple_of(7) {
            self.authority.rsa_server(EXTERNAL_NAME, &[EXTERNAL_NAME], &[])
        } else {
            self.authority.server(EXTERNAL_NAME, &[EXTERNAL_NAME], &[])
        }
    }

    fn secret(&self, name: &str, leaf: &Pair) -> anyhow::Result<Secret> {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": leaf.certificate_pem,
                "tls.key": leaf.private_key_pem, "ca.crt": self.authority.certificate_pem}});
        Ok(serde_json::from_value(secret)?)
    }

    async fn rotate(&mut self, installed: &Installed, turn: u32) -> anyhow::Result<()> {
        let leaf = self.leaf(turn)?;
        match turn % 3 {
            0 => {
                let secret = self.secret(SECRETS[self.named], &leaf)?;
                let patch = Patch::Merge(&secret);
                self.secrets.patch(SECRETS[self.named], &PatchParams::default(), &patch).await?;
            }
            1 => {
                self.secrets.delete(SECRETS[self.named], &DeleteParams::default()).await?;
                let secret = self.secret(SECRETS[self.named], &leaf)?;
                self.secrets.create(&PostParams::default(), &secret).await?;
            }
            _ => {
                let before = SECRETS[self.named];
                self.named = 1 - self.named;
                let secret = self.secret(SECRETS[self.named], &leaf)?;
                self.secrets.create(&PostParams::default(), &secret).await?;
                self.name_secret(installed).await?;
                await_shown(installed, &leaf).await?;
                self.secrets.delete(before, &DeleteParams::default()).await?;
                return Ok(());
            }
        }
        await_shown(installed, &leaf).await
    }

    async fn name_secret(&self, installed: &Installed) -> anyhow::Result<()> {
        let patch = json!({"spec": {"impersonationProxy": {"tls": {"secretName": SECRETS[self.named]}}}});
        let issuer = format!("credentialissuers.config.concierge.pinniped.dev/{CREDENTIAL_ISSUER}");
        let args = ["patch", &issuer, "--type=merge", "--patch", &patch.to_string()];
        installed.world.kubectl().output(&args).await?;
        Ok(())
    }
}

async fn await_shown(installed: &Installed, leaf: &Pair) -> anyhow::Result<()> {
    let wanted = leaf.der()?;
    wait::until_ok(TIME_LIMIT, "every pod to show the new certificate", async || {
        let running = installed.running()?;
        ensure!(running.len() == 2, "{} pods run", running.len());
        for (name, pod) in running {
            let address = SocketAddr::from((pod.ip.context("a pod has no address")?, 8444));
            ensure!(steady_load::shown(address, EXTERNAL_NAME).await? == wanted, "{name} shows another one");
        }
        Ok(())
    })
    .await
}
