//! The export of traces, if it is configured.

use anyhow::Context as _;
use http::HeaderValue;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_metrics::Metrics;
use pinniped_program::downward_api::PodInfo;
use pinniped_program::traces::TracesSettings;
use pinniped_tasks::TaskGroup;
use pinniped_traces::Tracer;

use crate::config::Config;

/// The name of this program in traces.
const SERVICE_NAME: &str = "pinniped-concierge";

/// Starts the export. Without an endpoint in the configuration, nothing is created.
///
/// # Errors
/// Returns an error if the certificate authorities cannot be loaded, or the environment requires
/// what the exporter does not support.
pub fn start(
    config: &Config,
    pod: &PodInfo,
    proxies: &ProxyEnvironment,
    metrics: &Metrics,
    background: &mut TaskGroup,
) -> anyhow::Result<Option<Tracer>> {
    let Some(tracing) = &config.tracing else { return Ok(None) };
    let settings = TracesSettings {
        url: tracing.url.clone(),
        sampling_rate_per_million: tracing.sampling_rate_per_million,
        roots: tracing.roots.clone(),
        ciphers: config.ciphers.clone(),
        proxies: proxies.clone(),
        service_name: SERVICE_NAME,
        user_agent: user_agent()?,
    };
    let (tracer, exporter) = pinniped_program::traces::start(settings, pod, metrics)
        .context("could not start the export of traces")?;
    background.spawn("export of traces", |stop| exporter.run(stop));
    Ok(Some(tracer))
}

/// Returns the user agent of requests with traces or audit events.
///
/// # Errors
/// Returns an error if the version cannot be sent in a header.
pub fn user_agent() -> anyhow::Result<HeaderValue> {
    let user_agent = format!("{SERVICE_NAME}/{}", pinniped_version::VERSION);
    user_agent.try_into().context("the version cannot be sent in a header")
}
