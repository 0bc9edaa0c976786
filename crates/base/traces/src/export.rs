//! The queue of finished spans, and the task that sends them to the collector.
//!
//! The batch processor of the SDK is not used: it needs a thread of its own, and does not report
//! how many spans it drops.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter as _, SpanProcessor,
};
use pinniped_http_client::https::{Connections, HttpsClient, HttpsClientParams, Redirects};
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_http_client::tcp_dialer::TcpDialer;
use pinniped_pki::tls::{ALPN_HTTP, CipherRestriction, Profile, Roots, TlsError, client_config_with};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::collector::{CollectorClient, LastFailure};
use crate::span::Tracer;

/// Maximum number of finished spans that wait, which is the default of the OpenTelemetry SDKs.
const QUEUE: usize = 2048;

/// Maximum number of spans in one request, which is the default of the OpenTelemetry SDKs.
const BATCH: usize = 512;

/// How long a finished span waits for others, which is the default of the OpenTelemetry SDKs.
const BATCH_DELAY: Duration = Duration::from_secs(5);

/// Deadline of one batch, including retries, which is the default of the OTLP exporters.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the spans that remain are sent while the program stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// The shortest time between two log lines about lost spans.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The denominator of the sampling rate.
const MILLION: f64 = 1_000_000.0;

/// The parameters of an export.
#[derive(Debug)]
pub struct TracesParams {
    /// The URL of the traces: see [`endpoint`](crate::endpoint).
    pub url: Url,
    /// How many of a million requests are recorded whose client is not trusted, or sends no trace
    /// context.
    pub sampling_rate_per_million: u32,
    /// The roots that verify the collector.
    pub roots: Roots,
    /// The TLS 1.2 cipher suites that are allowed.
    pub ciphers: CipherRestriction,
    /// The proxies between this program and the collector.
    pub proxies: ProxyEnvironment,
    /// The user agent of the requests.
    pub user_agent: HeaderValue,
    /// The attributes of this program, such as `service.name`. `OTEL_RESOURCE_ATTRIBUTES` adds
    /// others.
    pub resource: Vec<(&'static str, String)>,
}

/// The reason why the export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The TLS settings are not usable.
    #[error("could not create TLS configuration for the collector of traces")]
    Tls(#[from] TlsError),
    /// A variable of the environment is not usable.
    #[error("could not read the variables OTEL_EXPORTER_OTLP_* of the environment")]
    Environment(#[from] ExporterBuildError),
}

/// The numbers of spans that have ended; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<CountsInner>);

#[derive(Debug, Default)]
struct CountsInner {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Counts {
    /// Returns the number of spans that the collector accepted.
    pub fn exported(&self) -> u64 {
        self.0.exported.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were lost because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were lost because the collector did not accept them.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }

    fn lost(&self) -> u64 {
        self.dropped() + self.failed()
    }
}

/// Puts finished spans into the queue.
#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
    counts: Counts,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut SdkSpan, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counts.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Sends finished spans to the collector.
#[derive(Debug)]
pub struct Exporter {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    failure: LastFailure,
    counts: Counts,
    /// The number of spans in the request that is in flight.
    sending: usize,
    reported: Reported,
    /// A tracer uses it until this task ends.
    provider: SdkTracerProvider,
}

/// The losses that are in the log.
#[derive(Debug, Default)]
struct Reported {
    spans: u64,
    at: Option<Instant>,
}

/// Creates a tracer, and the exporter that must run as long as the tracer is used. The headers of
/// requests to the collector are those of `OTEL_EXPORTER_OTLP_TRACES_HEADERS`, or otherwise
/// `OTEL_EXPORTER_OTLP_HEADERS`.
///
/// # Errors
/// Returns an error if the roots cannot be loaded, or a variable of the environment requires a
/// compression.
pub fn start(params: TracesParams) -> Result<(Tracer, Exporter), TracesError> {
    let TracesParams { url, sampling_rate_per_million, roots, ciphers, proxies, user_agent, resource } =
        params;
    let https = HttpsClient::new(HttpsClientParams {
        dialer: TcpDialer::new(proxies),
        tls: client_config_with(Profile::Default, &ciphers, roots, ALPN_HTTP)?,
        user_agent,
        max_body: MAX_RESPONSE,
        timeout: None,
        redirects: Redirects::Return,
        connections: Connections::Keep,
    });
    let failure = LastFailure::default();
    let client = CollectorClient { https, url: url.clone(), failure: failure.clone() };
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(url)
        .with_headers(HashMap::new())
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    let attributes = resource.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let resource = Resource::builder().with_attributes(attributes).build();
    exporter.set_resource(&resource);

    let (sender, spans) = mpsc::channel(QUEUE);
    let counts = Counts::default();
    let rate = f64::from(sampling_rate_per_million) / MILLION;
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(rate))))
        .with_resource(resource)
        .with_span_processor(Queue { spans: sender, counts: counts.clone() })
        .build();
    let tracer = Tracer::new(provider.tracer(env!("CARGO_PKG_NAME")), sampling_rate_per_million > 0);
    let exporter =
        Exporter { spans, exporter, failure, counts, sending: 0, reported: Reported::default(), provider };
    Ok((tracer, exporter))
}

impl Exporter {
    /// Returns the numbers of spans.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// Returns the spans that have ended and were not sent.
    #[cfg(test)]
    pub(crate) fn finished(&mut self) -> Vec<SpanData> {
        std::iter::from_fn(|| self.spans.try_recv().ok()).collect()
    }

    /// Sends spans until the token is cancelled, and then those that remain, for three seconds at
    /// most.
    pub async fn run(mut self, stop: CancellationToken) {
        {
            let work = pin!(self.work(&stop));
            let deadline = async {
                stop.cancelled().await;
                sleep(FLUSH_TIMEOUT).await;
            };
            tokio::select! {
                biased;
                () = work => {}
                () = deadline => {}
            }
        }
        let remaining = self.sending + self.spans.len();
        self.counts.0.failed.fetch_add(remaining as u64, Ordering::Relaxed);
        self.report_losses();
        // Spans that end now are not recorded.
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(error = &error as &dyn std::error::Error, "could not stop the tracer");
        }
    }

    async fn work(&mut self, stop: &CancellationToken) {
        loop {
            let batch = self.next_batch(stop).await;
            if batch.is_empty() {
                return;
            }
            self.export(batch).await;
            if self.reported.at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                self.report_losses();
            }
        }
    }

    /// Waits for spans. While the program stops, returns those that are there.
    async fn next_batch(&mut self, stop: &CancellationToken) -> Vec<SpanData> {
        let mut batch = Vec::new();
        let wait = async {
            self.spans.recv_many(&mut batch, BATCH).await;
            let deadline = Instant::now() + BATCH_DELAY;
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                // Without a sender, there are no further spans, and the task waits until it stops.
                match timeout_at(deadline, self.spans.recv_many(&mut batch, room)).await {
                    Ok(1..) => {}
                    Ok(0) if batch.is_empty() => std::future::pending().await,
                    Ok(0) | Err(_) => break,
                }
            }
        };
        stop.run_until_cancelled(wait).await;
        while batch.len() < BATCH
            && stop.is_cancelled()
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        batch
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        self.sending = batch.len();
        let sent = timeout(EXPORT_TIMEOUT, self.exporter.export(batch)).await;
        let count = match sent {
            Ok(Ok(())) => &self.counts.0.exported,
            Ok(Err(_)) | Err(_) => &self.counts.0.failed,
        };
        count.fetch_add(self.sending as u64, Ordering::Relaxed);
        self.sending = 0;
    }

    /// Logs the losses since the last report, if there are any.
    fn report_losses(&mut self) {
        let lost = self.counts.lost();
        let since = lost - self.reported.spans;
        if since > 0 {
            let error = self.failure.take();
            tracing::warn!(error, spans = since, "spans of traces are lost");
            self.reported = Reported { spans: lost, at: Some(Instant::now()) };
        }
    }
}
