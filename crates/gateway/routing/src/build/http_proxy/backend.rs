//! The services of a route or a TCP proxy.

use std::{sync::Arc, time::Duration};

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_api::http_proxy::{LoadBalancerPolicy, Service, UpstreamValidation as WantedValidation};
use pinniped_go_compat::json::quote;

use super::{Index, Proxies, World};
use crate::{
    build::{
        secrets::Refusal,
        services::{PortReference, ServiceFault, UpstreamSettings},
    },
    status::{Finding, Part},
    table::{Balance, Protocol, Upstream, UpstreamValidation},
};

/// The reason why a service cannot be a backend.
pub(super) enum BackendFault {
    /// The service or its port does not exist.
    Unresolved(ServiceFault),
    /// The configuration of the service is invalid.
    Wrong(Finding),
}

/// The settings of the enclosing object that apply to all its services.
pub(super) struct ServiceSettings {
    /// The load balancing policy.
    pub(super) balance: Balance,
    /// The idle timeout of keep-alive connections.
    pub(super) idle_connection: Option<Duration>,
    /// Relays bytes unchanged, regardless of the protocol of the service.
    pub(super) raw: bool,
}

impl Proxies<'_, '_, '_> {
    /// Returns the backend for a service of an object, and its weight.
    pub(super) fn backend(
        &mut self,
        index: Index,
        service: &Service,
        around: &ServiceSettings,
    ) -> Result<(u32, Arc<Upstream>), BackendFault> {
        let namespace = &self.list[index].name.namespace;
        let port = PortReference::Number(service.port);
        let found =
            self.world.services.find(namespace, &service.name, port).map_err(BackendFault::Unresolved)?;
        let protocol = match service.protocol.as_deref() {
            None => found.protocol(),
            Some("h2") => Protocol::H2,
            Some("h2c") => Protocol::H2c,
            Some("tls") => Protocol::Tls,
            Some(other) => {
                let message = format!("unsupported protocol: {other}");
                return Err(BackendFault::Wrong(Finding::new(Part::Service, "UnsupportedProtocol", message)));
            }
        };
        let protocol = if around.raw { Protocol::Http1 } else { protocol };
        let mut wanted = UpstreamSettings {
            balance: around.balance,
            idle_connection: around.idle_connection,
            ..UpstreamSettings::plain(protocol)
        };
        if protocol.is_tls() {
            wanted.validation = validation(service, namespace, self.world).map_err(BackendFault::Wrong)?;
            if let Some(reference) = &self.world.settings.client_certificate {
                let certificate = self.world.secrets.serving_of_administrator(reference).map_err(|why| {
                    let name = quote(&reference.to_string());
                    let message = format!("tls.envoy-client-certificate Secret {name} is invalid: {why}");
                    BackendFault::Wrong(Finding::new(Part::Tls, "SecretNotValid", message))
                })?;
                wanted.client_certificate = Some(certificate);
            }
        } else if service.validation.is_some() {
            let message =
                "ignoring field \"Spec.Services.Validation\"; the gateway speaks no TLS to the service";
            self.validations[index].warn(Finding::new(Part::Spec, "IgnoredField", message));
        }
        let weight = u32::try_from(service.weight.max(0)).unwrap_or(u32::MAX);
        Ok((weight, self.world.services.upstream(found, wanted)))
    }

    /// Returns the load balancing policy, with a warning if it is unknown. `place` is the name of
    /// the field.
    pub(super) fn balance(
        &mut self,
        index: Index,
        policy: Option<&LoadBalancerPolicy>,
        part: Part,
        place: &str,
        purpose: &str,
    ) -> Balance {
        match policy.map(|policy| policy.strategy.as_str()) {
            Some("Random") => Balance::Random,
            Some("WeightedLeastRequest") => Balance::LeastRequest,
            Some(strategy @ ("Cookie" | "RequestHash")) => {
                let message = format!(
                    "ignoring field \"{place}\"; {strategy} load balancer policy is not supported for {purpose}"
                );
                self.validations[index].warn(Finding::new(part, "IgnoredField", message));
                Balance::RoundRobin
            }
            _ => Balance::RoundRobin,
        }
    }
}

fn validation(
    service: &Service,
    namespace: &str,
    world: &mut World<'_>,
) -> Result<Option<UpstreamValidation>, Finding> {
    let Some(wanted) = &service.validation else { return Ok(None) };
    let reference = SecretReference::parse(&wanted.ca_secret, namespace);
    let name = quote(&reference.to_string());
    let invalid = |why: &str| {
        let message = format!(
            "Service [{}:{}] TLS upstream validation policy error: {why}",
            service.name, service.port
        );
        Finding::new(Part::Service, "TLSUpstreamValidation", message)
    };
    let ca = world.secrets.ca(&reference, namespace).map_err(|refusal| match refusal {
        Refusal::NotPermitted => {
            let message = format!(
                "service.UpstreamValidation.CACertificate Secret {name} is not configured for certificate delegation"
            );
            Finding::new(Part::Tls, "CACertificateNotDelegated", message)
        }
        Refusal::Invalid(why) => invalid(&format!("invalid CA Secret {name}: {why}")),
    })?;
    let names = names(wanted).map_err(|error| invalid(&error.to_string()))?;
    Ok(Some(UpstreamValidation { ca, names }))
}

/// A validation without a valid name.
#[derive(Debug, thiserror::Error)]
enum SubjectNameError {
    #[error("missing subject alternative name")]
    Missing,
    #[error("first entry of SubjectNames ({first}) does not match SubjectName ({name})")]
    Mismatch { first: String, name: String },
}

/// Returns the names of which the backend's certificate must contain one.
fn names(wanted: &WantedValidation) -> Result<Arc<[Box<str>]>, SubjectNameError> {
    if wanted.subject_name.is_empty() {
        return Err(SubjectNameError::Missing);
    }
    match wanted.subject_names.first() {
        None => Ok(Arc::new([wanted.subject_name.as_str().into()])),
        Some(first) if *first == wanted.subject_name => {
            Ok(wanted.subject_names.iter().map(|name| name.as_str().into()).collect())
        }
        Some(first) => {
            Err(SubjectNameError::Mismatch { first: first.clone(), name: wanted.subject_name.clone() })
        }
    }
}
