//! Decides the names in the proxy's serving certificate, and the URL for clients.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;

use super::spec::{ProxyConfig, ServiceKind};
use crate::endpoint::{Endpoint, HTTPS_PORT};

/// Either one DNS name or some IP addresses, and the URL that belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateNames {
    /// The DNS name, if there is one.
    pub hostname: Option<String>,
    /// The addresses, in order; empty if there is a DNS name.
    pub ips: Vec<IpAddr>,
    /// `https://host[:port]`.
    pub endpoint: String,
}

/// Whether the names are available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameInfo {
    /// The names are available.
    Ready(CertificateNames),
    /// The Service has no address yet.
    Pending,
}

impl NameInfo {
    /// Returns the names if they are available.
    pub fn ready(&self) -> Option<&CertificateNames> {
        match self {
            Self::Ready(names) => Some(names),
            Self::Pending => None,
        }
    }
}

/// The names cannot be determined. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// The load balancer has addresses, and none is usable.
    #[error("could not find valid IP addresses or hostnames from load balancer {namespace}/{name}")]
    NoUsableAddress {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
    },
}

impl CertificateNames {
    /// Returns the names and the URL of a configured endpoint.
    fn of_endpoint(endpoint: &Endpoint) -> Self {
        let ip = endpoint.ip();
        Self {
            hostname: if ip.is_some() { None } else { Some(endpoint.host.clone()) },
            ips: ip.into_iter().collect(),
            endpoint: endpoint.advertised(),
        }
    }

    fn of_ips(ips: Vec<IpAddr>) -> Option<Self> {
        // Unlike upstream, IPv6 addresses are put in brackets; without them the URL is not usable.
        let first = Endpoint { host: ips.first()?.to_string(), port: HTTPS_PORT };
        Some(Self { hostname: None, ips, endpoint: first.advertised() })
    }

    /// Returns whether a certificate with these subject alternative names is the wanted one: it has
    /// the same addresses in the same order and no DNS name, or exactly the one DNS name and no
    /// address.
    pub fn match_certificate(&self, ips: &[IpAddr], dns_names: &[String]) -> bool {
        match &self.hostname {
            Some(hostname) => ips.is_empty() && dns_names == std::slice::from_ref(hostname),
            None => dns_names.is_empty() && self.ips == ips,
        }
    }
}

/// Determines the names: from the configured endpoint, otherwise from the Service.
///
/// # Errors
///
/// Returns [`NamesError`] if the load balancer has addresses and none is usable.
pub fn certificate_names(
    config: &ProxyConfig,
    load_balancer: Option<&Service>,
    cluster_ip: Option<&Service>,
) -> Result<NameInfo, NamesError> {
    if let Some(endpoint) = &config.endpoint {
        return Ok(NameInfo::Ready(CertificateNames::of_endpoint(endpoint)));
    }
    match config.service {
        ServiceKind::ClusterIp => Ok(from_cluster_ip(cluster_ip)),
        ServiceKind::LoadBalancer | ServiceKind::None => from_load_balancer(load_balancer),
    }
}

fn from_cluster_ip(service: Option<&Service>) -> NameInfo {
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else { return NameInfo::Pending };
    let listed = spec.cluster_ips.as_deref().unwrap_or_default();
    let texts = if listed.is_empty() { spec.cluster_ip.as_slice() } else { listed };
    // A headless Service has the cluster IP "None", which is not an address.
    let ips = texts.iter().filter_map(|text| text.parse().ok()).collect();
    CertificateNames::of_ips(ips).map_or(NameInfo::Pending, NameInfo::Ready)
}

fn from_load_balancer(service: Option<&Service>) -> Result<NameInfo, NamesError> {
    let Some(service) = service else { return Ok(NameInfo::Pending) };
    let ingress = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref())
        .and_then(|balancer| balancer.ingress.as_deref())
        .unwrap_or_default();
    let filled = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    match ingress.first() {
        Some(first) if filled(&first.hostname) || filled(&first.ip) => {}
        _ => return Ok(NameInfo::Pending),
    }
    if let Some(hostname) =
        ingress.iter().filter_map(|entry| entry.hostname.clone()).find(|name| !name.is_empty())
    {
        let endpoint = format!("https://{hostname}");
        return Ok(NameInfo::Ready(CertificateNames { hostname: Some(hostname), ips: Vec::new(), endpoint }));
    }
    let ip = ingress.iter().filter_map(|entry| entry.ip.as_deref()?.parse().ok()).next();
    match ip.and_then(|ip| CertificateNames::of_ips(vec![ip])) {
        Some(names) => Ok(NameInfo::Ready(names)),
        None => Err(NamesError::NoUsableAddress {
            namespace: service.metadata.namespace.clone().unwrap_or_default(),
            name: service.metadata.name.clone().unwrap_or_default(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::spec::Mode;

    fn config(service: ServiceKind, endpoint: &str) -> ProxyConfig {
        ProxyConfig {
            mode: Mode::Enabled,
            service,
            load_balancer_ip: None,
            annotations: Default::default(),
            fields: Default::default(),
            endpoint: (!endpoint.is_empty()).then(|| Endpoint::parse(endpoint, 443).unwrap()),
            tls: None,
        }
    }

    fn service(value: serde_json::Value) -> Service {
        let mut service: Service = serde_json::from_value(value).unwrap();
        service.metadata.name = Some("lb".to_owned());
        service.metadata.namespace = Some("ns".to_owned());
        service
    }

    fn names(hostname: &str, ips: &[&str], endpoint: &str) -> NameInfo {
        NameInfo::Ready(CertificateNames {
            hostname: (!hostname.is_empty()).then(|| hostname.to_owned()),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            endpoint: endpoint.to_owned(),
        })
    }

    #[test]
    fn a_configured_endpoint_takes_precedence() {
        for (endpoint, wanted) in [
            ("example.com", names("example.com", &[], "https://example.com")),
            ("example.com:8443", names("example.com", &[], "https://example.com:8443")),
            ("127.0.0.1:443", names("", &["127.0.0.1"], "https://127.0.0.1")),
            ("[fd00::5]:8443", names("", &["fd00::5"], "https://[fd00::5]:8443")),
        ] {
            for kind in [ServiceKind::None, ServiceKind::ClusterIp, ServiceKind::LoadBalancer] {
                assert_eq!(certificate_names(&config(kind, endpoint), None, None), Ok(wanted.clone()));
            }
        }
    }

    #[test]
    fn a_cluster_ip_service_provides_all_its_addresses() {
        let config = config(ServiceKind::ClusterIp, "");
        for (spec, wanted) in [
            (serde_json::json!({"clusterIP": "10.0.0.1"}), names("", &["10.0.0.1"], "https://10.0.0.1")),
            (
                serde_json::json!({"clusterIP": "fd00::5", "clusterIPs": ["fd00::5", "10.0.0.1"]}),
                names("", &["fd00::5", "10.0.0.1"], "https://[fd00::5]"),
            ),
            (serde_json::json!({"clusterIP": "None"}), NameInfo::Pending),
            (serde_json::json!({}), NameInfo::Pending),
        ] {
            let service = service(serde_json::json!({ "spec": spec }));
            assert_eq!(certificate_names(&config, None, Some(&service)), Ok(wanted));
        }
        assert_eq!(certificate_names(&config, None, None), Ok(NameInfo::Pending));
    }

    #[test]
    fn a_load_balancer_provides_a_hostname_or_its_first_address() {
        let config = config(ServiceKind::LoadBalancer, "");
        for (ingress, wanted) in [
            (serde_json::json!([]), Ok(NameInfo::Pending)),
            (serde_json::json!([{}]), Ok(NameInfo::Pending)),
            (serde_json::json!([{"ip": ""}, {"ip": "1.2.3.4"}]), Ok(NameInfo::Pending)),
            (
                serde_json::json!([{"ip": "1.2.3.4"}, {"ip": "5.6.7.8"}]),
                Ok(names("", &["1.2.3.4"], "https://1.2.3.4")),
            ),
            (serde_json::json!([{"ip": "1.2.3.4"}, {"hostname": "h"}]), Ok(names("h", &[], "https://h"))),
            (
                serde_json::json!([{"ip": "bad"}, {"ip": "fd00::5"}]),
                Ok(names("", &["fd00::5"], "https://[fd00::5]")),
            ),
            (
                serde_json::json!([{"ip": "not-an-ip"}]),
                Err("could not find valid IP addresses or hostnames from load balancer ns/lb".to_owned()),
            ),
        ] {
            let service = service(serde_json::json!({"status": {"loadBalancer": {"ingress": ingress}}}));
            let found = certificate_names(&config, Some(&service), None).map_err(|error| error.to_string());
            assert_eq!(found, wanted);
        }
        assert_eq!(certificate_names(&config, None, None), Ok(NameInfo::Pending));
    }

    #[test]
    fn certificates_match_only_exactly() {
        let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let dns = |texts: &[&str]| texts.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
        let by_ip =
            CertificateNames { hostname: None, ips: ips(&["1.1.1.1", "2.2.2.2"]), endpoint: String::new() };
        assert!(by_ip.match_certificate(&ips(&["1.1.1.1", "2.2.2.2"]), &[]));
        assert!(!by_ip.match_certificate(&ips(&["2.2.2.2", "1.1.1.1"]), &[]));
        assert!(!by_ip.match_certificate(&ips(&["1.1.1.1"]), &[]));
        assert!(!by_ip.match_certificate(&ips(&["1.1.1.1", "2.2.2.2"]), &dns(&["x"])));
        let by_name =
            CertificateNames { hostname: Some("Host".to_owned()), ips: Vec::new(), endpoint: String::new() };
        assert!(by_name.match_certificate(&[], &dns(&["Host"])));
        assert!(!by_name.match_certificate(&[], &dns(&["host"])));
        assert!(!by_name.match_certificate(&[], &dns(&["Host", "other"])));
        assert!(!by_name.match_certificate(&ips(&["1.1.1.1"]), &dns(&["Host"])));
    }
}
