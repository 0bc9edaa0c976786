//! The routes of a root: its own and those of the included objects.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use http::StatusCode;
use pinniped_gateway_api::http_proxy::{
    Include, MatchCondition, RedirectPolicy, ReplacePrefix, Route as UpstreamSettings,
};
use pinniped_go_compat::json::quote;

use super::{
    DEEPEST_INCLUDE, Index, MOST_STEPS, Proxies, Refused, RouteSet,
    backend::{BackendFault, ServiceSettings},
};
use crate::{
    build::{
        conditions::{self, ConditionError},
        timeout,
    },
    status::{Finding, Part},
    table::{
        Action, Backends, Forward, HeaderMatch, PathEdit, PathMatch, QueryMatch, Redirect, Response, Rewrite,
        Route,
    },
};

/// The state of the traversal from a root through its includes.
struct Walk<'o> {
    /// The host has TLS.
    tls: bool,
    /// The objects from the root to the current one.
    visited: Vec<Index>,
    /// The conditions from the root to the current object.
    chain: Vec<&'o MatchCondition>,
    /// The remaining number of includes and routes.
    steps: usize,
}

/// A route found by the traversal.
struct CollectedRoute {
    route: Route,
    /// The length of the prefix that the includes require; 0 for a root's own route.
    below: usize,
}

/// Path, headers and query of an include.
type IncludeKey = (PathMatch, Vec<HeaderMatch>, Vec<QueryMatch>);

impl<'o> Proxies<'o, '_, '_> {
    /// Returns the routes of a root.
    pub(super) fn root_routes(&mut self, root: Index, tls: bool) -> Result<RouteSet, Refused> {
        let mut walk = Walk { tls, visited: Vec::new(), chain: Vec::new(), steps: MOST_STEPS };
        let routes = self.routes(root, &mut walk);
        if walk.steps == 0 {
            let message = format!("includes come to more than {MOST_STEPS} includes and routes");
            self.fail(root, Part::Include, "TooManyIncludes", message);
            return Err(Refused);
        }
        let mut set = RouteSet::default();
        set.extend(fit_slashes(routes).into_iter().map(Arc::new));
        Ok(set)
    }

    /// Returns the routes of an object under the conditions of its includes. An error in one of its
    /// own routes removes all of them.
    fn routes(&mut self, index: Index, walk: &mut Walk<'o>) -> Vec<CollectedRoute> {
        let Some(spec) = self.list[index].spec else { return Vec::new() };
        if walk.visited.contains(&index) {
            let message = format!("include creates an include cycle: {}", self.path(&walk.visited, index));
            self.fail(index, Part::Include, "IncludeCreatesCycle", message);
            return Vec::new();
        }
        if self.check_support(index).is_err() {
            return Vec::new();
        }
        walk.visited.push(index);
        let mut routes = self.included_routes(index, &spec.includes, walk);
        walk.visited.pop();
        let below = conditions::literal(&walk.chain).len();
        for wanted in &spec.routes {
            if !step(walk) {
                break;
            }
            let length = walk.chain.len();
            walk.chain.extend(&wanted.conditions);
            let route = self.route(index, wanted, walk);
            walk.chain.truncate(length);
            match route {
                Ok(route) => routes.push(CollectedRoute { route, below }),
                Err(finding) => {
                    self.validations[index].error(finding);
                    return Vec::new();
                }
            }
        }
        routes
    }

    #[expect(clippy::mutable_key_type, reason = "expressions are compared by how they are written")]
    fn included_routes(
        &mut self,
        index: Index,
        includes: &'o [Include],
        walk: &mut Walk<'o>,
    ) -> Vec<CollectedRoute> {
        let mut routes = Vec::new();
        let mut seen: HashSet<IncludeKey> = HashSet::new();
        for include in includes {
            if !step(walk) {
                break;
            }
            if let Err(finding) = self.check_include(include, &mut seen) {
                self.validations[index].error(finding);
                continue;
            }
            let length = walk.chain.len();
            walk.chain.extend(&include.conditions);
            match self.follow(index, include, walk) {
                Ok(next) => {
                    self.reached[next] = true;
                    routes.extend(self.routes(next, walk));
                }
                Err(finding) => {
                    self.validations[index].error(finding);
                    routes.extend(self.bad_gateway(include, walk));
                }
            }
            walk.chain.truncate(length);
        }
        routes
    }

    /// Returns the included object.
    fn follow(&self, index: Index, include: &Include, walk: &Walk<'o>) -> Result<Index, Finding> {
        let (name, next) = self.included(index, &include.namespace, &include.name);
        let fault = match next {
            None => ("IncludeNotFound", format!("include {name} not found")),
            Some(next) if self.list[next].host().is_some() => {
                ("RootIncludesRoot", format!("root httpproxy cannot include another root httpproxy ({name})"))
            }
            Some(_) if walk.visited.len() > DEEPEST_INCLUDE => {
                ("IncludeTooDeep", format!("include {name} is inside more than {DEEPEST_INCLUDE} others"))
            }
            Some(next) => return Ok(next),
        };
        Err(Finding::new(Part::Include, fault.0, fault.1))
    }

    #[expect(clippy::mutable_key_type, reason = "expressions are compared by how they are written")]
    fn check_include(&mut self, include: &Include, seen: &mut HashSet<IncludeKey>) -> Result<(), Finding> {
        let patterns = &mut *self.world.patterns;
        let wrong_path = |error: ConditionError| {
            Finding::new(Part::Include, "PathMatchConditionsNotValid", format!("include: {error}"))
        };
        conditions::check_include_path(&include.conditions).map_err(wrong_path)?;
        conditions::check_path(&include.conditions, patterns).map_err(wrong_path)?;
        let chain: Vec<&MatchCondition> = include.conditions.iter().collect();
        conditions::check_headers(&chain, patterns).map_err(|error| wrong_headers(&error))?;
        conditions::check_query(&chain, patterns).map_err(|error| wrong_query(&error))?;
        let path = conditions::merge_path(&chain, patterns).map_err(wrong_path)?;
        let mut headers = conditions::headers(&chain, patterns).into_vec();
        let mut query = conditions::query(&chain, patterns).into_vec();
        let is_default = matches!(&path, PathMatch::Prefix(prefix) if &**prefix == "/");
        if is_default && headers.is_empty() && query.is_empty() {
            // Not treated as a duplicate: many include trees start this way.
            return Ok(());
        }
        // The order of the conditions does not matter.
        headers.sort_by_cached_key(|header| format!("{header:?}"));
        query.sort_by_cached_key(|parameter| format!("{parameter:?}"));
        if !seen.insert((path, headers, query)) {
            let message = "duplicate conditions defined on an include";
            return Err(Finding::new(Part::Include, "DuplicateMatchConditions", message));
        }
        Ok(())
    }

    /// Returns the route that replaces a missing included object; `None` if it would match all
    /// requests.
    fn bad_gateway(&mut self, include: &Include, walk: &Walk<'o>) -> Option<CollectedRoute> {
        if include.conditions.is_empty() {
            return None;
        }
        let patterns = &mut *self.world.patterns;
        let path = conditions::merge_path(&walk.chain, patterns).ok()?;
        let headers = conditions::headers(&walk.chain, patterns);
        let query = conditions::query(&walk.chain, patterns);
        let action = respond_with(StatusCode::BAD_GATEWAY);
        let route = Route { path, headers, query, upgrade_to_https: walk.tls, action };
        Some(CollectedRoute { route, below: conditions::literal(&walk.chain).len() })
    }

    /// Returns a route under the conditions of the chain, whose last block contains the route's own
    /// conditions.
    fn route(&mut self, index: Index, wanted: &UpstreamSettings, walk: &Walk<'o>) -> Result<Route, Finding> {
        let actions = [
            !wanted.services.is_empty(),
            wanted.request_redirect_policy.is_some(),
            wanted.direct_response_policy.is_some(),
        ];
        if actions.into_iter().filter(|action| *action).count() != 1 {
            let message = "must set exactly one of route.services or route.requestRedirectPolicy or \
                           route.directResponsePolicy";
            return Err(Finding::new(Part::Route, "RouteActionCountNotValid", message));
        }
        let patterns = &mut *self.world.patterns;
        let wrong_path = |error: ConditionError| {
            Finding::new(Part::Route, "PathMatchConditionsNotValid", format!("route: {error}"))
        };
        conditions::check_path(&wanted.conditions, patterns).map_err(wrong_path)?;
        conditions::check_headers(&walk.chain, patterns).map_err(|error| wrong_headers(&error))?;
        conditions::check_query(&walk.chain, patterns).map_err(|error| wrong_query(&error))?;
        let path = conditions::merge_path(&walk.chain, patterns).map_err(wrong_path)?;
        let headers = conditions::headers(&walk.chain, patterns);
        let query = conditions::query(&walk.chain, patterns);
        let action = self.action(index, wanted, &path)?;
        let permitted = wanted.permit_insecure && !self.world.settings.disable_permit_insecure;
        Ok(Route { path, headers, query, upgrade_to_https: walk.tls && !permitted, action })
    }

    fn action(
        &mut self,
        index: Index,
        wanted: &UpstreamSettings,
        path: &PathMatch,
    ) -> Result<Action, Finding> {
        let (timeouts, idle_connection) = timeout::policy(wanted.timeout_policy.as_ref()).map_err(|why| {
            let message = format!("route.timeoutPolicy failed to parse: {why}");
            Finding::new(Part::Route, "TimeoutPolicyNotValid", message)
        })?;
        let place = "Spec.Routes.LoadBalancerPolicy";
        let policy = wanted.load_balancer_policy.as_ref();
        let balance = self.balance(index, policy, Part::Spec, place, "Routes");
        let replacements = wanted.path_rewrite_policy.as_ref().map(|policy| policy.replace_prefix.as_slice());
        let rewrite = rewrite(replacements.unwrap_or_default(), path)?;
        if let Some(policy) = &wanted.request_redirect_policy {
            return redirect(policy, path).map(Action::Redirect).map_err(|why| {
                let message = format!("route.requestRedirectPolicy is invalid: {why}");
                Finding::new(Part::Route, "RequestRedirectPolicy", message)
            });
        }
        if let Some(policy) = &wanted.direct_response_policy {
            let status = u16::try_from(policy.status_code).ok().filter(|code| (200..600).contains(code));
            let status = status.and_then(|code| StatusCode::from_u16(code).ok()).ok_or_else(|| {
                let message =
                    "route.directResponsePolicy is invalid: the status code must be from 200 to 599";
                Finding::new(Part::Route, "DirectResponsePolicy", message)
            })?;
            return Ok(Action::Respond(Response { status, body: policy.body.as_str().into() }));
        }
        let around = ServiceSettings { balance, idle_connection, raw: false };
        let mut backends = Vec::with_capacity(wanted.services.len());
        for service in &wanted.services {
            if !(1..=65_535).contains(&service.port) {
                let message = format!("service {}: port must be in the range 1-65535", quote(&service.name));
                return Err(Finding::new(Part::Service, "ServicePortInvalid", message));
            }
            if service.mirror {
                let message = "ignoring field \"Spec.Services.mirror\"; the service gets no requests";
                self.validations[index].warn(Finding::new(Part::Spec, "IgnoredField", message));
                continue;
            }
            match self.backend(index, service, &around) {
                Ok(backend) => backends.push(backend),
                // The remaining services take over.
                Err(BackendFault::Unresolved(why)) => {
                    let message = format!("Spec.Routes unresolved service reference: {why}");
                    self.fail(index, Part::Service, "ServiceUnresolvedReference", message);
                }
                Err(BackendFault::Wrong(finding)) => return Err(finding),
            }
        }
        Ok(match Backends::new(backends) {
            Some(backends) => {
                Action::Forward(Forward { backends, timeouts, websockets: wanted.enable_websockets, rewrite })
            }
            None => respond_with(StatusCode::SERVICE_UNAVAILABLE),
        })
    }
}

/// Counts a step. Returns whether the limit allows it.
fn step(walk: &mut Walk<'_>) -> bool {
    walk.steps = walk.steps.saturating_sub(1);
    walk.steps > 0
}

fn respond_with(status: StatusCode) -> Action {
    Action::Respond(Response { status, body: Box::default() })
}

fn wrong_headers(error: &ConditionError) -> Finding {
    Finding::new(Part::Route, "HeaderMatchConditionsNotValid", error.to_string())
}

fn wrong_query(error: &ConditionError) -> Finding {
    Finding::new(Part::Route, "QueryParameterMatchConditionsNotValid", error.to_string())
}

/// Returns the replacement for a route's prefix: the one for this prefix, otherwise the one without
/// a prefix.
fn rewrite(replacements: &[ReplacePrefix], path: &PathMatch) -> Result<Option<Rewrite>, Finding> {
    if replacements.is_empty() {
        return Ok(None);
    }
    let wrong = |reason, message| Finding::new(Part::PrefixReplace, reason, message);
    let PathMatch::Prefix(prefix) = path else {
        let message = "cannot specify prefix replacements without a prefix condition".to_owned();
        return Err(wrong("MustHavePrefix", message));
    };
    for (place, replacement) in replacements.iter().enumerate() {
        if replacements[..place].iter().any(|earlier| earlier.prefix == replacement.prefix) {
            return Err(if replacement.prefix.is_empty() {
                wrong("AmbiguousReplacement", "ambiguous prefix replacement".to_owned())
            } else {
                wrong(
                    "DuplicateReplacement",
                    format!("duplicate replacement prefix '{}'", replacement.prefix),
                )
            });
        }
    }
    let with = |wanted: &str| replacements.iter().find(|replacement| replacement.prefix == wanted);
    Ok(with(prefix).or_else(|| with("")).map(|replacement| Rewrite {
        prefix_length: prefix.len(),
        replacement: replacement.replacement.as_str().into(),
        fit_slash: false,
    }))
}

/// A redirect that is invalid.
#[derive(Debug, thiserror::Error)]
enum RedirectError {
    #[error("cannot specify both redirect path and redirect prefix")]
    PathAndPrefix,
    #[error("unsupported status code {0}")]
    StatusCode(i64),
    #[error("port must be in the range 1-65535")]
    Port,
}

fn redirect(policy: &RedirectPolicy, path: &PathMatch) -> Result<Redirect, RedirectError> {
    let path = match (&policy.path, &policy.prefix) {
        (Some(_), Some(_)) => return Err(RedirectError::PathAndPrefix),
        (Some(whole), None) => Some(PathEdit::Whole(whole.as_str().into())),
        (None, Some(prefix)) => Some(PathEdit::Prefix(Rewrite {
            prefix_length: match path {
                PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Segments(path) => path.len(),
                PathMatch::Regex(_) => usize::MAX,
            },
            replacement: prefix.as_str().into(),
            fit_slash: false,
        })),
        (None, None) => None,
    };
    let status = match policy.status_code.unwrap_or(302) {
        301 => StatusCode::MOVED_PERMANENTLY,
        302 => StatusCode::FOUND,
        303 => StatusCode::SEE_OTHER,
        307 => StatusCode::TEMPORARY_REDIRECT,
        308 => StatusCode::PERMANENT_REDIRECT,
        other => return Err(RedirectError::StatusCode(other)),
    };
    let port = match policy.port {
        None => None,
        Some(port) => Some(u16::try_from(port).ok().filter(|port| *port > 0).ok_or(RedirectError::Port)?),
    };
    Ok(Redirect {
        scheme: policy.scheme.as_deref().map(Box::from),
        host: policy.hostname.as_deref().map(Box::from),
        port,
        path,
        status,
    })
}

/// Makes a replaced prefix `/foo` or `/foo/` match both forms, so that no slash is doubled or lost,
/// unless a route exists for the other form: then its author has handled it. `/` has no other form.
///
/// A route that an include places below `/foo/` also gets `/foo`, but not `/foosball`.
#[expect(clippy::mutable_key_type, reason = "expressions are compared by how they are written")]
fn fit_slashes(found: Vec<CollectedRoute>) -> Vec<Route> {
    fn bare(path: &PathMatch) -> Option<&str> {
        match path {
            PathMatch::Prefix(prefix) if &**prefix != "/" => Some(prefix.trim_end_matches('/')),
            _ => None,
        }
    }
    let (mut routes, below): (Vec<Route>, Vec<usize>) =
        found.into_iter().map(|CollectedRoute { route, below }| (route, below)).unzip();
    let replaces = |route: &Route| matches!(&route.action, Action::Forward(Forward { rewrite: Some(_), .. }));
    if !routes.iter().any(replaces) {
        return routes;
    }
    let mut forms: HashMap<(&str, &[HeaderMatch], &[QueryMatch]), usize> = HashMap::new();
    for route in &routes {
        if let Some(prefix) = bare(&route.path) {
            *forms.entry((prefix, &route.headers, &route.query)).or_default() += 1;
        }
    }
    let alone: Vec<Option<Box<str>>> = routes
        .iter()
        .map(|route| {
            let prefix = bare(&route.path)?;
            let known = forms.get(&(prefix, &*route.headers, &*route.query));
            (known == Some(&1)).then(|| prefix.into())
        })
        .collect();
    for ((route, prefix), below) in routes.iter_mut().zip(alone).zip(below) {
        if let (Action::Forward(Forward { rewrite: Some(rewrite), .. }), Some(prefix)) =
            (&mut route.action, prefix)
        {
            rewrite.fit_slash = true;
            rewrite.prefix_length = prefix.len();
            let is_shorter = prefix.len() < below;
            route.path = if is_shorter { PathMatch::Segments(prefix) } else { PathMatch::Prefix(prefix) };
        }
    }
    routes
}
