//! Logins of people at real identity providers, in a real browser, with a minimal client.

use std::time::Duration;

use anyhow::Context as _;
use pinniped_test_support::browser::{Browser, Programs};
use pinniped_test_support::identity_provider::{CLIENT_ID, Endpoint, IdentityProvider, Kind, PINNY};
use pinniped_test_support::wait;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Verifier and challenge of PKCE, from RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// Serves the redirect URI until a request has a code, and returns the code. A browser may open
/// connections in advance and send nothing on them, so each connection has its own task.
async fn receive_code(listener: &TcpListener) -> anyhow::Result<String> {
    let (sender, mut codes) = tokio::sync::mpsc::channel(1);
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.context("could not accept")?;
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(Some(code)) = serve_redirect(stream).await {
                    // Only the first code is received.
                    let _ignored = sender.send(code).await;
                }
            });
        }
    };
    tokio::select! {
        code = codes.recv() => code.context("no code"),
        error = serve => error,
    }
}

/// Responds to one request and returns the code in its URI.
async fn serve_redirect(mut stream: TcpStream) -> anyhow::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut head).await? > 0, "no request");
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone").await?;
    let head = String::from_utf8(head)?;
    Ok(head.split(['?', '&', ' ']).find_map(|part| part.strip_prefix("code=")).map(str::to_owned))
}

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
    // The page of a login that failed never leads to the listener, so its error ends both.
    let (code, ()) = tokio::try_join!(receive_code(&listener), provider.log_in(browser, &PINNY))?;
    let form = [
        ("grant_type", "authorization_code"),
        ("code", &code),
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

#[tokio::test]
async fn a_connection_without_a_request_does_not_delay_the_code() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let _idle = TcpStream::connect(address).await.unwrap();
    let browser = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /callback?state=x&code=abc HTTP/1.1\r\n\r\n").await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        anyhow::Ok(response)
    };
    let received = async { tokio::try_join!(receive_code(&listener), browser) };
    let (code, response) = tokio::time::timeout(Duration::from_secs(30), received).await.unwrap().unwrap();
    assert_eq!(code, "abc");
    assert!(response.ends_with("done"), "{response}");
}
