use super::*;

fn user(name: &str, uid: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> User {
    let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    User {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups: owned(groups),
        extra: extra.iter().map(|(key, values)| ((*key).to_owned(), owned(values))).collect(),
    }
}

fn refusal(plan: Plan<'_>) -> Option<Refusal> {
    match plan {
        Plan::Refuse(refusal) => Some(refusal),
        _ => None,
    }
}

#[test]
fn users_without_uid_are_impersonated() {
    let plain = KnownUser::from(user("u", "", &["a", "b"], &[("iam.gke.io/user-assertion", &["x"])]));
    let admin = user("admin", "", &[], &[]);
    for token in
        [BearerTokenReview::None, BearerTokenReview::Rejected, BearerTokenReview::Failed("e".to_owned())]
    {
        for uids in [UidImpersonation::Enabled, UidImpersonation::Disabled] {
            for original in [None, Some(&admin)] {
                assert_eq!(
                    plan(&plain, original, &token, uids),
                    Plan::Impersonate(Impersonation { user: &plain, original })
                );
            }
        }
    }
}

#[test]
fn unsafe_and_reserved_extra_keys_are_refused() {
    let reserved = "foo.impersonation-proxy.concierge.pinniped.dev";
    for (key, wanted) in [
        ("party~~time", Some(Refusal::ExtraKey("party~~time".to_owned()))),
        ("Upper", Some(Refusal::ExtraKey("Upper".to_owned()))),
        ("ü", Some(Refusal::ExtraKey("ü".to_owned()))),
        ("", Some(Refusal::ExtraKey(String::new()))),
        (reserved, Some(Refusal::ReservedExtraKey(reserved.to_owned()))),
        (ORIGINAL_USER_INFO, Some(Refusal::ReservedExtraKey(ORIGINAL_USER_INFO.to_owned()))),
        ("foo.iimpersonation-proxy.concierge.pinniped.dev", None),
        (RESERVED, None),
        ("scopes.authorization.openshift.io", None),
        ("alpha.kubernetes.io/identity/roles", None),
        ("iam.gke.io/user-assertion", None),
        ("a-b_c.d/9", None),
    ] {
        let given = KnownUser::from(user("u", "", &[], &[(key, &["v"])]));
        let got = plan(&given, None, &BearerTokenReview::None, UidImpersonation::Enabled);
        assert_eq!(refusal(got), wanted, "{key}");
        // The result is the same for a user with a UID.
        let given = KnownUser::from(user("u", "1", &[], &[(key, &["v"])]));
        let got = plan(&given, None, &BearerTokenReview::None, UidImpersonation::Enabled);
        assert_eq!(refusal(got), wanted, "{key}");
    }
}

#[test]
fn users_with_a_uid_follow_the_table() {
    let given = KnownUser::from(user("u", "1", &["a", "b"], &[("k", &["v"])]));
    let other_order = user("u", "1", &["b", "a"], &[("k", &["v"])]);
    let admin = user("admin", "0x001", &[], &[(ORIGINAL_USER_INFO, &["v"])]);
    let impersonate = |original| Plan::Impersonate(Impersonation { user: &given, original });
    let unknown = BearerTokenReview::Failed("some review error".to_owned());
    // client impersonation, token, plan when disabled, plan when enabled
    let rows = [
        (false, BearerTokenReview::User(User::clone(&given)), Plan::Passthrough, Plan::Passthrough),
        (false, BearerTokenReview::None, Plan::Refuse(Refusal::NoToken), impersonate(None)),
        (false, BearerTokenReview::Rejected, Plan::Refuse(Refusal::TokenRejected), impersonate(None)),
        (false, BearerTokenReview::User(other_order), Plan::Refuse(Refusal::OtherUser), impersonate(None)),
        (
            false,
            unknown.clone(),
            Plan::Refuse(Refusal::TokenUnknown("some review error".to_owned())),
            Plan::Refuse(Refusal::TokenUnknown("some review error".to_owned())),
        ),
        (
            true,
            BearerTokenReview::User(User::clone(&given)),
            Plan::Refuse(Refusal::NestedUid),
            impersonate(Some(&admin)),
        ),
        (true, unknown, Plan::Refuse(Refusal::NestedUid), impersonate(Some(&admin))),
    ];
    for (is_impersonated, token, disabled, enabled) in &rows {
        let original = is_impersonated.then_some(&admin);
        assert_eq!(&plan(&given, original, token, UidImpersonation::Disabled), disabled, "{token:?}");
        assert_eq!(&plan(&given, original, token, UidImpersonation::Enabled), enabled, "{token:?}");
    }
    assert!(needs_token_review(&given, false));
    assert!(!needs_token_review(&given, true));
    assert!(!needs_token_review(&user("u", "", &[], &[]), false));
}

#[test]
fn refusals_have_the_documented_log_texts() {
    for (refusal, text) in [
        (Refusal::ExtraKey("k".to_owned()), "disallowed extra key seen: k"),
        (Refusal::ReservedExtraKey("k".to_owned()), "disallowed extra key with reserved prefix seen: k"),
        (Refusal::NestedUid, "unable to impersonate uid"),
        (Refusal::NoToken, "no token on request"),
        (Refusal::TokenRejected, "token failed to authenticate"),
        (Refusal::OtherUser, "token authenticated as a different user"),
    ] {
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn headers_contain_the_whole_identity_in_order() {
    let given =
        user("jürgen", "7", &["z", "a"], &[("iam.gke.io/user-assertion", &["1", "2"]), ("k", &["v"])]);
    let admin = user("admin <x>", "0x001", &["g"], &[("b", &["1"]), ("a", &["2\u{2028}"])]);
    let mut headers = HeaderMap::new();
    Impersonation { user: &given, original: Some(&admin) }.write(&mut headers).unwrap();
    let all = |name: &str| {
        headers
            .get_all(name)
            .iter()
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(all("impersonate-user"), ["jürgen"]);
    assert_eq!(all("impersonate-uid"), ["7"]);
    assert_eq!(all("impersonate-group"), ["z", "a"]);
    assert_eq!(all("impersonate-extra-iam.gke.io%2fuser-assertion"), ["1", "2"]);
    assert_eq!(all("impersonate-extra-k"), ["v"]);
    assert_eq!(
        all("impersonate-extra-original-user-info.impersonation-proxy.concierge.pinniped.dev"),
        [
            r#"{"username":"admin \u003cx\u003e","uid":"0x001","groups":["g"],"extra":{"a":["2\u2028"],"b":["1"]}}"#
        ]
    );
    assert_eq!(headers.len(), 8);
}

#[test]
fn empty_members_of_the_original_user_are_omitted() {
    assert_eq!(original_user_info(&user("u", "", &[], &[])), r#"{"username":"u"}"#);
    assert_eq!(original_user_info(&user("ü", "", &["a"], &[])), r#"{"username":"ü","groups":["a"]}"#);
}

#[test]
fn spaces_around_a_value_do_not_fit_into_http1() {
    for (given, wanted) in [
        (user("a b", "1", &["", "g"], &[("k", &["", "v"])]), true),
        (user("ü\u{a0}", "", &[], &[]), true),
        (user(" admin", "", &[], &[]), false),
        (user("admin\t", "", &[], &[]), false),
        (user("a", "1 ", &[], &[]), false),
        (user("a", "", &["g", " system:masters"], &[]), false),
        (user("a", "", &[" "], &[]), false),
        (user("a", "", &[], &[("k", &["v", "v "])]), false),
    ] {
        assert_eq!(Impersonation { user: &given, original: None }.is_exact_in_http1(), wanted, "{given:?}");
    }
}

#[test]
fn an_identity_that_exceeds_the_header_map_is_refused() {
    let many = |count: usize| User {
        name: "u".to_owned(),
        extra: (0..count).map(|n| (format!("k{n}"), vec!["v".to_owned()])).collect(),
        ..User::default()
    };
    let write = |user: &User| Impersonation { user, original: None }.write(&mut HeaderMap::new());
    assert_eq!(write(&many(20_000)), Ok(()));
    assert_eq!(write(&many(40_000)), Err(InvalidHeader));
}

#[test]
fn control_characters_and_missing_names_are_refused() {
    for bad in [
        user("a\nb", "", &[], &[]),
        user("a", "", &["\u{7f}"], &[]),
        user("a", "", &[], &[("k", &["\0"])]),
        user("", "", &["g"], &[]),
    ] {
        let mut headers = HeaderMap::new();
        assert_eq!(Impersonation { user: &bad, original: None }.write(&mut headers), Err(InvalidHeader));
    }
}
