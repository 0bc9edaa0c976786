//! `get kubeconfig --merge` and `--portable`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::{home_for, issuer, proxy_strategy, usual};
use crate::support::{Home, ReceivedResponse, Run, Server, admin_kubeconfig};

const TARGET: &str = "apiVersion: v1
kind: Config
# Mine.
clusters:
- name: other
  cluster: {server: 'https://other'} # do not touch
contexts:
- name: other
  context: {cluster: other, user: other}
current-context: other
users:
- name: other
  user: {token: hush}
";

fn get(home: &Home, flags: &[&str]) -> Run {
    let fixed = ["get", "kubeconfig", "--static-token-env=T", "--portable", "--timeout=30s"];
    home.run(&[&fixed[..], flags].concat())
}

/// Returns a home whose `~/.kube/config` has this content, and the path of the source kubeconfig.
fn home_with(text: &str, server: &Server) -> (Home, PathBuf, String) {
    let home = Home::new();
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    let target = home.write(".kube/config", text);
    let extra = format!("    certificate-authority-data: {}", server.ca_data());
    let source = home.write("admin.yaml", &admin_kubeconfig(&server.url(), &extra));
    (home, target, format!("--kubeconfig={}", source.display()))
}

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn parse(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn a_portable_kubeconfig_finds_the_command_in_path() {
    let server = usual().start();
    let run = get(&home_for(&server), &[]);
    let document = parse(&run.stdout);
    let exec = &document["users"][0]["user"]["exec"];
    assert_eq!(exec["command"], "pinniped", "{run:?}");
    let hint = exec["installHint"].as_str().unwrap();
    assert!(hint.contains(env!("CARGO_PKG_REPOSITORY")), "{hint}");
    get(&home_for(&server), &["--pinniped-cli-path=/p"])
        .fails_with("only one of --portable and --pinniped-cli-path can be specified");
}

#[test]
fn the_result_is_merged_and_the_rest_of_the_file_stays() {
    let server = usual().start();
    let (home, target, source) = home_with(TARGET, &server);
    let run = get(&home, &["--merge", &source]);
    assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{run:?}");
    let path = target.to_str().unwrap();
    let log = run.log();
    for line in [
        format!("merged context  {{\"name\": \"kind-context-pinniped\", \"kubeconfig\": \"{path}\"}}"),
        format!("saved the previous kubeconfig  {{\"path\": \"{path}.pinniped-backup\"}}"),
    ] {
        assert!(log.contains(&line), "{log:#?} lacks {line}");
    }
    let text = read(&target);
    let kept = TARGET.lines().filter(|line| !text.lines().any(|found| found == *line));
    assert_eq!(kept.collect::<Vec<_>>(), [""; 0], "{text}");
    assert_eq!(read(&target.with_file_name("config.pinniped-backup")), TARGET);
    assert!(!target.with_file_name("config.lock").exists());
    let document = parse(&text);
    assert_eq!(document["current-context"], "other");
    assert_eq!(
        document["contexts"][1],
        json!({"name": "kind-context-pinniped",
        "context": {"cluster": "kind-cluster-pinniped", "user": "kind-user-pinniped"}})
    );
    assert_eq!(document["clusters"][1]["cluster"]["server"], json!(server.url()));

    // Again, with another name, and as the current context.
    assert!(get(&home, &["--merge", &source]).code == 0 && read(&target) == text);
    let run = get(&home, &["--merge", "--context=prod", "--set-current-context", &source]);
    assert_eq!(run.code, 0, "{run:?}");
    let document = parse(&read(&target));
    assert_eq!(document["current-context"], "prod");
    let names = |list: &str| document[list].as_array().unwrap().iter().map(|entry| entry["name"].clone());
    for list in ["clusters", "users", "contexts"] {
        assert_eq!(names(list).next_back(), Some(json!("prod")), "{document}");
    }
}

#[test]
fn the_target_is_the_first_existing_file_of_the_list_or_that_of_the_flag() {
    let server = usual().start();
    let (mut home, target, source) = home_with(TARGET, &server);
    let (missing, second) = (home.path().join("missing"), home.write("second", ""));
    let list = std::env::join_paths([&missing, &second, &target]).unwrap();
    home.set("KUBECONFIG", list.to_str().unwrap());
    assert_eq!(get(&home, &["--merge", &source]).code, 0);
    // Another file of the list has a current context.
    let document = parse(&read(&second));
    assert_eq!(
        (&document["current-context"], document["users"].as_array().unwrap().len()),
        (&Value::Null, 1)
    );
    assert_eq!(read(&target), TARGET);

    let new = home.path().join("new/config");
    let run = get(&home, &["--merge", &source, "--output", new.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{run:?}");
    let document = parse(&read(&new));
    assert_eq!(document["current-context"], "kind-context-pinniped");
    assert_eq!(document["kind"], "Config");
    assert!(!missing.exists());
}

#[cfg(unix)]
#[test]
fn links_and_permissions_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = usual().start();
    let (home, target, source) = home_with("", &server);
    let real = home.write("real", TARGET);
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::remove_file(&target).unwrap();
    std::os::unix::fs::symlink(&real, &target).unwrap();
    assert_eq!(get(&home, &["--merge", &source]).code, 0);
    assert!(target.symlink_metadata().unwrap().is_symlink());
    assert!(read(&real).contains("kind-context-pinniped"));
    assert_eq!(real.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(read(&home.path().canonicalize().unwrap().join("real.pinniped-backup")), TARGET);
}

#[test]
fn a_file_that_cannot_be_merged_into_is_unchanged_and_no_request_is_sent() {
    let server = usual().start();
    for (text, error) in [
        ("users: [\n  token: hush", "it is not YAML: "),
        ("kind: Pod\n", "it is not a kubeconfig: kind is not Config"),
    ] {
        let (home, target, source) = home_with(text, &server);
        let run = get(&home, &["--merge", &source]);
        let found = run.last_error().unwrap();
        assert!(found.starts_with(&format!("could not merge into {}: {error}", target.display())), "{found}");
        assert!(run.code == 1 && !run.stderr.contains("hush"), "{run:?}");
        assert_eq!(read(&target), text);
        assert_eq!(std::fs::read_dir(home.path().join(".kube")).unwrap().count(), 1);
    }
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn an_entry_that_leads_elsewhere_is_a_clash() {
    let server = usual().start();
    let (home, target, source) = home_with(TARGET, &server);
    let run = get(&home, &["--merge", "--context=other", &source]);
    run.fails_with(&format!(
        "could not merge into {}: it already has a cluster \"other\" of the server \"https://other\", not \"{}\"; \
         choose another name with --context, or replace it with --overwrite",
        target.display(),
        server.url()
    ));
    assert_eq!(read(&target), TARGET);
    assert_eq!(get(&home, &["--merge", "--context=other", "--overwrite", &source]).code, 0);
    let document = parse(&read(&target));
    assert_eq!(document["clusters"][0]["cluster"]["server"], json!(server.url()));
    assert_eq!(document["users"][0]["user"]["token"], Value::Null);
}

#[test]
fn a_locked_file_is_reported_and_flags_that_contradict_each_other_are_refused() {
    let server = usual().start();
    let (home, target, source) = home_with(TARGET, &server);
    for (flags, error) in [
        (&["--all-contexts"][..], "--all-contexts needs --merge"),
        (&["--context=a"], "--context needs --merge"),
        (&["--overwrite"], "--overwrite needs --merge"),
        (&["--set-current-context"], "--set-current-context needs --merge"),
        (
            &["--merge", "--all-contexts", "--context=a"],
            "only one of --all-contexts and --context can be specified",
        ),
        (
            &["--merge", "--all-contexts", "--kubeconfig-context=a"],
            "only one of --all-contexts and --kubeconfig-context can be specified",
        ),
    ] {
        get(&home, flags).fails_with(error);
    }
    let lock = home.write(".kube/config.lock", "");
    let run = get(&home, &["--merge", &source]);
    run.fails_with(&format!(
        "{0} is locked by another program; if there is none, remove {0}.lock",
        target.display()
    ));
    assert!(lock.exists() && read(&target) == TARGET);
}

#[test]
fn all_contexts_with_a_concierge_are_merged_and_failures_are_reported() {
    let (good, without) =
        (usual().start(), Server::start(|_| ReceivedResponse::text(404, "404 page not found")));
    let mut broken = usual();
    broken.issuers = vec![issuer("one", &[]), issuer("two", &[proxy_strategy("https://p", "")])];
    let broken = broken.start();
    let (home, target, _) = home_with(TARGET, &good);
    let mut source = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [],
        "users": [{"name": "u", "user": {"token": "admin-token"}},
            {"name": "ours", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1",
                "command": "pinniped", "args": ["login", "static", "--token=t"]}}}]});
    for (name, server, user) in
        [("good", &good, "u"), ("without", &without, "u"), ("broken", &broken, "u"), ("done", &good, "ours")]
    {
        let cluster = json!({"server": server.url(), "certificate-authority-data": server.ca_data()});
        source["clusters"].as_array_mut().unwrap().push(json!({"name": name, "cluster": cluster}));
        let context = json!({"name": name, "context": {"cluster": name, "user": user}});
        source["contexts"].as_array_mut().unwrap().push(context);
    }
    let path = home.write("all.yaml", &source.to_string());
    let run = get(&home, &["--merge", "--all-contexts", &format!("--kubeconfig={}", path.display())]);
    run.fails_with("1 of 4 contexts failed");
    let log = run.log();
    for line in [
        "skipped context  {\"context\": \"without\", \"reason\": \"its cluster has no Concierge\"}",
        "skipped context  {\"context\": \"done\", \"reason\": \"its user logs in with this program already\"}",
        "context failed  {\"context\": \"broken\", \"error\": \"multiple CredentialIssuers were found, so the \
         --concierge-credential-issuer flag must be specified\"}",
    ] {
        assert!(log.iter().any(|found| found == line), "{log:#?} lacks {line}");
    }
    let document = parse(&read(&target));
    let names: Vec<&Value> =
        document["contexts"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["other", "good-pinniped"]);
}

/// Returns a kubeconfig with a context for each server, whose user is the same.
fn with_one_user(servers: &[(&str, &Server)]) -> String {
    let mut source = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "contexts": [],
        "users": [{"name": "u", "user": {"token": "admin-token"}}]});
    for (name, server) in servers {
        let cluster = json!({"server": server.url(), "certificate-authority-data": server.ca_data()});
        source["clusters"].as_array_mut().unwrap().push(json!({"name": name, "cluster": cluster}));
        let context = json!({"name": name, "context": {"cluster": name, "user": "u"}});
        source["contexts"].as_array_mut().unwrap().push(context);
    }
    source.to_string()
}

#[test]
fn several_contexts_with_one_user_get_logins_of_their_own() {
    let one = usual().start();
    let mut second = usual();
    second.webhooks = vec![crate::cluster::webhook("other-webhook")];
    let two = second.start();
    let (home, target, _) = home_with(TARGET, &one);
    let source = home.write("all.yaml", &with_one_user(&[("one", &one), ("two", &two)]));
    let flags = ["--merge", "--all-contexts", &format!("--kubeconfig={}", source.display())];
    let run = get(&home, &flags);
    assert_eq!(run.code, 0, "{run:?}");
    let text = read(&target);
    let document = parse(&text);
    let users: Vec<&Value> =
        document["users"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(users, ["other", "one-pinniped", "two-pinniped"]);
    assert_eq!(
        document["contexts"][2],
        json!({"name": "two-pinniped", "context": {"cluster": "two-pinniped", "user": "two-pinniped"}})
    );
    assert!(get(&home, &flags).code == 0 && read(&target) == text, "a second run changes nothing");
}

#[test]
fn a_target_that_cannot_be_read_or_written_is_refused_before_any_request() {
    let server = usual().start();
    let (home, target, source) = home_with(TARGET, &server);
    let check = |problem: &str| {
        let run = get(&home, &["--merge", &source]);
        let found = run.last_error().unwrap().to_owned();
        assert!(run.code == 1 && found.starts_with(problem), "{run:?}");
    };
    let path = target.display();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o400)).unwrap();
        check(&format!("{path} is read-only"));
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::write(&target, b"users: \xff").unwrap();
    check(&format!("could not read {path}: "));
    std::fs::remove_file(&target).unwrap();
    std::fs::create_dir(&target).unwrap();
    check(&format!("could not read {path}: "));
    assert_eq!(server.seen().len(), 0);
    assert_eq!(std::fs::read_dir(home.path().join(".kube")).unwrap().count(), 1);
}

#[test]
fn only_a_cluster_without_credential_issuers_has_no_concierge() {
    let usual = usual();
    let half = Server::start(move |request| match request.path.starts_with(crate::cluster::JWT) {
        true => ReceivedResponse::text(404, "404 page not found"),
        false => usual.respond(request),
    });
    let (home, _, _) = home_with(TARGET, &half);
    let source = home.write("all.yaml", &with_one_user(&[("half", &half)]));
    let source = format!("--kubeconfig={}", source.display());
    let run = get(&home, &["--merge", "--all-contexts", &source]);
    run.fails_with("1 of 1 contexts failed");
    // The cluster has a CredentialIssuer, but none of this name.
    let named = ["--merge", "--all-contexts", "--concierge-credential-issuer=typo"];
    get(&home, &[&named[..], &[&source]].concat()).fails_with("1 of 1 contexts failed");
    for is_served in [false, true] {
        let mut empty = crate::cluster::usual();
        empty.issuers = Vec::new();
        let without = match is_served {
            false => Server::start(|_| ReceivedResponse::text(404, "404 page not found")),
            true => empty.start(),
        };
        let (home, _, _) = home_with(TARGET, &without);
        let source = home.write("all.yaml", &with_one_user(&[("none", &without)]));
        let run = get(&home, &[&named[..], &[&format!("--kubeconfig={}", source.display())]].concat());
        let skipped =
            "skipped context  {\"context\": \"none\", \"reason\": \"its cluster has no Concierge\"}";
        assert!(run.code == 0 && run.log().iter().any(|line| line == skipped), "{run:?}");
    }
}

#[cfg(unix)]
#[test]
fn the_target_is_found_in_the_list_by_the_file_that_a_path_leads_to() {
    let server = usual().start();
    let (mut home, target, source) = home_with("", &server);
    let second = home.write("second", TARGET);
    let list = std::env::join_paths([&target, &second]).unwrap();
    home.set("KUBECONFIG", list.to_str().unwrap());
    let output = format!("--output={}", home.path().join(".kube/../.kube/config").display());
    assert_eq!(get(&home, &["--merge", &source, &output]).code, 0);
    assert_eq!(parse(&read(&target)).get("current-context"), None, "the other file has one");
}

#[cfg(unix)]
#[test]
fn all_contexts_of_a_pipe_are_merged() {
    let server = usual().start();
    let (home, target, _) = home_with(TARGET, &server);
    let pipe = home.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let source = with_one_user(&[("one", &server), ("two", &server)]);
    let writing = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, source)
    });
    let mut command = home.command(&[
        "get",
        "kubeconfig",
        "--static-token-env=T",
        "--portable",
        "--merge",
        "--all-contexts",
        &format!("--kubeconfig={}", pipe.display()),
    ]);
    let child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn();
    let mut child = child.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if std::time::Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("the program reads the pipe again");
            }
            None => std::thread::yield_now(),
        }
    };
    assert!(status.success());
    writing.join().unwrap().unwrap();
    let document = parse(&read(&target));
    assert_eq!(document["contexts"].as_array().unwrap().len(), 3, "{document}");
}
