use http::{HeaderMap, HeaderValue, Method};

use super::*;
use crate::table::{Field, HeaderTest, QueryTest};

fn route(path: PathMatch, body: &str) -> Route {
    Route {
        path,
        headers: Box::default(),
        query: Box::default(),
        upgrade_to_https: false,
        action: Action::Respond(Response { status: StatusCode::OK, body: body.into() }),
    }
}

fn with_header(mut route: Route, name: &str) -> Route {
    let field = Field::parse(name).unwrap();
    let header = HeaderMatch { field, test: HeaderTest::Present, negated: false, missing_as_empty: false };
    route.headers = route.headers.iter().cloned().chain([header]).collect();
    route
}

fn body(decision: Decision<'_>) -> String {
    match decision {
        Decision::Take(route) => match &route.action {
            Action::Respond(response) => response.body.to_string(),
            other => panic!("{other:?}"),
        },
        other => format!("{other:?}"),
    }
}

fn plain(routes: Vec<Route>) -> PlainTable {
    let routes = Arc::new(Routes::new(routes.into_iter().map(Arc::new)));
    PlainTable { hosts: [(super::super::HostPattern::Any, routes)].into_iter().collect() }
}

#[test]
fn exact_paths_precede_prefixes_and_longer_prefixes_precede_shorter_ones() {
    let prefix = |prefix: &str| PathMatch::Prefix(prefix.into());
    let table = plain(vec![
        route(prefix("/"), "root"),
        route(prefix("/blog"), "blog"),
        route(PathMatch::Exact("/blog".into()), "exactly blog"),
        route(PathMatch::Segments("/blog".into()), "segments"),
        route(prefix("/blog/2"), "two"),
    ]);
    let headers = HeaderMap::new();
    for (path, wanted) in [
        ("/", "root"),
        ("/x", "root"),
        ("/blog", "exactly blog"),
        ("/blogger", "blog"),
        ("/blog/", "segments"),
        ("/blog/1", "segments"),
        ("/blog/20", "two"),
        ("/\u{e9}", "root"),
    ] {
        let request =
            RequestParts { method: &Method::GET, authority: "h", path, query: None, headers: &headers };
        assert_eq!(body(table.route(&request)), wanted, "{path}");
    }
}

#[test]
fn for_the_same_path_more_specific_routes_are_tried_first() {
    let root = || PathMatch::Prefix("/".into());
    let mut by_query = route(root(), "query");
    by_query.query =
        Box::new([QueryMatch { name: "q".into(), test: QueryTest::Present, ignore_case: false }]);
    let table = plain(vec![
        route(root(), "all"),
        with_header(route(root(), "a"), "a"),
        with_header(with_header(route(root(), "a and b"), "a"), "b"),
        by_query,
        with_header(route(root(), "method"), ":method"),
        with_header(route(PathMatch::Exact("/e".into()), "exactly, with a"), "a"),
    ]);
    let methodless = plain(vec![
        route(root(), "all"),
        with_header(route(root(), "a"), "a"),
        with_header(with_header(route(root(), "a and b"), "a"), "b"),
        with_header(route(PathMatch::Exact("/e".into()), "exactly, with b"), "b"),
    ]);
    for (table, path, names, query, wanted) in [
        (&table, "/", &["a", "b"][..], Some("q"), "method"),
        (&table, "/e", &["a"][..], None, "exactly, with a"),
        (&table, "/e", &[][..], None, "method"),
        (&methodless, "/", &["a", "b"][..], None, "a and b"),
        (&methodless, "/", &["a"][..], None, "a"),
        (&methodless, "/", &["b"][..], None, "all"),
        (&methodless, "/e", &["a"][..], None, "a"),
    ] {
        let headers: HeaderMap =
            names.iter().map(|name| (name.parse().unwrap(), HeaderValue::from_static("x"))).collect();
        let request = RequestParts { method: &Method::GET, authority: "h", path, query, headers: &headers };
        assert_eq!(body(table.route(&request)), wanted, "{path} {names:?}");
    }
}

#[test]
fn an_https_route_redirects_port_80() {
    let mut only_tls = route(PathMatch::Prefix("/".into()), "secret");
    only_tls.upgrade_to_https = true;
    let table = plain(vec![only_tls, route(PathMatch::Prefix("/open".into()), "open")]);
    let headers = HeaderMap::new();
    for (path, wanted) in [("/", "UpgradeToHttps"), ("/open", "open")] {
        let request =
            RequestParts { method: &Method::GET, authority: "h:80", path, query: None, headers: &headers };
        assert_eq!(body(table.route(&request)), wanted, "{path}");
    }
}

#[test]
fn a_replaced_prefix_neither_doubles_nor_loses_slashes() {
    for (prefix, replacement, fit_slash, path, wanted) in [
        ("/foo", "/bar", true, "/foosball", "/barsball"),
        ("/foo", "/bar", true, "/foo", "/bar"),
        ("/foo", "/bar", true, "/foo/", "/bar/"),
        ("/foo", "/", true, "/foo/v1", "/v1"),
        ("/foo", "/", true, "/foo", "/"),
        ("/foo", "/", true, "/foov1", "/v1"),
        ("/foo", "/bar/", true, "/foo/type", "/bar/type"),
        ("/foo", "/bar/", true, "/foo", "/bar"),
        ("/", "/bar", false, "/x", "/barx"),
        ("/", "/bar/", false, "/x", "/bar/x"),
        ("/foo", "/", false, "/foo/v1", "//v1"),
        ("/foo", "", false, "/foo", "/"),
        ("/longer than the path", "/a", true, "/x", "/a"),
    ] {
        let rewrite = Rewrite { prefix_length: prefix.len(), replacement: replacement.into(), fit_slash };
        assert_eq!(rewrite.apply(path), wanted, "{prefix} -> {replacement}: {path}");
    }
}

#[test]
fn a_rewritten_path_for_a_backend_is_normalized() {
    for (prefix, replacement, fit_slash, path, wanted) in [
        ("/foo", "/bar", true, "/foo/x", Some("/bar/x")),
        ("/foo", "/bar", false, "/foo../x", Some("/bar../x")),
        ("/foo", "/", false, "/foo/v1", Some("/v1")),
        ("/foo", "/", false, "/foo../admin", Some("/admin")),
        ("/foo", "", false, "/foo../admin", Some("/admin")),
        ("/foo", "/bar/", false, "/foo/x", Some("/bar/x")),
        ("/foo", "/bar/", false, "/foo./x", Some("/bar/x")),
        ("/foo", "/bar/", false, "/foo..", None),
        ("/foo", "/bar/", false, "/foo../x", None),
        ("/foo", "/bar/", false, "/foo../barx", None),
        ("/foo", "/a/b/", false, "/foo../x", None),
        ("/foo", "/a/../b//", false, "/foo/x", Some("/b/x")),
        ("/foo", "/bar/%2", false, "/foo%65/x", None),
        ("/foo", "/bar/.", false, "/foo./x", None),
    ] {
        let rewrite = Rewrite { prefix_length: prefix.len(), replacement: replacement.into(), fit_slash };
        let path = prepare(path);
        assert_eq!(rewrite.forward(&path).as_deref(), wanted, "{prefix} -> {replacement}: {path}");
    }
}
