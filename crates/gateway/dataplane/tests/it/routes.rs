//! Actions of routes: redirects, direct responses, rewrites, several backends.

use http::StatusCode;
use pinniped_gateway_routing::table::{
    Action, Backends, PathEdit, PathMatch, Protocol, Redirect, Response, Rewrite, Route,
};

use crate::world::{
    Backend, Http1, Table, all_to, forward, gateway, one, pair, prefix, service, to, upstream,
};

fn https_only(route: Route) -> Route {
    Route { upgrade_to_https: true, ..route }
}

#[tokio::test]
async fn r2_port_80_redirects_to_https_unless_a_route_permits_plain_http() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let to_backend = || Action::Forward(forward(to(&[backend.address])));
    let routes = || vec![https_only(prefix("/", to_backend())), prefix("/blog", to_backend())];
    Table::new().https("a.local", &pair(&["a.local"]), routes()).plain("a.local", routes()).serve(&gateway);
    let mut plain = Http1::plain(&gateway).await;
    let response = plain.get("a.local", "/x/../y?q=1").await;
    assert_eq!(
        (response.status, response.location()),
        (StatusCode::MOVED_PERMANENTLY, "https://a.local/y?q=1")
    );
    assert_eq!(plain.get("a.local:80", "/").await.location(), "https://a.local/");
    assert_eq!(plain.get("a.local", "/blog").await.status, 200);
    // Port 443 serves both routes.
    let mut tls = Http1::tls(&gateway, "a.local").await;
    assert_eq!(tls.get("a.local", "/").await.status, 200);
    assert_eq!(tls.get("a.local", "/blog").await.status, 200);
    // Without a route that permits plain HTTP, both redirect.
    let routes = || vec![https_only(prefix("/", to_backend())), https_only(prefix("/blog", to_backend()))];
    Table::new().plain("a.local", routes()).serve(&gateway);
    assert_eq!(plain.get("a.local", "/").await.status, 301);
    assert_eq!(plain.get("a.local", "/blog").await.status, 301);
}

#[tokio::test]
async fn r3_a_route_without_an_endpoint_is_unavailable_and_other_routes_work() {
    let backend = Backend::http("good").await;
    let gateway = gateway();
    let routes = vec![
        prefix("/", Action::Forward(forward(to(&[backend.address])))),
        prefix("/empty", Action::Forward(forward(one(upstream(Protocol::H2c, &[]))))),
        // The action that the routing builder creates for a missing Service.
        prefix(
            "/missing",
            Action::Respond(Response { status: StatusCode::SERVICE_UNAVAILABLE, body: "".into() }),
        ),
    ];
    Table::new().plain("a", routes).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    let empty = http.get("a", "/empty").await;
    assert_eq!((empty.status, empty.body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no healthy upstream"));
    let missing = http.get("a", "/missing").await;
    assert_eq!((missing.status, missing.body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, ""));
    assert_eq!(http.get("a", "/else").await.backend_name(), "good");
    assert_eq!(gateway.counts().failed, 1);
}

#[tokio::test]
async fn r4_a_direct_response_is_returned_unchanged() {
    let gateway = gateway();
    let respond = |status, body: &str| Action::Respond(Response { status, body: body.into() });
    let routes = vec![
        prefix("/finance", respond(StatusCode::BAD_GATEWAY, "")),
        prefix("/tea", respond(StatusCode::IM_A_TEAPOT, "short and stout")),
    ];
    Table::new().plain("a", routes).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    let bad = http.get("a", "/finance").await;
    assert_eq!((bad.status, bad.body.as_str()), (StatusCode::BAD_GATEWAY, ""));
    let tea = http.get("a", "/tea").await;
    assert_eq!((tea.status, tea.body.as_str()), (StatusCode::IM_A_TEAPOT, "short and stout"));
    assert_eq!(tea.headers["content-type"], "text/plain");
    assert_eq!(http.get("a", "/").await.status, 404);
}

#[tokio::test]
async fn r7_paths_are_normalized_for_matching_and_forwarding() {
    let backend = Backend::http("all").await;
    let exact = Backend::http("exact").await;
    let blog = Backend::http("blog").await;
    let gateway = gateway();
    let by = |path, name: &str, protocol, backend: &Backend| Route {
        path,
        ..prefix("/", Action::Forward(forward(one(service(name, protocol, None, &[backend.address])))))
    };
    let routes = vec![
        by(PathMatch::Prefix("/".into()), "all", Protocol::Http1, &backend),
        by(PathMatch::Exact("/blog/main.js".into()), "exact", Protocol::Http1, &exact),
        by(PathMatch::Prefix("/blog/infotech".into()), "blog", Protocol::H2c, &blog),
    ];
    Table::new().plain("a", routes).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    for (path, backend_name, arrives) in [
        ("/blog/infotech/1?a=b%20c", "blog", "/blog/infotech/1?a=b%20c"),
        ("/blog//infotech", "blog", "/blog/infotech"),
        ("/blog/main.js", "exact", "/blog/main.js"),
        ("/blog/main.jsx", "all", "/blog/main.jsx"),
        ("/blog/infotech/../../private", "all", "/private"),
        ("/a%2Fb", "all", "/a%2Fb"),
    ] {
        let response = http.get("a", path).await;
        assert_eq!(response.backend_name(), backend_name, "{path}");
        let report = response.body.lines().nth(1).unwrap();
        assert!(
            report.starts_with("GET ") && report.contains(&format!("{arrives} HTTP")),
            "{path}: {report}"
        );
    }
}

#[tokio::test]
async fn a_route_rewrites_a_path_or_redirects_the_client() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let rewrite = Rewrite { prefix_length: 4, replacement: "/bar".into(), fit_slash: true };
    let mut rewritten = forward(to(&[backend.address]));
    rewritten.rewrite = Some(rewrite.clone());
    let redirect = Redirect {
        scheme: None,
        host: Some("b.local".into()),
        port: Some(8443),
        path: Some(PathEdit::Prefix(rewrite)),
        status: StatusCode::TEMPORARY_REDIRECT,
    };
    let routes = vec![prefix("/foo", Action::Forward(rewritten)), prefix("/old", Action::Redirect(redirect))];
    Table::new().plain("a", routes).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    for (path, wanted) in [("/foo/x?q", "GET /bar/x?q HTTP/1.1"), ("/foo", "GET /bar HTTP/1.1")] {
        assert_eq!(http.get("a", path).await.body.lines().nth(1), Some(wanted));
    }
    let response = http.get("a", "/old/x?q").await;
    assert_eq!(
        (response.status, response.location()),
        (StatusCode::TEMPORARY_REDIRECT, "http://b.local:8443/bar/x?q")
    );
}

#[tokio::test]
async fn t8_requests_are_distributed_by_weight() {
    let [a, b] = [Backend::http("a").await, Backend::http("b").await];
    let gateway = gateway();
    let backends = Backends::new(vec![
        (7, upstream(Protocol::Http1, &[a.address])),
        (77, upstream(Protocol::H2c, &[b.address])),
    ]);
    Table::new().plain("a", all_to(backends.unwrap())).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    let mut light: u32 = 0;
    for _ in 0..168 {
        light += u32::from(http.get("a", "/").await.backend_name() == "a");
    }
    assert!(light.abs_diff(14) <= 2, "{light} of 168");
    // Each backend needed only one connection.
    assert_eq!((a.accepted(), b.accepted()), (1, 1));
}

#[tokio::test]
async fn a_rewrite_creates_no_dot_segments_and_no_double_slashes() {
    let backend = Backend::http("backend").await;
    let gateway = gateway();
    let rewriting = |replacement: &str| {
        let mut forward = forward(to(&[backend.address]));
        forward.rewrite =
            Some(Rewrite { prefix_length: 4, replacement: replacement.into(), fit_slash: false });
        Action::Forward(forward)
    };
    let routes = vec![prefix("/top", rewriting("/")), prefix("/sub", rewriting("/public/"))];
    Table::new().plain("a", routes).serve(&gateway);
    let mut http = Http1::plain(&gateway).await;
    for (path, arrives) in [
        ("/top/x?q=//", Some("/x?q=//")),
        ("/top/../top/x", Some("/x")),
        ("/top../admin", Some("/admin")),
        ("/top./x", Some("/x")),
        ("/sub/x", Some("/public/x")),
        ("/sub", Some("/public/")),
        // A path that leaves the prefix of the route.
        ("/sub../private", None),
        ("/sub%2e./private", None),
        ("/sub..", None),
    ] {
        let before = backend.accepted();
        let response = http.get("a", path).await;
        match arrives {
            Some(arrives) => {
                let wanted = format!("GET {arrives} HTTP/1.1");
                assert_eq!(response.body.lines().nth(1), Some(wanted.as_str()), "{path}");
            }
            None => {
                assert_eq!(
                    (response.status, response.body.as_str()),
                    (StatusCode::BAD_REQUEST, ""),
                    "{path}"
                );
                assert_eq!(backend.accepted(), before);
            }
        }
    }
}
