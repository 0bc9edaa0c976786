//! GETs of a small object while the Concierge audits, traces or is scraped: what each costs.
//!
//! The settings take effect at the start of a replica, so each has a replica. All of them run at
//! the same time and alternate in many short turns: the speed of a machine changes by more than the
//! limits from one minute to the next, so a turn is compared only with the turn beside it that has
//! no settings. The CPU of two replicas with the same settings also differs, by some 4 %, for as
//! long as they run. The measure therefore starts new replicas several times in each round.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::load::Protocol;
use crate::server::NAMESPACE;
use crate::table::Table;

use super::Phase;
use super::concierge::Observed;
use super::measured_path::{Behind, Identity, MeasuredPath, load_result};
use super::requirements::{AUDITED, Checks};
use super::rounds::{median, turn};
use super::setup::ReplicaPaths;

/// Limit of the CPU of a GET with audit at the level Metadata, relative to a GET without.
const AUDIT_LIMIT: f64 = 1.05;
/// Limit of the CPU of a GET of which no trace is recorded, relative to a GET without traces, and
/// of a GET while the metrics are scraped.
const OTHER_LIMIT: f64 = 1.02;

/// How many times each round starts new replicas.
const STARTS_PER_ROUND: usize = 3;
/// The number of turns of each replica.
const TURNS: usize = 4;
/// The time between two scrapes. Prometheus usually waits for 15 to 60 s.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time after a load until all its events are counted.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// A way to observe the Concierge, and the results of its turns.
struct Variant {
    observed: Observed,
    replica: ReplicaPaths,
    /// The number of requests of all turns.
    requests: u64,
    /// CPU in µs per request, of each turn.
    cpu: Vec<f64>,
}

/// The results of a setting with all replicas.
struct Figure {
    observed: Observed,
    /// In µs per request, of each turn.
    cpu: Vec<f64>,
    /// Relative to the turn beside it without settings.
    ratios: Vec<f64>,
    /// The median ratio of each replica.
    replicas: Vec<f64>,
}

pub(super) fn measure(phase: &mut Phase<'_>, checks: &mut Checks) -> anyhow::Result<Table> {
    let behind = phase.behind.name();
    let mut figures = Observed::ALL.map(|observed| Figure {
        observed,
        cpu: Vec::new(),
        ratios: Vec::new(),
        replicas: Vec::new(),
    });
    for _ in 0..phase.setup.options.rounds() * STARTS_PER_ROUND {
        let variants = measure_new_replicas(phase)?;
        let plain = variants.iter().find(|variant| variant.observed == Observed::Unobserved);
        let plain = plain.context("no variant is without settings")?;
        for (figure, variant) in figures.iter_mut().zip(&variants) {
            ensure!(figure.observed == variant.observed, "the variants have another order");
            let turns = variant.cpu.iter().zip(&plain.cpu);
            let ratios: Vec<f64> = turns.map(|(cpu, plain)| cpu / plain).collect();
            figure.replicas.push(median(ratios.iter().copied()));
            figure.ratios.extend(ratios);
            figure.cpu.extend(&variant.cpu);
        }
    }
    let what = format!("GET of a ConfigMap from the {behind}");
    let mut table = Table::new(&[&what, "CPU µs/request", "× without", "quartiles of the replicas"]);
    for Figure { observed, cpu, ratios, mut replicas } in figures {
        let (cpu, ratio) = (median(cpu), median(ratios));
        replicas.sort_by(f64::total_cmp);
        let [low, high] = [replicas.len() / 4, replicas.len() * 3 / 4].map(|at| replicas[at]);
        table.row(vec![
            observed.name().to_owned(),
            format!("{cpu:.1}"),
            format!("{ratio:.3}"),
            format!("{low:.2} to {high:.2}"),
        ]);
        let (name, limit) = match observed {
            Observed::Unobserved => continue,
            Observed::Audited => (format!("{AUDITED} from the {behind}, × without"), AUDIT_LIMIT),
            Observed::Traced | Observed::Scraped => {
                (format!("CPU of a GET from the {behind}, {}, × without", observed.name()), OTHER_LIMIT)
            }
        };
        checks.at_most(name, Some(ratio), limit);
    }
    Ok(table)
}

/// Measures a new replica for each setting, in the order of [`Observed::ALL`].
fn measure_new_replicas(phase: &mut Phase<'_>) -> anyhow::Result<Vec<Variant>> {
    phase.fresh_concierge()?;
    let mut variants = Vec::new();
    for observed in Observed::ALL {
        let replica = phase.observed_replica(observed)?;
        let mut variant = Variant { observed, replica, requests: 0, cpu: Vec::new() };
        // A new process has more to warm than a new connection.
        variant.gets(phase, 10_000)?;
        variants.push(variant);
    }
    let requests = match phase.behind {
        Behind::ApiServer => 2_000,
        Behind::Stub => 6_000,
    };
    scraping(phase, &mut variants, |variants| {
        for turn in 0..TURNS {
            for at in 0..variants.len() {
                let variant = (turn + at) % variants.len();
                let cpu = variants[variant].gets(phase, requests)?;
                variants[variant].cpu.push(cpu);
            }
        }
        Ok(())
    })?;
    for variant in &variants {
        require(phase, variant)?;
        phase.remove_observed(variant.observed)?;
    }
    Ok(variants)
}

impl Variant {
    /// Sends GETs over HTTP/2, and returns the CPU time in µs per request.
    fn gets(&mut self, phase: &Phase<'_>, requests: u64) -> anyhow::Result<f64> {
        let route = &self.replica.proxy;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/bench");
        let turn = turn(route, phase.server, || {
            let mut command = route.load(&phase.setup.identity, Protocol::H2, "gets", &path);
            command.args(["--connections", "4", "--concurrency", "16"]);
            load_result(route, command.args(["--requests", &requests.to_string()]))
        })?;
        self.requests += requests;
        Ok(turn.cpu)
    }
}

/// Runs turns while the metrics of one variant are read each second.
fn scraping(
    phase: &Phase<'_>,
    variants: &mut [Variant],
    turns: impl FnOnce(&mut [Variant]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let scraped = variants.iter().find(|variant| variant.observed == Observed::Scraped);
    let metrics = scraped.context("no variant is scraped")?.replica.metrics.clone();
    let identity = &phase.setup.identity;
    std::thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let scrapes = scope.spawn(move || {
            loop {
                scrape(&metrics, identity)?;
                if ended.recv_timeout(SCRAPE_INTERVAL) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return anyhow::Ok(());
                }
            }
        });
        let result = turns(variants);
        drop(end);
        scrapes.join().map_err(|_| anyhow::anyhow!("the scrapes panicked"))?.context("could not scrape")?;
        result
    })
}

/// Reads the metrics.
fn scrape(metrics: &MeasuredPath, identity: &Identity) -> anyhow::Result<String> {
    let mut command = metrics.load(identity, Protocol::H1, "gets", "/metrics");
    command.args(["--connections", "1", "--concurrency", "1", "--requests", "1", "--keep-body"]);
    load_result(metrics, &mut command)?.body.context("the scrape has no body")
}

/// Requires that the setting was in effect for all requests: otherwise the Concierge would have
/// done less work than the table says.
fn require(phase: &Phase<'_>, variant: &Variant) -> anyhow::Result<()> {
    const EVENTS: &str = "pinniped_audit_events_total";
    const LOST: &str = "pinniped_audit_events_lost_total";
    const SPANS: &str = "pinniped_trace_spans_total";
    let Variant { observed, ref replica, requests, .. } = *variant;
    let started = Instant::now();
    loop {
        let text = scrape(&replica.metrics, &phase.setup.identity)?;
        let sum = |name: &str| -> Option<f64> {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|a, b| Some(a? + b?))?
        };
        let (events, lost, spans) = (sum(EVENTS), sum(LOST), sum(SPANS));
        ensure!(lost.unwrap_or_default() == 0.0, "{lost:?} audit events were lost");
        let is_in_effect = match observed {
            Observed::Audited => events.is_some_and(|events| events >= requests as f64) && spans.is_none(),
            Observed::Traced => events.is_none() && spans.is_some(),
            Observed::Unobserved | Observed::Scraped => events.is_none() && spans.is_none(),
        };
        if is_in_effect {
            return Ok(());
        }
        let what = observed.name();
        ensure!(
            started.elapsed() < SETTLE_LIMIT,
            "{what}: {events:?} events and {spans:?} spans are counted for {requests} requests"
        );
        #[expect(clippy::disallowed_methods, reason = "between two reads of the condition")]
        std::thread::sleep(SCRAPE_INTERVAL);
    }
}
