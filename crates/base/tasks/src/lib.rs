//! Long-lived tasks: each has a name and an owner, and an unexpected end is reported.
//!
//! A task such as a watch or a controller runs until its owner stops it. When such a task returns
//! or panics before that, the rest of the program continues with outdated state, for example with a
//! cache that no longer changes. Therefore a [`TaskGroup`] reports each such end to a
//! [`TaskMonitor`], and `main` terminates the program with the report.
//!
//! ```
//! use pinniped_tasks::{TaskGroup, TaskMonitor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let monitor = TaskMonitor::default();
//! let mut tasks = TaskGroup::new(&monitor);
//! tasks.spawn("watch", |stop| async move { stop.cancelled().await });
//! tasks.spawn("short", |_stop| async {});
//! let end = monitor.failed().await;
//! assert_eq!(end.to_string(), "task \"short\" ended unexpectedly");
//! tasks.stop().await;
//! # }
//! ```

#![forbid(unsafe_code)]

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The error for a task that ended although its owner had not stopped it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnexpectedEnd {
    /// The task returned.
    #[error("task {task:?} ended unexpectedly")]
    Returned {
        /// The name of the task.
        task: String,
    },
    /// The task panicked.
    #[error("task {task:?} panicked: {message}")]
    Panicked {
        /// The name of the task.
        task: String,
        /// The message of the panic.
        message: String,
    },
}

/// Receives unexpected ends of tasks. Clones share one monitor.
#[derive(Clone, Debug, Default)]
pub struct TaskMonitor(watch::Sender<Option<UnexpectedEnd>>);

impl TaskMonitor {
    /// Resolves with the first unexpected end.
    pub fn failed(&self) -> impl Future<Output = UnexpectedEnd> + Send + use<> {
        let mut first = self.0.subscribe();
        async move {
            let end = first.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            // Without an end, all groups are dropped, and no task is left that could fail.
            match end {
                Some(end) => end,
                None => std::future::pending().await,
            }
        }
    }

    /// Runs a task that may return at any time, and reports its panic.
    pub async fn report_panic(self, task: impl Into<String>, future: impl Future<Output = ()>) {
        if let Err(panic) = AssertUnwindSafe(future).catch_unwind().await {
            self.report(UnexpectedEnd::Panicked { task: task.into(), message: message(&*panic) });
        }
    }

    fn report(&self, end: UnexpectedEnd) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(end);
            is_first
        });
    }
}

/// The tasks of one owner, which are stopped together. Dropping the group aborts them.
#[derive(Debug)]
pub struct TaskGroup {
    monitor: TaskMonitor,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl TaskGroup {
    /// Creates a group whose unexpected ends go to `monitor`.
    pub fn new(monitor: &TaskMonitor) -> Self {
        Self { monitor: monitor.clone(), stop: CancellationToken::new(), tasks: JoinSet::new() }
    }

    /// Starts a task, which must run until the token is cancelled.
    pub fn spawn<F>(&mut self, name: impl Into<String>, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (name, monitor, stop) = (name.into(), self.monitor.clone(), self.stop.clone());
        let future = task(stop.clone());
        self.tasks.spawn(async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => monitor.report(UnexpectedEnd::Returned { task: name }),
                Err(panic) => {
                    monitor.report(UnexpectedEnd::Panicked { task: name, message: message(&*panic) });
                }
            }
        });
    }

    /// Stops all tasks without waiting for them to end.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Stops all tasks and waits until they have ended.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    /// Returns the first unexpected end. The clock of the tests is paused, so that a missing report
    /// fails them at once.
    async fn failed(monitor: &TaskMonitor) -> UnexpectedEnd {
        let end = tokio::time::timeout(Duration::from_secs(1), monitor.failed()).await;
        end.expect("the end of the task is reported")
    }

    fn returned(task: &str) -> UnexpectedEnd {
        UnexpectedEnd::Returned { task: task.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_returns_before_it_is_stopped_is_reported_by_name() {
        let monitor = TaskMonitor::default();
        let mut group = TaskGroup::new(&monitor);
        group.spawn("healthy", |stop| async move { stop.cancelled().await });
        group.spawn("watch of secrets", |_| async {});
        let end = failed(&monitor).await;
        assert_eq!(end, returned("watch of secrets"));
        assert_eq!(end.to_string(), "task \"watch of secrets\" ended unexpectedly");
        group.stop().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_reported_with_its_message() {
        let monitor = TaskMonitor::default();
        let mut group = TaskGroup::new(&monitor);
        group.spawn("election", |_| async { panic!("number {}", 7) });
        assert_eq!(failed(&monitor).await.to_string(), "task \"election\" panicked: number 7");
        // The same for a task that may return at any time.
        let monitor = TaskMonitor::default();
        monitor.clone().report_panic("proxy", async {}).await;
        assert_eq!(monitor.failed().now_or_never(), None);
        monitor.clone().report_panic("proxy", async { panic!("no") }).await;
        assert_eq!(failed(&monitor).await.to_string(), "task \"proxy\" panicked: no");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_unexpected_end_remains_the_report() {
        let monitor = TaskMonitor::default();
        let before = monitor.failed();
        monitor.report(returned("first"));
        monitor.report(returned("second"));
        assert_eq!(before.now_or_never(), Some(returned("first")));
        assert_eq!(failed(&monitor).await, returned("first"));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_end_because_their_owner_stops_or_drops_them_are_not_reported() {
        let monitor = TaskMonitor::default();
        let mut stopped = TaskGroup::new(&monitor);
        stopped.spawn("stopped", |stop| async move { stop.cancelled().await });
        stopped.stop().await;
        let mut dropped = TaskGroup::new(&monitor);
        dropped.spawn("dropped", |_| pending());
        drop(dropped);
        tokio::task::yield_now().await;
        assert_eq!(monitor.failed().now_or_never(), None);
    }
}
