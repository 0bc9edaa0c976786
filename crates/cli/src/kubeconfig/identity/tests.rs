use std::collections::HashMap;

use super::*;

const ARGS: [&str; 3] = ["login", "static", "--token-env=T"];

fn pinny(groups: &[&str]) -> ImpersonatedUser {
    ImpersonatedUser {
        username: "pinny".into(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..ImpersonatedUser::default()
    }
}

fn environment(kubeconfig: &Path, args: &[&str]) -> Environment {
    let variables = [("KUBECONFIG", kubeconfig.to_str().unwrap()), ("T", "token")];
    let variables: HashMap<_, _> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Environment::new(args.iter().map(|&arg| arg.to_owned()).collect(), variables)
}

const CONFIG: &str = "
apiVersion: v1
kind: Config
# The comment of the user.
current-context: c
preferences: {}
clusters:
- {name: c, cluster: {server: 'https://c'}}
contexts:
- {name: c, context: {cluster: c, user: mine, namespace: n}}
users:
- name: other
  user: {token: t}
- name: mine
  user:
    as-uid: stale
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: pinniped
      args: [login, static, --token-env=T]
      env: [{name: T, value: token}]
      made-up: kept
- name: not-mine
  user:
    exec: {command: pinniped, args: [login, static, --token-env=T], env: [{name: T, value: another token}]}
- name: not-mine-either
  user:
    exec: {command: pinniped, args: [login, static, --token-env=U]}
";

#[test]
fn only_the_entries_of_this_login_change() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::fs::write(&path, CONFIG).unwrap();
    let mut user = pinny(&["b: c", "a"]);
    user.extra.insert("example.com/k".into(), vec!["v".into()]);
    let environment = environment(&path, &ARGS);

    assert_eq!(
        record(&environment, Some(&user)).unwrap(),
        Recorded::Written { path: path.clone(), comments_lost: false }
    );
    let mut expected = parse(CONFIG).unwrap();
    let digest = IdentityDigest::of(&user);
    let mine = &mut expected["users"][1]["user"];
    mine["as"] = "pinny".into();
    mine.as_object_mut().unwrap().remove("as-uid");
    mine["as-groups"] = json!(["b: c", "a"]);
    mine["as-user-extra"] = json!({"example.com/k": ["v"]});
    mine["exec"]["args"].as_array_mut().unwrap().push(format!("--expected-identity={digest}").into());
    assert_eq!(parse(&std::fs::read_to_string(&path).unwrap()).unwrap(), expected);
    assert!(std::fs::read_to_string(&path).unwrap().contains("\n# The comment of the user.\n"));
    assert_eq!(record(&environment, Some(&user)).unwrap(), Recorded::Already(path.clone()));

    // The next identity replaces all of it; no identity removes all of it.
    record(&environment, Some(&pinny(&[]))).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("as-groups") && !text.contains("as-user-extra"), "{text}");
    assert_eq!(text.matches("--expected-identity").count(), 1, "{text}");
    record(&environment, None).unwrap();
    let mut bare = parse(CONFIG).unwrap();
    bare["users"][1]["user"].as_object_mut().unwrap().remove("as-uid");
    assert_eq!(parse(&std::fs::read_to_string(&path).unwrap()).unwrap(), bare);
}

#[test]
fn a_plugin_with_an_older_identity_finds_its_entry() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::fs::write(&path, CONFIG).unwrap();
    record(&environment(&path, &ARGS), Some(&pinny(&[]))).unwrap();
    let old = format!("--expected-identity={}", IdentityDigest::of(&pinny(&["old"])));
    let again = environment(&path, &[ARGS[0], ARGS[1], ARGS[2], &old]);
    assert_eq!(
        record(&again, Some(&pinny(&["new"]))).unwrap(),
        Recorded::Written { path, comments_lost: false }
    );
}

#[test]
fn every_file_of_a_list_that_has_the_login_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a", "b", "c", "d"].iter().map(|name| dir.path().join(name)).collect();
    std::fs::write(&paths[0], "garbage: [").unwrap();
    std::fs::write(&paths[1], CONFIG).unwrap();
    std::fs::write(&paths[2], "users: null\n").unwrap();
    std::fs::write(&paths[3], CONFIG).unwrap();
    let list = std::env::join_paths(&paths).unwrap();
    let recorded = record(&environment(Path::new(&list), &ARGS), Some(&pinny(&[]))).unwrap();
    assert_eq!(recorded, Recorded::Written { path: paths[1].clone(), comments_lost: false });
    for (path, written) in paths.iter().zip([false, true, false, true]) {
        assert_eq!(std::fs::read_to_string(path).unwrap().contains("as: pinny"), written, "{path:?}");
    }
}

#[test]
fn a_login_that_no_file_has_is_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    std::fs::write(&path, CONFIG).unwrap();
    let error = record(&environment(&path, &["login", "static"]), Some(&pinny(&[]))).unwrap_err();
    assert_eq!(error.to_string(), format!("no kubeconfig with this login was found in {}", path.display()));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), CONFIG);
    let nothing = Environment::new(Vec::new(), HashMap::new());
    let error = record(&nothing, Some(&pinny(&[]))).unwrap_err();
    assert_eq!(error.to_string(), "no kubeconfig with this login was found");
}

#[test]
fn flags_are_quoted_for_a_shell() {
    let mut user = pinny(&["a", "it's / so"]);
    user.uid = "1".into();
    user.extra.insert("k".into(), vec!["v".into(), "$(w)".into()]);
    assert_eq!(
        kubectl_flags(&user),
        r"--as=pinny --as-uid=1 --as-group=a '--as-group=it'\''s / so' --as-user-extra=k=v '--as-user-extra=k=$(w)'"
    );
}

#[test]
fn a_written_identity_can_be_read_back() {
    let mut user = pinny(&["a"]);
    user.extra.insert("k".into(), vec!["v".into()]);
    let mut entry = AuthInfo::default();
    assert_eq!(read_user("u", &entry), Ok(None));
    write_user(&mut entry, &user, Delivery::Wrapper);
    assert_eq!(read_user("u", &entry), Ok(Some(user)));
    entry.impersonate = None;
    assert_eq!(
        read_user("u", &entry).unwrap_err().to_string(),
        "requesting uid, groups or user-extra for u without impersonating a user"
    );
}
