//! `get kubeconfig`: CredentialIssuers, strategies and authenticators.

use serde_json::Value;

use crate::cluster::{
    CONFIG, Cluster, api_strategy, home_for, issuer, jwt, proxy_strategy, run, strategy, usual,
};
use crate::support::{ReceivedResponse, Server};

#[test]
fn the_mode_selects_the_first_strategy_with_an_impersonation_proxy() {
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
fn the_command_waits_for_pending_strategies() {
    let requested = std::sync::atomic::AtomicUsize::new(0);
    let cluster = usual();
    let server = Server::start(move |request| {
        let mut cluster = cluster.clone();
        if request.path.starts_with(CONFIG)
            && requested.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0
        {
            let pending = strategy("ImpersonationProxy", "Error", "Pending", &Value::Null);
            cluster.issuers = vec![issuer("test-issuer", &[pending])];
        }
        cluster.respond(request)
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
    // With the flag that disables waiting.
    let mut cluster = usual();
    cluster.issuers = vec![issuer("i", &[strategy("ImpersonationProxy", "Error", "Pending", &Value::Null)])];
    let server = cluster.start();
    let home = home_for(&server);
    let result = run(&home, &["--static-token=t", "--concierge-skip-wait"]);
    result.fails_with("could not autodiscover --concierge-mode");
}

#[test]
fn missing_objects_are_reported() {
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
fn a_cluster_without_a_concierge_is_reported() {
    let server = Server::start(|_| ReceivedResponse::text(404, "404 page not found"));
    let home = home_for(&server);
    run(&home, &["--static-token=t"]).fails_with(
        "failed to list CredentialIssuer objects for autodiscovery: the server could not find the requested resource (get credentialissuers.config.concierge.pinniped.dev)",
    );
}
