//! `HTTPProxy`: roots with a host, and the objects that they include.
//!
//! Each root is evaluated separately and results in one [`Contribution`] or none. An error is
//! reported on the object that causes it: the root or an included object. The order of the checks
//! is Contour's, so that of several errors the same one is reported.
//!
//! To support another field, add it to `pinniped_gateway_api::http_proxy`, and its members that
//! are not supported to `unsupported_fields`; translate it in `routes` (or `backend`, `tcp`, `tls`)
//! into the [`table`](crate::table), which the data plane applies.

mod backend;
mod routes;
mod tcp;
mod tls;
mod unsupported_fields;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use pinniped_gateway_api::{
    HttpProxy, Readable,
    http_proxy::{HttpProxySpec, VirtualHost},
};
use pinniped_go_compat::json::quote;

use super::{
    World, class,
    draft::{Contribution, Draft, RouteSet, TerminationParams, Tls},
    ownership::Claim,
};
use crate::{
    Kind, Name, Settings,
    status::{Finding, HttpProxyValidation, Part},
    table::HostPattern,
};
use tls::RootTls;

/// The maximum depth of includes.
const DEEPEST_INCLUDE: usize = 64;

/// The maximum number of includes and routes of a root. Objects that include each other several
/// times can otherwise multiply beyond the size of any table.
const MOST_STEPS: usize = 50_000;

/// Adds the configuration of all objects to the draft.
pub(super) fn add(
    objects: &[Arc<HttpProxy>],
    world: &mut World<'_>,
    draft: &mut Draft,
) -> BTreeMap<Name, HttpProxyValidation> {
    let mut proxies = Proxies::new(ours(objects, world.settings), world);
    let roots = proxies.roots();
    for root in roots {
        if let Some(contribution) = proxies.contribution(root) {
            draft.add(contribution);
        }
    }
    proxies.finish()
}

/// Returns the objects of the configured classes.
fn ours<'o>(objects: &'o [Arc<HttpProxy>], settings: &Settings) -> impl Iterator<Item = &'o HttpProxy> {
    objects.iter().map(|object| &**object).filter(|object| {
        let class = object.spec.read().and_then(|spec| spec.ingress_class_name.as_deref());
        class::is_ours(settings, &object.metadata, class)
    })
}

/// Returns the claims of the roots that may have their hosts.
pub(super) fn claims(objects: &[Arc<HttpProxy>], settings: &Settings) -> impl Iterator<Item = Claim> {
    ours(objects, settings).filter_map(|object| {
        let host = object.spec.read()?.virtualhost.as_ref()?;
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        (!is_no_host(&host.fqdn) && settings.may_have_roots(namespace))
            .then(|| Claim::new(&host.fqdn, Kind::HttpProxy, &object.metadata))
    })
}

/// Returns whether a host is empty or `*`. The schema does not allow a claim to every host.
fn is_no_host(fqdn: &str) -> bool {
    matches!(fqdn.trim(), "" | "*")
}

/// The index of an object in the list.
type Index = usize;

/// An object under evaluation.
struct Proxy<'o> {
    name: Name,
    /// `None` if the spec cannot be parsed.
    spec: Option<&'o HttpProxySpec>,
}

impl<'o> Proxy<'o> {
    fn host(&self) -> Option<&'o VirtualHost> {
        self.spec?.virtualhost.as_ref()
    }
}

/// All objects of the configured classes and the state of their evaluation.
struct Proxies<'o, 'w, 'b> {
    world: &'w mut World<'b>,
    /// Sorted by name.
    list: Vec<Proxy<'o>>,
    by_name: HashMap<Name, Index>,
    validations: Vec<HttpProxyValidation>,
    /// Whether a root includes the object.
    reached: Vec<bool>,
}

/// An error was added to a validation result, and there is no configuration to serve.
#[derive(Debug)]
struct Refused;

impl<'o, 'w, 'b> Proxies<'o, 'w, 'b> {
    fn new(objects: impl Iterator<Item = &'o HttpProxy>, world: &'w mut World<'b>) -> Self {
        let mut objects: Vec<(Name, &HttpProxy)> =
            objects.map(|object| (Name::of(&object.metadata), object)).collect();
        objects.sort_by(|one, other| one.0.cmp(&other.0));
        let validation = |object: &HttpProxy| {
            let mut validation = HttpProxyValidation {
                generation: object.metadata.generation,
                ..HttpProxyValidation::default()
            };
            if let Readable::Unreadable(why) = &object.spec {
                validation.error(Finding::new(
                    Part::Spec,
                    "SpecNotReadable",
                    format!("Spec cannot be read: {why}"),
                ));
            }
            validation
        };
        Self {
            world,
            by_name: objects.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect(),
            validations: objects.iter().map(|(_, object)| validation(object)).collect(),
            reached: vec![false; objects.len()],
            list: objects
                .into_iter()
                .map(|(name, object)| Proxy { name, spec: object.spec.read() })
                .collect(),
        }
    }

    /// Returns the valid roots: their hosts belong to no other namespace and to no other root.
    fn roots(&mut self) -> Vec<Index> {
        let mut by_host: BTreeMap<String, Vec<Index>> = BTreeMap::new();
        let mut roots = Vec::new();
        let mut refused = Vec::new();
        for (index, proxy) in self.list.iter().enumerate() {
            let Some(host) = proxy.host() else { continue };
            let namespace = &proxy.name.namespace;
            // These errors are reported first, and these objects cause no error of another object.
            if is_no_host(&host.fqdn) || !self.world.settings.may_have_roots(namespace) {
                roots.push(index);
            } else if let Some(why) = self.world.owners.refusal(&HostPattern::parse(&host.fqdn), namespace) {
                refused.push((index, why));
            } else {
                by_host.entry(host.fqdn.to_ascii_lowercase()).or_default().push(index);
            }
        }
        for (index, why) in refused {
            self.fail(index, Part::VirtualHost, "HostNotOwned", why);
        }
        for (host, with_it) in by_host {
            if let [root] = with_it[..] {
                roots.push(root);
                continue;
            }
            let names: Vec<String> = with_it.iter().map(|index| self.list[*index].name.to_string()).collect();
            let message =
                format!("fqdn {} is used in multiple HTTPProxies: {}", quote(&host), names.join(", "));
            let finding = Finding::new(Part::VirtualHost, "DuplicateVhost", message);
            with_it.into_iter().for_each(|index| self.validations[index].error(finding.clone()));
        }
        roots.sort_unstable();
        roots
    }

    /// Returns the configuration that a root contributes to its host, unless the root is refused.
    fn contribution(&mut self, root: Index) -> Option<Contribution> {
        let spec = self.list[root].spec?;
        let host = spec.virtualhost.as_ref()?;
        if is_no_host(&host.fqdn) {
            self.fail(root, Part::VirtualHost, "FQDNNotSpecified", "Spec.VirtualHost.Fqdn must be specified");
            return None;
        }
        if !self.world.settings.may_have_roots(&self.list[root].name.namespace) {
            let message = "root HTTPProxy cannot be defined in this namespace";
            self.fail(root, Part::RootNamespace, "RootProxyNotAllowedInNamespace", message);
            return None;
        }
        if spec.routes.is_empty() && spec.includes.is_empty() && spec.tcpproxy.is_none() {
            let message = "HTTPProxy.Spec must have at least one Route, Include, or a TCPProxy";
            self.fail(root, Part::Spec, "NothingDefined", message);
            return None;
        }
        self.check_support(root).ok()?;
        let namespace = self.list[root].name.namespace.clone();
        let tls = match tls::root_tls(host.tls.as_ref(), &namespace, self.world) {
            Ok(tls) => tls,
            Err(faults) => {
                faults.into_iter().for_each(|fault| self.validations[root].error(fault));
                return None;
            }
        };
        let tcp = self.tcp(root, &tls).ok()?;
        let routes = self.root_routes(root, !matches!(tls, RootTls::Plain)).ok()?;
        let mut contribution = Contribution::new(HostPattern::parse(&host.fqdn));
        contribution.plain = routes;
        contribution.tls = match (tls, tcp) {
            (RootTls::Plain, _) | (RootTls::Passthrough, None) => None,
            (RootTls::Passthrough, Some(tcp)) => Some(Tls::Passthrough(tcp)),
            (RootTls::Terminate { terms, .. }, Some(tcp)) => Some(Tls::Tcp(terms, tcp)),
            (RootTls::Terminate { terms, fallback }, None) => {
                contribution.fallback =
                    fallback.map(|certificate| (certificate, self.world.settings.versions));
                Some(Tls::Http(terms, contribution.plain.clone()))
            }
        };
        Some(contribution)
    }

    /// Marks the objects that no root includes as orphaned and returns all validation results.
    fn finish(mut self) -> BTreeMap<Name, HttpProxyValidation> {
        for index in 0..self.list.len() {
            let proxy = &self.list[index];
            if proxy.spec.is_some() && proxy.host().is_none() && !self.reached[index] {
                let message = "this HTTPProxy is not part of a delegation chain from a root HTTPProxy";
                self.fail(index, Part::Orphaned, "Orphaned", message);
            }
        }
        self.list.into_iter().map(|proxy| proxy.name).zip(self.validations).collect()
    }

    /// Adds an error to the validation result of an object.
    fn fail(&mut self, index: Index, part: Part, reason: &'static str, message: impl Into<Arc<str>>) {
        self.validations[index].error(Finding::new(part, reason, message));
    }

    /// Formats a chain of includes: `a/b -> c/d -> a/b`.
    fn path(&self, visited: &[Index], next: Index) -> String {
        let names: Vec<String> =
            visited.iter().chain([&next]).map(|index| self.list[*index].name.to_string()).collect();
        names.join(" -> ")
    }

    /// Returns the object that an include refers to.
    fn included(&self, from: Index, namespace: &str, name: &str) -> (Name, Option<Index>) {
        let namespace = if namespace.is_empty() { &self.list[from].name.namespace } else { namespace };
        let name = Name { namespace: namespace.to_owned(), name: name.to_owned() };
        let index = self.by_name.get(&name).copied();
        (name, index)
    }
}
