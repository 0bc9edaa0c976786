//! A routing table in use, with the state that survives a table change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fnv::FnvHashMap;
use pinniped_gateway_routing::RoutingTable;
use pinniped_gateway_routing::table::{
    Action, Backends, Routes, ServicePort, Terminated, Termination, TlsAction, Upstream,
};

use crate::backend::Backend;

/// A routing table, and the state of its backends in this process.
#[derive(Debug, Default)]
pub(crate) struct ActiveTable {
    pub(crate) table: Arc<RoutingTable>,
    /// Keyed by the address of the [`Upstream`], which does not move while the table exists.
    backends: FnvHashMap<usize, Arc<Backend>>,
}

impl ActiveTable {
    /// Returns the successor for a new table. Backends that both tables contain keep their state.
    pub(crate) fn next(&self, table: Arc<RoutingTable>) -> Self {
        let mut known: HashMap<&ServicePort, Vec<&Arc<Backend>>> = HashMap::new();
        for backend in self.backends.values() {
            known.entry(&backend.id.service).or_default().push(backend);
        }
        let mut fresh: HashMap<ServicePort, Vec<Arc<Backend>>> = HashMap::new();
        let mut backends = FnvHashMap::default();
        each_upstream(&table, |upstream| {
            let service = &upstream.id.service;
            let old = known.get(service).into_iter().flatten().find(|backend| backend.is(upstream));
            let backend = match old {
                Some(backend) => Arc::clone(backend),
                None => {
                    let fresh = fresh.entry(service.clone()).or_default();
                    match fresh.iter().find(|backend| backend.is(upstream)) {
                        Some(backend) => Arc::clone(backend),
                        None => {
                            let backend = Arc::new(Backend::new(upstream));
                            fresh.push(Arc::clone(&backend));
                            backend
                        }
                    }
                }
            };
            backend.keep(&upstream.endpoints);
            backends.insert(Arc::as_ptr(upstream).addr(), backend);
        });
        Self { table, backends }
    }

    /// Returns the state of a backend of this table.
    pub(crate) fn backend(&self, upstream: &Arc<Upstream>) -> Option<&Arc<Backend>> {
        self.backends.get(&Arc::as_ptr(upstream).addr())
    }
}

/// Calls `show` for every backend of a table, for some of them several times.
fn each_upstream(table: &RoutingTable, mut show: impl FnMut(&Arc<Upstream>)) {
    let mut seen: HashSet<*const Routes> = HashSet::new();
    let mut routes = |routes: &Arc<Routes>, show: &mut dyn FnMut(&Arc<Upstream>)| {
        if !seen.insert(Arc::as_ptr(routes)) {
            return;
        }
        for route in routes.iter() {
            if let Action::Forward(forward) = &route.action {
                each(&forward.backends, show);
            }
        }
    };
    for (_, host) in table.tls.hosts.iter() {
        match &host.action {
            TlsAction::Passthrough(proxy) => each(&proxy.backends, &mut show),
            TlsAction::Terminate(Termination { inside: Terminated::Tcp(proxy), .. }) => {
                each(&proxy.backends, &mut show);
            }
            TlsAction::Terminate(Termination { inside: Terminated::Http(inside), .. }) => {
                routes(inside, &mut show);
            }
        }
    }
    let fallback = table.tls.fallback.iter().flat_map(|fallback| fallback.hosts.iter());
    for (_, inside) in fallback.chain(table.plain.hosts.iter()) {
        routes(inside, &mut show);
    }
}

fn each(backends: &Backends, show: &mut dyn FnMut(&Arc<Upstream>)) {
    backends.choices().iter().for_each(|choice| show(&choice.upstream));
}
