//! `get kubeconfig`: generated kubeconfigs and refused options.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::cluster::{CONFIG, JWT, WEBHOOK, exec_args, home_for, issuer, proxy_strategy, run, usual};
use crate::support::{Home, admin_kubeconfig};

#[test]
fn a_static_token_is_exchanged_through_the_clusters_own_api() {
    let server = usual().start();
    let home = home_for(&server);
    let result = run(&home, &["--static-token=test-token"]);
    let (url, ca) = (server.url(), server.ca_data());
    assert_eq!(
        result.stdout,
        format!(
            "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {ca}
    server: {url}
  name: kind-cluster-pinniped
contexts:
- context:
    cluster: kind-cluster-pinniped
    user: kind-user-pinniped
  name: kind-context-pinniped
current-context: kind-context-pinniped
kind: Config
users:
- name: kind-user-pinniped
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      args:
      - login
      - static
      - --enable-concierge
      - --concierge-api-group-suffix=pinniped.dev
      - --concierge-authenticator-name=test-webhook
      - --concierge-authenticator-type=webhook
      - --concierge-endpoint={url}
      - --concierge-ca-bundle-data={ca}
      - --token=test-token
      command: /p
      env: []
      installHint: The pinniped CLI does not appear to be installed.  See https://get.pinniped.dev/cli
        for more details
      provideClusterInfo: true
"
        ),
        "{result:?}"
    );
    assert_eq!(
        result.log(),
        [
            "discovered CredentialIssuer  {\"name\": \"test-issuer\"}".to_owned(),
            "discovered Concierge operating in TokenCredentialRequest API mode".to_owned(),
            format!("discovered Concierge endpoint  {{\"endpoint\": \"{url}\"}}"),
            "discovered Concierge certificate authority bundle  {\"roots\": 1}".to_owned(),
            "discovered WebhookAuthenticator  {\"name\": \"test-webhook\"}".to_owned(),
            "validated connection to the cluster".to_owned(),
        ]
    );
    let lists = [CONFIG, JWT, WEBHOOK].map(|path| format!("GET {path}?"));
    let seen: Vec<String> = server
        .seen_lines()
        .into_iter()
        .map(|line| if line.ends_with('?') { line } else { format!("{line}?") })
        .collect();
    assert_eq!(seen[..3], lists);
}

#[test]
fn explicit_options_are_used_unchanged() {
    let server = usual().start();
    let home = home_for(&server);
    let ca = home.write("ca.pem", &server.ca);
    let result = run(
        &home,
        &[
            "--static-token-env=T",
            "--credential-cache=",
            "--concierge-credential-issuer=test-issuer",
            "--concierge-authenticator-type=WebHook",
            "--concierge-authenticator-name=test-webhook",
            "--concierge-mode=tokencredentialrequestapi",
            "--concierge-endpoint=https://by-hand",
            "--concierge-ca-bundle",
            ca.to_str().unwrap(),
            "--generated-name-suffix=-sso",
            "--kubeconfig-context=other-context",
            "--skip-validation",
            "--install-hint=",
        ],
    );
    assert_eq!(result.stderr, "");
    let args = exec_args(&result);
    assert_eq!(
        args[3..],
        [
            "--concierge-api-group-suffix=pinniped.dev".to_owned(),
            "--concierge-authenticator-name=test-webhook".to_owned(),
            "--concierge-authenticator-type=WebHook".to_owned(),
            "--concierge-endpoint=https://by-hand".to_owned(),
            format!("--concierge-ca-bundle-data={}", server.ca_data()),
            "--credential-cache=".to_owned(),
            "--token-env=T".to_owned(),
        ]
    );
    assert!(result.stdout.contains("current-context: other-context-sso\n"), "{}", result.stdout);
    assert!(!result.stdout.contains("installHint"), "{}", result.stdout);
}

#[test]
fn a_proxy_without_a_ca_is_verified_by_the_systems_roots() {
    let mut cluster = usual();
    cluster.issuers = vec![issuer("test-issuer", &[proxy_strategy("https://proxy", "")])];
    let server = cluster.start();
    let home = Home::new();
    let extra = "    insecure-skip-tls-verify: true\n    proxy-url: ''\n    tls-server-name: ''";
    let path = home.write("config", &admin_kubeconfig(&server.url(), extra));
    let result =
        run(&home, &["--static-token=t", "--skip-validation", "--kubeconfig", path.to_str().unwrap()]);
    assert!(exec_args(&result).contains(&"--concierge-ca-bundle-data=".to_owned()));
    assert!(result.stdout.contains("- cluster:\n    server: https://proxy\n  name:"), "{result:?}");
}

#[test]
fn a_ca_file_of_the_source_becomes_data() {
    let server = usual().start();
    let home = Home::new();
    home.write("ca.crt", &server.ca);
    let path = home.write("config", &admin_kubeconfig(&server.url(), "    certificate-authority: ca.crt"));
    let result = run(&home, &["--static-token=t", "--kubeconfig", path.to_str().unwrap()]);
    assert!(
        result.stdout.contains(&format!(
            "- cluster:\n    certificate-authority-data: {}\n    server:",
            server.ca_data()
        )),
        "{result:?}"
    );
    assert!(result.log().contains(&"validated connection to the cluster".to_owned()));
}

#[test]
fn without_a_concierge_no_request_is_sent() {
    let server = usual().start();
    let home = home_for(&server);
    let output = home.path().join("out.yaml");
    let result = run(
        &home,
        &["--no-concierge", "--static-token=t", "--skip-validation", "--output", output.to_str().unwrap()],
    );
    assert_eq!((result.code, result.stdout.as_str(), result.stderr.as_str()), (0, "", ""), "{result:?}");
    let written = std::fs::read_to_string(output).unwrap();
    assert!(written.contains("      args:\n      - login\n      - static\n      - --token=t\n"), "{written}");
    assert!(written.contains(&format!("    server: {}\n", server.url())), "{written}");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn invalid_options_are_refused() {
    let server = usual().start();
    let home = home_for(&server);
    for (flags, error) in [
        (&["--concierge-api-group-suffix=nodot"][..], "invalid API group suffix: must contain '.'"),
        (&["--kubeconfig=/nope"], "could not load --kubeconfig: stat /nope: no such file or directory"),
        (
            &["--kubeconfig-context=x"],
            "could not load --kubeconfig/--kubeconfig-context: no such context \"x\"",
        ),
        (
            &["--static-token=a", "--static-token-env=b"],
            "only one of --static-token and --static-token-env can be specified",
        ),
        (&[], "could not autodiscover --oidc-issuer and none was provided"),
        (
            &["--output=/no/such/dir/f"],
            "could not open output file: open /no/such/dir/f: no such file or directory",
        ),
        (&["--timeout=0s", "--static-token=t"], "context deadline exceeded"),
    ] {
        let result = run(&home, flags);
        assert_eq!(result.last_error(), Some(error), "{flags:?}: {result:?}");
        result.fails_with(error);
    }
    run(&Home::new(), &[]).fails_with("no kubeconfig found: set KUBECONFIG or pass --kubeconfig");
    let home = Home::new();
    let empty = home.write("empty", "");
    run(&home, &[&format!("--kubeconfig={}", empty.display())])
        .fails_with("could not load --kubeconfig/--kubeconfig-context: no such context \"\"");
}

#[test]
fn an_unresponsive_cluster_is_retried_until_the_timeout() {
    let mut cluster = usual();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = usual().start();
    cluster.issuers = vec![issuer("i", &[proxy_strategy(&format!("https://{unused}"), &other.ca_data())])];
    let server = cluster.start();
    let home = home_for(&server);
    run(&home, &["--static-token=t", "--timeout=3s"]).fails_with("context deadline exceeded");
    // On a machine that is busy, that limit may elapse before the second attempt.
    let mut command = home.command(&["get", "kubeconfig", "--pinniped-cli-path=/p", "--static-token=t"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut next = |text: &str| lines.find(|line| line.contains(text)).unwrap();
    next(
        "  could not immediately connect to the cluster but it may be initializing, will retry until timeout",
    );
    let retry = next("  could not connect to cluster, retrying...  ");
    child.kill().unwrap();
    child.wait().unwrap();
    let error = format!("Get \\\"https://{unused}/\\\": dial tcp {unused}: connect: connection refused");
    assert!(retry.contains(&format!("{{\"error\": \"{error}\", \"attempts\": 2, ")), "{retry}");
}
