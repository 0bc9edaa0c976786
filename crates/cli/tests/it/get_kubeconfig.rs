//! `get kubeconfig` against a scripted API server.

use serde_json::{Value, json};

use crate::support::{Answer, Home, Request, Run, Server, admin_kubeconfig};

const CONFIG: &str = "/apis/config.concierge.pinniped.dev/v1alpha1/credentialissuers";
const JWT: &str = "/apis/authentication.concierge.pinniped.dev/v1alpha1/jwtauthenticators";
const WEBHOOK: &str = "/apis/authentication.concierge.pinniped.dev/v1alpha1/webhookauthenticators";

/// What the cluster has; lists are answered from it, single objects by name.
#[derive(Clone, Default)]
struct Cluster {
    issuers: Vec<Value>,
    jwts: Vec<Value>,
    webhooks: Vec<Value>,
    api_services: Vec<Value>,
    secrets: Vec<Value>,
}

impl Cluster {
    fn answer(&self, request: &Request) -> Answer {
        if request.path == "/" {
            // The final look at the cluster comes without credentials.
            assert!(!request.headers.contains_key("authorization"));
            return Answer::text(403, "who are you?");
        }
        assert_eq!(request.headers["authorization"], "Bearer admin-token");
        let path = request.path.trim_end_matches('?');
        let lists: [(&str, &str, &Vec<Value>); 5] = [
            (CONFIG, "credentialissuers.config.concierge.pinniped.dev", &self.issuers),
            (JWT, "jwtauthenticators.authentication.concierge.pinniped.dev", &self.jwts),
            (WEBHOOK, "webhookauthenticators.authentication.concierge.pinniped.dev", &self.webhooks),
            (
                "/apis/apiregistration.k8s.io/v1/apiservices",
                "apiservices.apiregistration.k8s.io",
                &self.api_services,
            ),
            ("/api/v1/namespaces/concierge-namespace/secrets", "secrets", &self.secrets),
        ];
        for (list, resource, items) in lists {
            if path == list {
                return Answer::list(items);
            }
            if let Some(name) = path.strip_prefix(list).and_then(|rest| rest.strip_prefix('/')) {
                return match items.iter().find(|item| item["metadata"]["name"] == name) {
                    Some(item) => Answer::json(item),
                    None => Answer::not_found(&format!("{resource} \"{name}\" not found")),
                };
            }
        }
        Answer::text(404, "404 page not found")
    }

    fn start(self) -> Server {
        Server::start(move |request| self.answer(request))
    }
}

fn issuer(name: &str, strategies: &[Value]) -> Value {
    json!({
        "apiVersion": "config.concierge.pinniped.dev/v1alpha1", "kind": "CredentialIssuer",
        "metadata": {"name": name}, "spec": {}, "status": {"strategies": strategies},
    })
}

fn strategy(kind: &str, status: &str, reason: &str, frontend: &Value) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "some message",
        "lastUpdateTime": "2026-11-21T10:00:00Z", "frontend": frontend,
    })
}

fn api_strategy() -> Value {
    strategy(
        "KubeClusterSigningCertificate",
        "Success",
        "FetchedKey",
        &json!({
            "type": "TokenCredentialRequestAPI",
            "tokenCredentialRequestInfo": {"server": "https://not-used", "certificateAuthorityData": "bm90LXVzZWQ="},
        }),
    )
}

fn proxy_strategy(endpoint: &str, ca_data: &str) -> Value {
    strategy(
        "ImpersonationProxy",
        "Success",
        "Listening",
        &json!({
            "type": "ImpersonationProxy",
            "impersonationProxyInfo": {"endpoint": endpoint, "certificateAuthorityData": ca_data},
        }),
    )
}

fn webhook(name: &str) -> Value {
    json!({
        "apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": "WebhookAuthenticator",
        "metadata": {"name": name}, "spec": {"endpoint": "https://webhook"},
    })
}

fn jwt(name: &str, issuer: &str, tls: &Value) -> Value {
    json!({
        "apiVersion": "authentication.concierge.pinniped.dev/v1alpha1", "kind": "JWTAuthenticator",
        "metadata": {"name": name}, "spec": {"issuer": issuer, "audience": "test-audience", "tls": tls},
    })
}

/// One CredentialIssuer with the cluster's own API, one webhook.
fn usual() -> Cluster {
    Cluster {
        issuers: vec![issuer("test-issuer", &[api_strategy()])],
        webhooks: vec![webhook("test-webhook")],
        ..Cluster::default()
    }
}

fn home_for(server: &Server) -> Home {
    let mut home = Home::new();
    let extra = format!("    certificate-authority-data: {}", server.ca_data());
    let path = home.write("config", &admin_kubeconfig(&server.url(), &extra));
    home.set("KUBECONFIG", path.to_str().unwrap());
    home
}

fn run(home: &Home, flags: &[&str]) -> Run {
    let args: Vec<&str> = ["get", "kubeconfig", "--pinniped-cli-path=/p", "--timeout=30s"]
        .iter()
        .chain(flags)
        .copied()
        .collect();
    home.run(&args)
}

fn exec_args(run: &Run) -> Vec<String> {
    assert_eq!(run.code, 0, "{run:?}");
    let document: Value = serde_saphyr::from_str(&run.stdout).unwrap();
    serde_json::from_value(document["users"][0]["user"]["exec"]["args"].clone()).unwrap()
}

#[test]
fn a_static_token_through_the_clusters_own_api() {
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
fn everything_set_by_hand_is_taken_as_it_is() {
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
fn the_impersonation_proxy_is_chosen_by_mode_and_first_wins() {
    let mut cluster = usual();
    let proxies = [
        api_strategy(),
        proxy_strategy("https://proxy-1", "Y2E="),
        proxy_strategy("https://proxy-2", "Y2E="),
    ];
    cluster.issuers = vec![issuer("test-issuer", &proxies)];
    let server = cluster.start();
    let home = home_for(&server);
    let result =
        run(&home, &["--static-token=t", "--concierge-mode=ImpersonationProxy", "--skip-validation"]);
    assert!(
        result.stdout.contains("    certificate-authority-data: Y2E=\n    server: https://proxy-1\n"),
        "{result:?}"
    );
    assert_eq!(
        result.log(),
        [
            "discovered CredentialIssuer  {\"name\": \"test-issuer\"}",
            "discovered Concierge endpoint  {\"endpoint\": \"https://proxy-1\"}",
            "discovered Concierge certificate authority bundle  {\"roots\": 0}",
            "discovered WebhookAuthenticator  {\"name\": \"test-webhook\"}",
        ]
    );
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
fn without_a_concierge_nothing_is_asked() {
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
fn pending_strategies_are_waited_for() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let cluster = usual();
    let server = Server::start(move |request| {
        let mut cluster = cluster.clone();
        if request.path.starts_with(CONFIG) && asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            let pending = strategy("ImpersonationProxy", "Error", "Pending", &Value::Null);
            cluster.issuers = vec![issuer("test-issuer", &[pending])];
        }
        cluster.answer(request)
    });
    let home = home_for(&server);
    let result = run(&home, &["--static-token=t", "--timeout=1m"]);
    assert_eq!(result.code, 0, "{result:?}");
    let log = result.log();
    assert_eq!(
        log[1],
        "found CredentialIssuer strategy  {\"type\": \"ImpersonationProxy\", \"status\": \"Error\", \"reason\": \"Pending\", \"message\": \"some message\"}"
    );
    assert!(
        log[2].starts_with(
            "waiting for CredentialIssuer pending strategies to finish  {\"attempts\": 1, \"remaining\": \""
        ),
        "{}",
        log[2]
    );
    // Or not waited for, when that was asked for.
    let mut cluster = usual();
    cluster.issuers = vec![issuer("i", &[strategy("ImpersonationProxy", "Error", "Pending", &Value::Null)])];
    let server = cluster.start();
    let home = home_for(&server);
    let result = run(&home, &["--static-token=t", "--concierge-skip-wait"]);
    result.fails_with("could not autodiscover --concierge-mode");
}

#[test]
fn what_discovery_does_not_find_is_said() {
    type Case = (&'static str, fn(&mut Cluster), &'static [&'static str], &'static str);
    let cases: [Case; 9] = [
        ("no issuer", |c| c.issuers.clear(), &[], "no CredentialIssuers were found"),
        (
            "two issuers",
            |c| c.issuers = vec![issuer("a", &[]), issuer("b", &[])],
            &[],
            "multiple CredentialIssuers were found, so the --concierge-credential-issuer flag must be specified",
        ),
        (
            "named issuer missing",
            |_| {},
            &["--concierge-credential-issuer=x"],
            "credentialissuers.config.concierge.pinniped.dev \"x\" not found",
        ),
        ("no authenticator", |c| c.webhooks.clear(), &[], "no authenticators were found"),
        (
            "two authenticators",
            |c| c.jwts = vec![jwt("j", "https://i", &Value::Null)],
            &[],
            "multiple authenticators were found, so the --concierge-authenticator-type/--concierge-authenticator-name flags must be specified",
        ),
        (
            "wrong type",
            |_| {},
            &["--concierge-authenticator-type=foo", "--concierge-authenticator-name=x"],
            "invalid authenticator type \"foo\", supported values are \"webhook\" and \"jwt\"",
        ),
        (
            "named authenticator missing",
            |_| {},
            &["--concierge-authenticator-type=webhook", "--concierge-authenticator-name=x"],
            "webhookauthenticators.authentication.concierge.pinniped.dev \"x\" not found",
        ),
        (
            "half an authenticator",
            |_| {},
            &["--concierge-authenticator-type=webhook"],
            "--concierge-authenticator-type was specified without --concierge-authenticator-name, specify both or neither (found the webhook authenticator \"test-webhook\")",
        ),
        (
            "no such mode",
            |_| {},
            &["--concierge-mode=ImpersonationProxy"],
            "could not find successful Concierge strategy matching --concierge-mode=ImpersonationProxy",
        ),
    ];
    for (case, change, flags, error) in cases {
        let mut cluster = usual();
        change(&mut cluster);
        let server = cluster.start();
        let home = home_for(&server);
        let flags: Vec<&str> = ["--static-token=t"].iter().chain(flags).copied().collect();
        let result = run(&home, &flags);
        assert_eq!(result.last_error(), Some(error), "{case}: {result:?}");
        result.fails_with(error);
    }
}

#[test]
fn a_cluster_without_a_concierge_is_named() {
    let server = Server::start(|_| Answer::text(404, "404 page not found"));
    let home = home_for(&server);
    run(&home, &["--static-token=t"]).fails_with(
        "failed to list CredentialIssuer objects for autodiscovery: the server could not find the requested resource (get credentialissuers.config.concierge.pinniped.dev)",
    );
}

#[test]
fn wrong_input_is_refused() {
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
    run(&Home::new(), &[])
        .fails_with("could not load --kubeconfig/--kubeconfig-context: no such context \"\"");
}

#[test]
fn a_cluster_that_does_not_answer_is_tried_until_the_timeout() {
    let mut cluster = usual();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = usual().start();
    cluster.issuers = vec![issuer("i", &[proxy_strategy(&format!("https://{nobody}"), &other.ca_data())])];
    let server = cluster.start();
    let home = home_for(&server);
    let result = run(&home, &["--static-token=t", "--timeout=3s"]);
    result.fails_with("context deadline exceeded");
    let log = result.log();
    assert!(log.contains(&"could not immediately connect to the cluster but it may be initializing, will retry until timeout".to_owned()), "{log:?}");
    assert!(
        log.iter().any(|line| line.starts_with(&format!("could not connect to cluster, retrying...  {{\"error\": \"Get \\\"https://{nobody}/\\\": dial tcp {nobody}: connect: connection refused\", \"attempts\": 2, "))),
        "{log:?}"
    );
}

#[test]
fn a_jwt_authenticator_makes_an_oidc_login() {
    // The issuer is no Supervisor; the scopes stay.
    let oidc = Server::start(|request| {
        let address = format!("https://{}", request.headers["host"]);
        Answer::json(&json!({"issuer": address, "scopes_supported": ["openid"]}))
    });
    let source = json!({"certificateAuthorityDataSource": {"kind": "Secret", "name": "ca", "key": "ca.crt"}});
    let cluster = Cluster {
        issuers: vec![issuer("test-issuer", &[api_strategy()])],
        jwts: vec![jwt("test-jwt", &oidc.url(), &source)],
        api_services: vec![
            json!({"metadata": {"name": "a"}, "spec": {"group": "login.concierge.pinniped.dev", "groupPriorityMinimum": 1, "versionPriority": 1}}),
            json!({"metadata": {"name": "b"}, "spec": {"group": "login.concierge.pinniped.dev", "groupPriorityMinimum": 1, "versionPriority": 1, "service": {"namespace": "concierge-namespace", "name": "n"}}}),
        ],
        secrets: vec![json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"},
            "data": {"ca.crt": pinniped_cli::base64go::encode(oidc.ca.as_bytes()), "empty": "", "other": "aGVsbG8="},
        })],
        ..Cluster::default()
    };
    let server = cluster.clone().start();
    let home = home_for(&server);
    let result = run(&home, &["--skip-validation"]);
    let args = exec_args(&result);
    assert_eq!(
        args[8..],
        [
            format!("--issuer={}", oidc.url()),
            "--client-id=pinniped-cli".to_owned(),
            "--scopes=offline_access,openid,pinniped:request-audience,username,groups".to_owned(),
            format!("--ca-bundle-data={}", oidc.ca_data()),
            "--request-audience=test-audience".to_owned(),
        ]
    );
    assert_eq!(
        result.log()[4..],
        [
            "discovered JWTAuthenticator  {\"name\": \"test-jwt\"}".to_owned(),
            format!("discovered OIDC issuer  {{\"issuer\": \"{}\"}}", oidc.url()),
            "discovered OIDC audience  {\"audience\": \"test-audience\"}".to_owned(),
            "discovered Concierge namespace for API group suffix  {\"apiGroupSuffix\": \"pinniped.dev\"}".to_owned(),
            "discovered OIDC CA bundle from JWTAuthenticator spec.tls.certificateAuthorityDataSource  {\"roots\": 1}".to_owned(),
        ]
    );

    const PREFIX: &str = "tried to autodiscover --oidc-ca-bundle, but ";
    const FIELD: &str = "JWTAuthenticator test-jwt spec.tls.certificateAuthorityDataSource";
    let object = "Secret concierge-namespace/ca";
    for (kind, name, key, error) in [
        (
            "Secret",
            "x",
            "k",
            format!(
                "encountered error getting Secret concierge-namespace/x specified by {FIELD}: secrets \"x\" not found"
            ),
        ),
        ("Secret", "ca", "k", format!("key \"k\" specified by {FIELD}.key does not exist in {object}")),
        (
            "Secret",
            "ca",
            "empty",
            format!("key \"empty\" specified by {FIELD}.key exists but has empty value in {object}"),
        ),
        (
            "Secret",
            "ca",
            "other",
            format!(
                "value at key \"other\" specified by {FIELD}.key does not contain any CA certificates in {object}"
            ),
        ),
        ("Pod", "ca", "k", format!("{FIELD}.Kind value \"Pod\" is not supported by this CLI version")),
    ] {
        let mut cluster = cluster.clone();
        let source = json!({"certificateAuthorityDataSource": {"kind": kind, "name": name, "key": key}});
        cluster.jwts = vec![jwt("test-jwt", &oidc.url(), &source)];
        let server = cluster.start();
        let home = home_for(&server);
        let result = run(&home, &["--skip-validation"]);
        assert_eq!(result.last_error(), Some(format!("{PREFIX}{error}").as_str()), "{result:?}");
    }
    let server = Cluster { api_services: Vec::new(), ..cluster }.start();
    let home = home_for(&server);
    run(&home, &["--skip-validation"]).fails_with(&format!(
        "{PREFIX}encountered error discovering namespace of Concierge for JWTAuthenticator test-jwt: could not find APIService with non-empty spec.service.namespace for API group login.concierge.pinniped.dev"
    ));
}

#[test]
fn a_supervisor_decides_scopes_provider_and_flow() {
    let oidc = Server::start(|request| {
        let address = format!("https://{}", request.headers["host"]);
        match request.path.as_str() {
            "/some/path/.well-known/openid-configuration" => Answer::json(&json!({
                "issuer": format!("{address}/some/path"),
                "scopes_supported": ["openid", "username"],
                "discovery.supervisor.pinniped.dev/v1alpha1": {"pinniped_identity_providers_endpoint": format!("{address}/idps")},
            })),
            "/idps" => Answer::json(&json!({"pinniped_identity_providers": [
                {"name": "some-ldap-idp", "type": "ldap", "flows": ["cli_password", "browser_authcode"]},
                {"name": "some-oidc-idp", "type": "oidc", "flows": ["browser_authcode"]},
            ]})),
            _ => Answer::text(400, "{}"),
        }
    });
    let inline = json!({"certificateAuthorityData": oidc.ca_data()});
    let cluster = Cluster {
        issuers: vec![issuer("test-issuer", &[api_strategy()])],
        jwts: vec![jwt("test-jwt", &format!("{}/some/path", oidc.url()), &inline)],
        ..Cluster::default()
    };
    let server = cluster.clone().start();
    let home = home_for(&server);
    let result = run(&home, &["--skip-validation", "--upstream-identity-provider-type=ldap"]);
    let args = exec_args(&result);
    assert_eq!(args[10], "--scopes=offline_access,openid,pinniped:request-audience");
    assert_eq!(
        args[12..],
        [
            "--request-audience=test-audience",
            "--upstream-identity-provider-name=some-ldap-idp",
            "--upstream-identity-provider-type=ldap",
            "--upstream-identity-provider-flow=cli_password",
        ]
    );
    assert_eq!(
        result.log()[8..],
        [
            "removed scope from --oidc-scopes list because it is not supported by this Supervisor  {\"scope\": \"username\"}",
            "removed scope from --oidc-scopes list because it is not supported by this Supervisor  {\"scope\": \"groups\"}",
            "multiple client flows found, selecting first value as default  {\"idpName\": \"some-ldap-idp\", \"idpType\": \"ldap\", \"selectedFlow\": \"cli_password\", \"availableFlows\": [\"cli_password\",\"browser_authcode\"]}",
        ]
    );
    run(&home, &["--skip-validation"]).fails_with(
        "multiple Supervisor upstream identity providers were found, so the --upstream-identity-provider-name/--upstream-identity-provider-type flags must be specified. Found these upstreams: [{\"flows\":[\"cli_password\",\"browser_authcode\"],\"name\":\"some-ldap-idp\",\"type\":\"ldap\"},{\"flows\":[\"browser_authcode\"],\"name\":\"some-oidc-idp\",\"type\":\"oidc\"}]",
    );
    let asked = oidc.seen().len();
    let all = [
        "--upstream-identity-provider-name=n",
        "--upstream-identity-provider-type=t",
        "--upstream-identity-provider-flow=f",
    ];
    let flags: Vec<&str> = ["--skip-validation"].into_iter().chain(all).collect();
    let args = exec_args(&run(&home, &flags));
    assert_eq!(args[13..], all);
    assert_eq!(oidc.seen().len(), asked + 1, "the list of providers was not asked for");

    let broken =
        Cluster { jwts: vec![jwt("test-jwt", &format!("{}/other", oidc.url()), &inline)], ..cluster };
    let server = broken.start();
    let home = home_for(&server);
    run(&home, &["--skip-validation"])
        .fails_with("while fetching OIDC discovery data from issuer: 400 Bad Request: {}");
}
