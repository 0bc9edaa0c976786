//! The export of traces of a program.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use pinniped_error::chain;
use pinniped_http_client::proxy_environment::ProxyEnvironment;
use pinniped_kube_metrics::traces::SPANS;
use pinniped_metrics::Metrics;
use pinniped_pki::CaBundle;
use pinniped_pki::tls::{CipherRestriction, Roots};
use pinniped_traces::{Counts, Exporter, Tracer, TracesError, TracesParams};
use url::Url;

use crate::downward_api::PodInfo;

/// The settings of the export.
#[derive(Clone, Debug)]
pub struct TracesSettings {
    /// The URL of the traces: see [`pinniped_traces::endpoint`].
    pub url: Url,
    /// How many of a million requests are recorded.
    pub sampling_rate_per_million: u32,
    /// The roots that verify the collector.
    pub roots: Roots,
    /// The TLS 1.2 cipher suites that are allowed.
    pub ciphers: CipherRestriction,
    /// The proxies between this program and the collector.
    pub proxies: ProxyEnvironment,
    /// The name of the program in traces.
    pub service_name: &'static str,
    /// The user agent of the requests to the collector.
    pub user_agent: HeaderValue,
}

/// The certificate authorities that verify a collector are not readable.
#[derive(Debug, thiserror::Error)]
#[error("must be base64 of PEM certificates: {0}")]
pub struct RootsError(String);

/// Returns the roots that verify a collector: those in the base64 of a PEM bundle, or those of the
/// system.
///
/// # Errors
/// Returns an error if the text is not base64, or has no certificate.
pub fn roots(certificate_authority_data: Option<&str>) -> Result<Roots, RootsError> {
    let Some(data) = certificate_authority_data else { return Ok(Roots::System) };
    let pem = STANDARD.decode(data).map_err(|error| RootsError(error.to_string()))?;
    CaBundle::from_pem(&pem).map(Roots::Bundle).map_err(|error| RootsError(chain(&error).to_string()))
}

/// Creates the tracer of the program and its exporter, and registers the metrics. The exporter must
/// run as long as the tracer is used.
///
/// # Errors
/// Returns an error if the certificate authorities cannot be loaded, or the environment requires
/// what the exporter does not support.
pub fn start(
    settings: TracesSettings,
    pod: &PodInfo,
    metrics: &Metrics,
) -> Result<(Tracer, Exporter), TracesError> {
    let (tracer, exporter) = pinniped_traces::start(TracesParams {
        resource: resource(settings.service_name, pod),
        url: settings.url,
        sampling_rate_per_million: settings.sampling_rate_per_million,
        roots: settings.roots,
        ciphers: settings.ciphers,
        proxies: settings.proxies,
        user_agent: settings.user_agent,
    })?;
    register(metrics, exporter.counts());
    Ok((tracer, exporter))
}

/// Returns the attributes of the program, named by the semantic conventions of OpenTelemetry.
fn resource(service_name: &str, pod: &PodInfo) -> Vec<(&'static str, String)> {
    let mut resource = vec![
        ("service.name", service_name.to_owned()),
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
        let keys = |name: &str| resource("p", &pod(name)).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        assert_eq!(keys("pod"), ["service.name", "service.version", "k8s.namespace.name", "k8s.pod.name"]);
        assert_eq!(keys(""), ["service.name", "service.version", "k8s.namespace.name"]);
    }

    #[test]
    fn the_roots_are_those_of_the_system_or_of_the_bundle() {
        assert_eq!(roots(None).unwrap(), Roots::System);
        for data in ["!", "eA=="] {
            let error = roots(Some(data)).unwrap_err().to_string();
            assert!(error.starts_with("must be base64 of PEM certificates: "), "{error}");
        }
    }
}
