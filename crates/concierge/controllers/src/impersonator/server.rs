//! This process's proxy server: started, watched over, stopped without anybody waiting.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use pinniped_concierge_domain::strategy::impersonator::ProxyState;
use pinniped_tasks::TaskMonitor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use pinniped_controller::runtime::Trigger;

/// How long a start may wait for the port of a proxy that is just being stopped.
const PORT_WAIT: Duration = Duration::from_secs(2);

/// Pause between two tries during that time.
const PORT_RETRY: Duration = Duration::from_millis(50);

/// Starts the impersonation proxy of this process.
pub trait ProxyServer: Send + Sync + 'static {
    /// Starts it; it listens when this returns. The error goes into the status.
    fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, String>>;
}

/// A proxy that listens.
pub trait RunningProxy: Send {
    /// Resolves when it has ended by itself, with the error if there was one.
    fn failed(&mut self) -> BoxFuture<'_, Option<String>>;

    /// Stops listening at once, lets short requests finish, ends streams after `grace`.
    fn stop(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()>;
}

/// At most one running proxy, and any number of draining ones.
pub(super) struct Supervisor {
    proxy: Arc<dyn ProxyServer>,
    trigger: Trigger,
    tasks: TaskTracker,
    monitor: TaskMonitor,
    current: Option<Current>,
    draining: Arc<()>,
}

/// How to stop.
struct Order {
    delay: Duration,
    grace: Duration,
    /// The mark that something drains; it lives as long as the draining task.
    _draining: Arc<()>,
}

struct Current {
    stop: CancellationToken,
    order: Arc<Mutex<Option<Order>>>,
    ended: Arc<Mutex<Option<Option<String>>>>,
}

impl Supervisor {
    pub(super) fn new(
        proxy: Arc<dyn ProxyServer>,
        trigger: Trigger,
        tasks: TaskTracker,
        monitor: TaskMonitor,
    ) -> Self {
        Self { proxy, trigger, tasks, monitor, current: None, draining: Arc::new(()) }
    }

    pub(super) fn state(&self) -> ProxyState {
        match &self.current {
            None => ProxyState::Stopped,
            Some(current) => match &*current.ended.lock().unwrap_or_else(PoisonError::into_inner) {
                None => ProxyState::Running,
                Some(error) => ProxyState::Ended(error.clone()),
            },
        }
    }

    /// Starts the proxy. While an earlier one is letting go of its port, tries again for a moment.
    pub(super) async fn start(&mut self) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + PORT_WAIT;
        let mut running = loop {
            match self.proxy.start().await {
                Ok(running) => break running,
                Err(_) if Arc::strong_count(&self.draining) > 1 && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(PORT_RETRY).await;
                }
                Err(error) => return Err(error),
            }
        };
        let stop = CancellationToken::new();
        let order: Arc<Mutex<Option<Order>>> = Arc::default();
        let ended = Arc::new(Mutex::new(None));
        self.current =
            Some(Current { stop: stop.clone(), order: Arc::clone(&order), ended: Arc::clone(&ended) });
        let trigger = self.trigger.clone();
        let watching = async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                error = running.failed() => {
                    *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    trigger.wake();
                }
            }
            let order = order.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (delay, grace) =
                order.as_ref().map_or_else(Default::default, |order| (order.delay, order.grace));
            tokio::time::sleep(delay).await;
            running.stop(grace).await;
        };
        // Owned by the tracker, which the composition awaits at the end.
        self.tasks.spawn(self.monitor.clone().report_panic("impersonation proxy", watching));
        Ok(())
    }

    /// Begins to stop the proxy, if it runs, and returns at once.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop_after(Duration::ZERO, grace);
    }

    /// The same, but the proxy goes on as before for `delay`.
    pub(super) fn stop_after(&mut self, delay: Duration, grace: Duration) {
        if let Some(current) = self.current.take() {
            let order = Order { delay, grace, _draining: Arc::clone(&self.draining) };
            *current.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
            current.stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, mpsc, oneshot};

    use super::*;

    /// Listens on a port that only one can have.
    struct Fake {
        port_taken: Arc<AtomicUsize>,
        started: mpsc::UnboundedSender<oneshot::Sender<Option<String>>>,
        may_close: Arc<Notify>,
        stopped: mpsc::UnboundedSender<Duration>,
    }

    struct FakeRunning {
        port_taken: Arc<AtomicUsize>,
        failure: oneshot::Receiver<Option<String>>,
        may_close: Arc<Notify>,
        stopped: mpsc::UnboundedSender<Duration>,
    }

    impl ProxyServer for Fake {
        fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, String>> {
            Box::pin(async {
                if self.port_taken.swap(1, Ordering::SeqCst) == 1 {
                    return Err("address already in use".to_owned());
                }
                let (sender, failure) = oneshot::channel();
                self.started.send(sender).expect("the test listens");
                let running: Box<dyn RunningProxy> = Box::new(FakeRunning {
                    port_taken: Arc::clone(&self.port_taken),
                    failure,
                    may_close: Arc::clone(&self.may_close),
                    stopped: self.stopped.clone(),
                });
                Ok(running)
            })
        }
    }

    impl RunningProxy for FakeRunning {
        fn failed(&mut self) -> BoxFuture<'_, Option<String>> {
            Box::pin(async {
                match (&mut self.failure).await {
                    Ok(error) => error,
                    Err(_) => std::future::pending().await,
                }
            })
        }
        fn stop(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()> {
            Box::pin(async move {
                self.may_close.notified().await;
                self.port_taken.store(0, Ordering::SeqCst);
                self.stopped.send(grace).expect("the test listens");
            })
        }
    }

    struct Bench {
        supervisor: Supervisor,
        started: mpsc::UnboundedReceiver<oneshot::Sender<Option<String>>>,
        stopped: mpsc::UnboundedReceiver<Duration>,
        may_close: Arc<Notify>,
        tasks: TaskTracker,
    }

    fn bench() -> Bench {
        let (started_sender, started) = mpsc::unbounded_channel();
        let (stopped_sender, stopped) = mpsc::unbounded_channel();
        let may_close = Arc::new(Notify::new());
        let tasks = TaskTracker::new();
        let fake = Fake {
            port_taken: Arc::default(),
            started: started_sender,
            may_close: Arc::clone(&may_close),
            stopped: stopped_sender,
        };
        let supervisor =
            Supervisor::new(Arc::new(fake), Trigger::new(), tasks.clone(), TaskMonitor::default());
        Bench { supervisor, started, stopped, may_close, tasks }
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_wait_and_a_start_gets_the_port_once_it_is_free() {
        let mut bench = bench();
        bench.supervisor.start().await.unwrap();
        assert_eq!(bench.supervisor.state(), ProxyState::Running);
        bench.supervisor.stop(Duration::from_secs(5));
        assert_eq!(bench.supervisor.state(), ProxyState::Stopped);
        let may_close = Arc::clone(&bench.may_close);
        let frees_the_port = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            may_close.notify_one();
        };
        let (restarted, ()) = tokio::join!(bench.supervisor.start(), frees_the_port);
        restarted.unwrap();
        assert_eq!(bench.stopped.recv().await, Some(Duration::from_secs(5)));
        assert_eq!(bench.supervisor.state(), ProxyState::Running);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_may_go_on_for_a_while_before_it_is_stopped() {
        let mut bench = bench();
        bench.supervisor.start().await.unwrap();
        bench.may_close.notify_one();
        let told = tokio::time::Instant::now();
        bench.supervisor.stop_after(Duration::from_secs(3), Duration::from_secs(10));
        assert_eq!(bench.stopped.recv().await, Some(Duration::from_secs(10)));
        assert_eq!(told.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_somebody_else_has_is_an_error_at_once() {
        let mut bench = bench();
        bench.supervisor.start().await.unwrap();
        let before = tokio::time::Instant::now();
        assert_eq!(bench.supervisor.start().await, Err("address already in use".to_owned()));
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_ends_by_itself_wakes_the_controller() {
        for error in [None, Some("boom".to_owned())] {
            let mut bench = bench();
            bench.supervisor.start().await.unwrap();
            let failure = bench.started.recv().await.unwrap();
            failure.send(error.clone()).unwrap();
            bench.may_close.notify_one();
            bench.stopped.recv().await.unwrap();
            assert_eq!(bench.supervisor.state(), ProxyState::Ended(error));
            bench.supervisor.stop(Duration::ZERO);
            assert_eq!(bench.supervisor.state(), ProxyState::Stopped);
            bench.tasks.close();
            bench.tasks.wait().await;
        }
    }
}
