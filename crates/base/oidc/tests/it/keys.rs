//! The cached keys of a provider.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_jose::{Algorithm, Jws, SignatureError};
use pinniped_oidc::{
    IdTokenVerifier, RemoteKeySet, RemoteKeySetError, UnverifiedIdToken, WITHDRAWN_KEY_LIFETIME, WaitLimits,
};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::provider::{Provider, Reply};

fn signer(id: &str) -> Signer {
    Signer::generate(Algorithm::Es256, id)
}

fn keys_of(provider: &Provider) -> RemoteKeySet {
    RemoteKeySet::new(provider.parsed_url("/keys"), provider.client())
}

async fn verify(keys: &RemoteKeySet, token: &str) -> Result<Algorithm, String> {
    let jws = Jws::parse(token).unwrap();
    keys.verify(&jws, &[Algorithm::Es256]).await.map_err(|error| error.to_string())
}

fn published<'a>(signers: impl IntoIterator<Item = &'a Signer>) -> Reply {
    Reply::json(&key_set(signers))
}

#[tokio::test]
async fn known_keys_need_no_request() {
    let signer = signer("a");
    let provider = Provider::constant(published([&signer])).await;
    let keys = keys_of(&provider);
    assert!(keys.status().age.is_none());
    keys.fetch().await.unwrap();
    let token = signer.sign(&json!({}));
    for _ in 0..100 {
        assert_eq!(verify(&keys, &token).await, Ok(Algorithm::Es256));
    }
    let requests = provider.seen();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].path.as_str(), &requests[0].headers["cache-control"]),
        ("/keys", &"no-cache".parse().unwrap())
    );
    let status = keys.status();
    assert!(status.keys == 1 && status.age.is_some() && status.failure.is_none(), "{status:?}");
}

#[tokio::test]
async fn a_token_whose_algorithm_is_not_allowed_causes_no_request() {
    let provider = Provider::constant(published([])).await;
    let keys = keys_of(&provider);
    let token = Signer::generate(Algorithm::Es384, "a").sign(&json!({}));
    let error = keys.verify(&Jws::parse(&token).unwrap(), &[Algorithm::Es256]).await.unwrap_err();
    assert!(matches!(error, RemoteKeySetError::Signature(SignatureError::Algorithm(_))));
    assert_eq!(provider.count(), 0);
}

#[tokio::test]
async fn a_new_key_is_fetched_once_for_all_callers_and_the_old_one_is_withdrawn() {
    let (old, new) = (signer("old"), signer("new"));
    let provider = Provider::constant(published([&old])).await;
    let keys = keys_of(&provider);
    keys.fetch().await.unwrap();
    provider.now_returns(published([&new]));
    let token = new.sign(&json!({}));
    let results = join_all((0..50).map(|_| verify(&keys, &token))).await;
    assert!(results.iter().all(|result| *result == Ok(Algorithm::Es256)), "{results:?}");
    assert_eq!(provider.count(), 2);
    // A token that was signed before the change is accepted for some time, without a request.
    let earlier = old.sign(&json!({}));
    assert_eq!(verify(&keys, &earlier).await, Ok(Algorithm::Es256));
    assert_eq!(provider.count(), 2);
    tokio::time::pause();
    tokio::time::advance(WITHDRAWN_KEY_LIFETIME).await;
    tokio::time::resume();
    let error = verify(&keys, &earlier).await.unwrap_err();
    assert_eq!(error, "no key of the set has signed the token");
    assert_eq!(verify(&keys, &token).await, Ok(Algorithm::Es256));
}

#[tokio::test]
async fn keys_are_not_withdrawn_by_a_request_that_fails_and_not_accepted_before_they_are_published() {
    let (old, new) = (signer("old"), signer("new"));
    let provider = Provider::constant(published([&old])).await;
    let keys = keys_of(&provider);
    keys.fetch().await.unwrap();
    let (earlier, later) = (old.sign(&json!({})), new.sign(&json!({})));
    verify(&keys, &later).await.unwrap_err();
    for reply in [Reply::text(503, ""), Reply::text(200, "no set"), published([&new])] {
        provider.now_returns(reply);
        let _ = keys.fetch().await;
        assert_eq!(verify(&keys, &earlier).await, Ok(Algorithm::Es256));
    }
    assert_eq!(verify(&keys, &later).await, Ok(Algorithm::Es256));
}

#[tokio::test]
async fn a_key_with_a_known_id_and_new_numbers_is_fetched() {
    let (old, new) = (signer("same"), signer("same"));
    let provider = Provider::constant(published([&old])).await;
    let keys = keys_of(&provider);
    keys.fetch().await.unwrap();
    provider.now_returns(published([&new]));
    assert_eq!(verify(&keys, &new.sign(&json!({}))).await, Ok(Algorithm::Es256));
    // Tokens of both keys are accepted, and no others.
    assert_eq!(verify(&keys, &old.sign(&json!({}))).await, Ok(Algorithm::Es256));
    assert_eq!(provider.count(), 2);
    assert!(verify(&keys, &signer("same").sign(&json!({}))).await.is_err());
}

#[tokio::test]
async fn tokens_with_invented_keys_do_not_flood_the_provider() {
    let signer = signer("a");
    let provider = Provider::constant(published([&signer])).await;
    let keys = keys_of(&provider);
    keys.fetch().await.unwrap();
    let header = |id: usize| format!(r#"{{"alg":"ES256","kid":"invented-{id}"}}"#);
    let tokens: Vec<_> = (0..500).map(|id| signer.sign_text(&header(id), "{}")).collect();
    let good = signer.sign(&json!({}));
    let (results, good) =
        tokio::join!(join_all(tokens.iter().map(|token| verify(&keys, token))), verify(&keys, &good));
    assert!(results.iter().all(Result::is_err));
    assert_eq!(good, Ok(Algorithm::Es256));
    // One request for all of them.
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn a_key_that_was_published_during_a_request_is_fetched_by_the_next_one() {
    let (old, new) = (signer("old"), signer("new"));
    let gate = Arc::new(Semaphore::new(0));
    let provider = Provider::constant(published([&old]).after(&gate)).await;
    let keys = keys_of(&provider);
    let (invented, token) = (signer("x").sign(&json!({})), new.sign(&json!({})));
    let first = verify(&keys, &invented);
    let second = async {
        // The first request has arrived; its response has only the old key.
        provider.wait_for(1).await;
        provider.now_returns(published([&new]));
        let late = verify(&keys, &token);
        let open = async { gate.add_permits(1) };
        tokio::join!(late, open).0
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_err());
    assert_eq!(second, Ok(Algorithm::Es256));
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_end_the_request() {
    let signer = signer("a");
    let gate = Arc::new(Semaphore::new(0));
    let provider = Provider::constant(published([&signer]).after(&gate)).await;
    let keys = keys_of(&provider);
    let token = signer.sign(&json!({}));
    {
        let first = verify(&keys, &token);
        tokio::select! {
            _ = first => panic!("there is no response yet"),
            () = provider.wait_for(1) => {}
        }
    }
    let second = verify(&keys, &token);
    let open = async { gate.add_permits(1) };
    assert_eq!(tokio::join!(second, open).0, Ok(Algorithm::Es256));
    assert_eq!(provider.count(), 1);
}

/// Returns a set whose keys are known, and whose provider returns another key when the gate opens.
async fn with_slow_successor(
    gate: &Arc<Semaphore>,
    known: &Signer,
    new: &Signer,
) -> (Provider, RemoteKeySet) {
    let limits = WaitLimits { max_wait: Duration::from_secs(5), max_callers: 2 };
    let provider = Provider::constant(published([known])).await;
    let keys = keys_of(&provider).with_wait_limits(limits);
    keys.fetch().await.unwrap();
    provider.now_returns(published([known, new]).after(gate));
    (provider, keys)
}

#[tokio::test]
async fn a_caller_waits_for_a_limited_time_and_the_request_continues() {
    let (known, new, gate) = (signer("known"), signer("new"), Arc::new(Semaphore::new(0)));
    let (provider, keys) = with_slow_successor(&gate, &known, &new).await;
    let token = new.sign(&json!({}));
    tokio::time::pause();
    let start = Instant::now();
    let error = verify(&keys, &token).await.unwrap_err();
    let waited = start.elapsed();
    tokio::time::resume();
    assert_eq!(error, "fetching keys context deadline exceeded");
    assert!((5..6).contains(&waited.as_secs()), "{waited:?}");
    gate.add_permits(1);
    assert_eq!(verify(&keys, &token).await, Ok(Algorithm::Es256));
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn callers_fail_at_once_while_others_wait_and_known_keys_verify_tokens() {
    let (known, new, gate) = (signer("known"), signer("new"), Arc::new(Semaphore::new(0)));
    let (provider, keys) = with_slow_successor(&gate, &known, &new).await;
    let (earlier, token) = (known.sign(&json!({})), new.sign(&json!({})));
    let mut waiting = Box::pin(join_all((0..2).map(|_| verify(&keys, &token))));
    assert!(futures::poll!(&mut waiting).is_pending());
    let error = verify(&keys, &token).await.unwrap_err();
    assert_eq!(error, "fetching keys: too many tokens with unknown keys wait for the issuer");
    assert_eq!(verify(&keys, &earlier).await, Ok(Algorithm::Es256));
    gate.add_permits(1);
    assert_eq!(waiting.await, [Ok(Algorithm::Es256), Ok(Algorithm::Es256)]);
    // Others may wait again.
    let error = verify(&keys, &signer("other").sign(&json!({}))).await.unwrap_err();
    assert!(!error.contains("too many"), "{error}");
    drop(provider);
}

#[tokio::test]
async fn known_keys_verify_tokens_while_the_provider_is_down() {
    let signer = signer("a");
    let provider = Provider::constant(published([&signer])).await;
    let keys = keys_of(&provider);
    keys.fetch().await.unwrap();
    provider.now_returns(Reply::text(503, "maintenance"));
    let known = signer.sign(&json!({"sub": "alice"}));
    let unknown = signer.sign_text(r#"{"alg":"ES256","kid":"b"}"#, "{}");
    let error = verify(&keys, &unknown).await.unwrap_err();
    assert_eq!(error, "fetching keys oidc: get keys failed: 503 Service Unavailable maintenance");
    assert_eq!(verify(&keys, &known).await, Ok(Algorithm::Es256));
    let status = keys.status();
    assert!(status.keys == 1 && status.age.is_some() && status.failure.is_some(), "{status:?}");

    provider.stop().await;
    let error = verify(&keys, &unknown).await.unwrap_err();
    assert!(error.contains("fetching keys oidc: get keys failed Get \"https://localhost:"), "{error}");
    assert_eq!(verify(&keys, &known).await, Ok(Algorithm::Es256));
}

#[tokio::test]
async fn responses_that_are_no_key_set_have_the_texts_of_go_oidc() {
    let signer = signer("a");
    for (reply, expected) in [
        (
            Reply::text(404, "404 page not found\n"),
            "oidc: get keys failed: 404 Not Found 404 page not found\n",
        ),
        (
            Reply { content_type: "text/html", ..Reply::text(200, "<html>") },
            "oidc: failed to decode keys: expected Content-Type = application/json, got \"text/html\": invalid \
             character '<' looking for beginning of value <html>",
        ),
        (
            Reply { content_type: "application/json", ..Reply::text(200, "{\"keys\": [") },
            "oidc: failed to decode keys: got Content-Type = application/json, but could not unmarshal as JSON: \
             unexpected end of JSON input {\"keys\": [",
        ),
    ] {
        let provider = Provider::constant(reply).await;
        assert_eq!(keys_of(&provider).fetch().await.unwrap_err().to_string(), expected);
    }
    // The content type does not matter if the set is good.
    let provider = Provider::constant(Reply { content_type: "text/html", ..published([&signer]) }).await;
    keys_of(&provider).fetch().await.unwrap();

    // Errors are short, whatever the provider sends.
    for reply in [
        Reply::text(500, "x".repeat(1 << 20)),
        Reply::text(200, "x".repeat(1 << 20)),
        Reply::text(200, format!("{{\"x\": \"{}\"}}", "x".repeat(4 << 20))),
        Reply::text(200, "x".repeat(6 << 20)),
    ] {
        let provider = Provider::constant(reply).await;
        let error = keys_of(&provider).fetch().await.unwrap_err().to_string();
        assert!(error.starts_with("oidc: ") && error.len() < 1500, "{}", &error[..200]);
    }
}

#[tokio::test]
async fn a_slow_provider_is_given_up_after_the_timeout() {
    let gate = Arc::new(Semaphore::new(0));
    let provider = Provider::constant(published([]).after(&gate)).await;
    let client = provider
        .client_with(pinniped_http_client::https::Redirects::Follow, Some(Duration::from_millis(200)));
    let keys = RemoteKeySet::new(provider.parsed_url("/keys"), client);
    let error = keys.fetch().await.unwrap_err().to_string();
    let url = provider.url("/keys");
    assert_eq!(
        error,
        format!(
            "oidc: get keys failed Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while \
             awaiting headers)"
        )
    );
}

#[tokio::test]
async fn a_verifier_uses_the_keys_and_then_the_time() {
    let signer = signer("a");
    let provider = Provider::constant(published([&signer])).await;
    let keys = keys_of(&provider);
    let verifier = IdTokenVerifier {
        issuer: "i".to_owned(),
        audience: "a".to_owned(),
        algorithms: vec![Algorithm::Es256],
        not_before_leeway: Duration::ZERO,
    };
    let token = signer.sign(&json!({"iss": "i", "aud": "a", "exp": 1_000_000_000}));
    for (now, accepted) in [("2001-09-09T01:46:40Z", true), ("2001-09-09T01:46:41Z", false)] {
        let token = UnverifiedIdToken::parse(&token).unwrap();
        let result = verifier.verify(token, &keys, || now.parse().unwrap()).await;
        assert_eq!(result.is_ok(), accepted, "{result:?}");
    }
    provider.stop().await;
    let other = Signer::generate(Algorithm::Es256, "b").sign(&json!({}));
    let error = verifier.verify(UnverifiedIdToken::parse(&other).unwrap(), &keys, || unreachable!()).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("failed to verify signature: fetching keys oidc: get keys failed "), "{error}");
}
