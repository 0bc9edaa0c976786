use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use super::intake::{intake, leftover};
use super::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            )
        })
        .collect()
}

fn user(name: &str, uid: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> User {
    let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    User {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups: owned(groups),
        extra: extra.iter().map(|(key, values)| ((*key).to_owned(), owned(values))).collect(),
    }
}

#[test]
fn headers_are_read_and_removed() {
    let mut given = headers(&[
        ("impersonate-user", "ü"),
        ("impersonate-user", "second"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "b"),
        ("impersonate-group", "a"),
        ("impersonate-extra-ROAR", "x"),
        ("impersonate-extra-acme.io%2Ffoo", "1"),
        ("impersonate-extra-acme.io%2ffoo", "2"),
        ("impersonate-extra-bad%zz", "3"),
        ("impersonate-something", "s"),
        ("accept", "a"),
    ]);
    let got = intake(&mut given).unwrap().unwrap();
    let wanted =
        user("ü", "7", &["b", "a"], &[("roar", &["x"]), ("acme.io/foo", &["1", "2"]), ("bad%zz", &["3"])]);
    assert_eq!(got, wanted);
    assert_eq!(leftover(&given).map(HeaderName::as_str), Some("impersonate-something"));
    assert_eq!(given, headers(&[("impersonate-something", "s"), ("accept", "a")]));
}

#[test]
fn impersonation_without_a_user_name_has_the_error_text_of_go() {
    for (given, dump) in [
        (
            &[("impersonate-uid", "007")][..],
            r#"&user.DefaultInfo{Name:"", UID:"007", Groups:[]string(nil), Extra:map[string][]string(nil)}"#,
        ),
        (
            &[("impersonate-group", "g")],
            r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)}"#,
        ),
        (
            &[
                ("impersonate-group", "g"),
                ("impersonate-group", "h"),
                ("impersonate-extra-foo", "g"),
                ("impersonate-extra-bar", ""),
            ],
            r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g", "h"}, Extra:map[string][]string{"bar":[]string{""}, "foo":[]string{"g"}}}"#,
        ),
        (
            &[("impersonate-user", ""), ("impersonate-uid", "a\"b")],
            r#"&user.DefaultInfo{Name:"", UID:"a\"b", Groups:[]string(nil), Extra:map[string][]string(nil)}"#,
        ),
    ] {
        let error = intake(&mut headers(given)).unwrap_err();
        assert_eq!(error.to_string(), format!("requested {dump} without impersonating a user name"));
    }
}

#[test]
fn what_is_not_utf8_names_nobody() {
    for (name, value) in [
        ("impersonate-user", &b"\xff"[..]),
        ("impersonate-uid", b"a\x80"),
        ("impersonate-group", b"\xed\xa0\x80"),
        ("impersonate-extra-k", b"\xc3("),
        ("impersonate-extra-%ff", b"v"),
    ] {
        for user in [&[][..], &[("impersonate-group", "g"), ("impersonate-user", "u")]] {
            let mut given = headers(user);
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            if name != "impersonate-user" || user.is_empty() {
                given.append(&name, HeaderValue::from_bytes(value).unwrap());
                let error = intake(&mut given).unwrap_err();
                assert_eq!(error.to_string(), format!("header {name} is not valid UTF-8"));
            }
        }
    }
    // Values that are not read may contain any bytes.
    let mut given = headers(&[("impersonate-user", "u")]);
    given.append("impersonate-user", HeaderValue::from_bytes(b"\xff").unwrap());
    assert_eq!(intake(&mut given), Ok(Some(user("u", "", &[], &[]))));
}

#[test]
fn an_empty_user_name_alone_is_no_impersonation() {
    for given in [&[][..], &[("accept", "a")], &[("impersonate-user", "")], &[("impersonate-foo", "a")]] {
        let mut map = headers(given);
        assert_eq!(intake(&mut map), Ok(None));
        assert_eq!(map, headers(given));
    }
}

fn list_pods() -> Attributes {
    Attributes::Resource(ResourceAttributes {
        verb: "list".to_owned(),
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        label_selector: Some("a=b".to_owned()),
        ..ResourceAttributes::default()
    })
}

/// Returns `verb group/version resource/subresource namespace/name` of each review.
fn reviews_of(plan: &ModePlan) -> Vec<String> {
    let show = |attributes: &Attributes| match attributes {
        Attributes::NonResource { verb, path } => format!("{verb} {path}"),
        Attributes::Resource(r) => format!(
            "{} {}/{} {}/{} {}/{}",
            r.verb, r.group, r.version, r.resource, r.subresource, r.namespace, r.name
        ),
    };
    plan.steps
        .iter()
        .map(|step| match step {
            Step::Review(attributes) => show(attributes),
            Step::ReviewAnyOrEach { any, each } => {
                format!("any {} each {}", show(any), each.iter().map(&show).collect::<Vec<_>>().join("; "))
            }
            Step::Deny { attributes, reason } => format!("deny {}: {reason}", show(attributes)),
        })
        .collect()
}

fn modes(requestor: &User, wanted: &User) -> Vec<Mode> {
    Mode::ALL.into_iter().filter(|mode| plan_mode(*mode, requestor, wanted, &list_pods()).is_some()).collect()
}

#[test]
fn modes_apply_by_the_form_of_the_names() {
    let plain = user("alice", "", &[], &[]);
    let agent = user("system:serviceaccount:ns:sa", "", &[], &[(NODE_NAME_EXTRA, &["n1"])]);
    let two_nodes = user("system:serviceaccount:ns:sa", "", &[], &[(NODE_NAME_EXTRA, &["n1", "n2"])]);
    let fake_agent = user("agent", "", &[], &[(NODE_NAME_EXTRA, &["n1"])]);
    let node = user("system:node:n1", "", &[], &[]);
    for (requestor, wanted, expected) in [
        (&agent, node.clone(), vec![Mode::AssociatedNode, Mode::ArbitraryNode, Mode::Legacy]),
        (&two_nodes, node.clone(), vec![Mode::ArbitraryNode, Mode::Legacy]),
        (&fake_agent, node, vec![Mode::ArbitraryNode, Mode::Legacy]),
        (&agent, user("system:node:n2", "", &[], &[]), vec![Mode::ArbitraryNode, Mode::Legacy]),
        (&plain, user("system:node:n1", "", &["g"], &[]), vec![Mode::Legacy]),
        (&plain, user("system:node:N1", "", &[], &[]), vec![Mode::UserInfo, Mode::Legacy]),
        (&plain, user("system:serviceaccount:a:b", "", &[], &[]), vec![Mode::ServiceAccount, Mode::Legacy]),
        (&plain, user("system:serviceaccount:a:b", "1", &[], &[]), vec![Mode::Legacy]),
        (&plain, user("bob", "1", &["g"], &[("k", &["v"])]), vec![Mode::UserInfo, Mode::Legacy]),
    ] {
        assert_eq!(modes(requestor, &wanted), expected, "{} as {}", requestor.name, wanted.name);
    }
}

#[test]
fn user_info_reviews_every_part_of_the_user() {
    let requestor = user("alice", "", &["g"], &[("x", &["y"])]);
    let wanted = user("bob", "7", &["a", "b"], &[("acme.io/foo", &["1", "2"]), ("acme.io/bar", &["3"])]);
    let plan = plan_mode(Mode::UserInfo, &requestor, &wanted, &list_pods()).unwrap();
    assert_eq!(plan.reviewed_as, requestor);
    assert_eq!(
        reviews_of(&plan),
        [
            "impersonate-on:user-info:list /v1 pods/ /",
            "impersonate:user-info authentication.k8s.io/v1 users/ /bob",
            "impersonate:user-info authentication.k8s.io/v1 uids/ /7",
            "impersonate:user-info authentication.k8s.io/v1 groups/ /a",
            "impersonate:user-info authentication.k8s.io/v1 groups/ /b",
            "impersonate:user-info authentication.k8s.io/v1 userextras/acme.io/bar /3",
            "impersonate:user-info authentication.k8s.io/v1 userextras/acme.io/foo /1",
            "impersonate:user-info authentication.k8s.io/v1 userextras/acme.io/foo /2",
        ]
    );
    let Step::Review(Attributes::Resource(on)) = &plan.steps[0] else { panic!("a resource is reviewed") };
    assert_eq!(on.label_selector.as_deref(), Some("a=b"));
    let mut becomes = wanted;
    becomes.groups.push(AUTHENTICATED.to_owned());
    assert_eq!(plan.becomes, becomes);
}

#[test]
fn many_groups_and_extras_are_first_reviewed_together() {
    let requestor = user("alice", "", &[], &[]);
    let wanted = user("bob", "", &["a", "b", "c", "d"], &[("acme.io/k", &["1", "2", "3", "4"])]);
    let plan = plan_mode(Mode::UserInfo, &requestor, &wanted, &list_pods()).unwrap();
    let reviews = reviews_of(&plan);
    assert!(
        reviews[2].starts_with("any impersonate:user-info authentication.k8s.io/v1 groups/ /* each "),
        "{reviews:?}"
    );
    assert!(
        reviews[3].starts_with("any impersonate:user-info authentication.k8s.io/v1 userextras/* /* each "),
        "{reviews:?}"
    );
    let legacy = plan_mode(Mode::Legacy, &requestor, &wanted, &list_pods()).unwrap();
    assert_eq!(legacy.steps.len(), 1 + 4 + 4);
}

#[test]
fn constrained_rules_refuse_invalid_groups_and_extras() {
    let requestor = user("alice", "", &[], &[]);
    let groups = "deny impersonate:user-info authentication.k8s.io/v1 groups/ ";
    let extras = "deny impersonate:user-info authentication.k8s.io/v1 userextras/ /: ";
    for (wanted, expected) in [
        (
            user("b", "", &["a", ""], &[]),
            format!("{groups}/: impersonating the empty string group is not allowed"),
        ),
        (
            user("b", "", &["a", MASTERS], &[]),
            format!("{groups}/system:masters: impersonating the system:masters group is not allowed"),
        ),
        (
            user("b", "", &[], &[("colors", &["red"])]),
            format!(
                "{extras}impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \"colors\": \
                 must be a domain-prefixed path (such as \"acme.io/foo\")"
            ),
        ),
        (
            user("b", "", &[], &[("", &["red"])]),
            format!("{extras}impersonating the empty string key in extra is not allowed"),
        ),
        (
            user("b", "", &[], &[("acme.io/Foo", &["red"])]),
            format!("{extras}impersonating a non-lowercase key in extra is not allowed: \"acme.io/Foo\""),
        ),
        (
            user("b", "", &[], &[("acme.io/foo", &["red", ""])]),
            format!("{extras}impersonating the empty string value in extra is not allowed"),
        ),
    ] {
        let plan = plan_mode(Mode::UserInfo, &requestor, &wanted, &list_pods()).unwrap();
        assert_eq!(reviews_of(&plan).last(), Some(&expected));
        let legacy = plan_mode(Mode::Legacy, &requestor, &wanted, &list_pods()).unwrap();
        assert!(!reviews_of(&legacy).iter().any(|text| text.starts_with("deny")));
    }
}

#[test]
fn nodes_and_service_accounts_are_reviewed_as_their_own_resources() {
    let agent = user("system:serviceaccount:ns:sa", "", &["g"], &[(NODE_NAME_EXTRA, &["n1"]), ("a", &["b"])]);
    let node = user("system:node:n1", "", &[], &[]);
    let get = Attributes::NonResource { verb: "get".to_owned(), path: "/x".to_owned() };

    let plan = plan_mode(Mode::AssociatedNode, &agent, &node, &get).unwrap();
    assert_eq!(
        reviews_of(&plan),
        [
            "impersonate-on:associated-node:get /x",
            "impersonate:associated-node authentication.k8s.io/v1 nodes/ /*"
        ]
    );
    assert_eq!(
        plan.reviewed_as,
        user(
            "system:serviceaccount:ns:sa",
            "",
            &["g"],
            &[(ASSOCIATED_NODE_KEYS_EXTRA, &["a", NODE_NAME_EXTRA])]
        )
    );
    assert_eq!(plan.becomes, user("system:node:n1", "", &["system:nodes", AUTHENTICATED], &[]));

    let plan = plan_mode(Mode::ArbitraryNode, &agent, &node, &get).unwrap();
    assert_eq!(reviews_of(&plan)[1], "impersonate:arbitrary-node authentication.k8s.io/v1 nodes/ /n1");
    assert_eq!(plan.reviewed_as, agent);

    let legacy = plan_mode(Mode::Legacy, &agent, &node, &get).unwrap();
    assert_eq!(reviews_of(&legacy), ["impersonate /v1 users/ /system:node:n1"]);
    assert_eq!(legacy.becomes, user("system:node:n1", "", &[AUTHENTICATED], &[]));

    let account = user("system:serviceaccount:a:b", "", &[], &[]);
    let groups = &["system:serviceaccounts", "system:serviceaccounts:a", AUTHENTICATED];
    for (mode, expected) in [
        (Mode::ServiceAccount, "impersonate:serviceaccount authentication.k8s.io/v1 serviceaccounts/ a/b"),
        (Mode::Legacy, "impersonate /v1 serviceaccounts/ a/b"),
    ] {
        let plan = plan_mode(mode, &agent, &account, &get).unwrap();
        assert_eq!(reviews_of(&plan).last().map(String::as_str), Some(expected));
        assert_eq!(plan.becomes, user(&account.name, "", groups, &[]));
    }
}

#[test]
fn the_anonymous_user_becomes_unauthenticated() {
    let requestor = user("alice", "", &[], &[]);
    for (groups, becomes) in [
        (&[][..], &[UNAUTHENTICATED][..]),
        (&[UNAUTHENTICATED], &[UNAUTHENTICATED]),
        (&["a"], &["a", UNAUTHENTICATED]),
    ] {
        let wanted = user(identity::ANONYMOUS, "", groups, &[]);
        let plan = plan_mode(Mode::Legacy, &requestor, &wanted, &list_pods()).unwrap();
        assert_eq!(plan.becomes.groups, becomes);
    }
    let wanted = user("bob", "", &[UNAUTHENTICATED], &[]);
    let plan = plan_mode(Mode::Legacy, &requestor, &wanted, &list_pods()).unwrap();
    assert_eq!(plan.becomes.groups, [UNAUTHENTICATED]);
}

#[test]
fn an_anonymous_client_is_refused_with_the_first_review_of_the_first_mode() {
    let anonymous = User::anonymous();
    let attributes = Attributes::NonResource { verb: "get".to_owned(), path: "/x".to_owned() };
    for (wanted, verb) in [
        ("alice", "impersonate-on:user-info:get"),
        ("system:node:n", "impersonate-on:arbitrary-node:get"),
        ("system:serviceaccount:a:b", "impersonate-on:serviceaccount:get"),
    ] {
        let attributes_refused = refused_without_review(&anonymous, &user(wanted, "", &[], &[]), &attributes);
        let expected = Attributes::NonResource { verb: verb.to_owned(), path: "/x".to_owned() };
        assert_eq!(attributes_refused, Some(expected), "{wanted}");
    }
    // For a node, no constrained mode applies when more than its name is requested.
    let with_group = user("system:node:n", "", &["g"], &[]);
    let attributes_refused = refused_without_review(&anonymous, &with_group, &attributes).unwrap();
    assert_eq!(attributes_refused.verb(), "impersonate");
    for other in [user("bob", "", &[], &[]), user("system:anonymous", "", &["system:masters"], &[])] {
        assert_eq!(refused_without_review(&other, &with_group, &attributes), None, "{other:?}");
    }
}
