//! The TCP proxy of a root, which another object may define.

use super::{Fault, Index, IngressRoutes};
use crate::{
    build::services::PortReference,
    table::{Backends, TcpProxy},
};

impl IngressRoutes<'_, '_, '_> {
    /// Returns the TCP proxy of a root. Records errors on the object that causes them.
    pub(super) fn tcp(&mut self, root: Index, raw: bool) -> Option<TcpProxy> {
        let mut visited = vec![root];
        let mut here = root;
        loop {
            match self.tcp_of(here, &visited, raw) {
                Ok(TcpTarget::Backends(proxy)) => return Some(proxy),
                Ok(TcpTarget::Nothing) => return None,
                Ok(TcpTarget::Delegated(next)) => {
                    visited.push(next);
                    here = next;
                }
                Err(fault) => {
                    self.fail(here, fault);
                    return None;
                }
            }
        }
    }

    fn tcp_of(&mut self, here: Index, visited: &[Index], raw: bool) -> Result<TcpTarget, Fault> {
        self.check_support(here)?;
        let Some(tcp) = self.list[here].spec.and_then(|spec| spec.tcpproxy.as_ref()) else {
            return Ok(TcpTarget::Nothing);
        };
        if tcp.services.is_empty() {
            let Some(delegate) = &tcp.delegate else { return Ok(TcpTarget::Nothing) };
            let next = self.delegate(here, delegate, visited, "tcpproxy")?;
            return Ok(next.map_or(TcpTarget::Nothing, TcpTarget::Delegated));
        }
        if tcp.delegate.is_some() {
            return Err(Fault::TcpServicesAndDelegate);
        }
        let mut backends = Vec::with_capacity(tcp.services.len());
        for service in &tcp.services {
            let namespace = &self.list[here].name.namespace;
            let port = PortReference::Number(service.port);
            let Ok(found) = self.world.services.find(namespace, &service.name, port) else {
                return Err(Fault::TcpService {
                    namespace: namespace.clone(),
                    name: service.name.clone(),
                    port: service.port,
                });
            };
            let upstream = self.upstream(here, service, found, raw)?;
            backends.push((u32::try_from(service.weight.max(0)).unwrap_or(u32::MAX), upstream));
        }
        Ok(Backends::new(backends)
            .map_or(TcpTarget::Nothing, |backends| TcpTarget::Backends(TcpProxy { backends })))
    }
}

/// The TCP proxy of an object.
enum TcpTarget {
    /// The object defines the backends.
    Backends(TcpProxy),
    /// Another object defines the TCP proxy.
    Delegated(Index),
    /// The object has no valid TCP proxy.
    Nothing,
}
