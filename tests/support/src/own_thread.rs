//! Work on a thread of its own.

use std::io;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

/// A thread with a tokio runtime that runs one future. Dropping this value cancels the future,
/// waits until the thread has ended, and panics if the future panicked. Panics of tasks that the
/// future spawns do not count.
///
/// Use it for work that would delay what a test measures on its own thread, and for work that
/// several tests share, because the runtime of a test stops with that test.
#[derive(Debug)]
pub struct OwnThread {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl OwnThread {
    /// Starts the work, in the network of the current thread.
    ///
    /// # Errors
    /// Returns an error when the thread or its runtime cannot be created.
    pub fn start<F>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> io::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async { stopped.run_until_cancelled(work()).await });
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Lets the work run until it completes or the process ends. A panic is only printed.
    pub fn detach(mut self) {
        self.thread = None;
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.cancel();
            // A panic during a panic would hide the first one.
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn a_dropped_thread_has_ended() {
        let held = Arc::new(());
        let of_work = Arc::clone(&held);
        let (sender, begun) = mpsc::channel();
        let thread = OwnThread::start("endless", || async move {
            let _of_work = of_work;
            sender.send(()).unwrap();
            std::future::pending::<()>().await;
        })
        .unwrap();
        begun.recv().unwrap();
        assert_eq!(Arc::strong_count(&held), 2);
        drop(thread);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    #[should_panic(expected = "of the work")]
    fn a_panic_of_the_work_is_a_panic_of_the_test() {
        let (sender, begun) = mpsc::channel();
        let thread = OwnThread::start("panicking", || async move {
            sender.send(()).unwrap();
            panic!("of the work");
        })
        .unwrap();
        begun.recv().unwrap();
        drop(thread);
    }
}
