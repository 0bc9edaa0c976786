//! Checks that watches of one user stay open while another client attacks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pinniped_e2e::bystanders::{self, Bystanders, Report, Resets, Target};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::install::{self, Installed};

const NAMESPACE: &str = "soak";
const BYSTANDER: &str = "soak-bystander";
const ATTACKER: &str = "soak-attacker";
/// Number of connections of the bystander, and of watches on each.
const WATCHES: (usize, usize) = (8, 12);
/// Number of generated requests per round, and of concurrent ones.
const GENERATED: (usize, usize) = (400, 16);

/// Flags of `bystanders`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// The seed of the first round, to repeat a run; each further round has the next one.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the attacks, prints the attackers' responses, and fails when a watch of the bystander ends
/// or the attacks did not arrive.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    install::run(runtime, async |installed| soak(installed, options).await)
}

async fn soak(installed: &Installed, options: &Options) -> anyhow::Result<()> {
    installed.namespace(NAMESPACE).await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
    installed.allow(&[BYSTANDER, ATTACKER].map(str::to_owned), &rules).await?;
    let (_, ip) = installed.one()?;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let mut target = Target {
        address: SocketAddr::from((ip, 8444)),
        attacker: installed.certificate(ATTACKER)?,
        seed: options.seed.unwrap_or(clock),
    };
    touch(installed, 0).await?;
    let path =
        format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=true&fieldSelector=metadata.name%3Dwatched");
    let pair = installed.certificate(BYSTANDER)?;

    let (began, time) = (Instant::now(), Duration::from_secs(60 * options.minutes));
    let mut report = Report::default();
    let mut rounds = 0;
    while began.elapsed() < time {
        eprintln!("round {rounds}, seed {}, {} requests so far", target.seed, report.requests());
        // The API server ends a watch after half an hour at the earliest, so each round opens new
        // ones.
        let mut bystanders = Bystanders::open(&target, &pair, &path, WATCHES.0, WATCHES.1).await?;
        let harmed = round(installed, &target, &mut bystanders, rounds, &mut report).await;
        if harmed.is_err() {
            println!("{report}");
        }
        harmed.with_context(|| format!("round {rounds}, seed {}", target.seed))?;
        rounds += 1;
        target.seed += 1;
    }
    println!("{report}{rounds} rounds, {} requests, no bystander was harmed", report.requests());
    report.attacks_arrived()
}

async fn round(
    installed: &Installed,
    target: &Target,
    bystanders: &mut Bystanders,
    number: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    bystanders::attack(target, bystanders, 2, report).await?;
    bystanders::trailers(target, bystanders, GENERATED.0, GENERATED.1, report).await?;
    bystanders::fuzz(target, bystanders, GENERATED.0, GENERATED.1, report).await?;
    for path in
        [format!("/api/v1/namespaces/{NAMESPACE}/configmaps?watch=true"), "/api/v1/configmaps".to_owned()]
    {
        let resets = Resets { path, batch: 90, count: 3_000, pause: Duration::from_millis(20) };
        let done = bystanders::resets(target, &resets).await?;
        eprintln!("{} streams reset, {} connections ended", done.reset, done.sent_away);
        bystanders.check().with_context(|| format!("after resets of {}", resets.path))?;
    }
    let before = bystanders.received();
    touch(installed, number + 1).await?;
    bystanders.all_receive("a change", &before).await?;
    bystanders.check()
}

async fn touch(installed: &Installed, value: usize) -> anyhow::Result<()> {
    let maps = Api::<ConfigMap>::namespaced(installed.world.client().await?, NAMESPACE);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"},
        "data": {"value": value.to_string()}});
    maps.patch("watched", &PatchParams::apply("soak"), &Patch::Apply(map)).await?;
    Ok(())
}
