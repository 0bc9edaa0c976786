//! The TCP proxy of a root, which may be said by another object.

use super::{Index, IngressRoutes};
use crate::{
    build::services::PortReference,
    table::{Backends, TcpProxy},
};

impl IngressRoutes<'_, '_, '_> {
    /// What a root does with connections. What is wrong is told of the object that says it.
    pub(super) fn tcp(&mut self, root: Index, raw: bool) -> Option<TcpProxy> {
        let mut visited = vec![root];
        let mut here = root;
        loop {
            match self.tcp_of(here, &visited, raw) {
                Ok(Said::Backends(proxy)) => return Some(proxy),
                Ok(Said::Nothing) => return None,
                Ok(Said::Delegated(next)) => {
                    visited.push(next);
                    here = next;
                }
                Err(why) => {
                    self.fail(here, why);
                    return None;
                }
            }
        }
    }

    fn tcp_of(&mut self, here: Index, visited: &[Index], raw: bool) -> Result<Said, String> {
        self.check_support(here)?;
        let Some(tcp) = self.list[here].spec.and_then(|spec| spec.tcpproxy.as_ref()) else {
            return Ok(Said::Nothing);
        };
        if tcp.services.is_empty() {
            let Some(delegate) = &tcp.delegate else { return Ok(Said::Nothing) };
            let next = self.delegate(here, delegate, visited, "tcpproxy")?;
            return Ok(next.map_or(Said::Nothing, Said::Delegated));
        }
        if tcp.delegate.is_some() {
            return Err("tcpproxy: cannot specify services and delegate in the same tcpproxy".to_owned());
        }
        let mut backends = Vec::with_capacity(tcp.services.len());
        for service in &tcp.services {
            let namespace = &self.list[here].name.namespace;
            let port = PortReference::Number(service.port);
            let Ok(found) = self.world.services.find(namespace, &service.name, port) else {
                return Err(format!(
                    "tcpproxy: service {namespace}/{}/{}: not found",
                    service.name, service.port
                ));
            };
            let upstream = self.upstream(here, service, found, raw)?;
            backends.push((u32::try_from(service.weight.max(0)).unwrap_or(u32::MAX), upstream));
        }
        Ok(Backends::new(backends).map_or(Said::Nothing, |backends| Said::Backends(TcpProxy { backends })))
    }
}

/// What an object says of its TCP proxy.
enum Said {
    /// Where to.
    Backends(TcpProxy),
    /// That another one says it.
    Delegated(Index),
    /// Nothing.
    Nothing,
}
