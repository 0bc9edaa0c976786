//! Runs one controller: a queue of one key, back-off, resync.
//!
//! A controller reads the complete state in each pass, so its queue needs to store only whether an
//! event has arrived since the last pass. [`Trigger`] is that bit. Failures are retried with a
//! delay that doubles from 5 ms to [`RESYNC`]; a new event does not wait for the delay. "Not
//! leader" is not a failure: it is retried without a log line.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use pinniped_logging::repetitions::{Line, Repetitions};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::client::{NotLeader, WriteError, error_text, is_forbidden};
use crate::lease::Leadership;
use crate::metrics::ControllerMetrics;

/// The longest time between two passes of a controller, whether the last one succeeded or failed.
pub const RESYNC: Duration = Duration::from_secs(180);

/// The minimum delay of a recheck that a controller requests, so that a time in the past does not
/// cause a busy loop.
const MIN_RECHECK_DELAY: Duration = Duration::from_millis(100);

/// First delay after a failure.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(5);

/// How long a pass that is in progress at shutdown may continue.
const LAST_PASS_TIMEOUT: Duration = Duration::from_secs(3);

/// Wakes one controller. Several wakes before its next pass are combined.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<WakeFlag>);

/// The flag beside the notification. Without it, one wake could go to the waiting task while the
/// next is stored for another pass.
#[derive(Debug, Default)]
struct WakeFlag {
    flag: AtomicBool,
    notify: Notify,
}

impl Trigger {
    /// Creates a trigger that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a pass.
    pub fn wake(&self) {
        self.0.flag.store(true, Ordering::SeqCst);
        self.0.notify.notify_one();
    }

    /// Waits until a pass has been requested since the last call.
    pub async fn woken(&self) {
        while !self.0.flag.swap(false, Ordering::SeqCst) {
            self.0.notify.notified().await;
        }
    }
}

/// The reasons why a pass did not complete.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A write is necessary, and another pod must make it.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The service account lacks a permission; logged once, then retried without a log line.
    #[error("{0}")]
    Forbidden(String),
    /// Anything else; logged and retried.
    #[error("{0}")]
    Failed(String),
}

impl From<WriteError> for ReconcileError {
    fn from(error: WriteError) -> Self {
        match &error {
            WriteError::NotLeader(not_leader) => Self::NotLeader(*not_leader),
            WriteError::Api(_) if error.is_forbidden() => Self::Forbidden(error.to_string()),
            WriteError::Api(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<kube::Error> for ReconcileError {
    fn from(error: kube::Error) -> Self {
        let text = error_text(&error);
        if is_forbidden(&error) { Self::Forbidden(text) } else { Self::Failed(text) }
    }
}

impl ReconcileError {
    /// Returns the error with a prefix, as Go wraps errors. "Not leader" is returned unchanged.
    #[must_use]
    pub fn context(self, prefix: &str) -> Self {
        match self {
            Self::NotLeader(error) => Self::NotLeader(error),
            Self::Forbidden(text) => Self::Forbidden(format!("{prefix}: {text}")),
            Self::Failed(text) => Self::Failed(format!("{prefix}: {text}")),
        }
    }

    /// Combines the errors of one pass: `[a, b]`, like Go's aggregate. Returns `None` for an empty
    /// list; a failure takes precedence over "not leader".
    pub fn aggregate(errors: Vec<Self>) -> Option<Self> {
        let mut quiet = None;
        let mut forbidden = true;
        let mut texts: Vec<String> = Vec::new();
        for error in errors {
            match error {
                Self::NotLeader(error) => quiet = Some(Self::NotLeader(error)),
                Self::Forbidden(text) => texts.push(text),
                Self::Failed(text) => {
                    forbidden = false;
                    texts.push(text);
                }
            }
        }
        let text = match texts.as_slice() {
            [] => return quiet,
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Some(if forbidden { Self::Forbidden(text) } else { Self::Failed(text) })
    }
}

/// The result of a completed pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Run again after this time even without an event: at most [`RESYNC`], and at least a short
    /// delay.
    pub recheck_after: Option<Duration>,
}

impl Action {
    /// Waits for events or the resync.
    pub fn done() -> Self {
        Self::default()
    }

    /// Runs again after `delay`.
    pub fn recheck(delay: Duration) -> Self {
        Self { recheck_after: Some(delay) }
    }
}

/// A controller.
pub trait Reconcile: Send + 'static {
    /// Returns the name for log lines.
    fn name(&self) -> &'static str;

    /// Returns whether successful passes are counted: `false` if they only start passes that are.
    fn is_counted(&self) -> bool {
        true
    }

    /// Runs one pass. It must be idempotent, and must not leave partial changes when it is dropped
    /// at shutdown.
    fn reconcile(&mut self) -> impl Future<Output = Result<Action, ReconcileError>> + Send;

    /// Returns the time after which the next pass runs at the latest if the last one failed. The
    /// delay of retries grows, so without it a change that depends on the time may be noticed
    /// minutes late. Work that is due and fails must not return a short time, because the delay of
    /// retries would not apply.
    fn recheck_after_failure(&self) -> Option<Duration> {
        None
    }

    /// Called once, after the last pass.
    fn shutdown(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Runs `controller` until `cancel`: first when `ready` resolves (its caches have synced), then
/// after every trigger, when this pod becomes leader, after the delay of a failure, and at least
/// every [`RESYNC`].
pub async fn run(
    mut controller: impl Reconcile,
    trigger: Trigger,
    ready: impl Future<Output = ()> + Send,
    leadership: Leadership,
    metrics: ControllerMetrics,
    cancel: CancellationToken,
) {
    let name = controller.name();
    tokio::select! {
        biased;
        () = cancel.cancelled() => return controller.shutdown().await,
        () = ready => {}
    }
    metrics.started(name);
    let mut acquired = leadership.subscribe();
    let mut retry = Retry::default();
    loop {
        let pass = AssertUnwindSafe(controller.reconcile())
            .catch_unwind()
            .instrument(tracing::debug_span!("reconcile", controller = name));
        let result = tokio::select! {
            result = pass => result.unwrap_or_else(|_| Err(ReconcileError::Failed("the pass panicked".to_owned()))),
            () = async { cancel.cancelled().await; tokio::time::sleep(LAST_PASS_TIMEOUT).await } => break,
        };
        if controller.is_counted() || result.is_err() {
            metrics.reconciled(name, &result);
        }
        let delay = retry.after(name, &result);
        let recheck = controller.recheck_after_failure().filter(|_| result.is_err());
        let next =
            Instant::now() + recheck.map_or(delay, |recheck| delay.min(recheck.max(MIN_RECHECK_DELAY)));
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            () = trigger.woken() => {}
            () = became_leader(&mut acquired) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
    controller.shutdown().await;
}

/// Waits until this pod becomes the leader.
pub async fn became_leader(leadership: &mut tokio::sync::watch::Receiver<bool>) {
    // A closed channel never changes again: wait indefinitely instead of spinning.
    loop {
        match leadership.changed().await {
            Ok(()) if *leadership.borrow_and_update() => return,
            Ok(()) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// Counts failures, logs them, and computes the delay of the next attempt.
struct Retry {
    failures: u32,
    forbidden: Option<String>,
    logged: Repetitions,
}

impl Default for Retry {
    fn default() -> Self {
        Self { failures: 0, forbidden: None, logged: Repetitions::each_ten_minutes() }
    }
}

impl Retry {
    fn after(&mut self, controller: &'static str, result: &Result<Action, ReconcileError>) -> Duration {
        match result {
            Ok(action) => {
                self.failures = 0;
                self.forbidden = None;
                self.logged.clear();
                return action.recheck_after.map_or(RESYNC, |delay| delay.clamp(MIN_RECHECK_DELAY, RESYNC));
            }
            Err(error @ ReconcileError::NotLeader(_)) => {
                tracing::debug!(controller, %error, "leaving a write to the leader");
            }
            Err(ReconcileError::Forbidden(text)) => {
                if self.forbidden.as_deref() == Some(text.as_str()) {
                    tracing::debug!(controller, error = %text, "a permission is still missing");
                } else {
                    let error = format!("{controller}: {{ }} failed with: {text}");
                    tracing::error!(logger = "UnhandledError", %error, "Unhandled Error");
                    self.forbidden = Some(text.clone());
                }
            }
            Err(ReconcileError::Failed(text)) => match self.logged.record(text, Instant::now().into_std()) {
                // The line of the first occurrence, which has no repetitions, is upstream's.
                Some(Line { repetitions }) => {
                    let error = format!("{controller}: {{ }} failed with: {text}");
                    tracing::error!(logger = "UnhandledError", repetitions, %error, "Unhandled Error");
                }
                None => tracing::debug!(controller, error = %text, "a controller fails again"),
            },
        }
        let delay = FIRST_RETRY_DELAY.saturating_mul(2_u32.saturating_pow(self.failures)).min(RESYNC);
        self.failures = self.failures.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use pinniped_test_support::log_events::LogEvents;
    use tokio::sync::mpsc;
    use tracing::Level;

    use super::*;
    use crate::lease::Leadership;
    use crate::metrics::ControllerMetrics;

    struct Scripted {
        passes: mpsc::UnboundedSender<Instant>,
        result: fn(usize) -> Result<Action, ReconcileError>,
        recheck_after_failure: Option<Duration>,
        count: usize,
    }

    impl Reconcile for Scripted {
        fn name(&self) -> &'static str {
            "scripted-controller"
        }
        async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
            self.passes.send(Instant::now()).expect("the test listens");
            self.count += 1;
            (self.result)(self.count)
        }
        fn recheck_after_failure(&self) -> Option<Duration> {
            self.recheck_after_failure
        }
    }

    struct Running {
        passes: mpsc::UnboundedReceiver<Instant>,
        trigger: Trigger,
        cancel: CancellationToken,
        task: tokio::task::JoinHandle<()>,
        metrics: ControllerMetrics,
    }

    #[tokio::test(start_paused = true)]
    async fn passes_are_counted_by_result() {
        let result = |pass| match pass {
            1 => Err(ReconcileError::Failed("no".to_owned())),
            2 => Err(ReconcileError::Forbidden("no".to_owned())),
            _ => Ok(Action::done()),
        };
        let mut running = start(result, Leadership::fixed(true));
        gaps(&mut running, 4).await;
        let metrics = pinniped_metrics::Metrics::new();
        running.metrics.register(&metrics);
        crate::metrics::register_leader(&metrics, Leadership::fixed(true));
        let text = metrics.text().unwrap();
        for (labels, count) in [("failed", 1), ("forbidden", 1), ("success", 3), ("not_leader", 0)] {
            let sample = format!("{{controller=\"scripted-controller\",result=\"{labels}\"}} {count}\n");
            assert!(
                text.contains(&format!("pinniped_controller_reconciles_total{sample}")),
                "{labels}\n{text}"
            );
        }
        assert!(text.contains("\npinniped_leader 1\n"), "{text}");
    }

    fn start(result: fn(usize) -> Result<Action, ReconcileError>, leadership: Leadership) -> Running {
        start_with(result, None, leadership)
    }

    fn start_with(
        result: fn(usize) -> Result<Action, ReconcileError>,
        recheck_after_failure: Option<Duration>,
        leadership: Leadership,
    ) -> Running {
        let (sender, passes) = mpsc::unbounded_channel();
        let (trigger, cancel) = (Trigger::new(), CancellationToken::new());
        let controller = Scripted { passes: sender, result, recheck_after_failure, count: 0 };
        let metrics = ControllerMetrics::default();
        let run = run(controller, trigger.clone(), async {}, leadership, metrics.clone(), cancel.clone());
        let task = tokio::spawn(run);
        Running { passes, trigger, cancel, task, metrics }
    }

    async fn gaps(running: &mut Running, n: usize) -> Vec<Duration> {
        let mut last = running.passes.recv().await.unwrap();
        let mut gaps = Vec::new();
        for _ in 0..n {
            let next = running.passes.recv().await.unwrap();
            gaps.push(next - last);
            last = next;
        }
        gaps
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_doubles_the_delay_and_a_success_resets_it() {
        let fails =
            |n| if n % 5 == 0 { Ok(Action::done()) } else { Err(ReconcileError::Failed("no".into())) };
        let mut running = start(fails, Leadership::fixed(true));
        let millis: Vec<u128> = gaps(&mut running, 6).await.iter().map(Duration::as_millis).collect();
        for (actual, wanted) in millis.iter().zip([5, 10, 20, 40, 180_000, 5]) {
            assert!(actual.abs_diff(wanted) <= 2, "{millis:?}");
        }
        running.cancel.cancel();
        running.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_controller_runs_at_least_every_three_minutes() {
        let three_minutes = Duration::from_secs(180);
        let results: [fn(usize) -> Result<Action, ReconcileError>; 3] = [
            |_| Err(ReconcileError::Failed("no".into())),
            |_| Err(ReconcileError::Forbidden("no".into())),
            |_| Err(ReconcileError::NotLeader(NotLeader)),
        ];
        for result in results {
            let mut running = start(result, Leadership::fixed(true));
            let gaps = gaps(&mut running, 40).await;
            let longest = gaps.iter().max().unwrap();
            // The timer has a resolution of one millisecond.
            assert!(*longest <= three_minutes + Duration::from_millis(2), "{longest:?}");
            running.cancel.cancel();
            running.task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_pass_does_not_delay_a_recheck() {
        let hour = Duration::from_secs(3600);
        for (recheck, longest) in [(Duration::from_secs(30), Duration::from_secs(30)), (hour, RESYNC)] {
            let mut running = start_with(
                |_| Err(ReconcileError::Failed("no".into())),
                Some(recheck),
                Leadership::fixed(true),
            );
            let gaps = gaps(&mut running, 20).await;
            assert!(gaps[0] < Duration::from_millis(10), "a retry does not wait for it: {gaps:?}");
            assert!(gaps.last().unwrap().abs_diff(longest) < Duration::from_millis(3), "{gaps:?}");
            running.cancel.cancel();
            running.task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_immediate_recheck_does_not_spin() {
        let mut running = start(|_| Ok(Action::recheck(Duration::ZERO)), Leadership::fixed(true));
        for gap in gaps(&mut running, 5).await {
            assert!(gap >= MIN_RECHECK_DELAY, "{gap:?}");
        }
        running.cancel.cancel();
        running.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn several_wakes_cause_one_pass() {
        let mut running = start(|_| Ok(Action::done()), Leadership::fixed(true));
        running.passes.recv().await.unwrap();
        for _ in 0..10 {
            running.trigger.wake();
        }
        let woken = Instant::now();
        let second = running.passes.recv().await.unwrap();
        assert!(second - woken < Duration::from_secs(1));
        let third = running.passes.recv().await.unwrap();
        assert!(third - second >= RESYNC, "one more pass only after the resync");
    }

    #[tokio::test(start_paused = true)]
    async fn becoming_leader_causes_a_pass() {
        let (sender, leadership) = Leadership::channel();
        let mut running = start(|_| Err(ReconcileError::NotLeader(NotLeader)), leadership);
        for _ in 0..12 {
            running.passes.recv().await.unwrap();
        }
        let before = Instant::now();
        sender.send_replace(true);
        let pass = running.passes.recv().await.unwrap();
        assert!(pass - before < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_stays_the_same_is_logged_once_in_ten_minutes_with_its_repetitions() {
        let lines = LogEvents::record(&["pinniped_controller"], Level::ERROR);
        let (mut retry, start) = (Retry::default(), Instant::now());
        for (second, text, expected) in [
            (0, "a", Some("")),
            (1, "a", None),
            (599, "a", None),
            (600, "a", Some("2")),
            (601, "b", Some("")),
            (602, "a", None),
            (1200, "a", Some("1")),
        ] {
            tokio::time::advance(start + Duration::from_secs(second) - Instant::now()).await;
            retry.after("some-controller", &Err(ReconcileError::Failed(text.to_owned())));
            let logged = lines.all();
            let repetitions: Vec<_> = logged.iter().map(|line| line.field("repetitions")).collect();
            assert_eq!(repetitions, expected.into_iter().collect::<Vec<_>>(), "{second} {text}");
            for line in &logged {
                let fields = ["message", "logger", "error"].map(|name| line.field(name));
                let error = format!("some-controller: {{ }} failed with: {text}");
                assert_eq!(fields, ["Unhandled Error", "UnhandledError", &error]);
            }
            lines.clear();
        }
        retry.after("some-controller", &Ok(Action::done()));
        retry.after("some-controller", &Err(ReconcileError::Failed("a".to_owned())));
        assert_eq!(lines.all().len(), 1, "after a success");
    }

    #[test]
    fn errors_of_one_pass_are_joined_like_in_go() {
        let failed = |text: &str| ReconcileError::Failed(text.to_owned());
        let one = ReconcileError::aggregate(vec![failed("a")]).unwrap();
        assert_eq!(one.to_string(), "a");
        let two = ReconcileError::aggregate(vec![failed("a"), NotLeader.into(), failed("b")]).unwrap();
        assert_eq!(two.to_string(), "[a, b]");
        assert!(matches!(
            ReconcileError::aggregate(vec![NotLeader.into()]),
            Some(ReconcileError::NotLeader(_))
        ));
        assert!(ReconcileError::aggregate(Vec::new()).is_none());
    }
}
