//! A routing table under construction.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use pinniped_delegation::grants::SecretReference;
use pinniped_pki::CertificatePair;

use crate::table::{
    ClientValidation, Fallback, HostMap, HostPattern, PlainTable, Route, Routes, RoutingTable, TcpProxy,
    Terminated, Termination, TlsAction, TlsHost, TlsTable, TlsVersions,
};

/// The parameters of TLS termination for a host.
#[derive(Clone)]
pub(super) struct TerminationParams {
    pub(super) certificate: Arc<CertificatePair>,
    pub(super) secret: SecretReference,
    pub(super) versions: TlsVersions,
    pub(super) client_validation: Option<Arc<ClientValidation>>,
}

/// The TLS action that an object requests for a host on port 443.
pub(super) enum Tls {
    Passthrough(TcpProxy),
    Tcp(TerminationParams, TcpProxy),
    Http(TerminationParams, RouteSet),
}

/// The configuration that an object contributes to a host.
pub(super) struct Contribution {
    pub(super) pattern: HostPattern,
    pub(super) plain: RouteSet,
    pub(super) tls: Option<Tls>,
    /// Serves the host to clients without a known server name, too, with this certificate.
    pub(super) fallback: Option<(Arc<CertificatePair>, TlsVersions)>,
}

impl Contribution {
    pub(super) fn new(pattern: HostPattern) -> Self {
        Self { pattern, plain: RouteSet::default(), tls: None, fallback: None }
    }
}

/// Routes with different conditions, in the order in which the conditions first occurred.
#[derive(Clone, Default)]
pub(super) struct RouteSet {
    routes: Vec<Arc<Route>>,
    index: HashMap<Conditions, usize>,
}

/// A route, compared by its conditions.
#[derive(Clone)]
struct Conditions(Arc<Route>);

impl PartialEq for Conditions {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&*self.0, &*other.0);
        one.path == other.path && one.headers == other.headers && one.query == other.query
    }
}

impl Eq for Conditions {}

impl Hash for Conditions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.path.hash(state);
        self.0.headers.hash(state);
        self.0.query.hash(state);
    }
}

impl RouteSet {
    /// Adds a route and replaces one with the same conditions.
    pub(super) fn replace(&mut self, route: Arc<Route>) {
        match self.index.get(&Conditions(Arc::clone(&route))) {
            Some(path) => self.routes[*path] = route,
            None => self.push(route),
        }
    }

    /// Adds a route unless one with the same conditions exists.
    pub(super) fn keep(&mut self, route: Arc<Route>) {
        if !self.index.contains_key(&Conditions(Arc::clone(&route))) {
            self.push(route);
        }
    }

    fn push(&mut self, route: Arc<Route>) {
        self.index.insert(Conditions(Arc::clone(&route)), self.routes.len());
        self.routes.push(route);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.iter()
    }

    fn replace_all(&mut self, others: Self) {
        if self.is_empty() {
            *self = others;
        } else {
            others.routes.into_iter().for_each(|route| self.replace(route));
        }
    }

    /// Returns whether both sets contain the same routes (by identity).
    fn is_same(&self, other: &Self) -> bool {
        self.routes.len() == other.routes.len()
            && self.routes.iter().zip(&other.routes).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    fn finish(self) -> Arc<Routes> {
        Arc::new(Routes::new(self.routes))
    }
}

impl Extend<Arc<Route>> for RouteSet {
    fn extend<I: IntoIterator<Item = Arc<Route>>>(&mut self, routes: I) {
        routes.into_iter().for_each(|route| self.replace(route));
    }
}

/// A routing table under construction.
#[derive(Default)]
pub(super) struct Draft {
    plain: HashMap<HostPattern, RouteSet>,
    tls: HashMap<HostPattern, Tls>,
    fallback: HashMap<HostPattern, RouteSet>,
    fallback_terms: Option<(Arc<CertificatePair>, TlsVersions)>,
}

impl Draft {
    /// Adds the contribution of an object. Its routes replace routes with the same conditions, and
    /// its certificate replaces the host's certificate. A host whose connections are relayed as
    /// bytes ignores the routes of other objects.
    pub(super) fn add(&mut self, contribution: Contribution) {
        let Contribution { pattern, plain, tls, fallback } = contribution;
        if let (Some(terms), Some(Tls::Http(_, routes))) = (fallback, &tls) {
            self.fallback.entry(pattern.clone()).or_default().replace_all(routes.clone());
            self.fallback_terms = Some(terms);
        }
        if !plain.is_empty() {
            self.plain.entry(pattern.clone()).or_default().replace_all(plain);
        }
        match (self.tls.get_mut(&pattern), tls) {
            (_, None) => {}
            (Some(Tls::Http(terms, routes)), Some(Tls::Http(new_terms, new_routes))) => {
                *terms = new_terms;
                routes.replace_all(new_routes);
            }
            (_, Some(new)) => {
                self.tls.insert(pattern, new);
            }
        }
    }

    /// Returns the table. A host without routes is omitted. Both ports share the routes if they are
    /// equal.
    pub(super) fn finish(mut self) -> RoutingTable {
        let mut shared = HashMap::new();
        let mut hosts = HostMap::default();
        for (pattern, tls) in self.tls {
            let action = match tls {
                Tls::Passthrough(tcp) => TlsAction::Passthrough(tcp),
                Tls::Tcp(terms, tcp) => TlsAction::Terminate(terminate(terms, Terminated::Tcp(tcp))),
                Tls::Http(_, routes) if routes.is_empty() => continue,
                Tls::Http(terms, routes) => {
                    let is_shared = self.plain.get(&pattern).is_some_and(|plain| plain.is_same(&routes));
                    let routes = routes.finish();
                    if is_shared {
                        self.plain.remove(&pattern);
                        shared.insert(pattern.clone(), Arc::clone(&routes));
                    }
                    TlsAction::Terminate(terminate(terms, Terminated::Http(routes)))
                }
            };
            hosts.insert(pattern.clone(), Arc::new(TlsHost { pattern, action }));
        }
        let plain = finish_all(self.plain).chain(shared).collect();
        let fallback_hosts: HostMap<_> = finish_all(self.fallback).collect();
        let fallback =
            self.fallback_terms.filter(|_| !fallback_hosts.is_empty()).map(|(certificate, versions)| {
                Arc::new(Fallback { certificate, versions, hosts: fallback_hosts })
            });
        RoutingTable { tls: TlsTable { hosts, fallback }, plain: PlainTable { hosts: plain } }
    }
}

fn finish_all(hosts: HashMap<HostPattern, RouteSet>) -> impl Iterator<Item = (HostPattern, Arc<Routes>)> {
    let with_routes = hosts.into_iter().filter(|(_, routes)| !routes.is_empty());
    with_routes.map(|(pattern, routes)| (pattern, routes.finish()))
}

fn terminate(terms: TerminationParams, inside: Terminated) -> Termination {
    let TerminationParams { certificate, secret, versions, client_validation } = terms;
    Termination { certificate, secret, versions, client_validation, inside }
}
