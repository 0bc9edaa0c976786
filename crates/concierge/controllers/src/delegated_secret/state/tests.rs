use serde_json::json;

use super::*;

fn state() -> State {
    State::new("app".to_owned(), Some(SecretReference::parse("certs/w", "app")))
}

fn object(name: &str, secret: &str, targets: &[&str]) -> TlsCertificateDelegation {
    let spec = json!({"delegations": [{"secretName": secret, "targetNamespaces": targets}]});
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "certs"}, "spec": spec})).unwrap()
}

fn secret() -> Secret {
    serde_json::from_value(json!({"metadata": {"name": "w", "namespace": "certs"}})).unwrap()
}

fn missing<K>() -> Change<K> {
    Change::Refused(Refusal { missing: true, text: "404 page not found".to_owned() })
}

fn permission(state: &State) -> (Permission, bool) {
    let (access, settled) = state.current();
    (access.permission, settled)
}

/// Returns a state in which only the current API group is installed and has these objects.
fn with_grants(objects: Vec<TlsCertificateDelegation>) -> State {
    let mut state = state();
    state.apply_grants(DelegationGroup::Heptio, missing());
    state.apply_grants(DelegationGroup::Vmware, missing());
    state.apply_grants(DelegationGroup::ProjectContour, Change::All(objects));
    state
}

#[test]
fn nothing_is_denied_before_all_groups_have_responded() {
    let mut state = state();
    let unknown = |text: &str| (Permission::Unknown(text.into()), false);
    assert_eq!(permission(&state), unknown(NOT_READ_YET));
    state.apply_grants(DelegationGroup::ProjectContour, Change::All(Vec::new()));
    state.apply_grants(DelegationGroup::Vmware, missing());
    assert_eq!(permission(&state), unknown(NOT_READ_YET));
    state.apply_grants(DelegationGroup::Heptio, Change::Failing("no route".to_owned()));
    assert_eq!(permission(&state), unknown("no route"));
    state.apply_grants(DelegationGroup::Heptio, missing());
    assert_eq!(permission(&state), (Permission::Denied, true));
}

#[test]
fn a_grant_of_any_group_is_sufficient_before_the_others_respond() {
    for group in DelegationGroup::ALL {
        let mut state = state();
        state.apply_grants(group, Change::All(vec![object("d", "w", &["app"])]));
        assert!(state.permits(), "{group:?}");
    }
}

#[test]
fn grants_are_added_and_removed_by_object() {
    let mut state = with_grants(Vec::new());
    let mut is_permitted_after = |change| {
        state.apply_grants(DelegationGroup::ProjectContour, change);
        state.permits()
    };
    assert!(is_permitted_after(Change::Set(object("one", "w", &["app"]))));
    assert!(is_permitted_after(Change::Set(object("two", "w", &["app"]))));
    assert!(is_permitted_after(Change::Set(object("one", "w", &["other"]))));
    assert!(!is_permitted_after(Change::Gone(object("two", "w", &["app"]))));
    assert!(is_permitted_after(Change::Set(object("one", "w", &["*"]))));
    // An interruption revokes nothing; a deleted definition does.
    assert!(is_permitted_after(Change::Failing("no route".to_owned())));
    assert!(!is_permitted_after(missing()));
    assert!(is_permitted_after(Change::All(vec![object("one", "w", &["app"])])));
    assert!(!is_permitted_after(Change::All(Vec::new())));
}

#[test]
fn the_secret_is_the_last_received_one_and_is_dropped_with_the_permission() {
    let mut state = with_grants(vec![object("d", "w", &["app"])]);
    let unreadable = |text: &str| Permission::Unreadable(text.into());
    assert_eq!(permission(&state), (unreadable(NOT_READ_YET), false));
    state.apply_secret(Change::Failing("no route".to_owned()));
    assert_eq!(permission(&state), (unreadable("no route"), false));
    state.apply_secret(Change::Refused(Refusal { missing: false, text: "forbidden".to_owned() }));
    assert_eq!(permission(&state), (unreadable("forbidden"), true));
    state.apply_secret(Change::All(Vec::new()));
    assert_eq!(permission(&state), (Permission::Granted, true));
    assert!(state.current().0.secret.is_none());
    state.apply_secret(Change::Set(secret()));
    assert!(state.current().0.secret.is_some());
    state.apply_secret(Change::Failing("no route".to_owned()));
    assert!(state.current().0.secret.is_some(), "an interruption revokes nothing");

    state.apply_grants(DelegationGroup::ProjectContour, Change::All(Vec::new()));
    assert_eq!(permission(&state), (Permission::Denied, true));
    assert!(matches!(state.secret, SecretState::Pending), "the key is still in memory");
    state.apply_grants(DelegationGroup::ProjectContour, Change::Set(object("d", "w", &["app"])));
    assert_eq!(permission(&state), (unreadable(NOT_READ_YET), false));
    state.apply_secret(Change::Set(secret()));
    state.apply_secret(Change::Gone(secret()));
    assert_eq!(permission(&state), (Permission::Granted, true));
    assert!(state.current().0.secret.is_none());
}

#[test]
fn an_ineffective_wildcard_is_reported_once() {
    let group = DelegationGroup::ProjectContour;
    let mut state = with_grants(vec![object("d", "w", &["*", "x"])]);
    assert!(!state.permits());
    let warned = |state: &State| state.warned.get(&(group, "d".to_owned())).cloned();
    assert_eq!(warned(&state), Some(vec!["w".to_owned()]));
    state.apply_grants(group, Change::Set(object("d", "w", &["x"])));
    assert_eq!(warned(&state), None, "logged again if it comes back");
    state.apply_grants(group, Change::Set(object("d", "w", &["*", "x"])));
    state.apply_grants(group, Change::Gone(object("d", "w", &["*", "x"])));
    assert_eq!(warned(&state), None);
}
