//! The faults of an issuer while an authenticator is built, and the step that reports each.

use http::StatusCode;
use pinniped_concierge_domain::jwt_authenticator::conditions::KeysUrlError;

use super::*;

/// Builds an authenticator after these replies are set, and returns the failed step with its text.
async fn failure(provider: &Provider, path: &str, reply: Reply) -> (&'static str, String) {
    provider.issuer.reply(path, reply);
    match provider.validate(json!({})).await.unwrap_err() {
        Progress::DiscoveryFailed(text) => ("discovery", text.to_string()),
        Progress::KeysUrlInvalid(error) => ("url", error.to_string()),
        Progress::KeysNotFetched(text) => ("keys", text.to_string()),
        Progress::SpecInvalid(errors) => ("spec", errors.to_string()),
        other => panic!("{other:?}"),
    }
}

fn document(issuer: &str, keys: &str) -> Reply {
    Reply::json(&json!({"issuer": issuer, "jwks_uri": keys}))
}

#[tokio::test]
async fn each_fault_of_the_discovery_has_its_text() {
    let provider = Provider::start().await;
    let url = provider.issuer.url();
    let html = |status: StatusCode| Reply::Full(status, "text/html", "<html>no</html>".to_owned());
    let address = format!("{url}{DISCOVERY_PATH}");
    for (reply, wanted) in [
        (Reply::not_found(), "404 Not Found: 404 page not found\n".to_owned()),
        (html(StatusCode::BAD_GATEWAY), "502 Bad Gateway: <html>no</html>".to_owned()),
        (
            document("https://other.example", ""),
            format!(
                "oidc: issuer URL provided to client (\"{url}\") did not match the issuer URL returned by provider \
                 (\"https://other.example\")"
            ),
        ),
        (
            document(&format!("{url}/"), ""),
            format!(
                "oidc: issuer URL provided to client (\"{url}\") did not match the issuer URL returned by provider \
                 (\"{url}/\")"
            ),
        ),
        (
            html(StatusCode::OK),
            "oidc: failed to decode provider discovery object: expected Content-Type = application/json, got \
             \"text/html\": invalid character '<' looking for beginning of value"
                .to_owned(),
        ),
        (Reply::Redirect(address.clone()), format!("Get \"{address}\": stopped after 10 redirects")),
        (
            Reply::Redirect("http://127.0.0.1/x".to_owned()),
            "Get \"http://127.0.0.1/x\": unsupported protocol scheme \"http\"".to_owned(),
        ),
    ] {
        let failed = failure(&provider, DISCOVERY_PATH, reply.clone()).await;
        assert_eq!(failed, ("discovery", wanted), "{reply:?}");
    }
    let (step, text) = failure(&provider, DISCOVERY_PATH, Reply::Endless).await;
    assert!(step == "discovery" && text.starts_with(&format!("Get \"{address}\": ")), "{text}");
}

#[tokio::test]
async fn redirects_to_https_are_followed() {
    let provider = Provider::start().await;
    let url = provider.issuer.url();
    provider.issuer.reply("/moved", document(&url, &format!("{url}/moved-keys")));
    provider.issuer.reply(DISCOVERY_PATH, Reply::Redirect(format!("{url}/moved")));
    provider.issuer.reply("/moved-keys", Reply::Redirect(format!("{url}{KEYS_PATH}")));
    let authenticator = provider.authenticator().await;
    let token = provider.es256.sign(&provider.claims(&json!({})));
    assert_eq!(log_in(&authenticator, &token).await, Ok(Some(named("u", &[]))));
}

#[tokio::test]
async fn an_untrusted_certificate_has_the_text_of_go() {
    let (provider, other) = (Provider::start().await, Provider::start().await);
    let issuer = ScriptedIssuer::start(LOCALHOST).await.unwrap();
    let provider = Provider { issuer, ..provider };
    let spec = json!({"issuer": other.issuer.url()});
    let error = provider.validate(spec).await.unwrap_err();
    let wanted = format!(
        "Get \"{}{DISCOVERY_PATH}\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
        other.issuer.url()
    );
    assert_eq!(error, Progress::DiscoveryFailed(wanted.into()));
}

#[tokio::test]
async fn the_url_of_the_keys_must_be_https() {
    let provider = Provider::start().await;
    let url = provider.issuer.url();
    provider.issuer.reply(DISCOVERY_PATH, document(&url, "http://127.0.0.1/keys"));
    let error = provider.validate(json!({})).await.unwrap_err();
    let wanted = KeysUrlError::Scheme("http://127.0.0.1/keys".to_owned());
    assert_eq!(error, Progress::KeysUrlInvalid(wanted));
}

#[tokio::test]
async fn each_fault_of_the_keys_has_its_text() {
    let provider = Provider::start().await;
    let url = provider.issuer.url();
    for (reply, wanted) in [
        (
            Reply::not_found(),
            "fetching keys oidc: get keys failed: 404 Not Found 404 page not found\n".to_owned(),
        ),
        (
            Reply::Full(StatusCode::OK, "text/plain", "no".to_owned()),
            "fetching keys oidc: failed to decode keys: expected Content-Type = application/json, got \"text/plain\": \
             invalid character 'o' in literal null (expecting 'u') no"
                .to_owned(),
        ),
        (
            Reply::Redirect("http://127.0.0.1/keys".to_owned()),
            "fetching keys oidc: get keys failed Get \"http://127.0.0.1/keys\": unsupported protocol scheme \"http\""
                .to_owned(),
        ),
    ] {
        let failed = failure(&provider, KEYS_PATH, reply.clone()).await;
        if matches!(reply, Reply::Full(StatusCode::OK, ..)) {
            // Of syntax errors in the middle of a text, only the beginning is Go's.
            assert!(failed.1.starts_with("fetching keys oidc: failed to decode keys: expected Content-Type"), "{}", failed.1);
            continue;
        }
        assert_eq!(failed, ("keys", wanted), "{reply:?}");
    }
    let (step, text) = failure(&provider, KEYS_PATH, Reply::Endless).await;
    let start = format!("fetching keys oidc: get keys failed Get \"{url}{KEYS_PATH}\": ");
    assert!(step == "keys" && text.starts_with(&start), "{text}");
}

#[tokio::test]
async fn keys_with_another_content_type_are_used() {
    let provider = Provider::start().await;
    let keys = key_set([&provider.es256]).to_string();
    provider.issuer.reply(KEYS_PATH, Reply::Full(StatusCode::OK, "text/plain", keys));
    let token = provider.es256.sign(&provider.claims(&json!({})));
    assert_eq!(log_in(&provider.authenticator().await, &token).await, Ok(Some(named("u", &[]))));
}

#[tokio::test]
async fn weak_and_unsuitable_keys_are_not_used_and_ten_thousand_keys_are_no_problem() {
    let provider = Provider::start().await;
    let mut for_encryption = provider.es256.jwk();
    for_encryption["use"] = json!("enc");
    let mut keys: Vec<Value> = vec![
        json!({"kty": "oct", "k": "AAAA"}),
        json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
        json!({"kty": "RSA", "kid": "weak", "n": "a".repeat(86), "e": "AQAB"}),
        for_encryption,
        provider.rs256.jwk(),
    ];
    provider.issuer.publish(&json!({"keys": keys}));
    let authenticator = provider.authenticator().await;
    assert_eq!(authenticator.signing_keys().unwrap().status().keys, 1);
    let claims = provider.claims(&json!({}));
    assert_eq!(log_in(&authenticator, &provider.rs256.sign(&claims)).await, Ok(Some(named("u", &[]))));
    let error = log_in(&authenticator, &provider.es256.sign(&claims)).await.unwrap_err();
    assert!(error.ends_with("failed to verify id token signature"), "{error}");

    let filler = Signer::generate(Algorithm::Es256, "filler").jwk();
    keys.resize(10_000, filler);
    provider.issuer.publish(&json!({"keys": keys}));
    let authenticator = provider.authenticator().await;
    assert_eq!(log_in(&authenticator, &provider.rs256.sign(&claims)).await, Ok(Some(named("u", &[]))));
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_never_responds_is_given_up() {
    let provider = Provider::start().await;
    let (step, text) = failure(&provider, DISCOVERY_PATH, Reply::Never).await;
    let wanted = format!(
        "Get \"{}{DISCOVERY_PATH}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        provider.issuer.url()
    );
    assert_eq!((step, text), ("discovery", wanted));
}

#[tokio::test]
async fn keys_remain_when_a_later_fetch_gets_no_response() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    provider.issuer.reply(KEYS_PATH, Reply::Never);
    let keys = authenticator.signing_keys().unwrap();
    tokio::time::pause();
    let error = keys.fetch().await.unwrap_err().to_string();
    tokio::time::resume();
    assert!(error.contains("context deadline exceeded"), "{error}");
    let token = provider.es256.sign(&provider.claims(&json!({})));
    assert_eq!(log_in(&authenticator, &token).await, Ok(Some(named("u", &[]))));
}

#[tokio::test]
async fn an_invalid_spec_is_reported_after_the_keys_were_fetched() {
    let provider = Provider::start().await;
    let spec = json!({"claims": {"extra": [{"key": "k", "valueExpression": ""}]}});
    let Progress::SpecInvalid(errors) = provider.validate(spec).await.unwrap_err() else { panic!() };
    assert!(errors.to_string().starts_with("[claims.extra[0].key: Invalid value: \"k\": "), "{errors}");
    assert_eq!(provider.issuer.seen(KEYS_PATH).len(), 1);
}
