//! Writes the buffers of sessions to their files, one task for each session.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pinniped_error::chain;
use pinniped_fair_semaphore::Permit;
use pinniped_logging::value::ALWAYS;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::directory::RecordingFile;
use crate::metrics::{RecordingMetrics, RecordingResult};
use crate::session::{Batch, End, Session, reused};

/// Time for which a writer collects text of a session, unless the buffer fills. A power failure
/// can lose so much of a session.
const COLLECT_TIME: Duration = Duration::from_millis(100);

/// A recording that begins.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) session: Arc<Session>,
    pub(crate) file: RecordingFile,
    /// The identifier of the request.
    pub(crate) audit_id: String,
    /// Counts the recording until its file is complete.
    pub(crate) permit: Permit,
}

/// Writes the files of all sessions. The owner runs it as long as there are sessions.
#[derive(Debug)]
pub struct Writer {
    jobs: mpsc::Receiver<Job>,
    metrics: RecordingMetrics,
}

impl Writer {
    pub(crate) fn new(jobs: mpsc::Receiver<Job>, metrics: RecordingMetrics) -> Self {
        Self { jobs, metrics }
    }

    /// Writes until `stop` is cancelled, and then completes the files. The caller ends all sessions
    /// before, limits the time, and drops the future afterwards: the next start of the program
    /// completes the remaining files.
    ///
    /// # Panics
    /// If a write panics, so that the program reports the end of the writer.
    pub async fn run(self, stop: CancellationToken) {
        let Self { mut jobs, metrics } = self;
        let mut writers = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(ended) = writers.join_next() => end_of(ended),
                () = stop.cancelled() => break,
                job = jobs.recv() => match job {
                    Some(job) => { writers.spawn(write(job, metrics.clone())); }
                    // No recorder is left.
                    None => break,
                },
            }
        }
        jobs.close();
        while let Ok(job) = jobs.try_recv() {
            writers.spawn(write(job, metrics.clone()));
        }
        while let Some(ended) = writers.join_next().await {
            end_of(ended);
        }
        stop.cancelled().await;
    }
}

/// Passes a panic of a writer on.
fn end_of(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Writes the file of a session until the session ends.
async fn write(job: Job, metrics: RecordingMetrics) {
    let Job { session, file, audit_id, permit } = job;
    // If this task is dropped, a session that must be recorded does not wait for it.
    let unfinished = FailOnDrop(Arc::clone(&session));
    let name = file.name().to_owned();
    let (mut file, mut spare, mut bytes, mut error) = (Some(file), Vec::new(), 0, None);
    let end = loop {
        session.filled(COLLECT_TIME).await;
        let Batch { text, end } = session.take(spare);
        let count = text.len();
        spare = match file.take() {
            Some(open) if count > 0 => {
                let written = blocking(move || {
                    let mut file = open;
                    let result = file.write(&text);
                    (file, text, result)
                });
                let Some((open, text, result)) = written.await else { return };
                session.written();
                file = Some(open);
                match result {
                    Ok(()) => {
                        bytes += count;
                        metrics.written(count);
                    }
                    Err(cause) => {
                        session.fail();
                        error.get_or_insert(cause);
                        // The file is not complete: it keeps its name, and the next start of the
                        // program adds a marker.
                        let incomplete = file.take();
                        let _closed = blocking(move || drop(incomplete)).await;
                    }
                }
                reused(text)
            }
            open => {
                session.written();
                file = open;
                reused(text)
            }
        };
        if let Some(end) = end {
            break end;
        }
    };
    let result = match end {
        End::Discard => {
            if let Some(Err(cause)) = discard(file.take()).await {
                tracing::warn!(error = %chain(&cause), file = name, "could not remove an unused recording");
            }
            None
        }
        End::Finish(result) => {
            complete(file.take(), &mut error).await;
            Some(if error.is_some() { RecordingResult::Failed } else { result })
        }
    };
    drop((unfinished, permit));
    let Some(result) = result else { return };
    metrics.ended(result);
    metrics.lost(session.lost());
    if let Some(error) = error {
        let error = chain(&error);
        tracing::error!(auditID = audit_id, file = name, %error, "could not write the recording of a session");
    }
    tracing::info!(
        target: ALWAYS,
        auditID = audit_id,
        file = name,
        result = result.name(),
        bytes,
        lostBytes = session.lost(),
        "recording of a session ended"
    );
}

/// Completes a file, and stores the error.
async fn complete(file: Option<RecordingFile>, error: &mut Option<io::Error>) {
    if let Some(file) = file
        && let Some(Err(cause)) = blocking(move || file.finish()).await
    {
        error.get_or_insert(cause);
    }
}

async fn discard(file: Option<RecordingFile>) -> Option<io::Result<()>> {
    let file = file?;
    blocking(move || file.discard()).await
}

/// Runs a function on a thread where a slow disk delays nothing else. `None` if the runtime
/// terminates.
///
/// # Panics
/// If the function panics.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Some(done),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_terminated) => None,
    }
}

/// Marks a session as failed when its writer ends.
struct FailOnDrop(Arc<Session>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        self.0.fail();
    }
}
