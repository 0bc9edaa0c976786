//! The routes of a root: its own and those of the objects that it delegates to.

use std::sync::Arc;

use super::{Fault, Index, IngressRoutes, MOST_STEPS, RouteSet};
use crate::{
    build::{services::PortReference, timeout},
    table::{Action, Backends, Forward, PathMatch, Rewrite, Route, Timeouts},
};
use pinniped_gateway_api::{http_proxy::TimeoutPolicy, ingress_route::Route as UpstreamSettings};

/// The state of the traversal from a root through its delegations.
struct Walk {
    /// Port 80 redirects clients to `https`.
    upgrade: bool,
    /// The objects from the root to the current one.
    visited: Vec<Index>,
    /// The remaining number of routes.
    steps: usize,
    /// The routes found so far.
    routes: RouteSet,
}

impl IngressRoutes<'_, '_, '_> {
    /// Returns the routes of a root.
    pub(super) fn root_routes(&mut self, root: Index, upgrade: bool) -> RouteSet {
        let mut walk = Walk { upgrade, visited: Vec::new(), steps: MOST_STEPS, routes: RouteSet::default() };
        self.routes(root, "", &mut walk);
        if walk.steps == 0 {
            self.fail(root, Fault::TooManyRoutes);
            return RouteSet::default();
        }
        walk.routes
    }

    /// Adds the routes of an object that is responsible for a prefix. An error stops the
    /// evaluation; earlier routes remain.
    fn routes(&mut self, index: Index, under: &str, walk: &mut Walk) {
        let Some(spec) = self.list[index].spec else { return };
        if let Err(fault) = self.check_support(index) {
            self.fail(index, fault);
            return;
        }
        walk.visited.push(index);
        for wanted in &spec.routes {
            walk.steps = walk.steps.saturating_sub(1);
            if walk.steps == 0 {
                break;
            }
            match self.route(index, wanted, under, walk) {
                Ok(None) => {}
                // If the two differ by a trailing slash, the stricter one applies.
                Ok(Some(next)) => {
                    let strict = if is_shorter(&wanted.prefix, under) { under } else { &wanted.prefix };
                    self.routes(next, strict, walk);
                }
                Err(fault) => {
                    self.fail(index, fault);
                    break;
                }
            }
        }
        walk.visited.pop();
    }

    /// Adds a route, or returns the object that it delegates to.
    fn route(
        &mut self,
        index: Index,
        wanted: &UpstreamSettings,
        under: &str,
        walk: &mut Walk,
    ) -> Result<Option<Index>, Fault> {
        let prefix = || wanted.prefix.clone();
        if !wanted.services.is_empty() && wanted.delegate.is_some() {
            return Err(Fault::ServicesAndDelegate { prefix: prefix() });
        }
        if wanted.services.is_empty() && wanted.delegate.is_none() {
            return Ok(None);
        }
        // Also checked for a delegation: an object must not delegate a prefix that it does not
        // have.
        if !is_under(&wanted.prefix, under) {
            return Err(Fault::OtherPrefix { prefix: prefix(), parent: under.to_owned() });
        }
        if let Some(delegate) = &wanted.delegate {
            return self.delegate(index, delegate, &walk.visited, "route");
        }
        let mut backends = Vec::with_capacity(wanted.services.len());
        for service in &wanted.services {
            if !(1..=65_535).contains(&service.port) {
                return Err(Fault::ServicePort { prefix: prefix(), service: service.name.clone() });
            }
            let namespace = &self.list[index].name.namespace;
            let port = PortReference::Number(service.port);
            let Ok(found) = self.world.services.find(namespace, &service.name, port) else {
                return Err(Fault::Service { name: service.name.clone(), port: service.port });
            };
            let upstream = self.upstream(index, service, found, false)?;
            backends.push((u32::try_from(service.weight.max(0)).unwrap_or(u32::MAX), upstream));
        }
        let Some(backends) = Backends::new(backends) else { return Ok(None) };
        let permitted = wanted.permit_insecure && !self.world.settings.disable_permit_insecure;
        let rewrite = (!wanted.prefix_rewrite.is_empty()).then(|| Rewrite {
            prefix_length: wanted.prefix.len(),
            replacement: wanted.prefix_rewrite.as_str().into(),
            fit_slash: false,
        });
        walk.routes.replace(Arc::new(Route {
            path: match is_shorter(&wanted.prefix, under) {
                true => PathMatch::Segments(wanted.prefix.as_str().into()),
                false => PathMatch::Prefix(wanted.prefix.as_str().into()),
            },
            headers: Box::default(),
            query: Box::default(),
            upgrade_to_https: walk.upgrade && !permitted,
            action: Action::Forward(Forward {
                backends,
                timeouts: timeouts(wanted),
                websockets: wanted.enable_websockets,
                rewrite,
            }),
        }));
        Ok(None)
    }
}

/// Returns the timeouts of a route; an invalid value counts as none.
fn timeouts(wanted: &UpstreamSettings) -> Timeouts {
    let policy = wanted.timeout_policy.as_ref().map(TimeoutPolicy::from);
    match timeout::policy(policy.as_ref()) {
        Ok((timeouts, _)) => timeouts,
        Err(_) => Timeouts { response: None, ..Timeouts::default() },
    }
}

/// Returns whether a path is under a prefix, by complete segments: `/foo/bar` is under `/foo`,
/// `/foobar` is not.
fn is_under(path: &str, prefix: &str) -> bool {
    match path.strip_prefix(prefix.trim_end_matches('/')) {
        Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// Returns whether a path that is under a prefix lacks the trailing slash of the prefix: `/foo`
/// under `/foo/`. Such a delegation covers only the path itself and the paths that continue with a
/// slash, not `/foobar`.
fn is_shorter(path: &str, prefix: &str) -> bool {
    path.len() < prefix.len()
}

#[cfg(test)]
mod tests {
    use super::is_under;

    #[test]
    fn a_path_is_under_a_prefix_by_complete_segments() {
        for (path, prefix, wanted) in [
            ("/anything", "", true),
            ("/foo", "/foo", true),
            ("/foo/", "/foo", true),
            ("/foo", "/foo/", true),
            ("/foo/bar", "/foo", true),
            ("/foobar", "/foo", false),
            ("/", "/foo", false),
            ("", "/foo", false),
            ("/x", "/", true),
        ] {
            assert_eq!(is_under(path, prefix), wanted, "{path} {prefix}");
        }
    }
}
