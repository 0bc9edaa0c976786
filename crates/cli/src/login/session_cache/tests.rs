//! Tests of the format, and of the removal of expired tokens and unused sessions.

use serde_json::json;

use super::*;

const NOW: &str = "2026-11-21T10:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn time(text: &str) -> Option<Time> {
    Some(Time(at(text)))
}

fn key() -> SessionKey {
    SessionKey {
        issuer: "https://issuer.example.com".into(),
        client_id: "pinniped-cli".into(),
        scopes: ["groups", "offline_access", "openid"].map(str::to_owned).to_vec(),
        redirect_uri: "http://localhost:0/callback".into(),
        upstream_provider_name: String::new(),
    }
}

fn tokens(expiry: &str) -> Tokens {
    let claims = json!({
        "aud": "pinniped-cli", "exp": 1_795_257_000, "groups": ["a", "b"], "sub": "0123", "email_verified": true,
    });
    Tokens {
        access: Some(AccessToken { token: "access".into(), type_: "Bearer".into(), expiry: time(expiry) }),
        id: Some(IdToken {
            token: "eyJh.eyJp.c2ln".into(),
            expiry: time(expiry),
            claims: claims.as_object().unwrap().clone(),
        }),
        refresh: Some(RefreshToken { token: "refresh".into() }),
    }
}

#[test]
fn the_file_format_equals_that_of_upstream() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pinniped").join("sessions.yaml");
    let cache = SessionCache::new(&path);
    assert_eq!(cache.get(&key(), at(NOW)).unwrap(), None);
    assert!(!path.parent().unwrap().exists(), "a read of nothing must leave nothing");

    let stored = tokens("2026-11-21T10:30:00Z");
    cache.put(&key(), &stored, at(NOW)).unwrap();
    let other = SessionKey { upstream_provider_name: "some-idp".into(), ..key() };
    let only_refresh = Tokens { refresh: Some(RefreshToken { token: "other".into() }), ..Tokens::default() };
    cache.put(&other, &only_refresh, at("2026-11-21T10:00:01Z")).unwrap();
    assert_eq!(cache.get(&key(), at("2026-11-21T10:01:00Z")).unwrap(), Some(stored));
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        r#"apiVersion: config.supervisor.pinniped.dev/v1alpha1
kind: SessionCache
sessions:
- creationTimestamp: "2026-11-21T10:00:00Z"
  key:
    clientID: pinniped-cli
    issuer: https://issuer.example.com
    redirect_uri: http://localhost:0/callback
    scopes:
    - groups
    - offline_access
    - openid
  lastUsedTimestamp: "2026-11-21T10:01:00Z"
  tokens:
    access:
      expiryTimestamp: "2026-11-21T10:30:00Z"
      token: access
      type: Bearer
    id:
      claims:
        aud: pinniped-cli
        email_verified: true
        exp: 1795257000
        groups:
        - a
        - b
        sub: "0123"
      expiryTimestamp: "2026-11-21T10:30:00Z"
      token: eyJh.eyJp.c2ln
    refresh:
      token: refresh
- creationTimestamp: "2026-11-21T10:00:01Z"
  key:
    clientID: pinniped-cli
    issuer: https://issuer.example.com
    redirect_uri: http://localhost:0/callback
    scopes:
    - groups
    - offline_access
    - openid
    upstream_provider_name: some-idp
  lastUsedTimestamp: "2026-11-21T10:00:01Z"
  tokens:
    refresh:
      token: other
"#
    );
}

#[test]
fn all_parts_of_the_key_have_to_match() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
    assert!(cache.get(&key(), at(NOW)).unwrap().is_some());
    for other in [
        SessionKey { issuer: "https://issuer.example.com/".into(), ..key() },
        SessionKey { client_id: "other".into(), ..key() },
        SessionKey { scopes: vec!["openid".into()], ..key() },
        SessionKey { redirect_uri: "http://localhost:1/callback".into(), ..key() },
        SessionKey { upstream_provider_name: "idp".into(), ..key() },
    ] {
        assert_eq!(cache.get(&other, at(NOW)).unwrap(), None, "{other:?}");
        assert_ne!(other.digest(), key().digest());
    }
}

#[test]
fn expired_tokens_and_unused_sessions_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
    let later = cache.get(&key(), at("2026-11-21T10:30:01Z")).unwrap().unwrap();
    assert_eq!(
        later,
        Tokens { refresh: Some(RefreshToken { token: "refresh".into() }), ..Tokens::default() }
    );
    assert!(cache.get(&key(), at("2027-02-19T10:30:01Z")).unwrap().is_some(), "90 days");
    assert!(cache.get(&key(), at("2027-05-20T10:30:02Z")).unwrap().is_none(), "90 days and a second");

    let without_expiry = Tokens {
        id: Some(IdToken { token: "t".into(), expiry: None, claims: Map::new() }),
        refresh: Some(RefreshToken { token: SecretString::default() }),
        ..Tokens::default()
    };
    cache.put(&key(), &without_expiry, at(NOW)).unwrap();
    assert_eq!(cache.get(&key(), at(NOW)).unwrap(), None);
    let empty = "apiVersion: config.supervisor.pinniped.dev/v1alpha1\nkind: SessionCache\nsessions: []\n";
    assert_eq!(std::fs::read_to_string(cache.path()).unwrap(), empty);
}

#[test]
fn an_unreadable_file_is_reported_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    for text in ["garbage: [", "invalid yaml", "apiVersion: v2\nkind: SessionCache\n", "- 1\n", "\u{0}"] {
        std::fs::write(cache.path(), text).unwrap();
        let error = cache.get(&key(), at(NOW)).unwrap_err();
        assert!(matches!(error, CacheFileError::Replaced { .. }), "{text:?}: {error}");
        assert_eq!(cache.get(&key(), at(NOW)).unwrap(), None, "{text:?}");
        cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
        assert!(cache.get(&key(), at(NOW)).unwrap().is_some(), "{text:?}");
    }
    // The other cache has another kind.
    let credentials = super::super::exec_cache::ExecCache::new(cache.path());
    assert_eq!(credentials.get("k", at(NOW)), None);
}

#[test]
fn a_file_that_is_not_a_cache_is_not_changed_by_a_read_or_a_removal() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    for (text, problem) in [
        ("Dear diary", "it is not a cache file"),
        ("apiVersion: v2\nkind: SessionCache\n", "it has another version or kind"),
    ] {
        std::fs::write(cache.path(), text).unwrap();
        for error in [
            cache.take(&key(), at(NOW)).unwrap_err(),
            cache.take_all(at(NOW)).unwrap_err(),
            cache.peek(&key(), at(NOW)).unwrap_err(),
        ] {
            let path = cache.path().display();
            let expected = format!("{path} cannot be used as a cache, and stays as it is: {problem}");
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(std::fs::read_to_string(cache.path()).unwrap(), text);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no lock file");
}

#[cfg(unix)]
#[test]
fn a_read_waits_for_the_lock_and_changes_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("pinniped/s.yaml"));
    assert_eq!(cache.peek(&key(), at(NOW)).unwrap(), None);
    assert_eq!(cache.take(&key(), at(NOW)).unwrap(), None);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
    // Another program writes, and does not replace the file in one step.
    let lock_path = dir.path().join("pinniped/s.yaml.lock");
    let lock = std::fs::File::open(&lock_path).unwrap();
    lock.lock().unwrap();
    let text = std::fs::read(cache.path()).unwrap();
    std::fs::write(cache.path(), "").unwrap();
    std::thread::scope(|scope| {
        let (cache, (result, results)) = (&cache, std::sync::mpsc::channel());
        scope.spawn(move || result.send(cache.peek(&key(), at(NOW)).unwrap()).unwrap());
        // Without the lock, the result would be there at once.
        let early = results.recv_timeout(std::time::Duration::from_millis(200));
        assert_eq!(early, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
        std::fs::write(cache.path(), text).unwrap();
        drop(lock);
        assert!(results.recv().unwrap().is_some());
    });
    std::fs::remove_file(lock_path).unwrap();
    let set = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let folder = dir.path().join("pinniped");
    set(&folder, 0o755);
    for (mode, is_read) in [(0o644, true), (0o666, false)] {
        set(cache.path(), mode);
        match cache.peek(&key(), at(NOW)) {
            Ok(found) => assert!(is_read && found.is_some()),
            Err(error) => assert!(!is_read && error.to_string().ends_with("other users could write to it")),
        }
        let found = [cache.path(), &folder].map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
        assert_eq!(found, [mode, 0o755]);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no lock file");
}

#[test]
fn an_audience_may_be_one_of_several() {
    for (aud, expected) in [
        (json!("a"), true),
        (json!("b"), false),
        (json!(["b", "a"]), true),
        (json!(["b"]), false),
        (json!(null), false),
        (json!({"a": "a"}), false),
    ] {
        let claims = json!({ "aud": aud }).as_object().unwrap().clone();
        let id = Some(IdToken { token: "t".into(), expiry: None, claims });
        assert_eq!(Tokens { id, ..Tokens::default() }.has_audience("a"), expected, "{aud}");
    }
    assert!(!Tokens::default().has_audience(""));
}

#[test]
fn no_token_is_printed_for_debugging() {
    let text = format!("{:?}", tokens(NOW));
    assert!(!text.contains("access\"") && !text.contains("eyJh") && !text.contains("refresh\""), "{text}");
}

#[test]
fn a_removal_of_nothing_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    for stored in [false, true] {
        let text = match stored {
            false => String::new(),
            true => {
                cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
                std::fs::remove_file(dir.path().join("s.yaml.lock")).unwrap();
                std::fs::read_to_string(cache.path()).unwrap()
            }
        };
        std::fs::write(cache.path(), &text).unwrap();
        let other = SessionKey { client_id: "other".into(), ..key() };
        assert_eq!(cache.take(&other, at(NOW)).unwrap(), None);
        if !stored {
            assert_eq!(cache.take_all(at(NOW)).unwrap(), []);
        }
        assert_eq!(std::fs::read_to_string(cache.path()).unwrap(), text);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no lock file");
    }
}

#[cfg(unix)]
#[test]
fn a_removal_empties_a_cache_that_others_could_write_but_no_other_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let cache = SessionCache::new(dir.path().join("s.yaml"));
    let set = || std::fs::set_permissions(cache.path(), std::fs::Permissions::from_mode(0o660)).unwrap();
    let mode = || cache.path().metadata().unwrap().permissions().mode() & 0o777;
    for all in [false, true] {
        cache.put(&key(), &tokens("2026-11-21T10:30:00Z"), at(NOW)).unwrap();
        set();
        let error = match all {
            false => cache.take(&SessionKey { client_id: "other".into(), ..key() }, at(NOW)).unwrap_err(),
            true => cache.take_all(at(NOW)).unwrap_err(),
        };
        let expected = format!(
            "{} was emptied, and nothing was revoked: other users could write to it; end your sessions at the \
             issuer, and log in again",
            cache.path().display()
        );
        assert_eq!((error.to_string(), mode()), (expected, 0o600));
        assert!(std::fs::read_to_string(cache.path()).unwrap().ends_with("sessions: []\n"));
    }
    for text in ["", "Dear diary"] {
        std::fs::write(cache.path(), text).unwrap();
        set();
        assert_eq!(cache.take_all(at(NOW)).is_err(), !text.is_empty());
        assert_eq!((std::fs::read_to_string(cache.path()).unwrap().as_str(), mode()), (text, 0o660));
    }
}
