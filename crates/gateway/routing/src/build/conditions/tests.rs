use serde_json::{Value, json};

use super::*;

fn read(conditions: Value) -> Vec<MatchCondition> {
    serde_json::from_value(conditions).unwrap()
}

/// Returns the merged path of consecutive blocks, as text.
fn merged(blocks: &[Value]) -> String {
    let conditions: Vec<MatchCondition> = blocks.iter().flat_map(|block| read(block.clone())).collect();
    let chain: Vec<&MatchCondition> = conditions.iter().collect();
    match merge_path(&chain, &mut Patterns::default()).unwrap() {
        PathMatch::Exact(path) => format!("exact {path}"),
        PathMatch::Regex(pattern) => format!("regex {}", pattern.as_str()),
        PathMatch::Prefix(path) => format!("prefix {path}"),
        PathMatch::Segments(path) => format!("segments {path}"),
    }
}

#[test]
fn r7_paths_are_joined_from_the_root_to_the_leaf() {
    for (blocks, wanted) in [
        (vec![], "prefix /"),
        (vec![json!([]), json!([{"header": {"name": "a", "present": true}}])], "prefix /"),
        (vec![json!([{"prefix": "/blog"}]), json!([{"prefix": "/infotech"}])], "prefix /blog/infotech"),
        (vec![json!([{"prefix": "/blog"}]), json!([{"exact": "/main.js"}])], "exact /blog/main.js"),
        (vec![json!([{"prefix": "/blog/"}]), json!([{"prefix": "//a//"}])], "prefix /blog/a/"),
        (vec![json!([{"prefix": "/"}]), json!([{"prefix": "/"}])], "prefix /"),
        (vec![json!([{"prefix": "/blog"}]), json!([])], "prefix /blog"),
        (vec![json!([{"exact": "/a"}, {"header": {"name": "a", "present": true}}])], "exact /a"),
        (vec![json!([{"prefix": "/a.b/"}]), json!([{"regex": "/x.*"}])], r"regex /a\.b(?:/x.*)"),
        (vec![json!([{"prefix": "/"}]), json!([{"regex": "/x|/y"}])], "regex /x|/y"),
        (vec![json!([{"regex": "/x.*"}])], "regex /x.*"),
    ] {
        assert_eq!(merged(&blocks), wanted, "{blocks:?}");
    }
}

#[test]
fn a_block_has_one_path_that_starts_with_a_slash() {
    let fault = |conditions| {
        let error = check_path(&read(conditions), &mut Patterns::default()).err();
        error.map(|error| error.to_string())
    };
    let starts = |kind: &str| Some(format!("{kind} conditions must start with /, x was supplied"));
    let many = Some("more than one prefix, exact or regex is not allowed in a condition block".to_owned());
    for (conditions, wanted) in [
        (json!([]), None),
        (json!([{"prefix": "/a"}, {"header": {"name": "a", "present": true}}]), None),
        (json!([{"prefix": "x"}]), starts("prefix")),
        (json!([{"exact": "x"}]), starts("exact")),
        (json!([{"regex": "x"}]), starts("regex")),
        (json!([{"prefix": "/a"}, {"prefix": "/b"}]), many.clone()),
        (json!([{"prefix": "/a", "exact": "/a"}]), many.clone()),
        (json!([{"exact": "/a"}, {"regex": "/b"}]), many),
    ] {
        assert_eq!(fault(conditions.clone()), wanted, "{conditions}");
    }
    let why = fault(json!([{"regex": "/("}])).unwrap();
    assert!(why.starts_with("supplied regex: /( invalid. error: "), "{why}");
}

#[test]
fn an_include_may_only_have_a_prefix() {
    for (conditions, wanted) in [
        (json!([{"prefix": "/a"}]), Ok(())),
        (json!([{"exact": "/a"}]), Err("exact conditions are not allowed in includes block")),
        (json!([{"regex": "/a"}]), Err("regex conditions are not allowed in includes block")),
    ] {
        let checked = check_include_path(&read(conditions.clone())).map_err(|error| error.to_string());
        assert_eq!(checked, wanted.map_err(str::to_owned), "{conditions}");
    }
}

#[test]
fn contradictory_header_conditions_are_refused() {
    let header = |value: Value| {
        let mut header = value;
        header["name"] = header.get("name").cloned().unwrap_or(json!("X-A"));
        json!({ "header": header })
    };
    let contradictory = |word: &str| {
        Some(format!(
            "cannot specify contradictory '{word}' and 'not{word}' conditions for the same route and header"
        ))
    };
    for (headers, wanted) in [
        (vec![json!({"exact": "a"}), json!({"contains": "b"})], None),
        (vec![json!({"exact": "a"}), json!({"name": "x-b", "exact": "a"})], None),
        (vec![json!({"exact": "a"}), json!({"notexact": "b"})], None),
        (
            vec![json!({"exact": "a"}), json!({"name": "x-a", "exact": "b"})],
            Some("cannot specify duplicate header 'exact match' conditions in the same route".to_owned()),
        ),
        (vec![json!({"present": true}), json!({"notpresent": true})], contradictory("present")),
        (vec![json!({"notpresent": true}), json!({"present": true})], contradictory("present")),
        (vec![json!({"exact": "a"}), json!({"notexact": "a"})], contradictory("exact")),
        (vec![json!({"notcontains": "a"}), json!({"contains": "a"})], contradictory("contains")),
        (
            vec![json!({"regex": "("})],
            Some("invalid regular expression specified for 'regex' condition".to_owned()),
        ),
        (
            vec![json!({"name": "a b", "present": true})],
            Some("invalid header name \"a b\" specified for a header condition".to_owned()),
        ),
    ] {
        let conditions = read(headers.iter().cloned().map(header).collect());
        let chain: Vec<&MatchCondition> = conditions.iter().collect();
        let fault = check_headers(&chain, &mut Patterns::default()).err().map(|error| error.to_string());
        assert_eq!(fault, wanted, "{headers:?}");
    }
}

#[test]
fn a_query_parameter_has_one_condition() {
    for (query, wanted) in [
        (vec![json!({"exact": "a"}), json!({"prefix": "a"})], None),
        (vec![json!({})], Some("must specify at least one query parameter condition")),
        (
            vec![json!({"exact": "a", "present": true})],
            Some("cannot specify more than one condition in the same match condition branch"),
        ),
        (
            vec![json!({"exact": "a"}), json!({"exact": "b"})],
            Some("cannot specify duplicate query parameter 'exact match' conditions in the same route"),
        ),
        (vec![json!({"regex": "("})], Some("invalid regular expression specified for 'regex' condition")),
    ] {
        let named = |value: &Value| {
            let mut value = value.clone();
            value["name"] = json!("q");
            json!({ "queryParameter": value })
        };
        let conditions = read(query.iter().map(named).collect());
        let chain: Vec<&MatchCondition> = conditions.iter().collect();
        let fault = check_query(&chain, &mut Patterns::default()).err().map(|error| error.to_string());
        assert_eq!(fault.as_deref(), wanted, "{query:?}");
    }
}

#[test]
fn conditions_are_converted_to_matches() {
    let conditions = read(json!([
        {"header": {"name": "X-A", "notexact": "v", "ignoreCase": true, "treatMissingAsEmpty": true}},
        {"header": {"name": "x-b", "exact": "v", "treatMissingAsEmpty": true}},
        {"header": {"name": "x-c"}},
        {"queryParameter": {"name": "q", "suffix": "v", "ignoreCase": true}},
    ]));
    let chain: Vec<&MatchCondition> = conditions.iter().collect();
    let exact = |ignore_case| HeaderTest::Exact { value: "v".into(), ignore_case };
    let header = |name, test, negated, missing_as_empty| HeaderMatch {
        field: Field::parse(name).unwrap(),
        test,
        negated,
        missing_as_empty,
    };
    assert_eq!(
        *headers(&chain, &mut Patterns::default()),
        [header("x-a", exact(true), true, true), header("x-b", exact(false), false, false)]
    );
    let suffix = QueryMatch { name: "q".into(), test: QueryTest::Suffix("v".into()), ignore_case: true };
    assert_eq!(*query(&chain, &mut Patterns::default()), [suffix]);
}

/// Returns the path match of a route with this regular expression below a prefix.
fn below(prefix: &str, regex: &str) -> Result<PathMatch, ConditionError> {
    let conditions = read(json!([{"prefix": prefix}, {"regex": regex}]));
    merge_path(&conditions.iter().collect::<Vec<_>>(), &mut Patterns::default())
}

#[test]
fn an_expression_below_a_prefix_matches_complete_paths_below_it() {
    for (prefix, regex, path, wanted) in [
        ("/blog", "/x|/.*", "/blog/x", true),
        ("/blog", "/x|/.*", "/blog/y", true),
        ("/blog", "/x|/.*", "/login", false),
        ("/blog", "/x|.*", "/login", false),
        // The prefix is a string prefix, but the slash of the expression belongs to it.
        ("/blog", "/x|.*", "/blogger", true),
        ("/blog/", "/x|.*", "/blogger", false),
        ("/blog/", "/x|.*", "/blog", false),
        ("/blog/", "/x|/y", "/blog/y", true),
        ("/b.g", "/x", "/bbg/x", false),
        // The expression must match completely, not in part.
        ("/blog", "/x", "/blog/xy", false),
        ("/blog", "/x", "/a/blog/x", false),
        ("/blog", "/x$|/y", "/blog/x", true),
        ("/blog", "/x$|^/login", "/login", false),
        ("/blog", "/x|(?m)^/login$", "/login", false),
        // Flags end with the group and do not affect the prefix.
        ("/blog", "/(?i)x", "/blog/X", true),
        ("/blog", "/(?i)x", "/BLOG/x", false),
    ] {
        assert_eq!(below(prefix, regex).unwrap().matches(path), wanted, "{prefix} {regex} {path}");
    }
    // An expression that would close the group, or comment out its end, is invalid; so is one that
    // is too large.
    for regex in ["/a)|(/b", "/a)|(?:/.*", "/(?x) a # ", "/(", "/(a{1000}){1000}"] {
        below("/blog", regex).unwrap_err();
    }
}

#[test]
fn an_invalid_expression_is_refused_although_an_equal_joined_text_is_cached() {
    let mut patterns = Patterns::default();
    patterns.compile("/blog(?:/a)|(/b)").unwrap();
    patterns.compile_below("/blog", "/a)|(/b").unwrap_err();
    assert_ne!(patterns.compile_below("/blog/", "/a"), patterns.compile_below("/blog", "/a"));
}
