use pinniped_delegation::grants::SecretReference;
use serde_json::json;

use super::mirror_updater::FORGET_AFTER;
use super::*;
use pinniped_controller::follow::Refusal;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn inside(names: &[&str]) -> Scope {
    Scope::Namespaces(names.iter().map(|&name| name.to_owned()).collect())
}

#[test]
fn secrets_are_read_in_root_namespaces_and_where_an_administrator_configures_them() {
    let fallback = Some(SecretReference::parse("certs/fb", ""));
    let client = Some(SecretReference::parse("own/client", ""));
    for (roots, watched, fallback, client, secrets, grants) in [
        (&[][..], &[][..], None, None, Scope::Everywhere, Scope::Everywhere),
        (&[], &[], fallback.clone(), client.clone(), Scope::Everywhere, Scope::Everywhere),
        (&["a", "b"], &[], None, None, inside(&["a", "b"]), Scope::Everywhere),
        (&["a", "b"], &[], fallback.clone(), None, inside(&["a", "b", "certs"]), Scope::Everywhere),
        (&[], &["a", "c"], None, client, inside(&["a", "c", "own"]), inside(&["a", "c"])),
        (&["a", "b"], &["a", "c"], None, None, inside(&["a"]), inside(&["a", "c"])),
        (&[], &["a"], fallback, None, inside(&["a", "certs"]), inside(&["a", "certs"])),
    ] {
        let settings = Settings {
            root_namespaces: names(roots),
            fallback_certificate: fallback,
            client_certificate: client,
            ..Settings::default()
        };
        let watched = names(watched);
        assert_eq!(secrets_scope(&settings, &watched), secrets, "{settings:?} {watched:?}");
        assert_eq!(grants_scope(&settings, &watched), grants, "{settings:?} {watched:?}");
    }
}

fn updater<K>() -> (MirrorUpdater<K>, Arc<Mirror<K>>) {
    let mirror = Arc::new(Mirror::default());
    let updater = MirrorUpdater {
        mirror: Arc::clone(&mirror),
        listeners: Listeners { changes: Arc::default(), statuses: Trigger::new() },
        log: WatchLog::new("x"),
        responded: watch::Sender::new(false),
    };
    (updater, mirror)
}

fn grant() -> TlsCertificateDelegation {
    let spec = json!({"delegations": [{"secretName": "w", "targetNamespaces": ["app"]}]});
    serde_json::from_value(json!({"metadata": {"name": "d", "namespace": "certs"}, "spec": spec})).unwrap()
}

fn refused<K>(missing: bool) -> Change<K> {
    Change::Refused(Refusal { missing, text: "no".to_owned() })
}

#[tokio::test(start_paused = true)]
async fn grants_are_removed_after_a_lasting_refusal_but_not_after_a_temporary_one() {
    let (mut updater, mirror) = updater();
    updater.take(Change::All(vec![grant()]));
    updater.take(Change::Failing("the network".to_owned()));
    updater.take(refused(false));
    tokio::time::advance(FORGET_AFTER / 2).await;
    updater.take(refused(false));
    assert_eq!(mirror.all().len(), 1);
    // The refusal was temporary.
    updater.take(Change::All(vec![grant()]));
    tokio::time::advance(FORGET_AFTER).await;
    updater.take(refused(false));
    assert_eq!(mirror.all().len(), 1);
    tokio::time::advance(FORGET_AFTER).await;
    updater.take(refused(false));
    assert!(mirror.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn routes_stay_without_the_permission_to_read_them_until_their_kind_is_uninstalled() {
    let (mut updater, mirror) = updater::<HttpProxy>();
    let proxy = json!({"metadata": {"name": "p", "namespace": "app"}, "spec": {}});
    updater.take(Change::All(vec![serde_json::from_value(proxy).unwrap()]));
    for _ in 0..3 {
        updater.take(refused(false));
        tokio::time::advance(FORGET_AFTER).await;
    }
    assert_eq!(mirror.all().len(), 1);
    updater.take(refused(true));
    assert!(mirror.all().is_empty());
}

#[tokio::test]
async fn a_refusal_completes_the_first_list_and_a_failure_does_not() {
    for (change, wanted) in [
        (refused(false), true),
        (refused(true), true),
        (Change::All(Vec::new()), true),
        (Change::Failing("the network".to_owned()), false),
    ] {
        let (mut updater, _) = updater::<Secret>();
        updater.take(change);
        assert_eq!(*updater.responded.borrow(), wanted);
    }
}
