//! The registry of a process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio::time::timeout;

use crate::definition::{Definition, Kind};
use crate::format::{Format, to_text};

/// The time for which a scrape waits for others.
pub const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of scrapes that are encoded at the same time.
const SCRAPES: usize = 1;

/// The metrics registry of a process. Cheap to clone; clones share one registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    scrapes: Arc<Semaphore>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { registry: Arc::default(), scrapes: Arc::new(Semaphore::new(SCRAPES)) }
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
    pub fn add(&self, table: &(impl Collector + Clone)) {
        self.register(Box::new(table.clone()));
    }

    /// Adds counter and gauge families whose values `read` returns when they are scraped, once for
    /// all of them. A family without values is absent.
    pub fn collect(
        &self,
        families: impl Into<Box<[&'static Definition]>>,
        read: impl Fn(&mut Samples) + Send + Sync + 'static,
    ) {
        self.register(Box::new(ReadFamilies { families: families.into(), read: Box::new(read) }));
    }

    fn register(&self, collector: Box<dyn Collector>) {
        // After a panic the registry is still consistent, because registration is a single push.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner).register_collector(collector);
    }

    /// Returns all metrics as text. Encodes them on a thread for blocking work, one scrape after
    /// another.
    ///
    /// # Errors
    /// Returns [`ScrapeError::Busy`] when other scrapes take too long.
    pub async fn scrape(&self, format: Format) -> Result<String, ScrapeError> {
        let permit = timeout(SCRAPE_TIMEOUT, Arc::clone(&self.scrapes).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(ScrapeError::Busy)?;
        let this = self.clone();
        let encoding = tokio::task::spawn_blocking(move || {
            // The work continues when the scraper goes away, so the permit belongs to it.
            let _permit = permit;
            this.encode(format)
        });
        Ok(encoding.await??)
    }

    /// Returns all metrics as text, encoded on the current thread.
    ///
    /// # Errors
    /// Returns an error when a metric cannot be written, which does not happen with the metrics of
    /// this crate.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(match format {
            Format::OpenMetrics => text,
            Format::Text => to_text(&text),
        })
    }
}

/// The values of families.
#[derive(Debug, Default)]
pub struct Samples(Vec<Sample>);

#[derive(Debug)]
struct Sample {
    family: &'static Definition,
    /// The label values, in the order of the definition.
    labels: Vec<String>,
    value: u64,
}

impl Samples {
    /// Adds a sample of a family.
    pub fn push<const D: usize>(&mut self, family: &'static Definition, labels: [&str; D], value: u64) {
        debug_assert!(family.labels.len() == D, "{} has other labels", family.name);
        self.0.push(Sample { family, labels: labels.map(str::to_owned).to_vec(), value });
    }
}

struct ReadFamilies {
    families: Box<[&'static Definition]>,
    read: Box<dyn Fn(&mut Samples) + Send + Sync>,
}

impl fmt::Debug for ReadFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.families.iter().map(|family| family.name);
        f.debug_list().entries(names).finish()
    }
}

impl Collector for ReadFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = Samples::default();
        (self.read)(&mut samples);
        debug_assert!(samples.0.iter().all(|sample| self.families.contains(&sample.family)), "{self:?}");
        for family in &self.families {
            let samples = samples.0.iter().filter(|sample| std::ptr::eq(sample.family, *family));
            encode_family(family, samples, &mut encoder)?;
        }
        Ok(())
    }
}

fn encode_family<'a>(
    family: &Definition,
    samples: impl Iterator<Item = &'a Sample>,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut samples = samples.peekable();
    // An empty family would be a description without a value.
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut described = family.describe(encoder)?;
    for Sample { labels, value, .. } in samples {
        if labels.is_empty() {
            return encode(family.kind, *value, described);
        }
        let names = family.labels.iter().map(|label| label.name);
        let labels: Vec<(&str, &str)> = names.zip(labels.iter().map(String::as_str)).collect();
        encode(family.kind, *value, described.encode_family(&labels.as_slice())?)?;
    }
    Ok(())
}

fn encode(kind: Kind, value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
        // Histograms are tables.
        Kind::Histogram(_) => Err(fmt::Error),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::definition::Label;

    static UP: Definition = Definition::gauge("up", "Help");
    static OPEN: Definition = Definition::gauge("open", "Help").by(&[Label::bounded("name", "any", 2)]);
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
        metrics.collect([&UP], move |samples| {
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
        assert!(third.await.unwrap().contains("up 1"));
    }

    #[test]
    fn values_are_read_when_they_are_scraped_and_a_family_without_values_is_absent() {
        let metrics = Metrics::new();
        metrics.collect([&UP], |samples| samples.push(&UP, [], 1));
        metrics.collect([&REFUSED, &OPEN, &LIMIT], |samples| {
            // The order of the samples is not that of the families.
            samples.push(&LIMIT, ["n"], 3);
            samples.push(&REFUSED, ["n", "r"], 2);
        });
        let text = metrics.encode(Format::Text).unwrap();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["up 1", r#"refused_total{name="n",reason="r"} 2"#, r#"limit{name="n"} 3"#]);
        assert!(!text.contains("open"), "{text}");
    }
}
