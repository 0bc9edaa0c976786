//! Sends logins to three replicas of the Concierge, of which one is killed every ten seconds.
//!
//! ```text
//! users.rs      users of the local-user-authenticator, with passwords and groups of their own
//! target.rs     the routes of a login, the login itself, and the use of its credential
//! outages.rs    kills, and the time in which a replica was down because of one
//! failure.rs    the failures of a login, and the decision whether a kill explains one
//! tally.rs      counts, durations and the table of a run
//! ```
//!
//! Every credential is compared with the user whose token was sent, and every tenth one is used. A
//! part of the logins has the password of another user and must be refused.

mod failure;
mod outages;
mod tally;
mod target;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use pinniped_e2e::narrator::Narrator;
use pinniped_e2e::walkthrough::Walk;
use pinniped_test_support::rng::Rng;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::Protocol;
use crate::install::{self, Installed};
use outages::Outages;
use tally::Tally;
use target::{Connections, Login, Target};

/// Number of replicas of the Concierge.
const REPLICAS: usize = 3;
/// Number of users.
const USERS: usize = 30;
/// Number of logins that are due per second. A busy machine may be later.
const PER_SECOND: u32 = 100;
/// Number of clients. Each waits for the response to its login before it sends the next one.
const CLIENTS: usize = 24;
/// Number of logins per line of progress.
const REPORT: u32 = 2_000;

/// Flags of `logins`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of logins.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// The seed of users, routes and kills, to repeat a run.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the logins, prints the result, and fails when a kill does not explain a failure.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<()> {
    install::run(runtime, async |installed| soak(installed, options).await)
}

async fn soak(installed: &Installed, options: &Options) -> anyhow::Result<()> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let seed = options.seed.unwrap_or(clock);
    let replicas = installed.scale(REPLICAS).await?;
    Walk::new(&installed.world, Narrator::Silent, Instant::now())?.create_authenticator().await?;
    let users = users::create(installed, &mut Rng::new(seed), USERS).await?;
    let target = Arc::new(Target::new(installed, users, &replicas).await?);
    target.await_logins().await?;

    eprintln!("{} logins at {PER_SECOND} a second, seed {seed}", options.count);
    let (outages, tally, end) = (Outages::default(), Tally::default(), CancellationToken::new());
    let load = Arc::new(Load {
        target,
        seed,
        count: options.count,
        next: AtomicU32::new(0),
        began: Instant::now(),
        outages: outages.clone(),
        tally: tally.clone(),
    });
    let log_in = async {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(work(Arc::clone(&load), client));
        }
        while let Some(ended) = clients.join_next().await {
            ended.context("a client panicked")?;
        }
        end.cancel();
        anyhow::Ok(())
    };
    let kill = outages::kill(installed, &replicas, Rng::new(seed), &outages, &end);
    tokio::try_join!(log_in, kill)?;
    println!("seed {seed}, {} s", load.began.elapsed().as_secs());
    println!("{outages}");
    println!("{tally}");
    tally.check(options.count)?;
    anyhow::ensure!(outages.count() > 0, "no replica was killed, because the run was too short");
    Ok(())
}

/// The work of all clients.
struct Load {
    target: Arc<Target>,
    seed: u64,
    count: u32,
    /// The number of the next login.
    next: AtomicU32,
    began: Instant,
    outages: Outages,
    tally: Tally,
}

/// Sends one login after the other, each when it is due.
async fn work(load: Arc<Load>, client: usize) {
    let protocol = if client.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 };
    let mut connections = Connections::new(protocol);
    loop {
        let number = load.next.fetch_add(1, Ordering::Relaxed);
        if number >= load.count {
            return;
        }
        let due = load.began + Duration::from_secs(1) * number / PER_SECOND;
        tokio::time::sleep_until(due.into()).await;
        one(&load, &mut connections, number).await;
        if (number + 1).is_multiple_of(REPORT) {
            eprintln!("{} logins after {} s", number + 1, load.began.elapsed().as_secs());
        }
    }
}

/// Sends one login, and sometimes uses its credential. Records the results.
async fn one(load: &Load, connections: &mut Connections, number: u32) {
    let mut rng = Rng::new(load.seed.wrapping_add(u64::from(number)));
    let login = Login::choose(&mut rng, USERS, REPLICAS);
    let began = Instant::now();
    let result = load.target.log_in(&login, connections).await;
    let down = load.outages.during(began, Instant::now());
    let credential = load.tally.login(number, &login, began.elapsed(), &down, result);
    let Some(credential) = credential.filter(|_| login.is_used) else { return };
    let began = Instant::now();
    let result = load.target.use_credential(&login, &credential, connections.protocol()).await;
    let down = load.outages.during(began, Instant::now());
    load.tally.used(number, &login, &down, result);
}
