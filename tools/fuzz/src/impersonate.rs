//! A client's `Impersonate-*` headers: parsing, the reviews that they need, and the headers for the
//! API server. Input: header lines; `requestor`, `requestor-group` and `requestor-extra-<key>`
//! identify the requesting user.

use http::{HeaderMap, HeaderName};
use pinniped_kube_request::attributes::{Attributes, ResourceAttributes};
use pinniped_kube_request::client_impersonation::intake::leftover;
use pinniped_kube_request::client_impersonation::{IntakeError, Mode, ModePlan, Step, intake, plan_mode};
use pinniped_kube_request::identity::{KnownUser, MASTERS, User};
use pinniped_kube_request::impersonation::{
    BearerTokenReview, ORIGINAL_USER_INFO, Plan, RESERVED, UidImpersonation, original_user_info, plan,
};

use crate::input;

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let mut headers = input::headers(data);
    let requestor = requestor(&mut headers);
    let given = headers.clone();
    let taken = intake(&mut headers);
    let is_impersonation = |name: &HeaderName| {
        ["impersonate-user", "impersonate-uid", "impersonate-group"].contains(&name.as_str())
            || name.as_str().starts_with("impersonate-extra-")
    };
    assert_eq!(
        leftover(&headers).is_some(),
        headers.keys().any(|name| name.as_str().starts_with("impersonate"))
    );
    match taken {
        Ok(Some(wanted)) => {
            assert!(!wanted.name.is_empty() && !headers.keys().any(is_impersonation));
            let others: Vec<&HeaderName> = given.keys().filter(|name| !is_impersonation(name)).collect();
            assert_eq!(others.len(), headers.keys_len());
            assert!(others.into_iter().all(|name| given.get_all(name).iter().eq(headers.get_all(name))));
            reviews(&requestor, &wanted);
            forwarded(&wanted, Some(&requestor), &headers);
        }
        Ok(None) => {
            assert_eq!(headers, given);
            assert!(given.get("impersonate-user").is_none_or(|value| value.is_empty()));
            if leftover(&headers).is_none() {
                assert!(!given.keys().any(is_impersonation));
            }
            forwarded(&requestor, None, &headers);
        }
        Err(error) => {
            assert_eq!(headers, given);
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            match error {
                IntakeError::NoName(user) => {
                    assert!(user.name.is_empty());
                    assert!(text.starts_with("requested &user.DefaultInfo{Name:\"\", UID:"), "{text}");
                    assert!(text.ends_with(" without impersonating a user name"), "{text}");
                }
                IntakeError::NotText(name) => assert!(is_impersonation(&name)),
            }
        }
    }
}

/// Removes the requesting user from the input.
fn requestor(headers: &mut HeaderMap) -> User {
    let mut user = User { name: "asker".to_owned(), ..User::default() };
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("requestor")).cloned().collect();
    for name in names {
        let values: Vec<String> = headers.get_all(&name).iter().map(input::text).collect();
        match name.as_str() {
            "requestor" => user.name.clone_from(&values[0]),
            "requestor-uid" => user.uid.clone_from(&values[0]),
            "requestor-group" => user.groups = values,
            other => {
                let key = other.strip_prefix("requestor-extra-").unwrap_or("x").replace('!', "/");
                user.extra.insert(key, values);
            }
        }
        headers.remove(name);
    }
    user
}

fn reviews(requestor: &User, wanted: &User) {
    let attributes = Attributes::Resource(ResourceAttributes {
        verb: "list".to_owned(),
        version: "v1".to_owned(),
        resource: "pods".to_owned(),
        ..ResourceAttributes::default()
    });
    let plans: Vec<(Mode, ModePlan)> = Mode::ALL
        .into_iter()
        .filter_map(|mode| Some((mode, plan_mode(mode, requestor, wanted, &attributes)?)))
        .collect();
    // The last mode is always present, so there is always a plan whose refusal can be returned.
    assert!(plans.last().is_some_and(|(mode, _)| *mode == Mode::Legacy));
    for (mode, plan) in &plans {
        assert_eq!(plan.reviewed_as.name, requestor.name);
        assert_eq!(plan.reviewed_as.groups, requestor.groups);
        assert_eq!(plan.becomes.name, wanted.name);
        assert_eq!((&plan.becomes.uid, &plan.becomes.extra), (&wanted.uid, &wanted.extra));
        let denied = plan.steps.iter().any(|step| matches!(step, Step::Deny { .. }));
        if *mode == Mode::Legacy {
            assert!(!denied && plan.reviewed_as == *requestor);
        } else if !denied {
            assert!(!wanted.groups.iter().any(|group| group == MASTERS), "{mode:?} gives masters");
        }
        for step in &plan.steps {
            assert!(verbs(step).all(|verb| verb.starts_with("impersonate")), "{step:?}");
        }
        if !denied {
            covered(*mode, wanted, plan);
        }
    }
}

fn verbs(step: &Step) -> Box<dyn Iterator<Item = &str> + '_> {
    match step {
        Step::Review(one) | Step::Deny { attributes: one, .. } => Box::new(std::iter::once(one.verb())),
        Step::ReviewAnyOrEach { any, each } => {
            Box::new(std::iter::once(any.verb()).chain(each.iter().map(Attributes::verb)))
        }
    }
}

/// Checks that the reviews contain each part of the identity by name.
fn covered(mode: Mode, wanted: &User, plan: &ModePlan) {
    let requested: Vec<&ResourceAttributes> = plan
        .steps
        .iter()
        .flat_map(|step| match step {
            Step::Review(one) | Step::Deny { attributes: one, .. } => std::slice::from_ref(one),
            Step::ReviewAnyOrEach { each, .. } => each.as_slice(),
        })
        .filter_map(|attributes| match attributes {
            Attributes::Resource(resource) => Some(resource),
            Attributes::NonResource { .. } => None,
        })
        .collect();
    let is_asked = |resource: &str, subresource: &str, name: &str| {
        requested.iter().any(|a| a.resource == resource && a.subresource == subresource && a.name == name)
    };
    let user =
        ["users", "nodes", "serviceaccounts"].iter().any(|of| requested.iter().any(|a| a.resource == *of));
    assert!(user, "{mode:?} does not ask about the user");
    assert!(wanted.uid.is_empty() || is_asked("uids", "", &wanted.uid));
    assert!(wanted.groups.iter().all(|group| is_asked("groups", "", group)), "{mode:?} {requested:?}");
    for (key, values) in &wanted.extra {
        assert!(values.iter().all(|value| is_asked("userextras", key, value)), "{mode:?} {requested:?}");
    }
    // Groups that are added without a review depend only on the name.
    for group in plan.becomes.groups.iter().filter(|group| !wanted.groups.contains(group)) {
        let derived = ["system:authenticated", "system:unauthenticated", "system:nodes"]
            .contains(&group.as_str())
            || group.starts_with("system:serviceaccounts");
        assert!(derived, "{group} was not asked for");
    }
}

/// Checks that the API server parses the headers to exactly the user that was authorized.
fn forwarded(user: &User, original: Option<&User>, headers: &HeaderMap) {
    if leftover(headers).is_some() {
        return;
    }
    let known = KnownUser::from(user.clone());
    let Plan::Impersonate(impersonation) =
        plan(&known, original, &BearerTokenReview::None, UidImpersonation::Enabled)
    else {
        let odd = |key: &String| key.ends_with(RESERVED) || key.is_empty() || !is_plain(key);
        assert!(user.extra.keys().any(odd), "a plain user is refused");
        return;
    };
    let mut written = headers.clone();
    if impersonation.write(&mut written).is_err() {
        return;
    }
    let values: Vec<String> = written
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("impersonate"))
        .map(|(_, value)| input::text(value))
        .collect();
    assert!(!values.iter().any(|value| value.contains(|c: char| c.is_ascii_control() && c != '\t')));
    // HTTP/1.1 parsers remove such spaces, which would result in another user or group.
    let is_exact = values.iter().all(|value| value.trim_matches([' ', '\t']) == value);
    assert_eq!(impersonation.is_exact_in_http1(), is_exact, "{values:?}");
    let mut expected = user.clone();
    expected.extra.retain(|_, values| !values.is_empty());
    if let Some(original) = original {
        let info = original_user_info(original);
        assert_json(original, &info);
        expected.extra.insert(ORIGINAL_USER_INFO.to_owned(), vec![info]);
    }
    let read = intake(&mut written).expect("there is a user name").expect("somebody is impersonated");
    assert_eq!(read, expected);
    assert_eq!(&written, headers);
}

fn is_plain(key: &str) -> bool {
    key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"/-._".contains(&b))
}

fn assert_json(user: &User, json: &str) {
    let read: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
    let of = |key: &str| read[key].as_str().unwrap_or_default().to_owned();
    assert_eq!((of("username"), of("uid")), (user.name.clone(), user.uid.clone()));
    assert_eq!(read["groups"].as_array().map_or(0, Vec::len), user.groups.len());
    assert_eq!(read["extra"].as_object().map_or(0, serde_json::Map::len), user.extra.len());
    for (group, wanted) in read["groups"].as_array().into_iter().flatten().zip(&user.groups) {
        assert_eq!(group.as_str(), Some(wanted.as_str()));
    }
}
