//! `get kubeconfig`: JWTAuthenticators and the discovery documents of their issuers.

use serde_json::json;

use crate::cluster::{Cluster, api_strategy, exec_args, home_for, issuer, jwt, run};
use crate::support::{ReceivedResponse, Server};

#[test]
fn a_jwt_authenticator_results_in_an_oidc_login() {
    // The issuer is not a Supervisor.
    let oidc = Server::start(|request| {
        let address = format!("https://{}", request.headers["host"]);
        ReceivedResponse::json(&json!({"issuer": address, "scopes_supported": ["openid", "offline_access"]}))
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
            "data": {"ca.crt": pinniped_go_compat::base64::encode(oidc.ca.as_bytes()), "empty": "", "other": "aGVsbG8="},
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
            "--scopes=offline_access,openid".to_owned(),
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
            "removed default scopes of --oidc-scopes because the issuer does not list them  {\"scopes\": [\"pinniped:request-audience\",\"username\",\"groups\"]}".to_owned(),
        ]
    );
    // Requested scopes are unchanged.
    let all = "offline_access,openid,pinniped:request-audience,username,groups,openid";
    let result = run(&home, &["--skip-validation", &format!("--oidc-scopes={all}")]);
    assert_eq!(exec_args(&result)[10], format!("--scopes={all}"));
    assert!(!result.stderr.contains("scope"), "{result:?}");

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
fn a_workload_gets_the_audience_and_sends_no_request_to_the_issuer() {
    let cluster = Cluster {
        issuers: vec![issuer("test-issuer", &[api_strategy()])],
        // Neither the issuer nor its CA exists.
        jwts: vec![jwt(
            "github-actions",
            "https://127.0.0.1:1",
            &json!({"certificateAuthorityDataSource": {"kind": "Secret", "name": "x", "key": "k"}}),
        )],
        ..Cluster::default()
    };
    let server = cluster.start();
    let home = home_for(&server);
    let args = exec_args(&run(&home, &["--skip-validation", "--workload-token-from=github-actions"]));
    assert_eq!(args[..3], ["login", "token", "--enable-concierge"]);
    assert_eq!(
        args[4..6],
        ["--concierge-authenticator-name=github-actions", "--concierge-authenticator-type=jwt",]
    );
    assert_eq!(args[8..], ["--from=github-actions", "--audience=test-audience"]);
    run(&home, &["--workload-token-from=nowhere"]).fails_with(
        "invalid argument \"nowhere\" for \"--workload-token-from\" flag: invalid source \"nowhere\", valid sources are file, env, github-actions, gitlab and kubernetes",
    );
}

#[test]
fn a_supervisor_determines_scopes_provider_and_flow() {
    let oidc = Server::start(|request| {
        let address = format!("https://{}", request.headers["host"]);
        match request.path.as_str() {
            "/some/path/.well-known/openid-configuration" => ReceivedResponse::json(&json!({
                "issuer": format!("{address}/some/path"),
                "scopes_supported": ["openid", "username"],
                "discovery.supervisor.pinniped.dev/v1alpha1": {"pinniped_identity_providers_endpoint": format!("{address}/idps")},
            })),
            "/idps" => ReceivedResponse::json(&json!({"pinniped_identity_providers": [
                {"name": "some-ldap-idp", "type": "ldap", "flows": ["cli_password", "browser_authcode"]},
                {"name": "some-oidc-idp", "type": "oidc", "flows": ["browser_authcode"]},
            ]})),
            _ => ReceivedResponse::text(400, "{}"),
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
    let requested = oidc.seen().len();
    let all = [
        "--upstream-identity-provider-name=n",
        "--upstream-identity-provider-type=t",
        "--upstream-identity-provider-flow=f",
    ];
    let flags: Vec<&str> = ["--skip-validation"].into_iter().chain(all).collect();
    let args = exec_args(&run(&home, &flags));
    assert_eq!(args[13..], all);
    assert_eq!(oidc.seen().len(), requested + 1, "the list of providers was not requested");

    let broken =
        Cluster { jwts: vec![jwt("test-jwt", &format!("{}/other", oidc.url()), &inline)], ..cluster };
    let server = broken.start();
    let home = home_for(&server);
    run(&home, &["--skip-validation"])
        .fails_with("while fetching OIDC discovery data from issuer: 400 Bad Request: {}");
}
