//! Runs this process's proxy server: starts it, monitors it, and stops it without blocking.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_concierge_domain::strategy::impersonator::ProxyState;
use pinniped_tasks::TaskMonitor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use pinniped_controller::runtime::Trigger;

/// Time for which a start waits for the port of a proxy that is being stopped.
const PORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts during that time.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The proxy could not be started. The text, with all causes, becomes part of the status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProxyStartError(pub String);

/// Starts the impersonation proxy of this process.
pub trait ProxyServer: Send + Sync + 'static {
    /// Starts the proxy; it listens when this returns.
    fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, ProxyStartError>>;
}

/// A proxy that listens.
pub trait RunningProxy: Send {
    /// Resolves when the proxy has terminated unexpectedly, with the error if there was one.
    fn failed(&mut self) -> BoxFuture<'_, Option<String>>;

    /// Stops listening immediately, lets short requests complete, and terminates streams after
    /// `grace`.
    fn stop(self: Box<Self>, grace: Duration) -> BoxFuture<'static, ()>;
}

/// At most one running proxy, and any number of draining ones.
pub(super) struct ProxyRunner {
    proxy: Arc<dyn ProxyServer>,
    trigger: Trigger,
    tasks: TaskTracker,
    monitor: TaskMonitor,
    current: Option<Current>,
    draining: Arc<()>,
}

/// A request to stop the proxy.
struct StopRequest {
    delay: Duration,
    grace: Duration,
    /// Marks that a proxy is draining; lives as long as the draining task.
    _draining: Arc<()>,
}

struct Current {
    stop: CancellationToken,
    stop_request: Arc<Mutex<Option<StopRequest>>>,
    terminated: Arc<Mutex<Option<Option<String>>>>,
}

impl ProxyRunner {
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
            Some(current) => match &*current.terminated.lock().unwrap_or_else(PoisonError::into_inner) {
                None => ProxyState::Running,
                Some(error) => ProxyState::Terminated(error.clone().map(StatusText::from)),
            },
        }
    }

    /// Starts the proxy. Retries for a short time while an earlier proxy releases its port.
    pub(super) async fn start(&mut self) -> Result<(), ProxyStartError> {
        let deadline = tokio::time::Instant::now() + PORT_TIMEOUT;
        let mut running = loop {
            match self.proxy.start().await {
                Ok(running) => break running,
                Err(_) if Arc::strong_count(&self.draining) > 1 && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(PORT_RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        };
        let stop = CancellationToken::new();
        let stop_request: Arc<Mutex<Option<StopRequest>>> = Arc::default();
        let terminated = Arc::new(Mutex::new(None));
        self.current = Some(Current {
            stop: stop.clone(),
            stop_request: Arc::clone(&stop_request),
            terminated: Arc::clone(&terminated),
        });
        let trigger = self.trigger.clone();
        let watching = async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                error = running.failed() => {
                    *terminated.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    trigger.wake();
                }
            }
            let stop_request = stop_request.lock().unwrap_or_else(PoisonError::into_inner).take();
            let (delay, grace) = stop_request
                .as_ref()
                .map_or_else(Default::default, |stop_request| (stop_request.delay, stop_request.grace));
            tokio::time::sleep(delay).await;
            running.stop(grace).await;
        };
        // Owned by the task tracker, which the composition awaits at shutdown.
        self.tasks.spawn(self.monitor.clone().report_panic("impersonation proxy", watching));
        Ok(())
    }

    /// Begins to stop the proxy if it runs, and returns immediately.
    pub(super) fn stop(&mut self, grace: Duration) {
        self.stop_after(Duration::ZERO, grace);
    }

    /// Stops the proxy like [`Self::stop`], but lets it continue unchanged for `delay` first.
    pub(super) fn stop_after(&mut self, delay: Duration, grace: Duration) {
        if let Some(current) = self.current.take() {
            let stop_request = StopRequest { delay, grace, _draining: Arc::clone(&self.draining) };
            *current.stop_request.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop_request);
            current.stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, mpsc, oneshot};

    use super::*;

    /// A proxy that occupies a port which only one proxy can have.
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
        fn start(&self) -> BoxFuture<'_, Result<Box<dyn RunningProxy>, ProxyStartError>> {
            Box::pin(async {
                if self.port_taken.swap(1, Ordering::SeqCst) == 1 {
                    return Err(ProxyStartError("address already in use".to_owned()));
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

    struct Fixture {
        runner: ProxyRunner,
        started: mpsc::UnboundedReceiver<oneshot::Sender<Option<String>>>,
        stopped: mpsc::UnboundedReceiver<Duration>,
        may_close: Arc<Notify>,
        tasks: TaskTracker,
    }

    fn fixture() -> Fixture {
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
        let runner = ProxyRunner::new(Arc::new(fake), Trigger::new(), tasks.clone(), TaskMonitor::default());
        Fixture { runner, started, stopped, may_close, tasks }
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_block_and_a_start_waits_for_the_port() {
        let mut fixture = fixture();
        fixture.runner.start().await.unwrap();
        assert_eq!(fixture.runner.state(), ProxyState::Running);
        fixture.runner.stop(Duration::from_secs(5));
        assert_eq!(fixture.runner.state(), ProxyState::Stopped);
        let may_close = Arc::clone(&fixture.may_close);
        let frees_the_port = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            may_close.notify_one();
        };
        let (restarted, ()) = tokio::join!(fixture.runner.start(), frees_the_port);
        restarted.unwrap();
        assert_eq!(fixture.stopped.recv().await, Some(Duration::from_secs(5)));
        assert_eq!(fixture.runner.state(), ProxyState::Running);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_continues_during_the_delay_before_it_stops() {
        let mut fixture = fixture();
        fixture.runner.start().await.unwrap();
        fixture.may_close.notify_one();
        let began = tokio::time::Instant::now();
        fixture.runner.stop_after(Duration::from_secs(3), Duration::from_secs(10));
        assert_eq!(fixture.stopped.recv().await, Some(Duration::from_secs(10)));
        assert_eq!(began.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_in_use_by_another_process_is_an_immediate_error() {
        let mut fixture = fixture();
        fixture.runner.start().await.unwrap();
        let began = tokio::time::Instant::now();
        let error = fixture.runner.start().await.unwrap_err();
        assert_eq!(error.to_string(), "address already in use");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_terminates_by_itself_wakes_the_controller() {
        for error in [None, Some("boom".to_owned())] {
            let mut fixture = fixture();
            fixture.runner.start().await.unwrap();
            let failure = fixture.started.recv().await.unwrap();
            failure.send(error.clone()).unwrap();
            fixture.may_close.notify_one();
            fixture.stopped.recv().await.unwrap();
            assert_eq!(fixture.runner.state(), ProxyState::Terminated(error.map(StatusText::from)));
            fixture.runner.stop(Duration::ZERO);
            assert_eq!(fixture.runner.state(), ProxyState::Stopped);
            fixture.tasks.close();
            fixture.tasks.wait().await;
        }
    }
}
