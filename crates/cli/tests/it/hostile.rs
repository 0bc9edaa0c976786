//! Invalid and hostile input from files and variables: the result is an error text or no effect,
//! never a panic.

use crate::support::{Home, Run};

const TOKEN_USER: &str = "{token: t}";
const NO_AUTH: &str = "{}";

fn whoami(cluster: &str, user: &str) -> Run {
    let home = Home::new();
    let config = format!(
        "current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {cluster}}}]
users: [{{name: u, user: {user}}}]
"
    );
    let path = home.write("config", &config);
    home.run(&["whoami", "--timeout=20s", "--kubeconfig", path.to_str().unwrap()])
}

#[test]
fn an_invalid_kubeconfig_is_refused_with_an_error_text() {
    const SERVER: &str = "{server: 'https://127.0.0.1:1'}";
    for (cluster, user, error) in [
        ("{}", TOKEN_USER, "invalid configuration: no server found for cluster \"c\""),
        ("{server: ''}", TOKEN_USER, "invalid configuration: no server found for cluster \"c\""),
        ("{server: '/x'}", TOKEN_USER, "host must be a URL or a host:port pair: \"/x\""),
        (
            "{server: 'https://127.0.0.1:99999'}",
            TOKEN_USER,
            "host must be a URL or a host:port pair: \"https://127.0.0.1:99999\"",
        ),
        (
            SERVER,
            "{client-certificate: /nope, client-key: /nope}",
            "invalid configuration: [unable to read client-cert /nope for u due to open /nope: no such file or directory, unable to read client-key /nope for u due to open /nope: no such file or directory]",
        ),
        (
            SERVER,
            "{client-certificate-data: aGVsbG8=}",
            "invalid configuration: client-key-data or client-key must be specified for u to use the clientCert authentication method.",
        ),
        (SERVER, "{token: \"a\\nb\"}", "net/http: invalid header field value for \"Authorization\""),
        (
            SERVER,
            "{auth-provider: {name: oidc, config: {id-token: \"a\\nb\"}}}",
            "net/http: invalid header field value for \"Authorization\"",
        ),
        (
            SERVER,
            "{exec: {command: /bin/sh, args: [-c, 'echo hush; exit 3']}}",
            "getting credentials: exec: executable /bin/sh failed with exit code 3",
        ),
        (
            SERVER,
            "{exec: {apiVersion: v, command: echo, args: ['{\"apiVersion\": \"v\", \"status\": {\"token\": \"a\\nb\"}}']}}",
            "net/http: invalid header field value for \"Authorization\"",
        ),
    ] {
        let run = whoami(cluster, user);
        run.fails_with(&format!("could not configure Kubernetes client: {error}"));
        assert!(!run.stderr.contains("hush"), "{run:?}");
    }
}

#[test]
fn an_address_without_a_scheme_is_valid_as_in_kubectl() {
    for (cluster, url) in [
        ("{server: '127.0.0.1:1'}", "http://127.0.0.1:1"),
        ("{server: '127.0.0.1:1', insecure-skip-tls-verify: true}", "https://127.0.0.1:1"),
    ] {
        whoami(cluster, NO_AUTH).fails_with(&format!(
            "could not complete WhoAmIRequest: Post \"{url}/apis/identity.concierge.pinniped.dev/v1alpha1/whoamirequests\": dial tcp 127.0.0.1:1: connect: connection refused"
        ));
    }
}

#[test]
fn invalid_yaml_is_refused_without_its_content() {
    let home = Home::new();
    let deep = "[".repeat(100_000);
    let bomb: String = std::iter::once("a0: &a0 [x, x]\n".to_owned())
        .chain((1..30).map(|n| format!("a{n}: &a{n} [*a{m}, *a{m}, *a{m}]\n", m = n - 1)))
        .collect();
    for text in
        ["5", "[]", "contexts: [null]", "users: [{name: u, user: hush}]", "a: &a [*a]", "%", &deep, &bomb]
    {
        let path = home.write("config", text);
        let path = path.to_str().unwrap();
        let run = home.run(&["whoami", "--kubeconfig", path]);
        let error = run.last_error().unwrap();
        assert_eq!(run.code, 1, "{run:?}");
        assert!(
            error.starts_with(&format!(
                "could not configure Kubernetes client: error loading config file \"{path}\": "
            )),
            "{error}"
        );
        assert!(!run.stderr.contains("hush") && run.stderr.lines().count() == 1, "{run:?}");
    }
}

#[test]
fn invalid_caches_and_exec_infos_do_not_prevent_a_login() {
    let expected = Home::new().run(&["login", "static", "--token=a"]);
    assert_eq!(expected.code, 0, "{expected:?}");
    for broken in ["", "{", "credentials: 5", "\u{feff}\0", &"[".repeat(100_000)] {
        let home = Home::new();
        let path = home.write("cache", broken);
        let run = home.run(&["login", "static", "--token=a", "--credential-cache", path.to_str().unwrap()]);
        assert_eq!((run.code, &run.stdout, run.stderr.as_str()), (0, &expected.stdout, ""), "{broken:.20}");
    }
    for path in ["/dev/zero", "/", "/dev/null/x", "/proc/nowhere/x"] {
        let run = Home::new().run(&["login", "static", "--token=a", "--credential-cache", path]);
        assert_eq!((run.code, &run.stdout, run.stderr.as_str()), (0, &expected.stdout, ""), "{path}");
    }
    for info in [
        "",
        "x",
        "[[",
        r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"cluster":5}}"#,
    ] {
        let mut home = Home::new();
        home.set("KUBERNETES_EXEC_INFO", info);
        let run = home.run(&["login", "static", "--token=a"]);
        assert_eq!((run.code, &run.stdout, run.stderr.as_str()), (0, &expected.stdout, ""), "{info}");
    }
}
