//! The Services that objects refer to, and their endpoints.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Service, ServicePort},
    discovery::v1::EndpointSlice,
};
use pinniped_go_compat::json::quote;
use pinniped_pki::CertificatePair;

use crate::Name;
use crate::table::{self, Balance, Protocol, Upstream, UpstreamId, UpstreamValidation};

/// The label that associates an EndpointSlice with a Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The annotations for the protocol of a Service's ports, the older spelling last. The value is a
/// comma-separated list of port names or numbers.
const PROTOCOL_ANNOTATIONS: [&str; 2] =
    ["projectcontour.io/upstream-protocol.", "contour.heptio.com/upstream-protocol."];

/// The default idle timeout of keep-alive connections.
pub(super) const IDLE_CONNECTION: Duration = Duration::from_secs(3600);

/// The reason why a reference does not lead to a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ServiceFault {
    #[error("service {} not found", quote(.0))]
    NotFound(String),
    #[error("port {} on service {} not matched", quote(.port), quote(.service))]
    NoPort { port: String, service: String },
    #[error("unsupported service protocol {}", quote(.0))]
    Protocol(String),
    #[error(
        "{0} is an ExternalName service, these are not currently enabled. See the \
         config.enableExternalNameService config file setting"
    )]
    ExternalName(String),
}

/// A reference to a port.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortReference<'a> {
    Number(i64),
    Name(&'a str),
}

impl std::fmt::Display for PortReference<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A port of an existing Service.
#[derive(Clone, Copy)]
pub(super) struct ResolvedPort<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    number: u16,
}

impl<'a> ResolvedPort<'a> {
    fn namespace(&self) -> &'a str {
        self.service.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &'a str {
        self.service.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the protocol of the port according to the Service.
    pub(super) fn protocol(&self) -> Protocol {
        match self.port.app_protocol.as_deref() {
            Some("https") => Protocol::Tls,
            Some("kubernetes.io/h2c") => Protocol::H2c,
            Some(_) => Protocol::Http1,
            None => self.annotated_protocol().unwrap_or_default(),
        }
    }

    fn annotated_protocol(&self) -> Option<Protocol> {
        let annotations = self.service.metadata.annotations.as_ref()?;
        let names = |prefix: &str, protocol: &str| {
            let list = annotations.get(&format!("{prefix}{protocol}"));
            list.is_some_and(|list| {
                list.split(',')
                    .map(str::trim)
                    .any(|port| self.port.name.as_deref() == Some(port) || port == self.number.to_string())
            })
        };
        [("h2", Protocol::H2), ("h2c", Protocol::H2c), ("tls", Protocol::Tls)]
            .into_iter()
            .find(|(word, _)| PROTOCOL_ANNOTATIONS.iter().any(|prefix| names(prefix, word)))
            .map(|(_, protocol)| protocol)
    }
}

/// The properties of a backend, without its endpoints.
pub(super) struct UpstreamSettings {
    pub(super) protocol: Protocol,
    pub(super) balance: Balance,
    pub(super) validation: Option<UpstreamValidation>,
    pub(super) client_certificate: Option<Arc<CertificatePair>>,
    pub(super) idle_connection: Option<Duration>,
}

impl UpstreamSettings {
    /// Returns a backend without special requirements.
    pub(super) fn plain(protocol: Protocol) -> Self {
        Self {
            protocol,
            balance: Balance::RoundRobin,
            validation: None,
            client_certificate: None,
            idle_connection: Some(IDLE_CONNECTION),
        }
    }
}

/// The backends of the last and the current table.
#[derive(Debug, Default)]
pub(super) struct Upstreams(HashMap<UpstreamId, CachedUpstream>);

#[derive(Debug)]
struct CachedUpstream {
    used: bool,
    upstream: Arc<Upstream>,
}

impl Upstreams {
    pub(super) fn forget_unused(&mut self) {
        self.0.retain(|_, cached| std::mem::take(&mut cached.used));
    }
}

/// The Services of one build.
pub(super) struct Services<'a> {
    services: HashMap<(&'a str, &'a str), &'a Service>,
    slices: HashMap<(&'a str, &'a str), Vec<&'a EndpointSlice>>,
    upstreams: &'a mut Upstreams,
    referenced: HashSet<Name>,
}

impl<'a> Services<'a> {
    pub(super) fn new(
        services: &'a [Arc<Service>],
        slices: &'a [Arc<EndpointSlice>],
        upstreams: &'a mut Upstreams,
    ) -> Self {
        let services = services
            .iter()
            .filter_map(|service| {
                let metadata = &service.metadata;
                Some(((metadata.namespace.as_deref()?, metadata.name.as_deref()?), &**service))
            })
            .collect();
        let mut by_service: HashMap<_, Vec<_>> = HashMap::new();
        for slice in slices {
            let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
            if let (Some(namespace), Some(service)) = (slice.metadata.namespace.as_deref(), service) {
                by_service.entry((namespace, service.as_str())).or_default().push(&**slice);
            }
        }
        Self { services, slices: by_service, upstreams, referenced: HashSet::new() }
    }

    /// Returns the Services that were requested, whether they exist or not.
    pub(super) fn referenced(self) -> HashSet<Name> {
        self.referenced
    }

    /// Returns the port of a Service that a reference selects.
    pub(super) fn find(
        &mut self,
        namespace: &str,
        name: &str,
        port: PortReference<'_>,
    ) -> Result<ResolvedPort<'a>, ServiceFault> {
        self.referenced.insert(Name { namespace: namespace.to_owned(), name: name.to_owned() });
        let full = || format!("{namespace}/{name}");
        let Some(service) = self.services.get(&(namespace, name)).copied() else {
            return Err(ServiceFault::NotFound(full()));
        };
        let spec = service.spec.as_ref();
        let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
        let matches = |cached: &&ServicePort| match port {
            PortReference::Number(number) => i64::from(cached.port) == number,
            PortReference::Name(name) => cached.name.as_deref() == Some(name),
        };
        let is_tcp = |cached: &&ServicePort| matches!(cached.protocol.as_deref(), None | Some("" | "TCP"));
        // A port number may occur twice, with TCP and with another protocol.
        let Some(cached) = ports.iter().filter(matches).find(is_tcp) else {
            return Err(match ports.iter().find(matches) {
                Some(other) => ServiceFault::Protocol(other.protocol.clone().unwrap_or_default()),
                None => ServiceFault::NoPort { port: port.to_string(), service: full() },
            });
        };
        if spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName") {
            return Err(ServiceFault::ExternalName(full()));
        }
        let number = u16::try_from(cached.port)
            .map_err(|_| ServiceFault::NoPort { port: port.to_string(), service: full() })?;
        Ok(ResolvedPort { service, port: cached, number })
    }

    /// Returns the backend of a port: the same value as in the last table, if nothing about it has
    /// changed.
    pub(super) fn upstream(&mut self, found: ResolvedPort<'a>, wanted: UpstreamSettings) -> Arc<Upstream> {
        let id = UpstreamId {
            service: table::ServicePort {
                namespace: found.namespace().into(),
                name: found.name().into(),
                port: found.number,
            },
            protocol: wanted.protocol,
            balance: wanted.balance,
            validation: wanted.validation,
            idle_connection: wanted.idle_connection,
        };
        if let Some(cached) = self.upstreams.0.get(&id).filter(|cached| cached.used) {
            return Arc::clone(&cached.upstream);
        }
        let endpoints = self.endpoints(found);
        let upstream = match self.upstreams.0.get(&id).map(|cached| &cached.upstream) {
            Some(cached)
                if *cached.endpoints == *endpoints
                    && cached.client_certificate.as_ref().map(Arc::as_ptr)
                        == wanted.client_certificate.as_ref().map(Arc::as_ptr) =>
            {
                Arc::clone(cached)
            }
            _ => Arc::new(Upstream {
                id: id.clone(),
                client_certificate: wanted.client_certificate,
                endpoints: endpoints.into(),
            }),
        };
        self.upstreams.0.insert(id, CachedUpstream { used: true, upstream: Arc::clone(&upstream) });
        upstream
    }

    /// Returns the current endpoints of a port.
    fn endpoints(&self, found: ResolvedPort<'_>) -> Vec<SocketAddr> {
        let name = found.port.name.as_deref().unwrap_or_default();
        let mut addresses = Vec::new();
        for slice in self.slices.get(&(found.namespace(), found.name())).into_iter().flatten() {
            let ports = slice.ports.iter().flatten().filter(|port| {
                matches!(port.protocol.as_deref(), None | Some("" | "TCP"))
                    && (name.is_empty() || port.name.as_deref() == Some(name))
            });
            let numbers: Vec<u16> = ports.filter_map(|port| u16::try_from(port.port?).ok()).collect();
            for endpoint in slice.endpoints.iter().flatten() {
                let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
                let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
                if let Some(address) = address.filter(|_| ready.unwrap_or(true)) {
                    addresses.extend(numbers.iter().map(|port| SocketAddr::new(address, *port)));
                }
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}
