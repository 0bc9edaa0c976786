//! Logins of people at real identity providers, in a real browser, with a minimal client.

use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::browser::{Browser, Programs};
use pinniped_test_support::identity_provider::{CLIENT_ID, Endpoint, IdentityProvider, Kind, PINNY};
use pinniped_test_support::wait;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Verifier and challenge of PKCE, from RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Logs in with the authorization code flow and returns the response of the token endpoint.
async fn log_in(provider: &IdentityProvider, browser: &Browser) -> anyhow::Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let redirect = format!("http://127.0.0.1:{}/callback", listener.local_addr()?.port());
    let discovery = provider.discovery().await?;
    let endpoint = discovery["authorization_endpoint"].as_str().context("no authorization endpoint")?;
    let scope = provider.scopes().replace(',', "%20");
    browser
        .open(&format!(
            "{endpoint}?response_type=code&client_id={CLIENT_ID}&redirect_uri={redirect}&scope={scope}&state=x\
             &code_challenge={CHALLENGE}&code_challenge_method=S256&prompt=consent"
        ))
        .await?;
    let receive = async {
        let (mut stream, _) = listener.accept().await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            anyhow::ensure!(stream.read_buf(&mut head).await? > 0, "no request");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone").await?;
        let head = String::from_utf8(head)?;
        let code = head.split(['?', '&', ' ']).find_map(|part| part.strip_prefix("code="));
        code.map(str::to_owned).with_context(|| format!("no code: {head}"))
    };
    let (code, left) = tokio::join!(receive, provider.log_in(browser, &PINNY));
    left?;
    let form = [
        ("grant_type", "authorization_code"),
        ("code", &code?),
        ("redirect_uri", &redirect),
        ("client_id", CLIENT_ID),
        ("code_verifier", VERIFIER),
    ];
    provider.post("token_endpoint", &form).await
}

async fn tokens_from(kind: Kind, test: &str) {
    let Some(programs) = kind.for_test(test) else { return };
    let Some(browser) = Programs::for_test(test) else { return };
    let provider = IdentityProvider::start(kind, &programs, Endpoint::loopback().unwrap()).await.unwrap();
    let browser = Browser::start(&browser).await.unwrap();
    let tokens = log_in(&provider, &browser).await.unwrap();
    assert_eq!(browser.text().await.unwrap(), "done");
    assert!(tokens["id_token"].is_string() && tokens["refresh_token"].is_string(), "{tokens}");
    provider.kill().unwrap();
    wait::until(Duration::from_secs(10), "the provider to be gone", async || {
        provider.discovery().await.err()
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_person_logs_in_at_oidc_provider_in_a_browser() {
    tokens_from(Kind::OidcProvider, "a login at oidc-provider").await;
}
