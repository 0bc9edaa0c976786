//! The export of traces, if it is configured.

use anyhow::Context as _;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_metrics::traces::SPANS;
use pinniped_metrics::Metrics;
use pinniped_program::downward_api::PodInfo;
use pinniped_tasks::TaskGroup;
use pinniped_traces::{Counts, Tracer, TracesParams};

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
    let user_agent = format!("{SERVICE_NAME}/{}", pinniped_version::VERSION);
    let params = TracesParams {
        url: tracing.url.clone(),
        sampling_rate_per_million: tracing.sampling_rate_per_million,
        roots: tracing.roots.clone(),
        ciphers: config.ciphers.clone(),
        proxies: proxies.clone(),
        user_agent: user_agent.try_into().context("the version cannot be sent in a header")?,
        resource: resource(pod),
    };
    let (tracer, exporter) =
        pinniped_traces::start(params).context("could not start the export of traces")?;
    register(metrics, exporter.counts());
    background.spawn("export of traces", |stop| exporter.run(stop));
    Ok(Some(tracer))
}

/// Returns the attributes of this program, named by the semantic conventions of OpenTelemetry.
fn resource(pod: &PodInfo) -> Vec<(&'static str, String)> {
    let mut resource = vec![
        ("service.name", SERVICE_NAME.to_owned()),
        ("service.version", pinniped_version::VERSION.to_owned()),
        ("k8s.namespace.name", pod.namespace.clone()),
    ];
    if !pod.name.is_empty() {
        resource.push(("k8s.pod.name", pod.name.clone()));
    }
    resource
}

fn register(metrics: &Metrics, counts: Counts) {
    metrics.collect(move |samples| {
        for (result, count) in
            [("exported", counts.exported()), ("dropped", counts.dropped()), ("failed", counts.failed())]
        {
            samples.push(&SPANS, [result], count);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_pod_without_a_name_has_no_attribute_for_it() {
        let pod = |name: &str| PodInfo {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            labels: BTreeMap::new(),
        };
        let keys = |name: &str| resource(&pod(name)).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys("pod"), ["service.name", "service.version", "k8s.namespace.name", "k8s.pod.name"]);
        assert_eq!(keys(""), ["service.name", "service.version", "k8s.namespace.name"]);
    }
}
