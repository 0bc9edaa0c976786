//! The keys while the issuer replaces them, stops and starts again.

use std::time::Instant;

use pinniped_oidc::{REFETCH_INTERVAL, WITHDRAWN_KEY_LIFETIME};

use super::*;

#[tokio::test]
async fn concurrent_logins_with_a_new_key_cause_one_request() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let new = Signer::generate(Algorithm::Es256, "new");
    provider.issuer.publish(&key_set([&provider.es256, &new]));
    let tokens: Vec<_> =
        (0..40).map(|n| new.sign(&provider.claims(&json!({"username": format!("u{n}")})))).collect();
    let users = join_all(tokens.iter().map(|token| log_in(&authenticator, token))).await;
    for (n, user) in users.into_iter().enumerate() {
        assert_eq!(user, Ok(Some(named(&format!("u{n}"), &[]))));
    }
    let requests = provider.issuer.seen(KEYS_PATH);
    assert_eq!(requests.len(), 2, "one for the authenticator, one for the new key");
    assert_eq!(requests[1].headers["cache-control"], "no-cache");
    // The key that is still published works without another request.
    let old = provider.es256.sign(&provider.claims(&json!({})));
    assert_eq!(log_in(&authenticator, &old).await, Ok(Some(named("u", &[]))));
    assert_eq!(provider.issuer.seen(KEYS_PATH).len(), 2);
}

#[tokio::test]
async fn a_flood_of_unknown_keys_does_not_become_a_flood_of_requests() {
    let provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let foreign = Signer::generate(Algorithm::Es256, "es");
    let tokens: Vec<_> = (0..500)
        .map(|n| {
            let header = json!({"alg": "ES256", "kid": format!("unknown-{n}")}).to_string();
            foreign.sign_text(&header, &provider.claims(&json!({})).to_string())
        })
        .collect();
    let start = Instant::now();
    let results = join_all(tokens.iter().map(|token| log_in(&authenticator, token))).await;
    let intervals = start.elapsed().as_nanos() / REFETCH_INTERVAL.as_nanos();
    let wanted = |reason: &str| Err(format!("oidc: verify token: failed to verify signature: {reason}"));
    let (waited, refused) = results.split_at(KEY_WAIT_LIMITS.max_callers);
    assert!(waited.iter().all(|result| *result == wanted("failed to verify id token signature")));
    let too_many = wanted("fetching keys: too many tokens with unknown keys wait for the issuer");
    assert!(refused.iter().all(|result| *result == too_many));
    let requests = provider.issuer.seen(KEYS_PATH).len() as u128;
    // One for the authenticator, one for the first token, and one per interval on a busy machine.
    assert!(requests <= 3 + intervals, "{requests} requests for 500 tokens in {intervals} intervals");
}

#[tokio::test]
async fn known_keys_work_while_the_issuer_does_not_respond() {
    let mut provider = Provider::start().await;
    let authenticator = provider.authenticator().await;
    let user = Ok(Some(named("u", &[])));
    let known = provider.es256.sign(&provider.claims(&json!({})));
    let new = Signer::generate(Algorithm::Es256, "new");
    let unknown = new.sign(&provider.claims(&json!({})));

    provider.issuer.stop().await;
    assert_eq!(log_in(&authenticator, &known).await, user);
    let error = log_in(&authenticator, &unknown).await.unwrap_err();
    let wanted = format!(
        "oidc: verify token: failed to verify signature: fetching keys oidc: get keys failed Get \"{}{KEYS_PATH}\": \
         dial tcp ",
        provider.issuer.url()
    );
    assert!(error.starts_with(&wanted) && error.ends_with("connect: connection refused"), "{error}");
    let keys = authenticator.signing_keys().unwrap();
    assert!(keys.status().failure.is_some());
    assert_eq!(log_in(&authenticator, &known).await, user);

    for reply in [
        Reply::not_found(),
        Reply::Full(http::StatusCode::OK, "text/html", "<html>".to_owned()),
        Reply::Endless,
        Reply::Redirect("http://127.0.0.1/keys".to_owned()),
    ] {
        provider.issuer.reply(KEYS_PATH, reply.clone());
        provider.issuer.restart().await.unwrap();
        let error = log_in(&authenticator, &unknown).await.unwrap_err();
        assert!(error.contains("fetching keys oidc: "), "{reply:?} {error}");
        assert_eq!(log_in(&authenticator, &known).await, user, "{reply:?}");
    }

    provider.issuer.publish(&key_set([&provider.es256, &new]));
    assert_eq!(log_in(&authenticator, &unknown).await, user);
    assert!(keys.status().failure.is_none());
}

#[tokio::test]
async fn logins_with_unknown_keys_are_short_and_few_while_the_issuer_hangs() {
    let provider = Provider::start().await;
    let authenticator = provider.validate(json!({})).await.unwrap();
    provider.issuer.reply(KEYS_PATH, Reply::Never);
    let known = provider.es256.sign(&provider.claims(&json!({})));
    let invented = Signer::generate(Algorithm::Es256, "invented").sign(&provider.claims(&json!({})));
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    let results = join_all((0..100).map(|_| log_in(&authenticator, &invented)));
    let (results, login) = tokio::join!(results, log_in(&authenticator, &known));
    let waited = start.elapsed();
    tokio::time::resume();
    assert_eq!(login, Ok(Some(named("u", &[]))));
    let failed = |text: &str| {
        results.iter().filter(|result| result.as_ref().is_err_and(|e| e.ends_with(text))).count()
    };
    assert_eq!(failed("fetching keys context deadline exceeded"), KEY_WAIT_LIMITS.max_callers);
    assert_eq!(failed("wait for the issuer"), 100 - KEY_WAIT_LIMITS.max_callers);
    assert!(waited < KEY_WAIT_LIMITS.max_wait * 2, "{waited:?}");
}

/// The keys of an issuer that replaces them: the two newest ones are published.
struct Rotating {
    provider: Provider,
    keys: Vec<Signer>,
}

impl Rotating {
    fn rotate(&mut self) {
        self.keys.push(Signer::generate(Algorithm::Es256, &format!("key-{}", self.keys.len())));
        self.provider.issuer.publish(&key_set(self.keys.iter().rev().take(2)));
    }

    /// Returns one hundred tokens, signed with every key that was ever published, the oldest first.
    /// Every fifth is signed with a key that was never published; it has the ID of a published, of
    /// a withdrawn, or of no key.
    fn tokens(&self, round: usize, forger: &Signer) -> Vec<(String, Option<User>)> {
        (0..100)
            .map(|n| {
                let name = format!("user-{round}-{n}");
                let claims = self.provider.claims(&json!({"username": name, "groups": [format!("g{n}")]}));
                let signer = &self.keys[n % self.keys.len()];
                if n % 5 == 0 {
                    let id = if n % 20 == 0 { forger.id() } else { signer.id() };
                    let header = json!({"alg": "ES256", "kid": id}).to_string();
                    return (forger.sign_text(&header, &claims.to_string()), None);
                }
                (signer.sign(&claims), Some(named(&name, &[&format!("g{n}")])))
            })
            .collect()
    }

    /// Logs in with [`Rotating::tokens`] at once, and compares the users.
    async fn log_in_with_all_keys(&self, authenticator: &JwtAuthenticator, round: usize, forger: &Signer) {
        let tokens = self.tokens(round, forger);
        let results = join_all(tokens.iter().map(|(token, _)| log_in(authenticator, token))).await;
        for ((_, wanted), result) in tokens.iter().zip(results) {
            match wanted {
                Some(_) => assert_eq!(result.as_ref(), Ok(wanted), "round {round}"),
                None => assert!(result.is_err(), "round {round}: a forged token gave {result:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_thousand_logins_while_the_issuer_rotates_its_keys_and_restarts() {
    let mut rotating = Rotating { provider: Provider::start().await, keys: Vec::new() };
    rotating.rotate();
    let authenticator = rotating.provider.authenticator().await;
    let forger = Signer::generate(Algorithm::Es256, "forger");
    for round in 0..10 {
        rotating.rotate();
        // One login makes the new key known.
        let newest = rotating.keys.last().unwrap().sign(&rotating.provider.claims(&json!({})));
        assert_eq!(log_in(&authenticator, &newest).await, Ok(Some(named("u", &[]))), "round {round}");
        if round % 3 == 1 {
            rotating.provider.issuer.stop().await;
        }
        rotating.log_in_with_all_keys(&authenticator, round, &forger).await;
        if round % 3 == 1 {
            rotating.provider.issuer.restart().await.unwrap();
        }
    }
    assert_eq!(rotating.keys.len(), 11, "of these, two are published");

    // Withdrawn keys are accepted for a limited time only.
    tokio::time::pause();
    tokio::time::advance(WITHDRAWN_KEY_LIFETIME).await;
    tokio::time::resume();
    let claims = rotating.provider.claims(&json!({}));
    let tokens: Vec<_> = rotating.keys.iter().map(|key| key.sign(&claims)).collect();
    let results = join_all(tokens.iter().map(|token| log_in(&authenticator, token))).await;
    let accepted: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [false, false, false, false, false, false, false, false, false, true, true]);
}

#[tokio::test]
async fn an_authenticator_that_is_built_again_does_not_know_withdrawn_keys() {
    let mut rotating = Rotating { provider: Provider::start().await, keys: Vec::new() };
    rotating.rotate();
    let authenticator = rotating.provider.authenticator().await;
    let stolen = rotating.keys[0].sign(&rotating.provider.claims(&json!({})));
    rotating.rotate();
    rotating.rotate();
    authenticator.signing_keys().unwrap().fetch().await.unwrap();
    assert_eq!(log_in(&authenticator, &stolen).await, Ok(Some(named("u", &[]))));
    let authenticator = rotating.provider.authenticator().await;
    let error = log_in(&authenticator, &stolen).await.unwrap_err();
    assert!(error.ends_with("failed to verify id token signature"), "{error}");
}
