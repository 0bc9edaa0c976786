//! The isolation of included objects: no route of an included object matches a path outside of the
//! prefix of its include, whatever conditions it contains.

use std::collections::BTreeSet;

use pinniped_gateway_routing::table::{Action, Route, prepare};
use serde_json::{Value, json};

use crate::world::{BuildResult, World};

/// Chains of includes, from the root on.
const INCLUDES: [&[&str]; 12] = [
    &[""],
    &["/"],
    &["/b"],
    &["/b/"],
    &["/b/c"],
    &["/b.c/"],
    &["/b", "/c"],
    &["/b/", ""],
    &["/b", "/"],
    &["", "/b", "/c/"],
    &["/b/", "//c//", ""],
    &["/b", "", "", "/b"],
];

/// The fragments of test expressions: everything that could open, close, anchor or widen an
/// expression.
const FRAGMENTS: [&str; 13] = ["/", "b", "|", ".*", "^", "$", ")", "(?:", "(?i)", "(?m)", "(?x)", "#", "\n"];

fn strings(letters: &[&str], most: usize) -> Vec<String> {
    let mut all = vec!["/".to_owned()];
    let mut last = all.clone();
    for _ in 0..most {
        last = last
            .iter()
            .flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}")))
            .collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// Returns normalized paths with up to `most` letters after the slash, and a few longer ones.
fn paths(most: usize) -> Vec<String> {
    let all = strings(&["/", "b", "c", "."], most);
    let prepared: BTreeSet<String> = all.iter().map(|path| prepare(path).into_owned()).collect();
    prepared
        .into_iter()
        .chain(["/login", "/B", "/B/c", "/bcb/c", "/\nb", "/b/c/b", "/b/cb"].map(str::to_owned))
        .collect()
}

/// Returns a world with a root whose includes lead to an object with these routes.
fn world(includes: &[&str], routes: &[Value]) -> World {
    let mut world = World::default();
    world.service("app/web");
    for (depth, prefix) in includes.iter().enumerate() {
        let conditions = if prefix.is_empty() { json!([]) } else { json!([{"prefix": prefix}]) };
        let include = json!([{"name": format!("o{}", depth + 1), "conditions": conditions}]);
        let mut spec = json!({"includes": include});
        if depth == 0 {
            spec["virtualhost"] = json!({"fqdn": "h"});
        }
        world.proxy(&format!("app/o{depth}"), spec);
    }
    world.proxy(&format!("app/o{}", includes.len()), json!({"routes": routes}));
    world
}

fn routes(seen: &BuildResult) -> Vec<&Route> {
    seen.0
        .table
        .plain
        .hosts
        .by_host("h")
        .into_iter()
        .flat_map(|routes| routes.iter().map(|route| &**route))
        .collect()
}

/// Returns the joined prefix of a chain of includes, without double slashes.
fn prefix(includes: &[&str]) -> String {
    let mut joined = includes.concat();
    while joined.contains("//") {
        joined = joined.replace("//", "/");
    }
    joined
}

/// Returns whether a path is in the scope of an include: every path with the prefix and, for `/b/`,
/// also `/b`, the same location without the slash.
fn is_below(path: &str, prefix: &str) -> bool {
    path.starts_with(prefix) || (prefix.ends_with('/') && path == prefix.trim_end_matches('/'))
}

fn check(includes: &[&str], seen: &BuildResult, paths: &[String]) -> usize {
    let prefix = prefix(includes);
    let mut matches = 0;
    for route in routes(seen) {
        for path in paths.iter().filter(|path| route.path.matches(path)) {
            assert!(is_below(path, &prefix), "{:?} below {includes:?} takes {path:?}", route.path);
            matches += 1;
        }
    }
    matches
}

#[test]
fn no_route_of_an_included_object_matches_a_path_outside_of_its_prefix() {
    let response =
        |condition: Value| json!({"conditions": [condition], "directResponsePolicy": {"statusCode": 200}});
    let rewriting = |conditions: Value, replacement: &str| {
        json!({
            "conditions": conditions, "services": [{"name": "web", "port": 80}],
            "pathRewritePolicy": {"replacePrefix": [{"replacement": replacement}]},
        })
    };
    let paths = paths(4);
    for includes in INCLUDES {
        for own in ["/", "/b", "/b/", "/c", "//b//c/", "/../", "/."] {
            for kind in ["prefix", "exact"] {
                let seen = world(includes, &[response(json!({kind: own}))]).build();
                check(includes, &seen, &paths);
            }
            for replacement in ["/", "/x", "/x/"] {
                let seen = world(includes, &[rewriting(json!([{"prefix": own}]), replacement)]).build();
                check(includes, &seen, &paths);
            }
        }
        let bare = world(includes, &[json!({"directResponsePolicy": {"statusCode": 200}})]).build();
        assert!(check(includes, &bare, &paths) > 0, "{includes:?}");
        for replacement in ["/", "/x", "/x/"] {
            assert!(
                check(includes, &world(includes, &[rewriting(json!([]), replacement)]).build(), &paths) > 0
            );
        }
    }
}

#[test]
fn no_expression_of_an_included_object_matches_a_path_outside_of_its_prefix() {
    let paths = paths(3);
    let expressions: Vec<String> = strings(&FRAGMENTS, 3);
    let good: Vec<&String> = expressions
        .iter()
        .filter(|regex| regex::bytes::RegexBuilder::new(regex).unicode(false).build().is_ok())
        .collect();
    for includes in [&["/b/"][..], &["", "/b", "/c/"]] {
        // One invalid expression removes all routes of its object, so the valid ones are tested
        // together, and separately those that only become invalid below a prefix.
        let route = |regex: &str| {
            let body = json!({"statusCode": 200, "body": regex});
            json!({"conditions": [{"regex": regex}], "directResponsePolicy": body})
        };
        let mut refused = Vec::new();
        let mut rest: Vec<&&String> = good.iter().collect();
        rest.retain(|regex| {
            let comment = regex.contains("(?x)") && regex.contains('#');
            refused.extend(comment.then_some(**regex));
            !comment
        });
        let all: Vec<Value> = rest.iter().map(|regex| route(regex)).collect();
        let seen = world(includes, &all).build();
        assert_eq!(routes(&seen).len(), all.len(), "{includes:?}: {}", seen.validation("app/o0"));
        assert!(check(includes, &seen, &paths) > 0, "{includes:?}");
        for regex in refused {
            check(includes, &world(includes, &[route(regex)]).build(), &paths);
        }
    }
    let bad = expressions.iter().filter(|regex| !good.contains(regex)).step_by(10);
    for regex in bad {
        let response = json!({"conditions": [{"regex": regex}], "directResponsePolicy": {"statusCode": 200}});
        let seen = world(&["/b"], &[response]).build();
        assert!(routes(&seen).is_empty(), "{regex:?}");
    }
}

#[test]
fn an_alternative_in_an_included_expression_does_not_match_a_path_of_the_parent() {
    let body = |text: &str| json!({"statusCode": 200, "body": text});
    let mut world = World::default();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "blog", "namespace": "z", "conditions": [{"prefix": "/blog"}]}],
            "routes": [{"conditions": [{"prefix": "/"}], "directResponsePolicy": body("app")}],
        }),
    );
    let regex = json!([{"regex": "/x|/.*"}]);
    world.proxy("z/blog", json!({"routes": [{"conditions": regex, "directResponsePolicy": body("blog")}]}));
    let seen = world.build();
    assert_eq!((seen.validation("app/p"), seen.validation("z/blog")), ("valid".into(), "valid".into()));
    for (path, wanted) in [("login", "app"), ("blog/x", "blog"), ("blog/y", "blog"), ("blog", "app")] {
        let route = seen.route(&format!("h/{path}"));
        let Action::Respond(response) = &route.action else { panic!("{path}") };
        assert_eq!(&*response.body, wanted, "{path}");
    }
}

#[test]
fn expressions_are_ordered_by_the_joined_length_of_prefix_and_expression() {
    let route = |regex: &str, body: &str| {
        let response = json!({"statusCode": 200, "body": body});
        json!({"conditions": [{"regex": regex}], "directResponsePolicy": response})
    };
    let mut world = World::default();
    world.proxy(
        "app/p",
        json!({
            "virtualhost": {"fqdn": "h"},
            "includes": [{"name": "blog", "conditions": [{"prefix": "/blog"}]}],
            "routes": [route("/blog/a.*", "its own")],
        }),
    );
    world.proxy("app/blog", json!({"routes": [route("/.*", "included")]}));
    let seen = world.build();
    let Action::Respond(response) = &seen.route("h/blog/a").action else { panic!("no response") };
    assert_eq!(&*response.body, "its own");
}
