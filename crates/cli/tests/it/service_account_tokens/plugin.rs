//! The plugin: it returns a token only to callers that send its headers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{World, certificate, in_seconds, pinny, plugin_args, token, token_for, user_entry};
use crate::support::{Home, ReceivedResponse, Server};

const REFUSED: &str = "this cluster requires impersonation headers, which this kubectl does not support; ";
const CHANGED: &str = "your identity or group membership changed; kubeconfig updated, please re-run";

#[test]
fn the_first_run_records_the_identity_and_the_second_run_prints_the_token() {
    let world = World::start();
    let (home, path) = world.home(&["--impersonation-delivery=kubeconfig"]);
    let recorded = format!("identity recorded in {}; please re-run the command", path.display());
    assert_eq!(token(&home.run(&plugin_args(&path))), Err(recorded));
    let entry = user_entry(&path);
    assert_eq!((&entry["as"], &entry["as-groups"]), (&json!("pinny"), &json!(["a"])));
    assert_eq!(token(&home.run(&plugin_args(&path))), Ok("sa-token".into()));
    assert_eq!(world.logins(), 1, "the first login was kept");
    let request: Value = serde_json::from_str(&world.server.seen()[0].body).unwrap();
    assert_eq!(request["spec"]["acceptCredentialTypes"], json!(["ServiceAccountToken"]));

    // A different group membership is a different identity: its token must not be used with the
    // recorded one.
    world.responds_with(token_for(&pinny(&["a", "b"])));
    std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
    assert_eq!(token(&home.run(&plugin_args(&path))), Err(CHANGED.into()));
    assert_eq!(user_entry(&path)["as-groups"], json!(["a", "b"]));
    assert_eq!(token(&home.run(&plugin_args(&path))), Ok("sa-token".into()));
    assert_eq!(world.logins(), 2);
}

#[test]
fn a_kubeconfig_that_kubectl_was_given_by_its_flag_is_found() {
    let world = World::start();
    let (mut home, path) = world.home(&[]);
    let list = home.path().join("none");
    home.set("KUBECONFIG", list.to_str().unwrap());
    // The parent process of the plugin has kubectl's flag.
    let script = home.write("kubectl", "shift 2; \"$@\"; exit $?\n");
    let words = ["/bin/sh", script.to_str().unwrap(), "--kubeconfig", path.to_str().unwrap()];
    let run = home.run_program(&words, &plugin_args(&path));
    if cfg!(target_os = "linux") {
        assert_eq!(
            token(&run),
            Err(format!("identity recorded in {}; please re-run the command", path.display()))
        );
        assert_eq!(user_entry(&path)["as"], "pinny");
    }
}

#[test]
fn other_deliveries_report_the_alternative() {
    let world = World::start();
    for (delivery, way) in [
        ("wrapper", "run `pinniped kubectl -- ARGS` instead of `kubectl ARGS`"),
        ("proxy", "run `pinniped proxy` and use the kubeconfig that it prints"),
        (
            "exec-headers",
            "get another kubeconfig with --impersonation-delivery kubeconfig, wrapper or proxy (a kubectl that sends the requestHeaders of its plugin sets PINNIPED_EXEC_REQUEST_HEADERS=true)",
        ),
    ] {
        let (home, path) = world.home(&[&format!("--impersonation-delivery={delivery}")]);
        let before = std::fs::read_to_string(&path).unwrap();
        // Once from a fresh login, once from the cache.
        for _ in 0..2 {
            assert_eq!(token(&home.run(&plugin_args(&path))), Err(format!("{REFUSED}{way}")), "{delivery}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    }
    assert_eq!(world.logins(), 3);
}

#[test]
fn headers_are_returned_to_callers_that_send_them() {
    let world = World::start();
    world.responds_with(token_for(&json!({
        "username": "Zoë", "uid": "u1", "groups": ["a", "b c"], "extra": {"example.com/k": ["v", "w"]},
    })));
    let (mut home, path) = world.home(&["--impersonation-delivery=exec-headers"]);
    home.set("PINNIPED_EXEC_REQUEST_HEADERS", "yes");
    assert!(token(&home.run(&plugin_args(&path))).unwrap_err().starts_with(REFUSED));
    home.set("PINNIPED_EXEC_REQUEST_HEADERS", "true");
    let run = home.run(&plugin_args(&path));
    let response: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(response["status"]["token"], "sa-token");
    assert_eq!(
        response["status"]["requestHeaders"],
        json!({
            "Impersonate-User": ["Zoë"],
            "Impersonate-Uid": ["u1"],
            "Impersonate-Group": ["a", "b c"],
            "Impersonate-Extra-example.com%2Fk": ["v", "w"],
        })
    );
    assert_eq!(run.stdout.lines().count(), 1, "{run:?}");
    let kept = std::fs::read_to_string(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
    assert!(kept.contains("impersonate:") && !kept.contains("requestHeaders"), "{kept}");
}

#[test]
fn for_a_read_only_kubeconfig_the_error_contains_flags() {
    let world = World::start();
    let (mut home, path) = world.home(&[]);
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    let error = token(&home.run(&plugin_args(&path))).unwrap_err();
    let (before, after) = error.split_once("PINNIPED_EXPECTED_IDENTITY=").unwrap();
    assert_eq!(
        before,
        format!(
            "this cluster requires impersonation headers, and the identity to impersonate could not be written to the kubeconfig: {} is read-only; run kubectl with ",
            path.display()
        )
    );
    let (digest, flags) = after.split_once(" in its environment and with these flags: ").unwrap();
    assert_eq!(flags, "--as=pinny --as-group=a");
    home.set("PINNIPED_EXPECTED_IDENTITY", digest);
    assert_eq!(token(&home.run(&plugin_args(&path))), Ok("sa-token".into()));

    // Flags for another user are refused like missing flags.
    home.set("PINNIPED_EXPECTED_IDENTITY", &"0".repeat(64));
    assert!(token(&home.run(&plugin_args(&path))).unwrap_err().contains("--as=pinny --as-group=a"));
    home.set("PINNIPED_EXPECTED_IDENTITY", "pinny");
    assert_eq!(
        token(&home.run(&plugin_args(&path))),
        Err("PINNIPED_EXPECTED_IDENTITY: an identity is written as 64 hexadecimal digits in lower case"
            .into())
    );

    // The same without any kubeconfig.
    let home = Home::new();
    let error = token(&home.run(&world.args(&[]))).unwrap_err();
    assert!(error.contains("no kubeconfig with this login was found in "), "{error}");
    assert!(error.ends_with("--as=pinny --as-group=a"), "{error}");
}

#[test]
fn two_concurrent_first_runs_record_one_identity() {
    let world = World::start();
    let (home, path) = world.home(&[]);
    let args = plugin_args(&path);
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| token(&home.run(&args)))).collect();
        for run in runs {
            let error = run.join().unwrap().unwrap_err();
            assert!(error.starts_with(&format!("identity recorded in {}", path.display())), "{error}");
            assert!(error.contains("please re-run the command"), "{error}");
        }
    });
    let args = plugin_args(&path);
    assert_eq!(args.iter().filter(|arg| arg.starts_with("--expected-identity=")).count(), 1);
    assert_eq!(token(&home.run(&args)), Ok("sa-token".into()));
    assert!(!home.path().join("config.lock").exists());
}

#[test]
fn a_program_that_watches_the_kubeconfig_never_reads_an_incomplete_one() {
    let world = World::start();
    let (home, path) = world.home(&["--impersonation-delivery=kubeconfig"]);
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = BTreeSet::new();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !stop.load(Ordering::SeqCst) && Instant::now() < deadline {
                let entry = user_entry(&path);
                assert!(entry["exec"]["command"].is_string(), "{entry}");
                seen.insert(entry["as-groups"].to_string());
            }
            seen
        });
        for group in ["a", "b", "c", "d", "e"] {
            world.responds_with(token_for(&pinny(&[group])));
            let _ = std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml"));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| home.run(&plugin_args(&path)));
                }
            });
            assert_eq!(user_entry(&path)["as-groups"], json!([group]));
            assert_eq!(token(&home.run(&plugin_args(&path))), Ok("sa-token".into()));
        }
        stop.store(true, Ordering::SeqCst);
        watcher.join().unwrap()
    });
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn a_certificate_is_accepted_for_any_requested_type() {
    let world = World::start();
    let (home, path) = world.home(&[]);
    token(&home.run(&plugin_args(&path))).unwrap_err();
    // An upstream server, which only issues certificates. A kubeconfig that impersonates would be
    // refused with a certificate.
    world.responds_with(certificate());
    std::fs::remove_file(home.path().join(".config/pinniped/credentials.yaml")).unwrap();
    assert_eq!(
        token(&home.run(&plugin_args(&path))),
        Err("the cluster does not need impersonation headers any more; kubeconfig updated, please re-run"
            .into())
    );
    let entry = user_entry(&path);
    assert_eq!((entry.get("as"), entry.get("as-groups")), (None, None));
    let run = home.run(&plugin_args(&path));
    let response: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(response["status"]["clientCertificateData"], "cert\n", "{run:?}");
}

#[test]
fn responses_with_a_token_but_no_user_are_refused() {
    const PREFIX: &str = "could not complete Concierge credential exchange: login failed: ";
    let world = World::start();
    let (home, path) = world.home(&[]);
    let bare = json!({"credential": {"token": "sa-token", "expirationTimestamp": in_seconds(300)}});
    let nobody = token_for(&json!({"username": "", "groups": ["a"]}));
    let many: Vec<String> = (0..2000).map(|n| format!("a-group-with-a-rather-long-name-{n:06}")).collect();
    let bytes =
        2000 * ("Impersonate-Group: \r\n".len() + many[0].len()) + "Impersonate-User: pinny\r\n".len();
    for (status, error) in [
        (bare, "the Concierge returned a service account token, but not the user to impersonate with it".to_owned()),
        (nobody, "the Concierge returned a service account token, but not the user to impersonate with it".to_owned()),
        (
            token_for(&json!({"username": "pinny", "groups": many})),
            format!("the impersonation headers of this user would be {bytes} bytes, more than the limit of 65536 (2000 groups)"),
        ),
        (
            token_for(&pinny(&["a\nImpersonate-Group: system:masters"])),
            "the user name, UID, a group or an extra value contains characters that are not valid in an HTTP header".to_owned(),
        ),
        (
            json!({"message": "authentication failed"}),
            "authentication failed; if your token is good, retry in a few seconds: the cluster may still be setting up your service account".to_owned(),
        ),
    ] {
        world.responds_with(status);
        assert_eq!(token(&home.run(&plugin_args(&path))), Err(format!("{PREFIX}{error}")));
    }
    assert!(!home.path().join(".config/pinniped/credentials.yaml").exists());

    // A token is refused for a login that did not request one.
    world.responds_with(token_for(&pinny(&["a"])));
    let mut args = plugin_args(&path);
    args.retain(|arg| !arg.starts_with("--concierge-credential-type"));
    args.push("--impersonation-delivery=proxy".into());
    assert!(token(&home.run(&args)).unwrap_err().starts_with(REFUSED));
}

#[test]
fn a_cache_entry_without_the_user_is_not_used() {
    let world = World::start();
    let (home, path) = world.home(&[]);
    token(&home.run(&plugin_args(&path))).unwrap_err();
    let file = home.path().join(".config/pinniped/credentials.yaml");
    let kept = std::fs::read_to_string(&file).unwrap();
    // The result of a program that drops the unknown field when it rewrites the file.
    let mut document: Value = serde_saphyr::from_str(&kept).unwrap();
    document["credentials"][0].as_object_mut().unwrap().remove("impersonate").unwrap();
    std::fs::write(&file, document.to_string()).unwrap();
    let mut args = plugin_args(&path);
    args.retain(|arg| !arg.starts_with("--expected-identity="));
    assert_ne!(token(&home.run(&args)), Ok("sa-token".into()));
    assert_eq!(world.logins(), 2);
}

#[test]
fn an_expiring_token_is_returned_and_renewed_in_the_background() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(move |_| {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        ReceivedResponse::json(&json!({"kind": "TokenCredentialRequest", "status": {
            "credential": {"token": format!("token {number}"), "expirationTimestamp": in_seconds(30)},
            "impersonate": {"username": "pinny"},
        }}))
        .with_status(201)
    });
    let world = World { server, status: Default::default() };
    let (home, path) = world.home(&[]);
    token(&home.run(&plugin_args(&path))).unwrap_err();
    let before = std::fs::read_to_string(&path).unwrap();
    assert_eq!(token(&home.run(&plugin_args(&path))), Ok("token 0".into()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while token(&home.run(&plugin_args(&path))) == Ok("token 0".into()) {
        assert!(Instant::now() < deadline, "the token was not renewed");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before, "renewals leave the kubeconfig alone");
}
