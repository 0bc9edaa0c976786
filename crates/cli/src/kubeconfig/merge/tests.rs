use super::*;

fn entries(server: &str) -> Entries {
    Entries {
        cluster_name: "c".into(),
        user_name: "u".into(),
        context_name: "x".into(),
        cluster: json!({"server": server, "certificate-authority-data": "cGVt"}),
        user: json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1",
            "args": ["login", "static", "--token=a: b"], "command": "pinniped", "env": [],
            "provideClusterInfo": true}}),
    }
}

const SETTINGS: MergeSettings = MergeSettings { overwrite: false, set_current: false };

/// Merges the entries, and returns the text.
fn merged(text: &str, entries: &Entries, settings: MergeSettings) -> String {
    let merged = merge(text, entries, settings).unwrap();
    assert!(!merged.comments_lost, "{merged:?}");
    merged.text.unwrap_or_else(|| text.to_owned())
}

const KUBECTL: &str = "apiVersion: v1
# The clusters of the team.
clusters:
- cluster:
    server: https://other # the old one
  name: other
contexts:
- context:
    cluster: other
    namespace: ns
    user: other
  name: other
current-context: other
kind: Config
preferences: {}
users:
# Do not share this.
- name: other
  user:
    token: \"007\"
x-unknown: {a: [1, 2.5, null]}
";

#[test]
fn everything_else_stays_as_it_is() {
    let text = merged(KUBECTL, &entries("https://new"), SETTINGS);
    assert_eq!(
        text,
        KUBECTL
            .replace(
                "  name: other\ncontexts:\n",
                "  name: other\n- cluster:\n    certificate-authority-data: cGVt\n    server: https://new\n  name: c\ncontexts:\n"
            )
            .replace(
                "  name: other\ncurrent-context:",
                "  name: other\n- context:\n    cluster: c\n    user: u\n  name: x\ncurrent-context:"
            )
            .replace(
                "x-unknown",
                "- name: u\n  user:\n    exec:\n      apiVersion: client.authentication.k8s.io/v1beta1\n      args:\n      \
                 - login\n      - static\n      - '--token=a: b'\n      command: pinniped\n      env: []\n      \
                 provideClusterInfo: true\nx-unknown"
            )
    );
    // A second run changes nothing.
    assert_eq!(merge(&text, &entries("https://new"), SETTINGS).unwrap().text, None);
}

#[test]
fn every_form_of_a_kubeconfig_can_be_merged_into() {
    for text in [
        "",
        "\n",
        "# only a comment\n",
        "# only a comment",
        "apiVersion: v1\nclusters: []\ncontexts: []\ncurrent-context: \"\"\nkind: Config\npreferences: {}\nusers: []\n",
        "apiVersion: v1\nclusters: null\ncontexts:\nkind: Config\nusers: ~\n",
        "# first\n---\n# second\napiVersion: v1\nkind: Config\n",
        "%YAML 1.2\n---\napiVersion: v1\nkind: Config\n...\n",
        "{\"apiVersion\": \"v1\", \"kind\": \"Config\", \"clusters\": [{\"name\": \"a\", \"cluster\": {\"server\": \"s\"}}]}",
        "kind: Config\nclusters:\n  - name: a\n    cluster: {server: s}\n  # last",
        "kind: Config\r\nclusters:\r\n- name: a\r\n  cluster:\r\n    server: s\r\n",
        "clusters:\n- name: a\n  cluster: &s {server: s}\n- name: b\n  cluster: *s\n",
        "clusters:\n- &a\n  name: a\n  cluster:\n    certificate-authority-data: |\n      x\n      y\nusers: [{name: 'it''s'}]\n",
        "current-context: other\nkind: Config\n",
    ] {
        let before = parse(text).unwrap();
        let settings = MergeSettings { set_current: true, ..SETTINGS };
        let result = merged(text, &entries("https://new"), settings);
        let after = parse(&result).unwrap_or_else(|error| panic!("{text}\n{result}\n{error}"));
        assert_eq!(current_context_of(&result), "x", "{result}");
        for list in [&CLUSTERS, &USERS, &CONTEXTS] {
            let (old, new) = (list.entries(&before).unwrap(), list.entries(&after).unwrap());
            assert_eq!((new.len(), &new[..old.len()]), (old.len() + 1, old), "{result}");
        }
        for comment in text.lines().filter(|line| line.trim_start().starts_with('#')) {
            assert!(result.contains(comment), "{result}");
        }
        let config = kube::config::Kubeconfig::from_yaml(&result).unwrap();
        assert!(crate::kubeconfig::resolve(&config, "x").is_ok(), "{result}");
        assert_eq!(merge(&result, &entries("https://new"), SETTINGS).unwrap().text, None, "{result}");
    }
}

#[test]
fn an_earlier_result_for_the_same_cluster_is_replaced_and_its_namespace_stays() {
    let first = merged(KUBECTL, &entries("https://new"), SETTINGS);
    let with_namespace = first.replace("    user: u\n", "    namespace: mine # set by me\n    user: u\n");
    let mut next = entries("https://new");
    next.cluster["certificate-authority-data"] = json!("bmV3");
    next.user["exec"]["args"][2] = json!("--token-env=T");
    let text = merged(&with_namespace, &next, SETTINGS);
    assert_eq!(text, with_namespace.replace("cGVt", "bmV3").replace("'--token=a: b'", "--token-env=T"));
}

#[test]
fn an_entry_of_something_else_is_not_replaced_unless_the_user_asks_for_it() {
    for (text, problem) in [
        (
            "clusters: [{name: c, cluster: {server: 'https://other'}}]",
            "cluster \"c\" of the server \"https://other\", not \"https://new\"",
        ),
        ("users: [{name: u, user: {token: t}}]", "user \"u\" that does not log in with this program"),
        (
            "users: [{name: u, user: {exec: {command: aws, args: [eks, get-token]}}}]",
            "user \"u\" that does not log in with this program",
        ),
        (
            "contexts: [{name: x, context: {cluster: c, user: admin}}]",
            "context \"x\" of the cluster \"c\" and the user \"admin\"",
        ),
    ] {
        let error = merge(text, &entries("https://new"), SETTINGS).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "it already has a {problem}; choose another name with --context, or replace it with --overwrite"
            )
        );
        let overwrite = MergeSettings { overwrite: true, ..SETTINGS };
        let result = merged(text, &entries("https://new"), overwrite);
        assert_eq!(merge(&result, &entries("https://new"), SETTINGS).unwrap().text, None, "{result}");
        assert!(merge(text, &entries("https://new").named("free"), SETTINGS).is_ok(), "{text}");
    }
}

#[test]
fn a_file_that_is_no_kubeconfig_is_refused() {
    for (text, error) in [
        ("text", "it is not a kubeconfig: it has no fields"),
        ("[a]", "it is not a kubeconfig: it has no fields"),
        ("kind: Pod", "it is not a kubeconfig: kind is not Config"),
        ("apiVersion: v2", "it is not a kubeconfig: apiVersion is not v1"),
        ("clusters: {a: b}", "it is not a kubeconfig: clusters is not a list"),
        ("users: [{user: {}}]", "it is not a kubeconfig: an entry of users has no name"),
        ("current-context: [a]", "it is not a kubeconfig: current-context is not a text"),
        (
            "contexts: [{name: a}, {name: a}]",
            "it is not a kubeconfig: contexts has two entries with the name \"a\"",
        ),
    ] {
        let found = merge(text, &entries("https://new"), SETTINGS).unwrap_err();
        assert_eq!(found.to_string(), error, "{text}");
        assert_eq!(check_document(text), Err(found));
    }
    for text in ["users: [\n  token: hush", "a: b\n---\nc: d\n", "users: []\nusers: []\n"] {
        let error = check_document(text).unwrap_err().to_string();
        assert!(error.starts_with("it is not YAML: ") && !error.contains("hush"), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn names_apply_to_all_three_entries() {
    let text =
        merged("", &entries("https://new").named("prod"), MergeSettings { set_current: true, ..SETTINGS });
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let resolved = crate::kubeconfig::resolve(&config, "").unwrap();
    assert_eq!((resolved.context.as_str(), resolved.user.as_str()), ("prod", "prod"));
    assert_eq!(resolved.cluster_name, "prod");
    assert!(text.starts_with("apiVersion: v1\nclusters:\n- cluster:\n"), "{text}");
}

#[test]
fn a_login_that_another_context_uses_for_another_cluster_is_not_replaced() {
    let first = merged("", &entries("https://new"), SETTINGS);
    let mut next = entries("https://next");
    (next.cluster_name, next.context_name) = ("d".into(), "y".into());
    // The same login for two clusters.
    let both = merged(&first, &next, SETTINGS);
    next.user["exec"]["args"][2] = json!("--token-env=T");
    for text in [&first, &both] {
        assert_eq!(
            merge(text, &next, SETTINGS).unwrap_err().to_string(),
            "it already has a user \"u\" that context \"x\" uses for another cluster; choose another name with \
             --context, or replace it with --overwrite"
        );
        merged(text, &next, MergeSettings { overwrite: true, ..SETTINGS });
        merged(text, &next.clone().named("free"), SETTINGS);
    }
    // Another context for the same cluster.
    let mut same = entries("https://new");
    same.context_name = "y".into();
    same.user["exec"]["args"][2] = json!("--token-env=T");
    merged(&first, &same, SETTINGS);
}

#[test]
fn a_context_of_an_earlier_login_at_the_same_cluster_gets_the_new_login() {
    let first = merged("", &entries("https://new"), SETTINGS);
    let mut next = entries("https://new");
    next.user_name = "v".into();
    let document = parse(&merged(&first, &next, SETTINGS)).unwrap();
    assert_eq!(document["contexts"][0]["context"], json!({"cluster": "c", "user": "v"}));
    next.cluster_name = "d".into();
    let error = merge(&first, &next, SETTINGS).unwrap_err().to_string();
    assert!(error.contains("a context \"x\" of the cluster \"c\" and the user \"u\";"), "{error}");
}

#[test]
fn settings_that_the_user_added_stay_unless_the_entries_are_overwritten() {
    let text = "
clusters:
- name: c
  cluster: {server: 'https://new', proxy-url: 'http://old', tls-server-name: old, disable-compression: true,
    insecure-skip-tls-verify: true, certificate-authority: f, x-mine: 1}
users:
- name: u
  user:
    as: somebody
    extensions: [{name: mine, extension: {}}]
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args: [login, static, --token=old]
      command: pinniped
      env: [{name: A, value: b}]
      interactiveMode: Never
";
    let document = parse(&merged(text, &entries("https://new"), SETTINGS)).unwrap();
    let cluster = json!({"certificate-authority-data": "cGVt", "server": "https://new", "x-mine": 1});
    assert_eq!(document["clusters"][0]["cluster"], cluster);
    let mut user = entries("").user;
    user["extensions"] = json!([{"name": "mine", "extension": {}}]);
    user["exec"]["env"] = json!([{"name": "A", "value": "b"}]);
    user["exec"]["interactiveMode"] = json!("Never");
    assert_eq!(document["users"][0]["user"], user);

    let overwrite = MergeSettings { overwrite: true, ..SETTINGS };
    let document = parse(&merged(text, &entries("https://new"), overwrite)).unwrap();
    assert_eq!(document["clusters"][0]["cluster"], entries("https://new").cluster);
    assert_eq!(document["users"][0]["user"], entries("").user);
}

#[test]
fn comments_that_the_edit_itself_removes_are_reported() {
    let text = "# top\nclusters:\n- cluster:\n    server: https://new # mine\n  name: c\n";
    let result = merge(text, &entries("https://new"), SETTINGS).unwrap();
    assert!(result.text.as_ref().unwrap().contains("# top"), "{result:?}");
    assert!(result.comments_lost, "{result:?}");
    let outside = text.replace(" # mine", "").replace("name: c", "name: 'c#d' # mine");
    merged(&outside, &entries("https://new"), SETTINGS);
}

#[test]
fn a_text_that_cannot_be_edited_is_written_anew_and_the_loss_of_comments_is_reported() {
    let document = json!({"kind": "Config"});
    for (comments, lost) in [(Some(0), false), (Some(1), true), (None, true)] {
        assert_eq!(chosen(comments, None, &document), ("kind: Config\n".to_owned(), lost));
    }
    let edited = "kind: Config # a\n".to_owned();
    for (comments, lost) in [(Some(1), false), (Some(2), true), (None, true)] {
        assert_eq!(chosen(comments, Some(edited.clone()), &document), (edited.clone(), lost));
    }
}
