//! The TCP proxy of a root, which an included object may define.

use pinniped_gateway_api::http_proxy::TcpProxy as UpstreamSettings;

use super::{
    DEEPEST_INCLUDE, Index, Proxies, Refused,
    backend::{BackendFault, ServiceSettings},
    tls::RootTls,
};
use crate::{
    build::services::IDLE_CONNECTION,
    status::Part,
    table::{Backends, TcpProxy},
};

impl Proxies<'_, '_, '_> {
    /// Returns the TCP proxy of a root; `None` for an HTTP root.
    pub(super) fn tcp(&mut self, root: Index, tls: &RootTls) -> Result<Option<TcpProxy>, Refused> {
        if self.list[root].spec.is_none_or(|spec| spec.tcpproxy.is_none()) {
            return Ok(None);
        }
        if matches!(tls, RootTls::Plain) {
            let message =
                "Spec.TCPProxy requires that either Spec.TLS.Passthrough or Spec.TLS.SecretName be set";
            self.fail(root, Part::TcpProxy, "TLSMustBeConfigured", message);
            return Err(Refused);
        }
        let raw = matches!(tls, RootTls::Passthrough);
        let mut visited = vec![root];
        let mut here = root;
        // If the included object has no TCP proxy, the host has none either.
        while let Some(wanted) = self.list[here].spec.and_then(|spec| spec.tcpproxy.as_ref()) {
            if here != root {
                self.check_support(here)?;
            }
            match self.next(here, wanted, &visited)? {
                Some(next) => {
                    visited.push(next);
                    here = next;
                }
                None => return self.services(here, wanted, raw).map(Some),
            }
        }
        Ok(None)
    }

    /// Returns the object that defines the TCP proxy instead, if there is one.
    fn next(
        &mut self,
        here: Index,
        wanted: &UpstreamSettings,
        visited: &[Index],
    ) -> Result<Option<Index>, Refused> {
        let include = wanted.include.as_ref().or(wanted.includes.as_ref());
        let include = match (include, wanted.services.is_empty()) {
            (None, false) => return Ok(None),
            (Some(_), false) => {
                let message = "cannot specify services and include in the same httpproxy";
                self.fail(here, Part::TcpProxy, "NoServicesAndInclude", message);
                return Err(Refused);
            }
            (None, true) => {
                let message = "either services or inclusion must be specified";
                self.fail(here, Part::TcpProxy, "NothingDefined", message);
                return Err(Refused);
            }
            (Some(include), true) => include,
        };
        let (name, next) = self.included(here, &include.namespace, &include.name);
        let fault = match next {
            None => ("IncludeNotFound", format!("include {name} not found")),
            Some(next) if self.list[next].host().is_some() => {
                ("RootIncludesRoot", format!("root httpproxy cannot include another root httpproxy ({name})"))
            }
            Some(next) => {
                self.reached[next] = true;
                if visited.contains(&next) {
                    let path = self.path(visited, next);
                    ("IncludeCreatesCycle", format!("include creates a cycle: {path}"))
                } else if visited.len() > DEEPEST_INCLUDE {
                    ("IncludeTooDeep", format!("include {name} is inside more than {DEEPEST_INCLUDE} others"))
                } else {
                    return Ok(Some(next));
                }
            }
        };
        self.fail(here, Part::TcpProxyInclude, fault.0, fault.1);
        Err(Refused)
    }

    fn services(&mut self, here: Index, wanted: &UpstreamSettings, raw: bool) -> Result<TcpProxy, Refused> {
        let policy = wanted.load_balancer_policy.as_ref();
        let path = "Spec.TCPProxy.LoadBalancerPolicy";
        let balance = self.balance(here, policy, Part::TcpProxy, path, "TCPProxies");
        let around = ServiceSettings { balance, idle_connection: Some(IDLE_CONNECTION), raw };
        let mut backends = Vec::with_capacity(wanted.services.len());
        for service in &wanted.services {
            match self.backend(here, service, &around) {
                Ok(backend) => backends.push(backend),
                Err(BackendFault::Unresolved(why)) => {
                    let message = format!("Spec.TCPProxy unresolved service reference: {why}");
                    self.fail(here, Part::TcpProxy, "ServiceUnresolvedReference", message);
                    return Err(Refused);
                }
                Err(BackendFault::Wrong(finding)) => {
                    self.validations[here].error(finding);
                    return Err(Refused);
                }
            }
        }
        Backends::new(backends).map(|backends| TcpProxy { backends }).ok_or(Refused)
    }
}
