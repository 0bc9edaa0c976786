//! The routes of a host, and what they do.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;

use super::{
    backend::Backends,
    host::{HostMap, host_of},
    matching::{HeaderMatch, PathMatch, QueryMatch, RequestFacts},
    path::prepare,
};

/// How long things may take; `None` is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the whole request to the whole answer.
    pub response: Option<Duration>,
    /// With nothing moving in either direction.
    pub idle: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { response: Some(Duration::from_secs(15)), idle: Some(Duration::from_secs(300)) }
    }
}

/// How the path changes on the way to a backend, or to where a client is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// How much of the path is replaced; a [`Route`] with this only matches paths that are as long.
    pub prefix_length: usize,
    /// By what.
    pub replacement: Box<str>,
    /// No slash is doubled or lost between the two: with `/foo` replaced by `/bar/`, `/foo/a` is `/bar/a`, `/foo` is
    /// `/bar` and `/foosball` is `/barsball`.
    pub fit_slash: bool,
}

impl Rewrite {
    /// The new path as a backend gets it: prepared once more, since what replacement and rest are by themselves says
    /// nothing of what they are together. `None` if it leaves the replacement, as `/foo../x` does whose `/foo` is
    /// replaced by `/bar/`.
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

    /// The new path as it is written.
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

/// How a redirect changes the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathEdit {
    /// It is this.
    Whole(Box<str>),
    /// Its prefix is another one.
    Prefix(Rewrite),
}

/// Where a client is sent. What is `None` stays as it was in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<Box<str>>,
    /// Another host.
    pub host: Option<Box<str>>,
    /// Another port.
    pub port: Option<u16>,
    /// Another path; the query stays.
    pub path: Option<PathEdit>,
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
}

/// An answer that needs no backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its body; text, if any.
    pub body: Box<str>,
}

/// Requests go to a backend.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Where to.
    pub backends: Backends,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// They may be upgraded.
    pub websockets: bool,
    /// How the path changes.
    pub rewrite: Option<Rewrite>,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Action {
    /// It goes to a backend.
    Forward(Forward),
    /// The client is sent elsewhere.
    Redirect(Redirect),
    /// It is answered.
    Respond(Response),
}

/// Some of a host's requests, and what happens to them.
#[derive(Clone, Debug)]
pub struct Route {
    /// The path of the request.
    pub path: PathMatch,
    /// All of these headers.
    pub headers: Box<[HeaderMatch]>,
    /// All of these query parameters.
    pub query: Box<[QueryMatch]>,
    /// On port 80: 301 to the same URL with `https`, instead of the action.
    pub upgrade_to_https: bool,
    /// What happens.
    pub action: Action,
}

impl Route {
    /// Whether the headers and the query are as they must be. (The path was found already.)
    fn admits(&self, request: &RequestFacts<'_>) -> bool {
        self.headers.iter().all(|header| header.matches(request))
            && self.query.iter().all(|parameter| parameter.matches(request))
    }

    /// Of two routes with the same path, the one with the greater rank comes first.
    fn rank(&self) -> (bool, usize, usize) {
        let by_method = self.headers.iter().any(|header| header.field == super::Field::Method);
        (by_method, self.headers.len(), self.query.len())
    }
}

/// What to do with a request.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// What the route says.
    Take(&'a Arc<Route>),
    /// 301 to the same URL with `https`.
    UpgradeToHttps,
    /// 404, empty.
    NotFound,
    /// 421: this connection is not the one for the request's host.
    Misdirected,
}

/// The routes of a host.
///
/// A path that is matched exactly comes first, then expressions (the longest first), then prefixes (the longest first);
/// of the same path, one with a method, then one with more headers, then one with more query parameters. A request that
/// the headers of one do not admit goes on to the next. How many routes there are does not matter for finding one.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    exact: HashMap<Box<str>, Vec<Arc<Route>>>,
    regex: Vec<Arc<Route>>,
    /// By the prefix, and within by kind: segments before strings.
    prefix: HashMap<Box<str>, Vec<Arc<Route>>>,
    /// The lengths of all prefixes, the longest first.
    lengths: Vec<usize>,
    count: usize,
}

impl Routes {
    /// Routes in any order. Of those with the same conditions the first one is taken.
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

    /// The route for a request.
    pub fn find(&self, request: &RequestFacts<'_>) -> Option<&Arc<Route>> {
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.exact.values().flatten().chain(&self.regex).chain(self.prefix.values().flatten())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
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
    /// What to do with a request.
    pub fn route(&self, request: &RequestFacts<'_>) -> Decision<'_> {
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
