//! `HTTPProxy`: roots with a host, and the objects that they include.
//!
//! Each root is worked out by itself and becomes one [`Contribution`], or none. What is wrong is said of the object that
//! says it: of the root, or of the included one. The order of the checks is Contour's, so that of several faults the
//! same one is told.

mod backend;
mod routes;
mod support;
mod tcp;
mod tls;

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
    draft::{Contribution, Draft, RouteSet, Terms, Tls},
    ownership::Claim,
};
use crate::{
    Kind, Name, Settings,
    status::{Finding, Part, ProxyVerdict},
    table::HostPattern,
};
use tls::RootTls;

/// How many includes may be inside one another.
const DEEPEST_INCLUDE: usize = 64;

/// How many includes and routes a root may come to. Objects that include each other twice, and so on, come to more than
/// any table could hold.
const MOST_STEPS: usize = 50_000;

/// Adds what all objects say to the draft.
pub(super) fn add(
    objects: &[Arc<HttpProxy>],
    world: &mut World<'_>,
    draft: &mut Draft,
) -> BTreeMap<Name, ProxyVerdict> {
    let mut proxies = Proxies::new(ours(objects, world.settings), world);
    let roots = proxies.roots();
    for root in roots {
        if let Some(contribution) = proxies.contribution(root) {
            draft.add(contribution);
        }
    }
    proxies.finish()
}

/// The objects of our classes.
fn ours<'o>(objects: &'o [Arc<HttpProxy>], settings: &Settings) -> impl Iterator<Item = &'o HttpProxy> {
    objects.iter().map(|object| &**object).filter(|object| {
        let class = object.spec.read().and_then(|spec| spec.ingress_class_name.as_deref());
        class::is_ours(settings, &object.metadata, class)
    })
}

/// The hosts that roots want and may have.
pub(super) fn claims(objects: &[Arc<HttpProxy>], settings: &Settings) -> impl Iterator<Item = Claim> {
    ours(objects, settings).filter_map(|object| {
        let host = object.spec.read()?.virtualhost.as_ref()?;
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        (!is_no_host(&host.fqdn) && settings.may_have_roots(namespace))
            .then(|| Claim::new(&host.fqdn, Kind::HttpProxy, &object.metadata))
    })
}

/// The schema lets nobody claim every host.
fn is_no_host(fqdn: &str) -> bool {
    matches!(fqdn.trim(), "" | "*")
}

/// An object, by its place in the list.
type Index = usize;

/// An object as it is looked at here.
struct Proxy<'o> {
    name: Name,
    /// `None` if it cannot be read.
    spec: Option<&'o HttpProxySpec>,
}

impl<'o> Proxy<'o> {
    fn host(&self) -> Option<&'o VirtualHost> {
        self.spec?.virtualhost.as_ref()
    }
}

/// All objects of our classes, what is known of them, and what else is needed.
struct Proxies<'o, 'w, 'b> {
    world: &'w mut World<'b>,
    /// Sorted by name.
    list: Vec<Proxy<'o>>,
    by_name: HashMap<Name, Index>,
    verdicts: Vec<ProxyVerdict>,
    /// A root leads there.
    reached: Vec<bool>,
}

/// A fault has been added to a verdict, and there is nothing to serve.
#[derive(Debug)]
struct Refused;

impl<'o, 'w, 'b> Proxies<'o, 'w, 'b> {
    fn new(objects: impl Iterator<Item = &'o HttpProxy>, world: &'w mut World<'b>) -> Self {
        let mut objects: Vec<(Name, &HttpProxy)> =
            objects.map(|object| (Name::of(&object.metadata), object)).collect();
        objects.sort_by(|one, other| one.0.cmp(&other.0));
        let verdict = |object: &HttpProxy| {
            let mut verdict =
                ProxyVerdict { generation: object.metadata.generation, ..ProxyVerdict::default() };
            if let Readable::Unreadable(why) = &object.spec {
                verdict.error(Finding::new(
                    Part::Spec,
                    "SpecNotReadable",
                    format!("Spec cannot be read: {why}"),
                ));
            }
            verdict
        };
        Self {
            world,
            by_name: objects.iter().enumerate().map(|(index, (name, _))| (name.clone(), index)).collect(),
            verdicts: objects.iter().map(|(_, object)| verdict(object)).collect(),
            reached: vec![false; objects.len()],
            list: objects
                .into_iter()
                .map(|(name, object)| Proxy { name, spec: object.spec.read() })
                .collect(),
        }
    }

    /// The roots whose host no other namespace owns and no other root has.
    fn roots(&mut self) -> Vec<Index> {
        let mut by_host: BTreeMap<String, Vec<Index>> = BTreeMap::new();
        let mut roots = Vec::new();
        let mut refused = Vec::new();
        for (index, proxy) in self.list.iter().enumerate() {
            let Some(host) = proxy.host() else { continue };
            let namespace = &proxy.name.namespace;
            // What is wrong with these is told first, and of nobody else because of them.
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
            with_it.into_iter().for_each(|index| self.verdicts[index].error(finding.clone()));
        }
        roots.sort_unstable();
        roots
    }

    /// What a root wants for its host, unless it is refused.
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
                faults.into_iter().for_each(|fault| self.verdicts[root].error(fault));
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

    /// Says of the objects that no root leads to that it is so, and gives all verdicts.
    fn finish(mut self) -> BTreeMap<Name, ProxyVerdict> {
        for index in 0..self.list.len() {
            let proxy = &self.list[index];
            if proxy.spec.is_some() && proxy.host().is_none() && !self.reached[index] {
                let message = "this HTTPProxy is not part of a delegation chain from a root HTTPProxy";
                self.fail(index, Part::Orphaned, "Orphaned", message);
            }
        }
        self.list.into_iter().map(|proxy| proxy.name).zip(self.verdicts).collect()
    }

    /// Adds a fault to the verdict about an object.
    fn fail(&mut self, index: Index, part: Part, reason: &'static str, message: impl Into<Arc<str>>) {
        self.verdicts[index].error(Finding::new(part, reason, message));
    }

    /// `a/b -> c/d -> a/b`.
    fn path(&self, visited: &[Index], next: Index) -> String {
        let names: Vec<String> =
            visited.iter().chain([&next]).map(|index| self.list[*index].name.to_string()).collect();
        names.join(" -> ")
    }

    /// The object that one refers to.
    fn included(&self, from: Index, namespace: &str, name: &str) -> (Name, Option<Index>) {
        let namespace = if namespace.is_empty() { &self.list[from].name.namespace } else { namespace };
        let name = Name { namespace: namespace.to_owned(), name: name.to_owned() };
        let index = self.by_name.get(&name).copied();
        (name, index)
    }
}
