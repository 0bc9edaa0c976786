//! `IngressRoute`, with the behaviour of Contour 1.5, the last version that served it.
//!
//! It differs from `HTTPProxy` in many details: paths are repeated instead of joined, a missing
//! service stops the evaluation of the object, a missing delegate is ignored, and only the first
//! error is reported, in one sentence.

mod fault;
mod routes;
mod tcp;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use pinniped_delegation::grants::SecretReference;
use pinniped_gateway_api::{
    IngressRoute, Others, Readable,
    ingress_route::{Delegate, IngressRouteSpec, Service, VirtualHost},
    is_void,
};

use self::fault::{Fault, ValidationFault};
use super::{
    World, class,
    draft::{Contribution, Draft, RouteSet, TerminationParams, Tls},
    ownership::Claim,
    secrets::Refusal,
    services::{ResolvedPort, UpstreamSettings},
};
use crate::{
    Kind, Name, Settings,
    status::IngressRouteValidation,
    table::{Balance, HostPattern, Upstream, UpstreamValidation},
};

/// The maximum depth of delegations.
const DEEPEST_DELEGATION: usize = 64;

/// The maximum number of routes of a root.
const MOST_STEPS: usize = 50_000;

/// Adds the configuration of all objects to the draft.
pub(super) fn add(
    objects: &[Arc<IngressRoute>],
    world: &mut World<'_>,
    draft: &mut Draft,
) -> BTreeMap<Name, IngressRouteValidation> {
    let mut routes = IngressRoutes::new(ours(objects, world.settings), world);
    for root in routes.roots() {
        if let Some(contribution) = routes.contribution(root) {
            draft.add(contribution);
        }
    }
    routes.finish()
}

/// Returns the objects of the configured classes.
fn ours<'o>(objects: &'o [Arc<IngressRoute>], settings: &Settings) -> impl Iterator<Item = &'o IngressRoute> {
    objects
        .iter()
        .map(|object| &**object)
        .filter(|object| class::is_our_ingress_route(settings, &object.metadata))
}

/// Returns the claims of the roots that may have their hosts.
pub(super) fn claims(objects: &[Arc<IngressRoute>], settings: &Settings) -> impl Iterator<Item = Claim> {
    ours(objects, settings).filter_map(|object| {
        let host = object.spec.read()?.virtualhost.as_ref()?;
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let is_one = !host.fqdn.trim().is_empty() && !host.fqdn.contains('*');
        (is_one && settings.may_have_roots(namespace))
            .then(|| Claim::new(&host.fqdn, Kind::IngressRoute, &object.metadata))
    })
}

/// The index of an object in the list.
type Index = usize;

struct Object<'o> {
    name: Name,
    spec: Option<&'o IngressRouteSpec>,
}

impl<'o> Object<'o> {
    fn host(&self) -> Option<&'o VirtualHost> {
        self.spec?.virtualhost.as_ref()
    }
}

struct IngressRoutes<'o, 'w, 'b> {
    world: &'w mut World<'b>,
    /// Sorted by name.
    list: Vec<Object<'o>>,
    by_name: HashMap<Name, Index>,
    /// The first error of each object.
    faults: Vec<Option<Fault>>,
    /// Whether a root delegates to the object.
    reached: Vec<bool>,
}

/// The TLS configuration of a root.
enum RootTls {
    Plain,
    Passthrough,
    Terminate(TerminationParams),
}

impl<'o, 'w, 'b> IngressRoutes<'o, 'w, 'b> {
    fn new(objects: impl Iterator<Item = &'o IngressRoute>, world: &'w mut World<'b>) -> Self {
        let mut objects: Vec<(Name, &IngressRoute)> =
            objects.map(|object| (Name::of(&object.metadata), object)).collect();
        objects.sort_by(|one, other| one.0.cmp(&other.0));
        let fault = |object: &IngressRoute| match &object.spec {
            Readable::Read(_) => None,
            Readable::Unreadable(why) => Some(Fault::Unreadable(why.to_string())),
        };
        Self {
            world,
            by_name: objects.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect(),
            faults: objects.iter().map(|(_, object)| fault(object)).collect(),
            reached: vec![false; objects.len()],
            list: objects
                .into_iter()
                .map(|(name, object)| Object { name, spec: object.spec.read() })
                .collect(),
        }
    }

    /// Returns the valid roots: their hosts belong to no other namespace and to no other root.
    fn roots(&mut self) -> Vec<Index> {
        let mut by_host: BTreeMap<String, Vec<Index>> = BTreeMap::new();
        let mut roots = Vec::new();
        let mut refused = Vec::new();
        for (index, object) in self.list.iter().enumerate() {
            let Some(host) = object.host() else { continue };
            let namespace = &object.name.namespace;
            // These errors are reported first, and these objects cause no error of another object.
            if host.fqdn.trim().is_empty() || !self.world.settings.may_have_roots(namespace) {
                roots.push(index);
            } else if let Some(why) = self.world.owners.refusal(&HostPattern::parse(&host.fqdn), namespace) {
                refused.push((index, Fault::HostOfAnotherNamespace(why)));
            } else {
                by_host.entry(host.fqdn.to_ascii_lowercase()).or_default().push(index);
            }
        }
        refused.into_iter().for_each(|(index, why)| self.fail(index, why));
        for (host, with_it) in by_host {
            if let [root] = with_it[..] {
                roots.push(root);
                continue;
            }
            // A limited number of names is sufficient for the message.
            let names: Vec<String> =
                with_it.iter().take(100).map(|index| self.list[*index].name.to_string()).collect();
            for index in with_it {
                let fault = Fault::HostOfSeveralObjects { host: host.clone(), objects: names.join(", ") };
                self.fail(index, fault);
            }
        }
        roots.sort_unstable();
        roots
    }

    fn contribution(&mut self, root: Index) -> Option<Contribution> {
        match self.checked(root) {
            Ok(contribution) => contribution,
            Err(fault) => {
                self.fail(root, fault);
                None
            }
        }
    }

    /// Returns the configuration that a root contributes to its host, or the reason why it is
    /// refused completely.
    fn checked(&mut self, root: Index) -> Result<Option<Contribution>, Fault> {
        let (Some(spec), Some(host)) = (self.list[root].spec, self.list[root].host()) else {
            return Ok(None);
        };
        if !self.world.settings.may_have_roots(&self.list[root].name.namespace) {
            return Err(Fault::RootNamespace);
        }
        if host.fqdn.trim().is_empty() {
            return Err(Fault::NoHost);
        }
        if host.fqdn.contains('*') {
            return Err(Fault::WildcardHost(host.fqdn.clone()));
        }
        self.check_support(root)?;
        let tls = self.tls(root, host)?;
        let tcp = match (&tls, &spec.tcpproxy) {
            (RootTls::Plain, _) | (_, None) => None,
            // The error is reported, but the routes of port 80 are still served.
            (RootTls::Passthrough, Some(_)) => self.tcp(root, true),
            (RootTls::Terminate(_), Some(_)) => self.tcp(root, false),
        };
        let upgrade = matches!(tls, RootTls::Terminate(_)) && spec.tcpproxy.is_none();
        let routes = self.root_routes(root, upgrade);
        let mut contribution = Contribution::new(HostPattern::parse(&host.fqdn));
        contribution.plain = routes;
        contribution.tls = match (tls, tcp) {
            (RootTls::Passthrough, Some(tcp)) => Some(Tls::Passthrough(tcp)),
            (RootTls::Terminate(terms), Some(tcp)) => Some(Tls::Tcp(terms, tcp)),
            (RootTls::Terminate(terms), None) if upgrade => {
                Some(Tls::Http(terms, contribution.plain.clone()))
            }
            _ => None,
        };
        Ok(Some(contribution))
    }

    fn tls(&mut self, root: Index, host: &VirtualHost) -> Result<RootTls, Fault> {
        let Some(tls) = &host.tls else { return Ok(RootTls::Plain) };
        if tls.secret_name.is_empty() && tls.passthrough {
            return Ok(RootTls::Passthrough);
        }
        let namespace = self.list[root].name.namespace.clone();
        let secret = tls.secret_name.clone();
        let reference = SecretReference::parse(&tls.secret_name, &namespace);
        let certificate =
            self.world.secrets.serving(&reference, &namespace).map_err(|refusal| match refusal {
                Refusal::NotPermitted => Fault::CertificateNotDelegated(secret),
                Refusal::Invalid(source) => Fault::Certificate { secret, source },
            })?;
        let versions = self.world.versions(&tls.minimum_protocol_version, "").ok_or(Fault::TlsVersions)?;
        Ok(RootTls::Terminate(TerminationParams {
            certificate,
            secret: reference,
            versions,
            client_validation: None,
        }))
    }

    /// Refuses an object with fields that are not implemented; fields that affect convenience only
    /// are logged.
    fn check_support(&mut self, index: Index) -> Result<(), Fault> {
        // A spec that cannot be read is already reported.
        let Some(spec) = self.list[index].spec else { return Ok(()) };
        let (unsupported, comfort) = other_fields(spec);
        for field in comfort {
            let name = self.list[index].name.clone();
            let text = format!("ignoring field \"{field}\"; it is not supported");
            self.world.notice(Kind::IngressRoute, &name, text);
        }
        match unsupported.into_iter().next() {
            None => Ok(()),
            Some(field) => Err(Fault::UnsupportedField(field)),
        }
    }

    /// Returns the backend for a service.
    fn upstream(
        &mut self,
        index: Index,
        service: &Service,
        found: ResolvedPort<'b>,
        raw: bool,
    ) -> Result<Arc<Upstream>, Fault> {
        let namespace = &self.list[index].name.namespace;
        let protocol = if raw { crate::table::Protocol::Http1 } else { found.protocol() };
        let mut wanted = UpstreamSettings::plain(protocol);
        wanted.balance = match service.strategy.as_str() {
            "Random" => Balance::Random,
            "WeightedLeastRequest" => Balance::LeastRequest,
            _ => Balance::RoundRobin,
        };
        if protocol.is_tls() {
            let refused =
                |source| Fault::UpstreamValidation { name: service.name.clone(), port: service.port, source };
            if let Some(validation) = &service.validation {
                // Always a Secret in the same namespace: a slash is part of the name, and no Secret
                // has such a name.
                let reference =
                    SecretReference { namespace: namespace.clone(), name: validation.ca_secret.clone() };
                let ca = self.world.secrets.ca(&reference, namespace).map_err(|refusal| match refusal {
                    Refusal::NotPermitted => refused(ValidationFault::NotDelegated),
                    Refusal::Invalid(fault) => refused(ValidationFault::Secret(fault)),
                })?;
                if validation.subject_name.is_empty() {
                    return Err(refused(ValidationFault::NoName));
                }
                let names = Arc::new([validation.subject_name.as_str().into()]);
                wanted.validation = Some(UpstreamValidation { ca, names });
            }
            if let Some(reference) = &self.world.settings.client_certificate {
                let certificate = self.world.secrets.serving_of_administrator(reference);
                wanted.client_certificate =
                    Some(certificate.map_err(|source| Fault::ClientCertificate {
                        secret: reference.to_string(),
                        source,
                    })?);
            }
        }
        Ok(self.world.services.upstream(found, wanted))
    }

    fn finish(self) -> BTreeMap<Name, IngressRouteValidation> {
        let mut validations = BTreeMap::new();
        for (index, (object, fault)) in self.list.into_iter().zip(self.faults).enumerate() {
            let validation = match fault {
                Some(fault) => IngressRouteValidation::Invalid(fault.to_string()),
                None if object.host().is_none() && !self.reached[index] => IngressRouteValidation::Orphaned,
                None => IngressRouteValidation::Valid,
            };
            validations.insert(object.name, validation);
        }
        validations
    }

    /// Records an error unless the object already has one.
    fn fail(&mut self, index: Index, fault: Fault) {
        self.faults[index].get_or_insert(fault);
    }

    /// Formats a chain of delegations: `a/b -> c/d -> a/b`.
    fn path(&self, visited: &[Index], next: Index) -> String {
        let names: Vec<String> =
            visited.iter().chain([&next]).map(|index| self.list[*index].name.to_string()).collect();
        names.join(" -> ")
    }

    /// Returns the object that a delegation refers to, if it exists and the delegation is
    /// permitted.
    fn delegate(
        &mut self,
        index: Index,
        delegate: &Delegate,
        visited: &[Index],
        what: &'static str,
    ) -> Result<Option<Index>, Fault> {
        let own = &self.list[index].name.namespace;
        let namespace = if delegate.namespace.is_empty() { own } else { &delegate.namespace };
        let name = Name { namespace: namespace.clone(), name: delegate.name.clone() };
        let Some(next) = self.by_name.get(&name).copied() else { return Ok(None) };
        if self.list[next].host().is_some() {
            return Err(Fault::DelegationToRoot);
        }
        self.reached[next] = true;
        if visited.contains(&next) {
            return Err(Fault::DelegationCycle { what, path: self.path(visited, next) });
        }
        if visited.len() > DEEPEST_DELEGATION {
            return Err(Fault::DelegationTooDeep { what, name });
        }
        Ok(Some(next))
    }
}

/// Returns the non-empty fields without a type: first those that could restrict access or are
/// unknown, then those that affect convenience only.
fn other_fields(spec: &IngressRouteSpec) -> (Vec<String>, Vec<String>) {
    const COMFORT: [&str; 2] = ["Spec.Routes.retryPolicy", "Spec.Services.healthCheck"];
    let mut names = Vec::new();
    let mut others = |path: &str, others: &Others| {
        let nonempty = others.iter().filter(|(_, value)| !is_void(value));
        names.extend(nonempty.map(|(name, _)| format!("{path}.{name}")));
    };
    others("Spec", &spec.others);
    if let Some(host) = &spec.virtualhost {
        others("Spec.VirtualHost", &host.others);
        if let Some(tls) = &host.tls {
            others("Spec.VirtualHost.TLS", &tls.others);
        }
    }
    let in_tcp = spec.tcpproxy.iter().flat_map(|tcp| &tcp.services);
    for service in spec.routes.iter().flat_map(|route| &route.services).chain(in_tcp) {
        others("Spec.Services", &service.others);
        if let Some(validation) = &service.validation {
            others("Spec.Services.Validation", &validation.others);
        }
    }
    spec.routes.iter().for_each(|route| others("Spec.Routes", &route.others));
    if let Some(tcp) = &spec.tcpproxy {
        others("Spec.TCPProxy", &tcp.others);
    }
    names.sort();
    names.dedup();
    names.into_iter().partition(|name| !COMFORT.contains(&name.as_str()))
}
