use super::*;

fn parse(method: &str, uri: &str) -> RequestInfo {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    RequestInfo::parse(&method, &uri.parse().unwrap()).unwrap()
}

/// method, uri, then: verb, prefix, group, version, namespace, resource, subresource, name, parts.
type Row = (&'static str, &'static str, [&'static str; 8], &'static [&'static str]);

#[test]
fn resource_requests_are_parsed_like_the_api_server_parses_them() {
    let rows: &[Row] = &[
        ("GET", "/api/v1/namespaces", ["list", "api", "", "v1", "", "namespaces", "", ""], &["namespaces"]),
        (
            "GET",
            "/api/v1/namespaces/other",
            ["get", "api", "", "v1", "other", "namespaces", "", "other"],
            &["namespaces", "other"],
        ),
        (
            "GET",
            "/api/v1/namespaces/other/pods",
            ["list", "api", "", "v1", "other", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo",
            ["get", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo"],
        ),
        (
            "HEAD",
            "/api/v1/namespaces/other/pods/foo",
            ["get", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo"],
        ),
        ("GET", "/api/v1/pods", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("HEAD", "/api/v1/pods", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        // Special verbs.
        (
            "GET",
            "/api/v1/proxy/namespaces/other/pods/foo",
            ["proxy", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo"],
        ),
        (
            "GET",
            "/api/v1/proxy/namespaces/other/pods/foo/subpath/not/a/subresource",
            ["proxy", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo", "subpath", "not", "a", "subresource"],
        ),
        ("GET", "/api/v1/watch/pods", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        (
            "GET",
            "/api/v1/watch/namespaces/other/pods",
            ["watch", "api", "", "v1", "other", "pods", "", ""],
            &["pods"],
        ),
        ("GET", "/api/v1/pods?watch=true", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=false", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=FALSE", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=0", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?w%61tch=1", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        (
            "GET",
            "/api/v1/pods?watch=1&timeoutSeconds=abc",
            ["watch", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        // Subresources.
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo/status",
            ["get", "api", "", "v1", "other", "pods", "status", "foo"],
            &["pods", "foo", "status"],
        ),
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo/proxy/subpath",
            ["get", "api", "", "v1", "other", "pods", "proxy", "foo"],
            &["pods", "foo", "proxy", "subpath"],
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/finalize",
            ["update", "api", "", "v1", "other", "namespaces", "finalize", "other"],
            &["namespaces", "other", "finalize"],
        ),
        (
            "PUT",
            "/api/v1/namespaces/other/status",
            ["update", "api", "", "v1", "other", "namespaces", "status", "other"],
            &["namespaces", "other", "status"],
        ),
        // Verbs.
        (
            "PATCH",
            "/api/v1/namespaces/other/pods/foo",
            ["patch", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo"],
        ),
        (
            "DELETE",
            "/api/v1/namespaces/other/pods/foo",
            ["delete", "api", "", "v1", "other", "pods", "", "foo"],
            &["pods", "foo"],
        ),
        (
            "POST",
            "/api/v1/namespaces/other/pods",
            ["create", "api", "", "v1", "other", "pods", "", ""],
            &["pods"],
        ),
        ("DELETE", "/api/v1/nodes", ["deletecollection", "api", "", "v1", "", "nodes", "", ""], &["nodes"]),
        (
            "DELETE",
            "/api/v1/namespaces",
            ["deletecollection", "api", "", "v1", "", "namespaces", "", ""],
            &["namespaces"],
        ),
        ("OPTIONS", "/api/v1/namespaces", ["", "api", "", "v1", "", "namespaces", "", ""], &["namespaces"]),
        ("BREW", "/api/v1/namespaces/a/pods/b", ["", "api", "", "v1", "a", "pods", "", "b"], &["pods", "b"]),
        // Groups.
        (
            "POST",
            "/apis/extensions/v1/namespaces/other/jobs",
            ["create", "apis", "extensions", "v1", "other", "jobs", "", ""],
            &["jobs"],
        ),
        (
            "GET",
            "/apis/apps/v1/deployments",
            ["list", "apis", "apps", "v1", "", "deployments", "", ""],
            &["deployments"],
        ),
        // Escapes and doubled slashes.
        ("GET", "/api/v1/namespaces%2Fa%2Fpods", ["list", "api", "", "v1", "a", "pods", "", ""], &["pods"]),
        ("GET", "//api/v1/pods//", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/namespaces//pods", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1//pods", ["get", "api", "", "v1", "", "", "", "pods"], &["", "pods"]),
        ("GET", "/api/v1/pods/..", ["get", "api", "", "v1", "", "pods", "", ".."], &["pods", ".."]),
        // Odd segments.
        (
            "GET",
            "/api/v1/pods/a%2Fb/c",
            ["get", "api", "", "v1", "", "pods", "b", "a"],
            &["pods", "a", "b", "c"],
        ),
        (
            "GET",
            "/api/v1/watch/namespaces",
            ["watch", "api", "", "v1", "", "namespaces", "", ""],
            &["namespaces"],
        ),
        ("GET", "/api/v1/watch/watch/x", ["watch", "api", "", "v1", "", "watch", "", "x"], &["watch", "x"]),
        ("GET", "/apis///pods", ["list", "apis", "", "", "", "pods", "", ""], &["pods"]),
        (
            "GET",
            "/api/v1/namespaces/n/",
            ["get", "api", "", "v1", "n", "namespaces", "", "n"],
            &["namespaces", "n"],
        ),
        (
            "GET",
            "/api/v1/namespaces/n/finalize/x",
            ["get", "api", "", "v1", "n", "namespaces", "finalize", "n"],
            &["namespaces", "n", "finalize", "x"],
        ),
        (
            "GET",
            "/api/v1/proxy/namespaces/n/status",
            ["proxy", "api", "", "v1", "n", "namespaces", "", "n"],
            &["namespaces", "n", "status"],
        ),
        (
            "GET",
            "/api/v1/pods/%F0%9F%A6",
            ["get", "api", "", "v1", "", "pods", "", "\u{fffd}\u{fffd}\u{fffd}"],
            &["pods", "\u{fffd}\u{fffd}\u{fffd}"],
        ),
        ("get", "/api/v1/pods", ["", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("Delete", "/api/v1/pods", ["", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        // The first parse of `watch` treats U+017F as a letter s, the second one does not.
        ("GET", "/api/v1/pods?watch=fal%C5%BFe", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        (
            "GET",
            "/api/v1/pods?watch=fal%C5%BFe&limit=",
            ["watch", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        ("GET", "/api/v1/pods?watch=0&limit=x", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=0&watch=1", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=1;x&watch=0", ["list", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        ("GET", "/api/v1/pods?watch=00", ["watch", "api", "", "v1", "", "pods", "", ""], &["pods"]),
        // A field selector that requires one name.
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Dfoo",
            ["list", "api", "", "v1", "", "pods", "", "foo"],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name==foo",
            ["list", "api", "", "v1", "", "pods", "", "foo"],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?watch=1&fieldSelector=spec.x!=1,metadata.name=foo",
            ["watch", "api", "", "v1", "", "pods", "", "foo"],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name!=foo",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=a/b",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=a%25b",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=..",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=a%5C,b",
            ["list", "api", "", "v1", "", "pods", "", "a,b"],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo,garbage",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo&limit=x",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        // With another option that cannot be decoded, the name is ignored.
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo&labelSelector=a+b",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo&labelSelector=a,b+in+(c)&limit=+5",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo&labelSelector=a,b+in+(c)&limit=%2B5",
            ["list", "api", "", "v1", "", "pods", "", "foo"],
            &["pods"],
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name=foo&timeoutSeconds=9223372036854775808",
            ["list", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
        (
            "DELETE",
            "/api/v1/pods?fieldSelector=metadata.name=foo",
            ["deletecollection", "api", "", "v1", "", "pods", "", ""],
            &["pods"],
        ),
    ];
    for (method, uri, [verb, prefix, group, version, namespace, resource, subresource, name], parts) in rows {
        let info = parse(method, uri);
        let got = [
            info.verb.as_str(),
            info.api_prefix,
            &info.api_group,
            &info.api_version,
            &info.namespace,
            &info.resource,
            &info.subresource,
            &info.name,
        ];
        assert!(info.is_resource, "{method} {uri}");
        assert_eq!(
            got,
            [*verb, prefix, group, version, namespace, resource, subresource, name],
            "{method} {uri}"
        );
        assert_eq!(info.parts().collect::<Vec<_>>(), *parts, "{method} {uri}");
    }
}

#[test]
fn everything_else_is_a_non_resource_request() {
    for (method, uri, verb, path) in [
        ("GET", "/", "get", "/"),
        ("GET", "/api", "get", "/api"),
        ("GET", "/api/v1", "get", "/api/v1"),
        ("GET", "/api/v1/", "get", "/api/v1/"),
        ("GET", "/apis/apps", "get", "/apis/apps"),
        ("GET", "/apis/apps/v1", "get", "/apis/apps/v1"),
        ("POST", "/foo/bar/baz", "post", "/foo/bar/baz"),
        ("GET", "/healthz/", "get", "/healthz/"),
        ("GET", "/health%7a", "get", "/healthz"),
        ("OPTIONS", "/healthz", "options", "/healthz"),
        ("GET", "/namespaces/a/pods", "get", "/namespaces/a/pods"),
        ("GET", "*", "get", "*"),
        ("Brew", "//api//", "brew", "//api//"),
        ("GET", "/apis/a//", "get", "/apis/a//"),
        ("GET", "http://host/api/v1", "get", "/api/v1"),
        ("CONNECT", "host:443", "connect", ""),
    ] {
        let info = parse(method, uri);
        assert!(!info.is_resource, "{uri}");
        assert_eq!((info.verb.as_str(), info.path.as_str()), (verb, path));
    }
}

#[test]
fn paths_that_the_api_server_refuses_are_refused() {
    let parse = |uri: &str| RequestInfo::parse(&Method::GET, &uri.parse().unwrap());
    for path in ["/api/v1/watch", "/api/v1/watch/", "/api/v1/proxy", "/apis/a/v1/watch"] {
        let error = parse(path).unwrap_err();
        assert_eq!(error.to_string(), format!("unable to determine kind and namespace from url, {path}"));
    }
    // The target is printed like a Go URL, with characters escaped again where necessary.
    for (target, shown) in [
        ("//api/v1/watch/?a=b%zz", "//api/v1/watch/?a=b%zz"),
        ("/apis/a!b/v1%2Fwatch", "/apis/a!b/v1%2Fwatch"),
        ("/apis/a\"!b/v1%2Fwatch?", "/apis/a%22%21b/v1/watch?"),
    ] {
        assert_eq!(parse(target), Err(RequestInfoError::NoKind(shown.to_owned())));
    }
    for path in ["/api/v1/%zz", "/%", "/%2"] {
        assert_eq!(parse(path), Err(RequestInfoError::BadEscape(path.to_owned())));
    }
    for target in ["host", "host:443"] {
        assert_eq!(parse(target), Err(RequestInfoError::NoTarget(target.to_owned())));
    }
}

#[test]
fn only_verbs_with_selectors_have_selectors() {
    for (method, uri, field, label) in [
        ("GET", "/api/v1/pods?fieldSelector=a%3Db&labelSelector=c", Some("a=b"), Some("c")),
        ("GET", "/api/v1/pods?watch=1&labelSelector=c+d", None, Some("c d")),
        ("DELETE", "/api/v1/pods?fieldSelector=a=b", Some("a=b"), None),
        ("GET", "/api/v1/pods/x?fieldSelector=a=b&labelSelector=c", None, None),
        ("GET", "/api/v1/watch/pods?labelSelector=c", None, None),
        ("GET", "/api/v1/pods?labelSelector=", None, None),
        ("GET", "/api/v1/pods?labelSelector=a;b", None, None),
        ("GET", "/api/v1/pods?labelSelector=%zz&labelSelector=x", None, Some("x")),
        ("POST", "/api/v1/pods?labelSelector=c", None, None),
    ] {
        let info = parse(method, uri);
        assert_eq!((info.field_selector.as_deref(), info.label_selector.as_deref()), (field, label), "{uri}");
    }
}

#[test]
fn watches_and_streams_are_long_running() {
    for (method, uri, wanted) in [
        ("GET", "/api/v1/pods?watch=1", true),
        ("GET", "/api/v1/watch/pods", true),
        ("GET", "/api/v1/proxy/pods/x", true),
        ("GET", "/api/v1/namespaces/n/pods/p/log", true),
        ("POST", "/api/v1/namespaces/n/pods/p/exec", true),
        ("POST", "/api/v1/namespaces/n/pods/p/attach", true),
        ("POST", "/api/v1/namespaces/n/pods/p/portforward", true),
        ("GET", "/api/v1/namespaces/n/services/s/proxy/x", true),
        ("GET", "/debug/pprof/profile", true),
        ("GET", "/debug/pprof", false),
        ("GET", "/api/v1/pods", false),
        ("GET", "/api/v1/namespaces/n/pods/p/status", false),
        ("GET", "/exec", false),
    ] {
        assert_eq!(parse(method, uri).is_long_running(), wanted, "{uri}");
    }
}
