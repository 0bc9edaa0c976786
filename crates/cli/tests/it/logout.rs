//! `logout`.

use serde_json::{Value, json};

use crate::oidc::browser::Desktop;
use crate::oidc::flows::token;
use crate::oidc::issuer::{Issuer, Settings};
use crate::support::{Home, Run, plugin_kubeconfig};

const SESSIONS: &str = ".config/pinniped/sessions.yaml";
const CREDENTIALS: &str = ".config/pinniped/credentials.yaml";

/// A desktop with a kubeconfig for a user of the issuer, who has logged in.
fn logged_in(issuer: &Issuer) -> Desktop {
    let mut desktop = Desktop::new();
    // Without information about the cluster, so that a run of the plugin alone is that of kubectl.
    let config = plugin_kubeconfig("https://127.0.0.1:1", "", &issuer.args(&[]));
    let config = config.replace("\"provideClusterInfo\":true", "\"provideClusterInfo\":false");
    let path = desktop.home.write("config", &config);
    desktop.home.set("KUBECONFIG", path.to_str().unwrap());
    token(&desktop.log_in(issuer, &issuer.args(&[])));
    for file in [SESSIONS, CREDENTIALS] {
        assert_eq!(entries(&desktop, file), 1);
    }
    desktop
}

fn entries(desktop: &Desktop, file: &str) -> usize {
    let document: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(desktop.file(file)).unwrap()).unwrap();
    let list = document.get("sessions").or(document.get("credentials")).unwrap();
    list.as_array().unwrap().len()
}

fn prints(run: &Run, text: &str) {
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, text, ""), "{run:?}");
}

#[test]
fn a_session_is_removed_and_its_refresh_token_revoked_if_the_issuer_offers_it() {
    for (revocation, result) in [
        (Some(200), "its refresh token is revoked"),
        (None, "the issuer does not offer to revoke its refresh token"),
        (
            Some(503),
            "its refresh token could not be revoked: the issuer responded with 503 Service Unavailable",
        ),
    ] {
        let issuer = Issuer::start(Settings { revocation, ..Settings::default() });
        let desktop = logged_in(&issuer);
        let url = issuer.server.url();
        let run = desktop.home.run(&["logout"]);
        prints(
            &run,
            &format!("removed the cached session of {url}; {result}\nremoved cached credentials: 1\n"),
        );
        assert_eq!(issuer.refresh_tokens().is_empty(), revocation == Some(200), "{revocation:?}");
        for file in [SESSIONS, CREDENTIALS] {
            assert_eq!(entries(&desktop, file), 0, "{file}");
        }
        let run = desktop.home.run(&["logout"]);
        prints(&run, "nothing to remove: there is no session and no cached credential\n");
        // The next login needs the user.
        token(&desktop.log_in(&issuer, &issuer.args(&[])));
        assert_eq!(desktop.opened().len(), 2);
    }
}

#[test]
fn an_issuer_that_does_not_respond_does_not_prevent_the_removal() {
    let issuer = Issuer::start(Settings::default());
    let desktop = logged_in(&issuer);
    let url = issuer.server.url();
    drop(issuer);
    let run = desktop.home.run(&["logout"]);
    assert_eq!(run.code, 0, "{run:?}");
    let failed = format!(
        "removed the cached session of {url}; its refresh token could not be revoked: could not perform OIDC discovery for"
    );
    assert!(run.stdout.starts_with(&failed), "{run:?}");
    assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (0, 0));
}

#[test]
fn all_sessions_are_removed_also_those_of_no_context() {
    let (issuer, other) = (
        Issuer::start(Settings { revocation: Some(200), ..Settings::default() }),
        Issuer::start(Settings { revocation: Some(200), ..Settings::default() }),
    );
    let desktop = logged_in(&issuer);
    token(&desktop.log_in(&other, &other.args(&[])));
    let run = desktop.home.run(&["logout", "--all"]);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(
        lines[0],
        format!("removed the cached session of {}; its refresh token is revoked", issuer.server.url())
    );
    // The CA certificates of the other issuer are not known.
    let failed = format!(
        "removed the cached session of {}; its refresh token could not be revoked: ",
        other.server.url()
    );
    assert!(lines[1].starts_with(&failed), "{run:?}");
    assert_eq!(lines[2..], ["removed cached credentials: 2"]);
    assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (0, 0));
    desktop
        .home
        .run(&["logout", "--all", "--kubeconfig-context=c"])
        .fails_with("only one of --all and --kubeconfig-context can be specified");
}

#[test]
fn a_user_with_another_credential_cannot_log_out_and_a_token_in_the_kubeconfig_stays() {
    let mut home = Home::new();
    let args = ["login", "static", "--token=hush"].map(str::to_owned);
    let mut config: Value = serde_json::from_str(&plugin_kubeconfig("https://c", "", &args)).unwrap();
    config["users"].as_array_mut().unwrap().push(json!({"name": "admin", "user": {"token": "t"}}));
    let context = json!({"name": "admin", "context": {"cluster": "c", "user": "admin"}});
    config["contexts"].as_array_mut().unwrap().push(context);
    let path = home.write("config", &config.to_string());
    home.set("KUBECONFIG", path.to_str().unwrap());
    prints(
        &home.run(&["logout"]),
        "nothing to remove: there is no session and no cached credential\n\
         the token of user u is part of the kubeconfig, and stays valid\n",
    );
    home.run(&["logout", "--kubeconfig-context=admin"])
        .fails_with("user \"admin\" of context \"admin\" does not log in with this program");
    assert!(!home.path().join(".config").exists(), "no cache is created");
}

/// Adds a context whose user logs in at the issuer with these flags.
fn add_context(desktop: &Desktop, issuer: &Issuer, flags: &[&str]) {
    let path = desktop.home.path().join("config");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let mut user = config["users"][0].clone();
    user["name"] = json!("more");
    user["user"]["exec"]["args"] = json!(issuer.args(flags));
    config["users"].as_array_mut().unwrap().push(user);
    let context = json!({"name": "more", "context": {"cluster": "c", "user": "more"}});
    config["contexts"].as_array_mut().unwrap().push(context);
    std::fs::write(&path, config.to_string()).unwrap();
}

#[test]
fn tokens_are_revoked_and_reported_also_if_another_cache_cannot_be_changed() {
    for (flags, more_errors) in [(&["logout"][..], 0), (&["logout", "--all"], 1)] {
        let issuer = Issuer::start(Settings { revocation: Some(200), ..Settings::default() });
        let desktop = logged_in(&issuer);
        // A directory is no cache. Its name is after that of the other cache.
        for (flag, name) in [("--credential-cache", "zzz-credentials"), ("--session-cache", "zzz-sessions")] {
            let cache = desktop.home.path().join(name);
            std::fs::create_dir(&cache).unwrap();
            add_context(&desktop, &issuer, &[&format!("{flag}={}", cache.display())]);
        }
        let run = desktop.home.run(flags);
        let removed = format!(
            "removed the cached session of {}; its refresh token is revoked\nremoved cached credentials: 1\n",
            issuer.server.url()
        );
        assert_eq!((run.code, run.stdout.as_str()), (1, removed.as_str()), "{flags:?} {run:?}");
        assert!(run.last_error().unwrap().contains("zzz"), "{run:?}");
        let also =
            run.log().iter().filter(|line| line.contains("a part of the login could not be removed")).count();
        assert_eq!(also, more_errors, "{run:?}");
        assert_eq!(issuer.refresh_tokens(), [""; 0], "{flags:?}");
    }
}

#[test]
fn a_file_that_is_not_a_cache_stays_as_it_is() {
    let issuer = Issuer::start(Settings::default());
    let desktop = logged_in(&issuer);
    let file = desktop.home.write("diary", "Dear diary");
    add_context(&desktop, &issuer, &[&format!("--session-cache={}", file.display())]);
    let error =
        format!("{} cannot be used as a cache, and stays as it is: it is not a cache file", file.display());
    for flags in [&["logout", "--kubeconfig-context=more"][..], &["logout", "--all"]] {
        let run = desktop.home.run(flags);
        assert_eq!((run.code, run.last_error()), (1, Some(error.as_str())), "{run:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "Dear diary");
        assert!(!desktop.home.path().join("diary.lock").exists());
    }
    assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (0, 0));
}

#[test]
fn nothing_is_removed_if_a_kubeconfig_that_is_named_or_exists_cannot_be_loaded() {
    let issuer = Issuer::start(Settings { revocation: Some(200), ..Settings::default() });
    let mut desktop = logged_in(&issuer);
    let broken = desktop.home.write("broken", "users: [");
    let flag = format!("--kubeconfig={}", broken.display());
    for (flags, error) in [
        (&["logout", "--all", "--kubeconfig=typo"][..], "stat typo: no such file or directory"),
        (&["logout", "--all", &flag], "error loading config file "),
    ] {
        let run = desktop.home.run(flags);
        assert!(run.code == 1 && run.last_error().unwrap().starts_with(error), "{run:?}");
        assert!(run.stderr.contains("--kubeconfig=/dev/null"), "{run:?}");
        assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (1, 1));
    }
    let list = std::env::join_paths([&desktop.home.path().join("config"), &broken]).unwrap();
    desktop.home.set("KUBECONFIG", list.to_str().unwrap());
    assert_eq!(desktop.home.run(&["logout", "--all"]).code, 1);
    desktop.home.set("KUBECONFIG", desktop.home.path().join("typo").to_str().unwrap());
    assert_eq!(desktop.home.run(&["logout", "--all"]).code, 1);
    assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (1, 1));
}

#[test]
fn all_sessions_are_removed_without_a_kubeconfig() {
    for flags in [&["logout", "--all"][..], &["logout", "--all", "--kubeconfig=/dev/null"]] {
        let issuer = Issuer::start(Settings::default());
        let mut desktop = logged_in(&issuer);
        desktop.home.set("KUBECONFIG", "");
        let run = desktop.home.run(flags);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
        assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (0, 0));
    }
}

#[test]
fn caches_of_invalid_logins_are_cleared_too() {
    let issuer = Issuer::start(Settings::default());
    let mut desktop = logged_in(&issuer);
    let moved = [("--session-cache", SESSIONS), ("--credential-cache", CREDENTIALS)].map(|(flag, file)| {
        let path = desktop.home.path().join(flag);
        std::fs::rename(desktop.file(file), &path).unwrap();
        (format!("{flag}={}", path.display()), path)
    });
    let args = ["login", "oidc", "--no-such-flag", &moved[0].0, &moved[1].0].map(str::to_owned);
    let path = desktop.home.write("invalid", &plugin_kubeconfig("https://c", "", &args));
    desktop.home.set("KUBECONFIG", path.to_str().unwrap());
    let run = desktop.home.run(&["logout", "--all"]);
    assert!(run.code == 0 && run.stdout.ends_with("\nremoved cached credentials: 1\n"), "{run:?}");
    for (_, path) in &moved {
        assert!(std::fs::read_to_string(path).unwrap().contains(": []\n"), "{path:?}");
    }
}

#[test]
fn a_cache_that_cannot_be_changed_is_reported_once() {
    let issuer = Issuer::start(Settings::default());
    let desktop = logged_in(&issuer);
    let cache = desktop.home.path().join("directory");
    std::fs::create_dir(&cache).unwrap();
    add_context(&desktop, &issuer, &[&format!("--credential-cache={}", cache.display())]);
    let run = desktop.home.run(&["logout", "--kubeconfig-context=more"]);
    assert_eq!((run.code, run.stderr.lines().count()), (1, 1), "{run:?}");
    assert_eq!((entries(&desktop, SESSIONS), entries(&desktop, CREDENTIALS)), (0, 0));
}
