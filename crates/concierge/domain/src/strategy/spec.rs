//! `spec.impersonationProxy`, validated.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pinniped_concierge_api::config::{CredentialIssuerSpec, ImpersonationProxyServiceSpec};
use pinniped_go_compat::json::quote;

use super::certificate_validation;
use crate::endpoint::{Endpoint, EndpointError, HTTPS_PORT};

/// The mode of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The proxy runs if no control plane node is visible.
    Auto,
    /// The proxy always runs.
    Enabled,
    /// The proxy never runs.
    Disabled,
}

/// The Service in front of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// A Service of type `LoadBalancer`.
    LoadBalancer,
    /// A Service of type `ClusterIP`.
    ClusterIp,
    /// No Service: an administrator provides the route to the proxy.
    None,
}

/// The `tls` block: an externally provided certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalTls {
    /// The name as in the spec; empty if the field is absent.
    pub secret_name: String,
    /// Base64 of the bundle to advertise; empty if the field is absent.
    pub certificate_authority_data: String,
    /// The consequence of a failed check of the certificate.
    pub validation: certificate_validation::Mode,
}

/// Fields that are copied to the Service unchanged. The Concierge never sets a field that is not
/// configured here; its value belongs to the API server and other clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFields {
    /// `spec.loadBalancerClass`.
    pub load_balancer_class: Option<String>,
    /// `spec.loadBalancerSourceRanges`; empty if not configured.
    pub load_balancer_source_ranges: Vec<String>,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: Option<String>,
    /// `spec.ipFamilyPolicy`.
    pub ip_family_policy: Option<String>,
}

/// The configuration of the impersonation proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// The mode of the proxy.
    pub mode: Mode,
    /// The Service in front of the proxy.
    pub service: ServiceKind,
    /// The IP address of the load balancer's Service.
    pub load_balancer_ip: Option<String>,
    /// Annotations of the Service.
    pub annotations: BTreeMap<String, String>,
    /// Fields that are copied to the Service.
    pub fields: ServiceFields,
    /// The address for clients, if the administrator configured one; it takes precedence over the
    /// Service.
    pub endpoint: Option<Endpoint>,
    /// The externally provided certificate.
    pub tls: Option<ExternalTls>,
}

/// Reasons why a spec is not valid, with upstream's texts, which become part of the status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The block is missing.
    #[error("could not load CredentialIssuer: spec.impersonationProxy is nil")]
    Missing,
    /// A field of the block is not valid.
    #[error("could not load CredentialIssuer spec.impersonationProxy: {0}")]
    Field(#[from] FieldError),
}

/// The field that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// `mode`.
    #[error("invalid proxy mode {} (expected auto, disabled, or enabled)", quote(.0))]
    Mode(String),
    /// `service.type`.
    #[error("invalid service type {} (expected None, LoadBalancer, or ClusterIP)", quote(.0))]
    ServiceType(String),
    /// `service.loadBalancerIP`.
    #[error("invalid LoadBalancerIP {}", quote(.0))]
    LoadBalancerIp(String),
    /// `service.loadBalancerSourceRanges`.
    #[error("invalid LoadBalancerSourceRanges {}", quote(.0))]
    SourceRange(String),
    /// `service.externalTrafficPolicy` or `service.ipFamilyPolicy`.
    #[error("invalid {field} {} (expected {expected})", quote(.value))]
    Policy {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// `externalEndpoint` is missing.
    #[error("externalEndpoint must be set when service.type is None")]
    NoEndpoint,
    /// `externalEndpoint` is not an endpoint.
    #[error("invalid ExternalEndpoint {}: {cause}", quote(.value))]
    Endpoint {
        /// The value of the field.
        value: String,
        /// The reason.
        #[source]
        cause: EndpointError,
    },
}

impl ProxyConfig {
    /// Validates the spec in upstream's order. In mode `disabled` only the mode is validated.
    ///
    /// # Errors
    ///
    /// Returns [`SpecError`] for the first field that is not valid.
    pub fn parse(spec: Option<&CredentialIssuerSpec>) -> Result<Self, SpecError> {
        let proxy = spec.and_then(|spec| spec.impersonation_proxy.as_ref()).ok_or(SpecError::Missing)?;
        let mode = match proxy.mode.as_str() {
            "auto" => Mode::Auto,
            "enabled" => Mode::Enabled,
            "disabled" => Mode::Disabled,
            other => return Err(FieldError::Mode(other.to_owned()).into()),
        };
        let tls = proxy.tls.as_ref().map(|tls| ExternalTls {
            secret_name: tls.secret_name.clone().unwrap_or_default(),
            certificate_authority_data: tls.certificate_authority_data.clone().unwrap_or_default(),
            validation: certificate_validation::Mode::of_field(tls.validation.as_deref()),
        });
        let mut config = Self {
            mode,
            service: ServiceKind::LoadBalancer,
            load_balancer_ip: None,
            annotations: proxy.service.annotations.clone(),
            fields: ServiceFields::default(),
            endpoint: None,
            tls,
        };
        if mode == Mode::Disabled {
            return Ok(config);
        }
        config.service = match proxy.service.type_.as_deref() {
            None | Some("" | "LoadBalancer") => ServiceKind::LoadBalancer,
            Some("ClusterIP") => ServiceKind::ClusterIp,
            Some("None") => ServiceKind::None,
            Some(other) => return Err(FieldError::ServiceType(other.to_owned()).into()),
        };
        config.load_balancer_ip = proxy.service.load_balancer_ip.clone().filter(|ip| !ip.is_empty());
        if let Some(ip) = config.load_balancer_ip.as_deref().filter(|ip| ip.parse::<IpAddr>().is_err()) {
            return Err(FieldError::LoadBalancerIp(ip.to_owned()).into());
        }
        config.fields = ServiceFields::parse(&proxy.service)?;
        let endpoint = proxy.external_endpoint.as_deref().unwrap_or_default();
        if endpoint.is_empty() {
            if config.service == ServiceKind::None {
                return Err(FieldError::NoEndpoint.into());
            }
        } else {
            let parsed = Endpoint::parse(endpoint, HTTPS_PORT)
                .map_err(|cause| FieldError::Endpoint { value: endpoint.to_owned(), cause })?;
            config.endpoint = Some(parsed);
        }
        Ok(config)
    }
}

impl ServiceFields {
    /// The schema rejects most of these errors, but an edited definition may not.
    fn parse(service: &ImpersonationProxyServiceSpec) -> Result<Self, FieldError> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let one_of = |field: &'static str, value: &Option<String>, allowed: &[&str]| match filled(value) {
            Some(value) if !allowed.contains(&value.as_str()) => {
                let (last, others) = allowed.split_last().unwrap_or((&"", &[]));
                let expected = format!("{} or {last}", others.join(", "));
                Err(FieldError::Policy { field, value, expected })
            }
            value => Ok(value),
        };
        let ranges = &service.load_balancer_source_ranges;
        if let Some(range) = ranges.iter().find(|range| !is_address_range(range)) {
            return Err(FieldError::SourceRange(range.clone()));
        }
        Ok(Self {
            load_balancer_class: filled(&service.load_balancer_class),
            load_balancer_source_ranges: ranges.clone(),
            external_traffic_policy: one_of(
                "ExternalTrafficPolicy",
                &service.external_traffic_policy,
                &["Cluster", "Local"],
            )?,
            ip_family_policy: one_of(
                "IPFamilyPolicy",
                &service.ip_family_policy,
                &["SingleStack", "PreferDualStack", "RequireDualStack"],
            )?,
        })
    }
}

/// Returns whether `text` is `address/bits`. Surrounding spaces are allowed, as in the API server.
fn is_address_range(text: &str) -> bool {
    let Some((address, bits)) = text.trim().split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    !bits.starts_with('+') && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "literals read better without a reference each")]
    fn parse(proxy: serde_json::Value) -> Result<ProxyConfig, String> {
        let spec: CredentialIssuerSpec =
            serde_json::from_value(serde_json::json!({ "impersonationProxy": proxy })).unwrap();
        ProxyConfig::parse(Some(&spec)).map_err(|error| error.to_string())
    }

    #[test]
    fn each_invalid_field_has_its_message() {
        let cases = [
            (
                serde_json::json!({"mode": "x", "service": {}}),
                r#"invalid proxy mode "x" (expected auto, disabled, or enabled)"#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"type": "x"}}),
                r#"invalid service type "x" (expected None, LoadBalancer, or ClusterIP)"#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"loadBalancerIP": "x"}}),
                r#"invalid LoadBalancerIP "x""#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"loadBalancerIP": "010.0.0.1"}}),
                r#"invalid LoadBalancerIP "010.0.0.1""#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"loadBalancerSourceRanges": ["10.0.0.0/8", "x"]}}),
                r#"invalid LoadBalancerSourceRanges "x""#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"externalTrafficPolicy": "x"}}),
                r#"invalid ExternalTrafficPolicy "x" (expected Cluster or Local)"#,
            ),
            (
                serde_json::json!({"mode": "auto", "service": {"ipFamilyPolicy": "x"}}),
                r#"invalid IPFamilyPolicy "x" (expected SingleStack, PreferDualStack or RequireDualStack)"#,
            ),
            (
                serde_json::json!({"mode": "enabled", "service": {"type": "None"}}),
                "externalEndpoint must be set when service.type is None",
            ),
            (
                serde_json::json!({"mode": "enabled", "service": {"type": "None"}, "externalEndpoint": "[invalid"}),
                r#"invalid ExternalEndpoint "[invalid": address [invalid:443: missing ']' in address"#,
            ),
        ];
        for (proxy, wanted) in cases {
            let wanted = format!("could not load CredentialIssuer spec.impersonationProxy: {wanted}");
            assert_eq!(parse(proxy), Err(wanted));
        }
    }

    #[test]
    fn a_missing_block_is_an_error() {
        for spec in [None, Some(&CredentialIssuerSpec::default())] {
            let error = ProxyConfig::parse(spec).expect_err("there is no block");
            assert_eq!(error.to_string(), "could not load CredentialIssuer: spec.impersonationProxy is nil");
        }
    }

    #[test]
    fn only_the_mode_is_validated_when_disabled() {
        let config = parse(serde_json::json!({
            "mode": "disabled", "service": {"type": "x", "loadBalancerIP": "x"}, "externalEndpoint": "[x",
        }));
        assert_eq!(config.map(|config| config.mode), Ok(Mode::Disabled));
    }

    #[test]
    fn an_address_range_is_an_address_and_a_number_of_bits() {
        for (text, wanted) in [
            ("10.0.0.0/8", true),
            (" 10.0.0.1/32 ", true),
            ("0.0.0.0/0", true),
            ("fd00::/64", true),
            ("::/128", true),
            ("10.0.0.0/33", false),
            ("fd00::/129", false),
            ("10.0.0.0", false),
            ("10.0.0.0/", false),
            ("10.0.0.0/+8", false),
            ("10.0.0.0/8/8", false),
            ("010.0.0.0/8", false),
            ("host/8", false),
            ("", false),
        ] {
            assert_eq!(is_address_range(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn an_empty_service_type_means_load_balancer() {
        for service in [serde_json::json!({}), serde_json::json!({"type": ""})] {
            let config = parse(serde_json::json!({"mode": "auto", "service": service})).unwrap();
            assert_eq!(config.service, ServiceKind::LoadBalancer);
        }
    }
}
