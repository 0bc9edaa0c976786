//! Groups that are found in another token, of the same or of another issuer.

use super::*;

const SECOND: &str = "/second";
const ENDPOINT: &str = "/groups?of=u";

/// Publishes a second issuer on the same server. Returns its key.
fn second_issuer(provider: &Provider) -> Signer {
    let signer = Signer::generate(Algorithm::Es256, "second");
    let url = format!("{}{SECOND}", provider.issuer.url());
    let document = json!({"issuer": url, "jwks_uri": format!("{url}{KEYS_PATH}")});
    provider.issuer.reply(&format!("{SECOND}{DISCOVERY_PATH}"), Reply::json(&document));
    provider.issuer.reply(&format!("{SECOND}{KEYS_PATH}"), Reply::json(&key_set([&signer])));
    signer
}

/// Returns the claims of a second token.
fn second_claims(provider: &Provider, more: &Value) -> Value {
    let issuer = format!("{}{SECOND}", provider.issuer.url());
    let mut claims = json!({"iss": issuer, "aud": "aud", "exp": NOW + 60, "groups": ["g", "h"]});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

fn jwt(text: &str) -> Reply {
    // White space around the token does not matter.
    Reply::Full(http::StatusCode::OK, "application/jwt", format!("{text}\n"))
}

/// Returns a first token whose groups are at the endpoint.
fn first(provider: &Provider, source: &Value) -> String {
    let claims = provider.claims(&json!({"_claim_names": {"groups": "s"}, "_claim_sources": {"s": source}}));
    provider.es256.sign(&claims)
}

fn endpoint(provider: &Provider) -> String {
    format!("{}{ENDPOINT}", provider.issuer.url())
}

#[tokio::test]
async fn groups_are_read_from_the_token_at_the_endpoint() {
    let provider = Provider::start().await;
    let second = second_issuer(&provider);
    let authenticator = provider.authenticator().await;
    provider.issuer.reply(ENDPOINT, jwt(&second.sign(&second_claims(&provider, &json!({})))));
    let user = Ok(Some(named("u", &["g", "h"])));
    let token = first(&provider, &json!({"endpoint": endpoint(&provider), "access_token": "secret"}));
    assert_eq!(log_in(&authenticator, &token).await, user);
    let token = first(&provider, &json!({"endpoint": endpoint(&provider)}));
    assert_eq!(log_in(&authenticator, &token).await, user);
    let seen = provider.issuer.seen(ENDPOINT);
    assert_eq!(seen.len(), 2, "the claim is not cached");
    assert_eq!(seen[0].headers["authorization"], "Bearer secret");
    assert!(!seen[1].headers.contains_key("authorization"));
    let discoveries = provider.issuer.seen(&format!("{SECOND}{DISCOVERY_PATH}")).len();
    assert_eq!(discoveries, 1, "the second issuer is discovered once");
}

#[tokio::test]
async fn the_endpoint_is_used_only_for_absent_groups() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let source = json!({"s": {"endpoint": endpoint(&provider)}});
    let aggregated = json!({"s": {"JWT": "x.y.z"}});
    let named_user = |groups: &[&str]| Ok(Some(named("u", groups)));
    let no_sources = Err("oidc: could not expand distributed claims: oidc: no claim sources".to_owned());
    for (claims, wanted) in [
        (
            json!({"groups": "g", "_claim_names": {"groups": "s"}, "_claim_sources": source}),
            named_user(&["g"]),
        ),
        (json!({"_claim_names": {"roles": "s"}, "_claim_sources": source}), named_user(&[])),
        (json!({"_claim_names": {"groups": "s"}, "_claim_sources": aggregated}), named_user(&[])),
        (json!({"_claim_sources": source}), named_user(&[])),
        (json!({"_claim_names": {}}), no_sources),
    ] {
        let token = provider.es256.sign(&provider.claims(&claims));
        assert_eq!(log_in(&authenticator, &token).await, wanted, "{claims}");
    }
    assert_eq!(provider.issuer.seen(ENDPOINT).len(), 0);
}

#[tokio::test]
async fn each_fault_of_the_endpoint_has_its_text() {
    let provider = Provider::start().await;
    let second = second_issuer(&provider);
    let authenticator = provider.authenticator().await;
    let url = endpoint(&provider);
    let base = provider.issuer.url();
    let sign = |more: Value| jwt(&second.sign(&second_claims(&provider, &more)));
    let foreign = Signer::generate(Algorithm::Es256, "second");
    let mut without_groups = second_claims(&provider, &json!({}));
    without_groups.as_object_mut().unwrap().remove("groups");
    for (reply, wanted) in [
        (
            Reply::not_found(),
            "while getting distributed claim \"groups\": error while getting distributed claim JWT: 404 Not Found"
                .to_owned(),
        ),
        (
            jwt("no token"),
            format!("getting untrusted issuer from endpoint {url} failed for claim \"groups\": malformed token"),
        ),
        (
            sign(json!({"iss": format!("{base}/third")})),
            format!(
                "verifying untrusted issuer {base}/third failed: verifier not initialized for issuer: \"{base}/third\""
            ),
        ),
        (
            sign(json!({"aud": "x"})),
            "verify distributed claim token: oidc: expected audience \"aud\" got [\"x\"]".to_owned(),
        ),
        (
            sign(json!({"exp": 0})),
            "verify distributed claim token: oidc: token is expired (Token Expiry: 1970-01-01 00:00:00 +0000 UTC)"
                .to_owned(),
        ),
        (
            jwt(&foreign.sign(&second_claims(&provider, &json!({})))),
            "verify distributed claim token: failed to verify signature: failed to verify id token signature"
                .to_owned(),
        ),
        (
            jwt(&second.sign(&without_groups)),
            format!("jwt returned by distributed claim endpoint \"{url}\" did not contain claim: groups"),
        ),
    ] {
        provider.issuer.reply(ENDPOINT, reply.clone());
        let token = first(&provider, &json!({"endpoint": url}));
        let wanted = Err(format!("oidc: could not expand distributed claims: {wanted}"));
        assert_eq!(log_in(&authenticator, &token).await, wanted, "{reply:?}");
    }
}

#[tokio::test]
async fn an_endpoint_must_be_an_https_url() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    for (url, wanted) in [
        ("http://127.0.0.1/x", "Get \"http://127.0.0.1/x\": unsupported protocol scheme \"http\""),
        ("file:///etc/passwd", "Get \"file:///etc/passwd\": unsupported protocol scheme \"file\""),
        (":x", "while calling :x: parse \":x\": missing protocol scheme"),
    ] {
        let token = first(&provider, &json!({"endpoint": url}));
        let prefix =
            "oidc: could not expand distributed claims: while getting distributed claim \"groups\": ";
        assert_eq!(log_in(&authenticator, &token).await, Err(format!("{prefix}{wanted}")));
    }
}

#[tokio::test]
async fn the_groups_of_another_issuer_do_not_change_the_username() {
    let provider = Provider::start().await;
    let second = second_issuer(&provider);
    let authenticator = provider.authenticator().await;
    let claims = second_claims(&provider, &json!({"username": "admin", "jti": "other"}));
    provider.issuer.reply(ENDPOINT, jwt(&second.sign(&claims)));
    let token = first(&provider, &json!({"endpoint": endpoint(&provider)}));
    assert_eq!(log_in(&authenticator, &token).await, Ok(Some(named("u", &["g", "h"]))));
}
