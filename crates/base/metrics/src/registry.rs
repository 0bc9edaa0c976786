//! The registry of a process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::timeout;

use crate::format::Format;
use crate::samples::Samples;
use crate::table::Table;
use crate::{protobuf, text};

/// The time for which a scrape waits for others.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of scrapes that are encoded at the same time.
const SCRAPES: usize = 1;

/// The metrics registry of a process. Cheap to clone; clones share one registry.
#[derive(Clone)]
pub struct Metrics {
    sources: Arc<Mutex<Vec<Source>>>,
    scrapes: Arc<Semaphore>,
}

/// Adds the values of families.
type Source = Box<dyn Fn(&mut Samples) + Send + Sync>;

impl Default for Metrics {
    fn default() -> Self {
        Self { sources: Arc::default(), scrapes: Arc::new(Semaphore::new(SCRAPES)) }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The reason why a scrape has no text.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// Other scrapes took longer than [`SCRAPE_TIMEOUT`].
    #[error("too many scrapes")]
    Busy,
    /// A metric cannot be written.
    #[error("could not write a metric")]
    Encode(#[from] fmt::Error),
    /// The thread panicked, or the program terminates.
    #[error("the scrape was interrupted")]
    Interrupted(#[from] JoinError),
}

impl Metrics {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a table. Create tables once; they live as long as the process.
    pub fn add(&self, table: &impl Table) {
        let table = table.clone();
        self.collect(move |samples| table.read(samples));
    }

    /// Adds counter and gauge families whose values `read` adds when they are scraped. A family to
    /// which it adds none is absent.
    pub fn collect(&self, read: impl Fn(&mut Samples) + Send + Sync + 'static) {
        self.sources().push(Box::new(read));
    }

    /// After a panic the list is still consistent, because registration is a single push.
    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all metrics in a format. Encodes them on a thread for blocking work, one scrape
    /// after another.
    ///
    /// # Errors
    /// Returns [`ScrapeError::Busy`] when other scrapes take too long.
    pub async fn scrape(&self, format: Format) -> Result<Vec<u8>, ScrapeError> {
        self.read(move |samples| match format {
            Format::Text => text::prometheus(samples).map(String::into_bytes),
            Format::OpenMetrics => text::open_metrics(samples).map(String::into_bytes),
            Format::Protobuf => Ok(protobuf::encode(&samples)),
        })
        .await
    }

    /// Returns the values of counters and gauges, each with its name and labels as in the text
    /// formats, in the same way as [`scrape`](Self::scrape).
    ///
    /// # Errors
    /// Returns [`ScrapeError::Busy`] when scrapes take too long.
    pub async fn numbers(&self) -> Result<Vec<(String, u64)>, ScrapeError> {
        self.read(|samples| Ok(samples.numbers())).await
    }

    async fn read<T: Send + 'static>(
        &self,
        encode: impl FnOnce(Samples) -> Result<T, fmt::Error> + Send + 'static,
    ) -> Result<T, ScrapeError> {
        let permit = timeout(SCRAPE_TIMEOUT, Arc::clone(&self.scrapes).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(ScrapeError::Busy)?;
        let this = self.clone();
        let encoding = tokio::task::spawn_blocking(move || {
            // The work continues when the scraper goes away, so the permit belongs to it.
            let _permit = permit;
            encode(this.samples())
        });
        Ok(encoding.await??)
    }

    /// Returns all metrics in the text format of Prometheus, encoded on the current thread.
    ///
    /// # Errors
    /// Returns an error when a metric cannot be written, which happens only for a value that is not
    /// of the kind of its family.
    pub fn text(&self) -> Result<String, fmt::Error> {
        text::prometheus(self.samples())
    }

    /// Reads the current values.
    fn samples(&self) -> Samples {
        let mut samples = Samples::default();
        self.sources().iter().for_each(|read| read(&mut samples));
        samples
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::definition::{Definition, Label};

    static UP: Definition = Definition::gauge("up", "Help");
    static LIMIT: Definition = Definition::gauge("limit", "Help").by(&[Label::bounded("name", "any", 2)]);
    static REFUSED: Definition = Definition::counter("refused", "Help")
        .by(&[Label::bounded("name", "any", 2), Label::bounded("reason", "any", 2)]);

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn scrapes_are_encoded_one_after_another_and_wait_for_a_bounded_time() {
        let metrics = Metrics::new();
        let (release, released) = std::sync::mpsc::channel();
        let released = Mutex::new(released);
        metrics.collect(move |samples| {
            released.lock().unwrap().recv().unwrap();
            samples.push(&UP, [], 1);
        });
        let mut first = Box::pin(metrics.scrape(Format::Text));
        let mut second = Box::pin(metrics.scrape(Format::Text));
        let mut third = Box::pin(metrics.scrape(Format::Text));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        tokio::time::advance(SCRAPE_TIMEOUT / 2).await;
        assert!(poll(third.as_mut()).is_pending());
        tokio::time::advance(SCRAPE_TIMEOUT / 2).await;
        assert!(matches!(second.await, Err(ScrapeError::Busy)));
        // Without its client, the first scrape continues, and the third one waits for its end.
        drop(first);
        release.send(()).unwrap();
        release.send(()).unwrap();
        assert!(String::from_utf8(third.await.unwrap()).unwrap().contains("up 1"));
    }

    #[test]
    fn values_are_read_when_they_are_scraped_and_grouped_by_family() {
        let metrics = Metrics::new();
        metrics.collect(|samples| samples.push(&UP, [], 1));
        metrics.collect(|samples| {
            samples.push(&LIMIT, ["n"], 3);
            samples.push(&REFUSED, ["n", "\"\\\n"], 2);
            samples.push(&LIMIT, ["m"], 4);
        });
        // Another source adds to the same family.
        metrics.collect(|samples| samples.push(&LIMIT, ["o"], 5));
        let text = metrics.text().unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let numbers = metrics.samples().numbers();
        let numbers: Vec<String> =
            numbers.iter().map(|(series, value)| format!("{series} {value}")).collect();
        assert_eq!(numbers, samples);
        assert_eq!(
            samples,
            [
                "up 1",
                r#"limit{name="n"} 3"#,
                r#"limit{name="m"} 4"#,
                r#"limit{name="o"} 5"#,
                r#"refused_total{name="n",reason="\"\\\n"} 2"#,
            ]
        );
    }
}
