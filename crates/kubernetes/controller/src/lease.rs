//! Leader election with one Lease, compatible with client-go, so that both implementations can
//! share the object during an upgrade from one to the other.
//!
//! The clock of another pod is never trusted: a Lease is considered held as long as *this* process
//! has observed a change within the lease duration, on its own monotonic clock. A write contains
//! the resource version that was read, so two candidates cannot both win. A pod that loses the
//! Lease continues to read and serve, and [`crate::client::Writer`] refuses its writes.
//!
//! A leadership ends by itself at the renew deadline, counted from the start of the last successful
//! renewal, on the monotonic clock and on the wall clock. Therefore neither a blocked election nor
//! a process that was suspended remains the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::PostParams;
use pinniped_logging::repetitions::{Line, Repetitions};
use pinniped_logging::value::ALWAYS;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::error_text;
use crate::clock::{Clock, Moment};

/// How long a candidate waits after the last observed change before it takes over a Lease.
pub const LEASE_DURATION: Duration = Duration::from_secs(137);

/// How long a leader tries to renew the Lease before it gives up leadership.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(107);

/// Interval between two attempts, of leaders and candidates alike.
pub const RETRY_PERIOD: Duration = Duration::from_secs(26);

/// The part of the retry period after which a leader repeats a failed renewal.
const FAILED_RENEWAL_DIVISOR: u32 = 8;

/// Minimum delay before a leader repeats a failed renewal.
const MIN_RENEWAL_DELAY: Duration = Duration::from_millis(10);

/// Maximum jitter of a candidate, as a fraction of the retry period.
const MAX_JITTER: f64 = 0.2;

/// Number of different jitters.
const JITTER_STEPS: u32 = 100;

/// Timeout of one read or write of the Lease.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of the last write, which releases the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this process is the leader, as a value and as a stream of changes.
#[derive(Clone, Debug)]
pub struct Leadership {
    leader: watch::Receiver<bool>,
    /// `None` without an election.
    renewal: Option<Arc<Renewal>>,
}

/// The last renewal of the Lease and its time of expiry.
#[derive(Debug)]
struct Renewal {
    clock: Clock,
    deadline: Duration,
    last: Mutex<Moment>,
    holder: Mutex<Option<LeaseHolder>>,
}

/// The holder of the Lease when this process last read or wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The name of the candidate.
    pub identity: String,
    /// The time of its last renewal, on its own clock.
    pub renewed: Option<Timestamp>,
}

impl Renewal {
    fn age(&self) -> Duration {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.clock.since(last)
    }

    fn is_over(&self) -> bool {
        self.age() >= self.deadline
    }

    fn set_holder(&self, holder: Option<LeaseHolder>) {
        *self.holder.lock().unwrap_or_else(PoisonError::into_inner) = holder;
    }

    fn set(&self, began: Moment) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = began;
    }
}

impl Leadership {
    /// Returns a leadership that the owner of the sender controls.
    pub fn channel() -> (watch::Sender<bool>, Self) {
        let (sender, leader) = watch::channel(false);
        (sender, Self { leader, renewal: None })
    }

    /// Returns a leadership that never changes, for processes without an election.
    pub fn fixed(leader: bool) -> Self {
        Self { leader: watch::channel(leader).1, renewal: None }
    }

    /// Returns whether this pod may write: it holds the Lease, and the last renewal is more recent
    /// than the renew deadline.
    pub fn is_leader(&self) -> bool {
        *self.leader.borrow() && !self.renewal.as_ref().is_some_and(|renewal| renewal.is_over())
    }

    /// Returns the observed holder of the Lease; `None` if there is none or there is no election.
    pub fn holder(&self) -> Option<LeaseHolder> {
        self.renewal.as_ref()?.holder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a receiver of future changes.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.leader.clone()
    }
}

/// The Lease, the candidate and the timing.
#[derive(Clone, Debug)]
pub struct LeaseParams {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease, equal to that of the Deployment.
    pub name: String,
    /// Name of this candidate, equal to that of the pod.
    pub identity: String,
    /// Owner of the Lease when this candidate creates it.
    pub owner: Option<OwnerReference>,
    /// Labels of the Lease when this candidate creates it.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Timings.
    pub timing: Timing,
}

/// The three durations of client-go's leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// See [`LEASE_DURATION`].
    pub lease: Duration,
    /// See [`RENEW_DEADLINE`].
    pub renew_deadline: Duration,
    /// See [`RETRY_PERIOD`].
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { lease: LEASE_DURATION, renew_deadline: RENEW_DEADLINE, retry: RETRY_PERIOD }
    }
}

/// A leader election. A process that drops it without [`LeaderElection::run`] remains a follower.
#[derive(Debug)]
pub struct LeaderElection {
    api: Api<Lease>,
    params: LeaseParams,
    leader: watch::Sender<bool>,
    leadership: Leadership,
    renewal: Arc<Renewal>,
    failures: Repetitions,
}

impl LeaderElection {
    /// Prepares an election without sending a request.
    pub fn new(client: kube::Client, params: LeaseParams) -> Self {
        Self::with_clock(client, params, Clock::default())
    }

    fn with_clock(client: kube::Client, params: LeaseParams, clock: Clock) -> Self {
        let (leader, leadership) = Leadership::channel();
        let last = Mutex::new(clock.now());
        let deadline = params.timing.renew_deadline;
        let renewal = Arc::new(Renewal { clock, deadline, last, holder: Mutex::default() });
        let leadership = Leadership { renewal: Some(Arc::clone(&renewal)), ..leadership };
        let api = Api::namespaced(client, &params.namespace);
        Self { api, params, leader, leadership, renewal, failures: Repetitions::each_ten_minutes() }
    }

    /// Returns the leadership, to be checked before each write.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Runs until `cancel`, then releases the Lease if this process holds it. The flag is cleared
    /// before the holder is, so this process never writes after another one may have taken over.
    pub async fn run(self, cancel: CancellationToken) {
        let mut observed = Observed::default();
        let mut forbidden = false;
        loop {
            let began = self.renewal.clock.now();
            let tried = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                tried = tokio::time::timeout(CALL_TIMEOUT, self.try_acquire_or_renew(&mut observed)) => tried,
            };
            let held = match tried {
                Ok(Ok(held)) => {
                    self.failures.clear();
                    held
                }
                Ok(Err(error)) => {
                    self.report(&error, &mut forbidden);
                    false
                }
                Err(_) => {
                    if let Some(Line { repetitions }) = self.failure("timed out") {
                        tracing::warn!(lease = %self.params.name, repetitions, "leader election call timed out");
                    }
                    false
                }
            };
            self.renewal.set_holder(observed.lease_holder());
            // After a suspend during the call, the response is older than it appears.
            let held = held && self.renewal.clock.since(began) < self.params.timing.renew_deadline;
            if held {
                self.renewal.set(began);
                self.set_leader(true);
            } else if self.leads()
                && (observed.holder_is_other(&self.params.identity) || self.renewal.is_over())
            {
                tracing::warn!(lease = %self.params.name, "lost the leader election lease");
                self.set_leader(false);
            }
            let pause = self.pause(held);
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.set_leader(false);
        // Also as a follower: a write that the cancellation interrupted may have succeeded. Only
        // our own name is removed.
        self.release().await;
    }

    /// Returns whether the process was the leader after the last attempt; [`Leadership::is_leader`]
    /// is more current.
    fn leads(&self) -> bool {
        *self.leader.borrow()
    }

    fn set_leader(&self, leader: bool) {
        let changed = self.leader.send_if_modified(|current| {
            let changed = *current != leader;
            *current = leader;
            changed
        });
        if changed {
            tracing::info!(
                target: ALWAYS,
                lease = %self.params.name, identity = %self.params.identity, leader,
                "leadership changed"
            );
        }
    }

    /// Returns the delay before the next attempt: the retry period for leaders, less when the
    /// deadline is near. Candidates add a jitter derived from their name, so that they do not all
    /// retry at the same time.
    fn pause(&self, held: bool) -> Duration {
        let retry = self.params.timing.retry;
        if held {
            return retry;
        }
        if self.leads() {
            // A renewal failed: retry sooner, because the deadline approaches.
            let left = self.params.timing.renew_deadline.saturating_sub(self.renewal.age());
            return left.min(retry / FAILED_RENEWAL_DIVISOR).max(MIN_RENEWAL_DELAY);
        }
        let spread = self
            .params
            .identity
            .bytes()
            .fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let jitter = f64::from(spread % JITTER_STEPS) / f64::from(JITTER_STEPS) * MAX_JITTER;
        retry + retry.mul_f64(jitter)
    }

    fn report(&self, error: &kube::Error, forbidden: &mut bool) {
        let text = error_text(error);
        if matches!(error, kube::Error::Api(status) if status.code == 409) {
            tracing::debug!(lease = %self.params.name, error = %text, "another candidate was quicker");
        } else if crate::client::is_forbidden(error) {
            if !*forbidden {
                tracing::warn!(verb = "get, create, update", resource = "leases", error = %text, "a permission is missing: this pod cannot become leader");
            }
            *forbidden = true;
        } else if let Some(Line { repetitions }) = self.failure(&text) {
            tracing::warn!(
                lease = %self.params.name, repetitions, error = %text,
                "leader election failed, trying again"
            );
        }
    }

    fn failure(&self, text: &str) -> Option<Line> {
        self.failures.record(text, Instant::now().into_std())
    }

    async fn try_acquire_or_renew(&self, observed: &mut Observed) -> Result<bool, kube::Error> {
        let now = Timestamp::now();
        let Some(lease) = self.api.get_opt(&self.params.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.params.name.clone()),
                    namespace: Some(self.params.namespace.clone()),
                    labels: Some(self.params.labels.clone()).filter(|labels| !labels.is_empty()),
                    owner_references: self.params.owner.clone().map(|owner| vec![owner]),
                    ..ObjectMeta::default()
                },
                spec: Some(self.claim(None, now)),
            };
            let created = self.api.create(&PostParams::default(), &lease).await?;
            observed.observe(created.spec.as_ref(), Instant::now());
            return Ok(true);
        };
        observed.observe(lease.spec.as_ref(), Instant::now());
        match decide(observed, &self.params.identity, self.params.timing.lease, Instant::now()) {
            LeaseAction::HeldByOther => Ok(false),
            LeaseAction::Renew | LeaseAction::Take => {
                let wanted = Lease { spec: Some(self.claim(lease.spec.as_ref(), now)), ..lease };
                let replaced = self.api.replace(&self.params.name, &PostParams::default(), &wanted).await?;
                observed.observe(replaced.spec.as_ref(), Instant::now());
                Ok(true)
            }
        }
    }

    fn claim(&self, current: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        claim(current, &self.params.identity, self.params.timing.lease, now)
    }

    async fn release(&self) {
        let release = async {
            let Some(lease) = self.api.get_opt(&self.params.name).await? else { return Ok(()) };
            let Some(spec) = lease.spec.clone() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.params.identity) {
                return Ok(());
            }
            let wanted = Lease { spec: Some(released(&spec, Timestamp::now())), ..lease };
            self.api.replace(&self.params.name, &PostParams::default(), &wanted).await.map(drop)
        };
        match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
            Ok(Ok(())) => tracing::info!(lease = %self.params.name, "released the leader election lease"),
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.params.name, error = %error_text(&error), "could not release the leader election lease");
            }
            Err(_) => {
                tracing::warn!(lease = %self.params.name, "releasing the leader election lease timed out");
            }
        }
    }
}

/// The last observed state of the Lease, and when it last changed on our own clock.
#[derive(Debug, Default)]
struct Observed {
    record: Option<LeaseSpec>,
    changed: Option<Instant>,
}

impl Observed {
    fn observe(&mut self, record: Option<&LeaseSpec>, now: Instant) {
        if self.changed.is_none() || self.record.as_ref() != record {
            self.record = record.cloned();
            self.changed = Some(now);
        }
    }

    fn holder(&self) -> Option<&str> {
        self.record.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    fn lease_holder(&self) -> Option<LeaseHolder> {
        let renewed = self.record.as_ref()?.renew_time.as_ref().map(|MicroTime(time)| *time);
        Some(LeaseHolder { identity: self.holder()?.to_owned(), renewed })
    }

    fn holder_is_other(&self, identity: &str) -> bool {
        self.holder().is_some_and(|holder| holder != identity)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    /// This process holds the Lease: renew it.
    Renew,
    /// The Lease is free, released or expired: acquire it.
    Take,
    /// Another candidate holds the Lease and renewed it within the lease duration.
    HeldByOther,
}

fn decide(observed: &Observed, identity: &str, lease: Duration, now: Instant) -> LeaseAction {
    match (observed.holder(), observed.changed) {
        (Some(holder), _) if holder == identity => LeaseAction::Renew,
        (Some(_), Some(changed)) if now.duration_since(changed) < lease => LeaseAction::HeldByOther,
        _ => LeaseAction::Take,
    }
}

fn claim(current: Option<&LeaseSpec>, identity: &str, lease: Duration, now: Timestamp) -> LeaseSpec {
    let is_own = current.is_some_and(|spec| spec.holder_identity.as_deref() == Some(identity));
    let transitions = current.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(lease.as_secs().max(1)).unwrap_or(i32::MAX)),
        acquire_time: current
            .filter(|_| is_own)
            .and_then(|spec| spec.acquire_time.clone())
            .or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(match current {
            None => 0,
            Some(_) if is_own => transitions,
            Some(_) => transitions.saturating_add(1),
        }),
        ..LeaseSpec::default()
    }
}

fn released(current: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: current.lease_transitions,
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use http::Request;
    use jiff::SignedDuration;
    use kube::client::Body;
    use pinniped_test_support::log_events::LogEvents;
    use serde_json::{Value, json};
    use tokio_util::task::AbortOnDropHandle;
    use tracing::Level;

    use super::*;
    use crate::clock::tests::SettableClock;

    fn spec(holder: &str, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn the_lease_decision_depends_on_the_holder_and_our_own_clock() {
        let start = Instant::now();
        let fresh = start + Duration::from_secs(136);
        let stale = start + Duration::from_secs(137);
        let cases = [
            ("ours, fresh", "me", fresh, LeaseAction::Renew),
            ("ours, run out", "me", stale, LeaseAction::Renew),
            ("another's, fresh", "you", fresh, LeaseAction::HeldByOther),
            ("another's, run out", "you", stale, LeaseAction::Take),
            ("given back", "", start, LeaseAction::Take),
        ];
        for (case, holder, now, wanted) in cases {
            let mut observed = Observed::default();
            observed.observe(Some(&spec(holder, 3)), start);
            assert_eq!(decide(&observed, "me", LEASE_DURATION, now), wanted, "{case}");
        }
        assert_eq!(decide(&Observed::default(), "me", LEASE_DURATION, start), LeaseAction::Take, "no record");
    }

    #[test]
    fn a_change_by_the_holder_restarts_the_lease_duration() {
        let start = Instant::now();
        let mut observed = Observed::default();
        observed.observe(Some(&spec("you", 1)), start);
        let renewed = LeaseSpec { renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)), ..spec("you", 1) };
        observed.observe(Some(&renewed), start + Duration::from_secs(100));
        observed.observe(Some(&renewed), start + Duration::from_secs(200));
        assert_eq!(
            decide(&observed, "me", LEASE_DURATION, start + Duration::from_secs(236)),
            LeaseAction::HeldByOther
        );
        assert_eq!(
            decide(&observed, "me", LEASE_DURATION, start + Duration::from_secs(237)),
            LeaseAction::Take
        );
    }

    #[test]
    fn transitions_count_changes_of_the_holder_only() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(claim(None, "me", LEASE_DURATION, now).lease_transitions, Some(0));
        assert_eq!(claim(Some(&spec("you", 4)), "me", LEASE_DURATION, now).lease_transitions, Some(5));
        assert_eq!(claim(Some(&spec("", 4)), "me", LEASE_DURATION, now).lease_transitions, Some(5));
        let first = LeaseSpec { acquire_time: Some(MicroTime(now)), ..spec("me", 4) };
        let renewed = claim(Some(&first), "me", LEASE_DURATION, now + jiff::SignedDuration::from_secs(9));
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(4), Some(MicroTime(now))));
        assert_eq!(renewed.lease_duration_seconds, Some(137));
    }

    #[test]
    fn a_released_lease_has_no_holder_and_keeps_its_transitions() {
        let given_back = released(&spec("me", 7), Timestamp::UNIX_EPOCH);
        assert_eq!(given_back.holder_identity.as_deref(), Some(""));
        assert_eq!((given_back.lease_duration_seconds, given_back.lease_transitions), (Some(1), Some(7)));
    }

    /// Returns a client of an API server that stores one Lease.
    fn api_server() -> kube::Client {
        let stored = Arc::new(Mutex::new(None::<Value>));
        let service = tower::service_fn(move |request: Request<Body>| {
            let stored = Arc::clone(&stored);
            async move {
                let get = request.method() == http::Method::GET;
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut stored = stored.lock().unwrap();
                if !get {
                    *stored = Some(serde_json::from_slice(&body).unwrap());
                }
                let (code, body) = match &*stored {
                    Some(lease) => (200, lease.clone()),
                    None => (
                        404,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
                    ),
                };
                let response = http::Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
            }
        });
        kube::Client::new(service, "ns")
    }

    fn election(client: kube::Client, clock: Clock) -> LeaderElection {
        election_of("me", client, clock)
    }

    fn election_of(identity: &str, client: kube::Client, clock: Clock) -> LeaderElection {
        let params = LeaseParams {
            namespace: "ns".to_owned(),
            name: "lease".to_owned(),
            identity: identity.to_owned(),
            owner: None,
            labels: Default::default(),
            timing: Timing::default(),
        };
        LeaderElection::with_clock(client, params, clock)
    }

    async fn leads(leadership: &Leadership) {
        leadership.subscribe().wait_for(|leader| *leader).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_without_a_running_election_loses_leadership_at_the_renew_deadline() {
        let election = election(api_server(), Clock::default());
        let leadership = election.leadership();
        let task = tokio::spawn(election.run(CancellationToken::new()));
        leads(&leadership).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        tokio::time::advance(RENEW_DEADLINE - Duration::from_secs(1)).await;
        assert!(leadership.is_leader());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!leadership.is_leader());
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_lease_is_acquired_after_its_duration_and_a_released_one_at_the_next_attempt() {
        let client = api_server();
        let start = |identity: &str| {
            let election = election_of(identity, client.clone(), Clock::default());
            let (leadership, cancel) = (election.leadership(), CancellationToken::new());
            (leadership, cancel.clone(), tokio::spawn(election.run(cancel)))
        };
        // The longest time between two attempts of a candidate, including the jitter.
        let attempt = RETRY_PERIOD.mul_f64(1.2);
        let (first, _, task) = start("first");
        leads(&first).await;
        let (second, released, second_task) = start("second");
        // Many renewals of the first, which the second observes.
        tokio::time::sleep(LEASE_DURATION * 10).await;
        assert!(first.is_leader() && !second.is_leader());

        // A process that dies does not release its Lease. The last renewal was at most one retry
        // period ago, and the candidate may observe it one attempt later.
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let died = Instant::now();
        leads(&second).await;
        let waited = died.elapsed();
        assert!(waited >= LEASE_DURATION - RETRY_PERIOD, "{waited:?}");
        assert!(waited <= LEASE_DURATION + attempt * 2, "{waited:?}");
        assert!(!first.is_leader());

        let (third, _, _third_task) = start("third");
        tokio::time::sleep(LEASE_DURATION).await;
        assert!(second.is_leader() && !third.is_leader());
        released.cancel();
        second_task.await.unwrap();
        assert!(!second.is_leader());
        let ended = Instant::now();
        leads(&third).await;
        assert!(ended.elapsed() <= attempt, "{:?}", ended.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_of_the_leadership_is_logged_once() {
        let lines = LogEvents::record(&[ALWAYS], Level::INFO);
        let (election, cancel) = (election(api_server(), Clock::default()), CancellationToken::new());
        let leadership = election.leadership();
        let task = tokio::spawn(election.run(cancel.clone()));
        leads(&leadership).await;
        // Renewals change nothing.
        tokio::time::sleep(RETRY_PERIOD * 5).await;
        cancel.cancel();
        task.await.unwrap();
        let logged = lines.all();
        let changes: Vec<_> = logged.iter().map(|line| (line.level, line.field("leader"))).collect();
        assert_eq!(changes, [(Level::INFO, "true"), (Level::INFO, "false")]);
        for line in &logged {
            let fields: Vec<_> = line.fields.keys().map(String::as_str).collect();
            assert_eq!(fields, ["identity", "leader", "lease", "message"]);
            let values = ["message", "lease", "identity"].map(|name| line.field(name));
            assert_eq!(values, ["leadership changed", "lease", "me"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_api_server_causes_one_line_in_ten_minutes_with_the_number_of_attempts() {
        let lines = LogEvents::record(&["pinniped_controller"], Level::WARN);
        let service = tower::service_fn(|_: Request<Body>| async {
            Err::<http::Response<Body>, _>("connection refused")
        });
        let election = election(kube::Client::new(service, "ns"), Clock::default());
        let task = AbortOnDropHandle::new(tokio::spawn(election.run(CancellationToken::new())));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(task);
        let logged = lines.all();
        assert!((5..=7).contains(&logged.len()), "{logged:?}");
        assert_eq!(logged[0].field("message"), "leader election failed, trying again");
        assert_eq!(logged[0].field("repetitions"), "");
        assert!(logged[1..].iter().all(|line| !line.field("repetitions").is_empty()), "{logged:?}");
        assert!(logged.iter().all(|line| line.field("error").contains("connection refused")), "{logged:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_logs_the_first_failure_after_each_success() {
        let lines = LogEvents::record(&["pinniped_controller"], Level::WARN);
        let is_down = Arc::new(AtomicBool::new(true));
        let service = tower::service_fn({
            let is_down = Arc::clone(&is_down);
            move |_: Request<Body>| {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": "lease", "namespace": "ns"},
                    "spec": {"holderIdentity": "you", "leaseTransitions": 1}});
                let response = http::Response::new(Body::from(lease.to_string().into_bytes()));
                std::future::ready(if is_down.load(Ordering::Relaxed) {
                    Err("refused")
                } else {
                    Ok(response)
                })
            }
        });
        let election = election(kube::Client::new(service, "ns"), Clock::default());
        let task = AbortOnDropHandle::new(tokio::spawn(election.run(CancellationToken::new())));
        for down in [true, false, true] {
            is_down.store(down, Ordering::Relaxed);
            tokio::time::sleep(RETRY_PERIOD * 3).await;
        }
        drop(task);
        let logged = lines.all();
        assert_eq!(logged.len(), 2, "{logged:?}");
        assert!(logged.iter().all(|line| line.field("repetitions").is_empty()), "{logged:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_process_leads_only_after_it_renews_the_lease() {
        let wall = SettableClock::default();
        let election = election(api_server(), wall.clock());
        let leadership = election.leadership();
        let task = AbortOnDropHandle::new(tokio::spawn(election.run(CancellationToken::new())));
        leads(&leadership).await;
        wall.jump(SignedDuration::from_secs(106));
        assert!(leadership.is_leader());
        wall.jump(SignedDuration::from_secs(2));
        assert!(!leadership.is_leader());
        tokio::time::sleep(RETRY_PERIOD + Duration::from_millis(1)).await;
        assert!(leadership.is_leader(), "renewed");
        drop(task);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_arrives_after_a_suspend_does_not_renew() {
        let wall = SettableClock::default();
        let plain = api_server();
        let suspended = Arc::new(AtomicBool::new(false));
        let service = tower::service_fn({
            let (wall, suspended) = (wall.clone(), Arc::clone(&suspended));
            move |request: Request<Body>| {
                let (plain, wall, suspended) = (plain.clone(), wall.clone(), Arc::clone(&suspended));
                async move {
                    let writes = request.method() != http::Method::GET;
                    let response = plain.send(request).await;
                    if writes && !suspended.swap(true, Ordering::SeqCst) {
                        wall.jump(SignedDuration::from_hours(1));
                    }
                    response
                }
            }
        });
        let election = election(kube::Client::new(service, "ns"), wall.clock());
        let leadership = election.leadership();
        let task = AbortOnDropHandle::new(tokio::spawn(election.run(CancellationToken::new())));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(suspended.load(Ordering::SeqCst) && !*leadership.subscribe().borrow());
        // The next attempt finds this process as the holder.
        tokio::time::timeout(RETRY_PERIOD * 2, leads(&leadership)).await.unwrap();
        assert!(leadership.is_leader());
        drop(task);
    }
}
