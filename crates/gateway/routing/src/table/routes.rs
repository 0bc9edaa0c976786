//! The routes of a host and their actions.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    backend::Backends,
    host::{HostMap, host_of},
    matching::{HeaderMatch, PathMatch, QueryMatch, RequestParts},
    path::prepare,
};

/// The timeouts of a route; `None` disables a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the end of the request to the end of the response.
    pub response: Option<Duration>,
    /// The maximum time without a transfer in either direction.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { response: Some(Duration::from_secs(15)), idle: Some(Duration::from_secs(300)) }
    }
}

/// A change of the path, for a backend or for a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The length of the replaced prefix; a [`Route`] with this rewrite only matches paths of at
    /// least this length.
    pub prefix_length: usize,
    /// The replacement.
    pub replacement: Box<str>,
    /// Prevents double and missing slashes between replacement and rest: with `/foo` replaced by
    /// `/bar/`, `/foo/a` becomes `/bar/a`, `/foo` becomes `/bar` and `/foosball` becomes
    /// `/barsball`.
    pub fit_slash: bool,
}

impl Rewrite {
    /// Returns the new path for a backend, normalized again, because replacement and rest may need
    /// it only in combination. Returns `None` if the path leaves the replacement, as `/foo../x`
    /// does when `/foo` is replaced by `/bar/`.
    pub fn forward(&self, path: &str) -> Option<String> {
        let new = self.apply(path);
        let prepared = match prepare(&new) {
            Cow::Borrowed(_) => return Some(new),
            Cow::Owned(prepared) => prepared,
        };
        let replacement = prepare(&self.replacement);
        let stays = prepared.starts_with(&*replacement) || prepared == replacement.trim_end_matches('/');
        stays.then_some(prepared)
    }

    /// Returns the new path without normalization.
    pub fn apply(&self, path: &str) -> String {
        let rest = path.get(self.prefix_length..).unwrap_or_default();
        let replacement =
            if self.fit_slash { self.replacement.trim_end_matches('/') } else { &self.replacement };
        let mut new = String::with_capacity(replacement.len() + rest.len() + 1);
        new.push_str(replacement);
        if replacement.is_empty() && !rest.starts_with('/') {
            new.push('/');
        }
        new.push_str(rest);
        new
    }
}

/// The change of the path by a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEdit {
    /// Replaces the whole path.
    Whole(Box<str>),
    /// Replaces the prefix.
    Prefix(Rewrite),
}

/// A redirect. Parts that are `None` are copied from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<Box<str>>,
    /// Another host.
    pub host: Option<Box<str>>,
    /// Another port.
    pub port: Option<u16>,
    /// Another path; the query is unchanged.
    pub path: Option<PathEdit>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// A direct response, which needs no backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The body; a text, possibly empty.
    pub body: Box<str>,
}

/// Forwards requests to a backend.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The destinations.
    pub backends: Backends,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// Whether requests may be upgraded to WebSockets.
    pub websockets: bool,
    /// The change of the path.
    pub rewrite: Option<Rewrite>,
}

/// The action of a route.
#[derive(Clone, Debug)]
pub enum Action {
    /// Forwards the request to a backend.
    Forward(Forward),
    /// Redirects the client.
    Redirect(Redirect),
    /// Returns a direct response.
    Respond(Response),
}

/// Conditions for requests of a host, and an action.
#[derive(Clone, Debug)]
pub struct Route {
    /// The condition for the path.
    pub path: PathMatch,
    /// The conditions for headers, which must all be satisfied.
    pub headers: Box<[HeaderMatch]>,
    /// The conditions for query parameters, which must all be satisfied.
    pub query: Box<[QueryMatch]>,
    /// On port 80, returns a 301 to the same URL with `https` instead of the action.
    pub upgrade_to_https: bool,
    /// The action.
    pub action: Action,
}

impl Route {
    /// Returns whether a request satisfies the conditions for headers and query. (The path has
    /// already matched.)
    fn admits(&self, request: &RequestParts<'_>) -> bool {
        self.headers.iter().all(|header| header.matches(request))
            && self.query.iter().all(|parameter| parameter.matches(request))
    }

    /// Returns the rank: of two routes with the same path, the one with the greater rank is tried
    /// first.
    fn rank(&self) -> (bool, usize, usize) {
        let by_method = self.headers.iter().any(|header| header.field == super::Field::Method);
        (by_method, self.headers.len(), self.query.len())
    }
}

/// The decision for a request.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// Execute the action of the route.
    Take(&'a Arc<Route>),
    /// 301 to the same URL with `https`.
    UpgradeToHttps,
    /// 404, with an empty body.
    NotFound,
    /// 421: the connection was opened for another host.
    Misdirected,
}

/// The routes of a host.
///
/// Exact paths are tried first, then expressions (the longest first), then prefixes (the longest
/// first); of the same path, a route with a method, then one with more headers, then one with more
/// query parameters. If a request does not satisfy the conditions of one route, the next one is
/// tried. The number of routes does not affect the cost of a lookup.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: HashMap<Box<str>, Vec<Arc<Route>>>,
    regex: Vec<Arc<Route>>,
    /// By prefix; for each prefix, segment matches before string matches.
    prefix: HashMap<Box<str>, Vec<Arc<Route>>>,
    /// The lengths of all prefixes, the longest first.
    lengths: Vec<usize>,
    count: usize,
}

impl Routes {
    /// Creates the set from routes in any order. Of several routes with the same conditions, the
    /// first one is used.
    pub fn new(routes: impl IntoIterator<Item = Arc<Route>>) -> Self {
        let mut new = Self::default();
        for route in routes {
            new.count += 1;
            match &route.path {
                PathMatch::Exact(path) => new.exact.entry(path.clone()).or_default().push(route),
                PathMatch::Regex(_) => new.regex.push(route),
                PathMatch::Prefix(prefix) | PathMatch::Segments(prefix) => {
                    new.prefix.entry(prefix.clone()).or_default().push(route);
                }
            }
        }
        for routes in new.exact.values_mut() {
            routes.sort_by_key(|route| std::cmp::Reverse(route.rank()));
        }
        for routes in new.prefix.values_mut() {
            routes.sort_by_key(|route| {
                (matches!(route.path, PathMatch::Prefix(_)), std::cmp::Reverse(route.rank()))
            });
        }
        new.regex.sort_by_key(|route| match &route.path {
            PathMatch::Regex(pattern) => std::cmp::Reverse((pattern.length(), route.rank())),
            _ => std::cmp::Reverse((0, route.rank())),
        });
        new.lengths = new.prefix.keys().map(|prefix| prefix.len()).collect();
        new.lengths.sort_unstable_by(|one, other| other.cmp(one));
        new.lengths.dedup();
        new
    }

    /// Returns the route for a request.
    pub fn find(&self, request: &RequestParts<'_>) -> Option<&Arc<Route>> {
        let path = request.path;
        let exact = self.exact.get(path).into_iter().flatten();
        let regex = self.regex.iter().filter(|route| route.path.matches(path));
        let prefix = self
            .lengths
            .iter()
            .filter_map(|length| self.prefix.get(path.get(..*length)?))
            .flatten()
            .filter(|route| route.path.matches(path));
        exact.chain(regex).chain(prefix).find(|route| route.admits(request))
    }

    /// Returns all routes.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.exact.values().flatten().chain(&self.regex).chain(self.prefix.values().flatten())
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Port 80.
#[derive(Debug, Default)]
pub struct PlainTable {
    /// The routes of each host.
    pub hosts: HostMap<Arc<Routes>>,
}

impl PlainTable {
    /// Returns the decision for a request.
    pub fn route(&self, request: &RequestParts<'_>) -> Decision<'_> {
        match self.hosts.by_host(host_of(request.authority)).and_then(|routes| routes.find(request)) {
            Some(route) if route.upgrade_to_https => Decision::UpgradeToHttps,
            Some(route) => Decision::Take(route),
            None => Decision::NotFound,
        }
    }
}

#[cfg(test)]
#[path = "routes/tests.rs"]
mod tests;
