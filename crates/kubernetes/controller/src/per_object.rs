//! Runs a controller separately for each of its objects, so that one object cannot delay another.
//!
//! [`runtime::run`](crate::runtime::run) has one queue, and the next pass begins when the last one
//! has ended. That is right for a controller whose passes are fast. A controller that sends
//! requests to a different server for each object, any of which may not respond, implements
//! [`ReconcileObject`] instead: [`PerObjectController`] runs each object in a task of its own, with
//! its own retries.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures::future::join_all;
use pinniped_tasks::{TaskGroup, TaskMonitor};

use crate::lease::Leadership;
use crate::metrics::ControllerMetrics;
use crate::runtime::{Action, Reconcile, ReconcileError, Trigger, run};

/// A controller of independent objects.
pub trait ReconcileObject: Send + Sync + 'static {
    /// Identifies an object.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    /// Returns the name for log lines.
    fn name(&self) -> &'static str;

    /// Returns the objects that exist.
    fn objects(&self) -> Vec<Self::Key>;

    /// Runs one pass for one object, which may not exist any more. There is at most one pass for an
    /// object at a time, but there are passes for other objects. It must be idempotent, and must
    /// not leave partial changes when it is dropped, because the object was deleted or at shutdown.
    fn reconcile(&self, object: &Self::Key) -> impl Future<Output = Result<Action, ReconcileError>> + Send;
}

/// Runs a [`ReconcileObject`]. A pass of this controller starts a task for each new object, stops
/// those of deleted objects, and requests a pass for each of the others.
pub struct PerObjectController<C: ReconcileObject> {
    controller: Arc<C>,
    leadership: Leadership,
    metrics: ControllerMetrics,
    monitor: TaskMonitor,
    objects: HashMap<C::Key, Running>,
}

struct Running {
    trigger: Trigger,
    task: TaskGroup,
}

impl<C: ReconcileObject> PerObjectController<C> {
    /// Returns a controller for [`runtime::run`](crate::runtime::run). The monitor is notified
    /// when the task of an object ends unexpectedly.
    pub fn new(
        controller: C,
        leadership: Leadership,
        metrics: ControllerMetrics,
        monitor: TaskMonitor,
    ) -> Self {
        Self { controller: Arc::new(controller), leadership, metrics, monitor, objects: HashMap::new() }
    }

    fn start(&self, object: C::Key) -> Running {
        let (trigger, mut task) = (Trigger::new(), TaskGroup::new(&self.monitor));
        let controller = OneObject { controller: Arc::clone(&self.controller), object };
        let (woken, leadership, metrics) = (trigger.clone(), self.leadership.clone(), self.metrics.clone());
        task.spawn(self.controller.name(), |stop| {
            run(controller, woken, async {}, leadership, metrics, stop)
        });
        Running { trigger, task }
    }
}

impl<C: ReconcileObject> Reconcile for PerObjectController<C> {
    fn name(&self) -> &'static str {
        self.controller.name()
    }

    /// Passes of the objects are counted.
    fn is_counted(&self) -> bool {
        false
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        let existing = self.controller.objects();
        // Dropping a task aborts it.
        self.objects.retain(|object, _| existing.contains(object));
        for object in existing {
            match self.objects.get(&object) {
                Some(running) => running.trigger.wake(),
                None => {
                    let running = self.start(object.clone());
                    self.objects.insert(object, running);
                }
            }
        }
        Ok(Action::done())
    }

    async fn shutdown(&mut self) {
        join_all(self.objects.drain().map(|(_, running)| running.task.stop())).await;
    }
}

/// The controller of one object.
struct OneObject<C: ReconcileObject> {
    controller: Arc<C>,
    object: C::Key,
}

impl<C: ReconcileObject> Reconcile for OneObject<C> {
    fn name(&self) -> &'static str {
        self.controller.name()
    }

    async fn reconcile(&mut self) -> Result<Action, ReconcileError> {
        self.controller.reconcile(&self.object).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A controller whose object `hangs` never completes a pass.
    struct Scripted {
        objects: Arc<Mutex<Vec<&'static str>>>,
        passes: mpsc::UnboundedSender<&'static str>,
        /// Closed when the pass of `hangs` is dropped.
        hanging: mpsc::Sender<()>,
    }

    impl ReconcileObject for Scripted {
        type Key = &'static str;

        fn name(&self) -> &'static str {
            "scripted-controller"
        }

        fn objects(&self) -> Vec<&'static str> {
            self.objects.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }

        async fn reconcile(&self, object: &&'static str) -> Result<Action, ReconcileError> {
            self.passes.send(object).expect("the test listens");
            match *object {
                "hangs" => {
                    let _held = self.hanging.reserve().await;
                    std::future::pending().await
                }
                "fails" => Err(ReconcileError::Failed("no".into())),
                _ => Ok(Action::done()),
            }
        }
    }

    struct Test {
        objects: Arc<Mutex<Vec<&'static str>>>,
        passes: mpsc::UnboundedReceiver<&'static str>,
        hanging: mpsc::Sender<()>,
        trigger: Trigger,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
        metrics: ControllerMetrics,
        // Keeps the channel open.
        _permits: mpsc::Receiver<()>,
    }

    impl Test {
        fn start(objects: &[&'static str]) -> Self {
            let objects = Arc::new(Mutex::new(objects.to_vec()));
            let (sender, passes) = mpsc::unbounded_channel();
            let (hanging, permits) = mpsc::channel(1);
            let (trigger, stop) = (Trigger::new(), CancellationToken::new());
            let controller =
                Scripted { objects: Arc::clone(&objects), passes: sender, hanging: hanging.clone() };
            let (leadership, metrics) = (Leadership::fixed(true), ControllerMetrics::default());
            let controller = PerObjectController::new(
                controller,
                leadership.clone(),
                metrics.clone(),
                TaskMonitor::default(),
            );
            let task = tokio::spawn(run(
                controller,
                trigger.clone(),
                async {},
                leadership,
                metrics.clone(),
                stop.clone(),
            ));
            Self { objects, passes, hanging, trigger, stop, task, metrics, _permits: permits }
        }

        fn set(&self, objects: &[&'static str]) {
            *self.objects.lock().unwrap() = objects.to_vec();
            self.trigger.wake();
        }

        /// Waits for passes of these objects.
        async fn passed(&mut self, objects: &[&'static str]) {
            let mut missing = objects.to_vec();
            while !missing.is_empty() {
                let object = self.passes.recv().await.unwrap();
                missing.retain(|wanted| *wanted != object);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_hangs_does_not_delay_others() {
        let mut test = Test::start(&["hangs", "good"]);
        test.passed(&["hangs", "good"]).await;
        let start = tokio::time::Instant::now();
        for _ in 0..3 {
            test.trigger.wake();
            test.passed(&["good"]).await;
        }
        test.set(&["hangs", "good", "new"]);
        test.passed(&["new", "good"]).await;
        assert!(start.elapsed().as_secs() < 1);
        test.stop.cancel();
        test.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_fails_is_retried_alone() {
        let mut test = Test::start(&["good", "fails"]);
        test.passed(&["good", "fails"]).await;
        for _ in 0..5 {
            assert_eq!(test.passes.recv().await, Some("fails"));
        }
        test.stop.cancel();
        test.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_of_an_object_is_counted_once() {
        let mut test = Test::start(&["one", "two"]);
        let metrics = pinniped_metrics::Metrics::new();
        test.metrics.register(&metrics);
        test.passed(&["one", "two"]).await;
        test.stop.cancel();
        test.task.await.unwrap();
        let text = metrics.text().unwrap();
        let counts: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("pinniped_controller_reconciles_total"))
            .collect();
        let count = |result: &str, count: u64| {
            format!("{{controller=\"scripted-controller\",result=\"{result}\"}} {count}")
        };
        let expected =
            [count("success", 2), count("not_leader", 0), count("forbidden", 0), count("failed", 0)];
        assert_eq!(counts, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pass_of_a_deleted_object_is_dropped_and_a_new_object_of_the_name_has_another_one() {
        let mut test = Test::start(&["hangs"]);
        test.passed(&["hangs"]).await;
        test.set(&[]);
        // The pass held the only permit of the channel.
        test.hanging.reserve().await.unwrap();
        test.set(&["hangs"]);
        test.passed(&["hangs"]).await;
        test.stop.cancel();
        test.task.await.unwrap();
    }
}
